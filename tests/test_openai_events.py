"""engine.openai.chat.events: what servers send, as events."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.errors import MalformedEventWarning, RemoteError, RequestError
from engine.events import ContentDelta, Event, Finished, ReasoningDelta, ToolCallDelta, ToolCallEnd, ToolCallStart, fold
from engine.openai import chat
from engine.types import Completion, ReasoningPart, TextPart, ToolCall
from tests.openai_streams import Json, call, chunk, in_order, split_delta, stream

HI = {"content": "Hi there."}


def whole(*deltas: Json, finish: str | None = "stop", **options: Any) -> Completion:
    return fold(in_order(chat.events(stream(*deltas, finish=finish), **options)))


def shown(completion: Completion) -> list[tuple[str, str]]:
    """The parts in order; a call as its name and arguments."""
    return [
        (part.name, part.arguments) if isinstance(part, ToolCall) else (part.type, part.text)
        for part in completion.parts
    ]


# Reasoning


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_in_a_field_of_its_own(field: str) -> None:
    events = in_order(chat.events(stream({field: "Let me"}, {field: " see.\n"}, {"content": "Hi"}, {"content": "!"})))
    assert events == [
        ReasoningDelta("Let me", 0),
        ReasoningDelta(" see.\n", 0),
        ContentDelta("Hi", 1),
        ContentDelta("!", 1),
        Finished("stop"),
    ]


def test_reasoning_as_details_and_the_same_text_beside_them_is_one_copy() -> None:
    def delta(text: str) -> Json:
        return {"reasoning": text, "reasoning_details": [{"type": "reasoning.text", "text": text, "index": 0}]}

    assert shown(whole(delta("One, "), delta("two."), HI)) == [("reasoning", "One, two."), ("text", "Hi there.")]


def test_reasoning_details_alone_text_and_summaries_but_nothing_encrypted() -> None:
    details = [
        {"type": "reasoning.text", "text": "Aha. "},
        {"type": "reasoning.summary", "summary": "It was easy."},
        {"type": "reasoning.encrypted", "data": "xyz"},
    ]
    assert shown(whole({"reasoning_details": details}, HI)) == [
        ("reasoning", "Aha. It was easy."),
        ("text", "Hi there."),
    ]


def test_content_in_parts_some_of_them_reasoning() -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    assert shown(whole({"content": [thinking]}, {"content": [{"type": "text", "text": "Ye"}, "s."]})) == [
        ("reasoning", "Hm."),
        ("text", "Yes."),
    ]


@pytest.mark.parametrize("tag", ["think", "thinking", "reasoning", "thought"])
def test_reasoning_inline_in_the_content(tag: str) -> None:
    text = f"<{tag}>\nLet me see.\n</{tag}>\n\nHi  there. "
    assert shown(whole({"content": text})) == [("reasoning", "Let me see."), ("text", "Hi  there. ")]


def test_inline_reasoning_streams() -> None:
    events = list(chat.events(stream({"content": "<thi"}, {"content": "nk>a"}, {"content": "b</think>"}, HI)))
    assert events[:2] == [ReasoningDelta("a", 0), ReasoningDelta("b", 0)]


def test_tags_after_other_text_are_text() -> None:
    text = "The tag <think>x</think> opens reasoning.</think>"
    assert shown(whole({"content": text})) == [("text", text)]


def test_reasoning_that_the_prompt_opened_has_no_opening_tag() -> None:
    deltas = {"content": "Let me see."}, {"content": "\n</think>\n\nHi"}
    assert shown(whole(*deltas, in_reasoning=True)) == [("reasoning", "Let me see."), ("text", "Hi")]
    assert shown(whole(*deltas)) == [("text", "Let me see.\n</think>\n\nHi")]


def test_a_closing_tag_left_over_by_the_server_is_no_content() -> None:
    assert shown(whole({"reasoning_content": "Hm."}, {"content": "</think>\n\nYes"})) == [
        ("reasoning", "Hm."),
        ("text", "Yes"),
    ]


@pytest.mark.parametrize(
    "deltas",
    [
        pytest.param([{"reasoning_content": "abc d"}, {"content": "<think>\nabc d\n</think>\n\nHi"}], id="field first"),
        pytest.param(
            [{"reasoning_content": "abc\n"}, {"reasoning_content": " d\n"}, {"content": "<think>abc\n d</think>Hi"}],
            id="white space at the end of one only",
        ),
        pytest.param(
            [
                {"reasoning_content": "abc", "content": "<think>\nabc"},
                {"reasoning_content": " d", "content": " d\n</think>\n\n"},
                {"content": "Hi"},
            ],
            id="at once",
        ),
        pytest.param(
            [{"content": "<think>\nabc"}, {"reasoning_content": "abc d"}, {"content": " d\n</think>\n\nHi"}],
            id="content first, then overtaken",
        ),
        pytest.param([{"content": "<think>\nabc d\n</think>\n\nHi"}, {"reasoning_content": "abc d"}], id="field last"),
        pytest.param(
            [{"reasoning_content": "abc"}, {"content": "<think>\nabc d\n</think>\n\nHi"}, {"reasoning_content": " d"}],
            id="content ahead of the field",
        ),
    ],
)
def test_reasoning_sent_twice_is_one_copy(deltas: list[Json]) -> None:
    found = shown(whole(*deltas))
    assert [(kind, " ".join(text.split())) for kind, text in found] == [("reasoning", "abc d"), ("text", "Hi")]


def test_a_copy_without_an_answer_is_a_copy() -> None:
    assert shown(whole({"reasoning_content": "abc"}, {"content": "<think>\nabc\n"}, finish="length")) == [
        ("reasoning", "abc")
    ]
    assert shown(whole({"reasoning_content": "abc"}, {"content": "<think>abc</think>"}, call(0, "{}", "f", "a"))) == [
        ("reasoning", "abc"),
        ("f", "{}"),
    ]


@pytest.mark.parametrize("quoted", ["<think>other</think>Hi", "<think>ab</think>Hi", "<think>abcd</thi", "<think> x"])
def test_tags_that_are_no_copy_of_separate_reasoning_are_content(quoted: str) -> None:
    separate = {"reasoning_content": "abc"}
    if quoted == "<think>abcd</thi":  # goes on where the field ends: the copy is longer, and nothing of it is lost
        assert shown(whole(separate, {"content": quoted})) == [("reasoning", "abcd</thi")]
    else:
        assert shown(whole(separate, {"content": quoted})) == [("reasoning", "abc"), ("text", quoted)]


def test_separate_reasoning_that_goes_on_otherwise_than_the_tags_is_kept() -> None:
    found = whole({"reasoning_content": "ab"}, {"content": "<think>abc"}, {"reasoning_content": "x"}, HI)
    assert found.reasoning == "abx"
    assert found.content == "<think>abcHi there."
    overtaken = whole({"content": "<think>ab"}, {"reasoning_content": "abx"}, {"content": "c</think>Hi"})
    assert shown(overtaken) == [("reasoning", "abxc"), ("text", "Hi")]
    late = whole({"content": "<think>abc</think>Hi"}, {"reasoning_content": "a different thought"})
    assert shown(late) == [("reasoning", "abc"), ("text", "Hi"), ("reasoning", "a different thought")]


def test_blank_reasoning_is_none_and_does_not_hide_the_tags() -> None:
    assert shown(whole({"reasoning_content": "\n"}, {"content": "<think>a</think>b"})) == [
        ("reasoning", "a"),
        ("text", "b"),
    ]
    assert shown(whole({"reasoning_content": ""}, {"reasoning_content": "\n\n"}, HI)) == [("text", "Hi there.")]
    after = whole({"reasoning_content": "a"}, call(0, "{}", "f", "a"), {"reasoning_content": "\n"})
    assert shown(after) == [("reasoning", "a"), ("f", "{}")]


def test_empty_tags_are_no_reasoning() -> None:
    assert shown(whole({"content": "<think>\n\n</think>\n\nHi"})) == [("text", "Hi")]
    assert shown(whole({"reasoning_content": "abc"}, {"content": "<think>\n\n</think>\n\nHi"})) == [
        ("reasoning", "abc"),
        ("text", "Hi"),
    ]


def test_content_is_exact_white_space_included() -> None:
    assert shown(whole({"content": "\n\n a"}, {"content": " \n"}, {"content": "b \n"})) == [("text", "\n\n a \nb \n")]
    assert shown(whole({"content": "\n"})) == [("text", "\n")]


def test_content_that_could_be_a_tag_is_let_go_when_it_is_none() -> None:
    events = list(chat.events(stream({"content": "<"}, {"content": "b>bold"})))
    assert events[0] == ContentDelta("<b>bold", 0)
    assert shown(whole({"content": "<thi"}, finish="length")) == [("text", "<thi")]


def test_content_in_a_family_s_own_markup() -> None:
    text = '<think>\nI call.\n</think>\n\nNow.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    found = whole({"content": text[:40]}, {"content": text[40:]}, family="qwen3")
    assert shown(found) == [("reasoning", "I call."), ("text", "Now."), ("f", '{"a": 1}')]
    assert found.finish_reason == "tool_calls"
    assert found.tool_calls[0].id


def test_reasoning_of_a_family_that_has_none_in_its_content() -> None:
    with pytest.raises(RequestError, match="no reasoning in its content"):
        chat.events([], family="content-only", in_reasoning=True)


# Calls


def test_a_call_streams() -> None:
    deltas = [call(0, "", "get_weather", "call_1"), call(0, '{"city":'), call(0, ' "Paris"}')]
    assert in_order(chat.events(stream(*deltas, finish="tool_calls"))) == [
        ToolCallStart(0, "call_1", "get_weather", 0),
        ToolCallDelta(0, '{"city":', 0),
        ToolCallDelta(0, ' "Paris"}', 0),
        ToolCallEnd(0, '{"city": "Paris"}', None, 0),
        Finished("tool_calls"),
    ]


def test_reasoning_and_content_end_before_a_call_begins() -> None:
    found = whole({"reasoning_content": "r"}, {"content": "c\n"}, call(0, "{}", "f", "a"), finish="tool_calls")
    assert shown(found) == [("reasoning", "r"), ("text", "c\n"), ("f", "{}")]


def test_content_held_back_comes_before_the_call() -> None:
    assert shown(whole({"content": "<thi"}, call(0, "{}", "f", "a"))) == [("text", "<thi"), ("f", "{}")]


def test_calls_interleaved_by_index_come_one_after_the_other() -> None:
    deltas = [
        call(0, "", "f", "a"),
        call(1, "", "g", "b"),
        call(1, '{"y":'),
        call(0, '{"x"'),
        call(1, " 2}"),
        call(0, ": 1}"),
    ]
    assert shown(whole(*deltas)) == [("f", '{"x": 1}'), ("g", '{"y": 2}')]


def test_a_later_call_does_not_wait_longer_than_it_must() -> None:
    def seen(*deltas: Json) -> list[Event]:
        """What has come out when the last delta is read."""
        events = chat.events([*map(chunk, deltas), {"error": "stop here"}])
        found: list[Event] = []
        with pytest.raises(RemoteError):
            found.extend(events)
        return found

    first = [call(0, "", "f", "a"), call(0, '{"x": {}}')]
    assert ToolCallEnd(0, '{"x": {}}', None, 0) not in seen(*first)
    assert seen(*first, call(1, '{"y', "g", "b"))[-2:] == [ToolCallStart(1, "b", "g", 1), ToolCallDelta(1, '{"y', 1)]
    assert seen(*first, HI)[-1] == ContentDelta("Hi there.", 1)


def test_text_after_a_call_keeps_its_place() -> None:
    deltas = [call(0, "{}", "f", "a"), {"content": "and"}, {"reasoning_content": "hm"}, call(1, "{}", "g", "b")]
    assert shown(whole(*deltas)) == [("f", "{}"), ("text", "and"), ("reasoning", "hm"), ("g", "{}")]


def test_white_space_around_arguments_is_no_part_of_them() -> None:
    deltas = [call(0, " \n", "f", "a"), call(0, '{"x": 1}'), call(0, "\n"), call(1, "{}", "g", "b")]
    assert shown(whole(*deltas)) == [("f", '{"x": 1}'), ("g", "{}")]


@pytest.mark.parametrize("arguments", ["", None, "null"])
def test_no_arguments_are_an_empty_object(arguments: str | None) -> None:
    found = whole(call(0, arguments, "ping", "a"), finish="tool_calls")
    assert found.tool_calls == (ToolCall(id="a", name="ping", arguments="{}"),)


def test_a_name_in_pieces_and_a_header_repeated() -> None:
    split = [call(0, None, "get_", "a"), call(0, None, "weather"), call(0, "{}")]
    assert shown(whole(*split)) == [("get_weather", "{}")]
    repeated = [call(0, "", "f", "a"), call(0, "", "f", "a"), call(0, '{"x"', "f", "a"), call(0, ": 1}", "f", "a")]
    assert shown(whole(*repeated)) == [("f", '{"x": 1}')]


def test_an_id_late_or_missing() -> None:
    late = in_order(chat.events(stream(call(0, "{", "f"), call(0, "}", id_="late"))))
    assert late[0] == ToolCallStart(0, "", "f", 0)
    assert fold(late).tool_calls[0].id == "late"
    before = whole(call(0, None, "f"), call(0, None, id_="soon"), call(0, "{}"))
    assert before.tool_calls[0].id == "soon"
    missing = whole(call(0, "{}", "f"), call(1, "{}", "f"))
    ids = [item.id for item in missing.tool_calls]
    assert all(ids)
    assert len(set(ids)) == 2
    assert ids == [item.id for item in whole(call(0, "{}", "f"), call(1, "{}", "f")).tool_calls]


def test_made_ids_differ_from_response_to_response() -> None:
    def made(**more: str) -> str:
        chunks = [{**item, **more} for item in stream(call(0, "{}", "f"))]
        return fold(chat.events(chunks)).tool_calls[0].id

    assert made(id="one") == made(id="one") != made(id="two")
    assert made(id="") != made(id="")


def test_one_id_for_two_calls_is_given_once() -> None:
    found = whole(call(0, "{}", "f", "same"), call(1, "{}", "g", "same"))
    first, second = (item.id for item in found.tool_calls)
    assert first == "same" != second != ""


def test_servers_that_number_every_call_alike() -> None:
    same = [call(0, '{"x": 1}', "f", "a"), call(0, '{"x": 2}', "f", "b"), call(0, "{}", "g", "c")]
    assert [item.id for item in whole(*same).tool_calls] == ["a", "b", "c"]
    none = [call(None, '{"x"', "f", "a"), call(None, ": 1}"), call(None, "{}", "g"), call(None, "{}", "g")]
    assert shown(whole(*none)) == [("f", '{"x": 1}'), ("g", "{}"), ("g", "{}")]
    by_id = [call(None, "{", "f", "a"), call(None, "{", "g", "b"), call(None, "}", id_="a"), call(None, "}", id_="b")]
    assert shown(whole(*by_id)) == [("f", "{}"), ("g", "{}")]
    renamed = [call(0, '{"x": 1}', "f"), call(0, "{}", "g")]
    assert shown(whole(*renamed)) == [("f", '{"x": 1}'), ("g", "{}")]


def test_an_id_that_changes_without_a_name_means_nothing() -> None:
    deltas = [call(0, "", "f", "a"), call(0, '{"x"', id_="b"), call(0, ": 1}", id_="c")]
    assert whole(*deltas).tool_calls == (ToolCall(id="a", name="f", arguments='{"x": 1}'),)


def test_arguments_as_an_object() -> None:
    item = {"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": "é"}}}
    assert shown(whole({"tool_calls": [item]})) == [("f", '{"x": "é"}')]


def test_the_old_function_call() -> None:
    first, second = {"name": "f", "arguments": ""}, {"arguments": '{"x": 1}'}
    found = whole({"function_call": first}, {"function_call": second}, finish="function_call")
    assert shown(found) == [("f", '{"x": 1}')]
    assert found.finish_reason == "tool_calls"


def test_a_call_with_free_text_is_malformed_and_kept() -> None:
    item = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "shell", "input": "ls -l"}}
    assert whole({"tool_calls": [item]}).tool_calls == (
        ToolCall(id="a", name="shell", arguments="ls -l", error="malformed"),
    )


@pytest.mark.parametrize(
    ("finish", "error"),
    [("length", "truncated"), (None, "truncated"), ("stop", "malformed"), ("tool_calls", "malformed")],
)
def test_arguments_that_are_not_json(finish: str | None, error: str) -> None:
    found = whole(call(0, "{}", "f", "a"), call(1, '{"x": "Par', "g", "b"), finish=finish)
    assert [(item.arguments, item.error) for item in found.tool_calls] == [("{}", None), ('{"x": "Par', error)]


def test_a_call_cut_before_its_arguments_is_truncated_and_one_after_them_is_whole() -> None:
    assert whole(call(0, "", "f", "a"), finish="length").tool_calls[0].error == "truncated"
    complete = whole(call(0, '{"x": 1}', "f", "a"), finish="length")
    assert complete.tool_calls[0].error is None
    assert complete.finish_reason == "length"


def test_the_beginning_of_a_null_that_is_none_is_malformed() -> None:
    found = whole(call(0, "n", "f", "a"), call(0, "ul"))
    assert found.tool_calls == (ToolCall(id="a", name="f", arguments="nul", error="malformed"),)


def test_more_after_the_arguments_end_is_malformed() -> None:
    assert whole(call(0, '{"x": 1}', "f", "a"), call(0, "}")).tool_calls == (
        ToolCall(id="a", name="f", arguments='{"x": 1}}', error="malformed"),
    )


def test_arguments_for_a_call_that_is_over_are_told() -> None:
    deltas = [call(0, "{}", "f", "a"), call(1, "{", "g", "b"), call(0, "\n"), call(0, "}"), call(1, "}")]
    with pytest.warns(MalformedEventWarning, match="after the end of the call of 'f'"):
        found = whole(*deltas)
    assert shown(found) == [("f", "{}"), ("g", "{}")]


def test_a_call_without_a_name() -> None:
    assert whole(call(0, "{}", id_="a")).tool_calls == (ToolCall(id="a", name="", arguments="{}", error="malformed"),)


def test_calls_are_judged_by_the_tools() -> None:
    def ping(times: int) -> None:
        """Ping."""

    deltas = [call(0, '{"times": "x"}', "ping", "a"), call(1, "{}", "pong", "b"), call(2, '{"times": 2}', "ping", "c")]
    assert [item.error for item in whole(*deltas, tools=[ping]).tool_calls] == [
        "invalid_arguments",
        "unknown_tool",
        None,
    ]
    assert [item.error for item in whole(*deltas).tool_calls] == [None, None, None]


# How it ends


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("tool_calls", "stop"),
        ("content_filter", "error"),
        ("error", "error"),
        ("abort", "cancelled"),
        (None, "error"),
    ],
)
def test_finish_reasons_of_an_answer(sent: str | None, reason: str) -> None:
    assert whole(HI, finish=sent).finish_reason == reason


def test_a_stop_after_calls_is_tool_calls() -> None:
    assert whole(call(0, "{}", "f", "a"), finish="stop").finish_reason == "tool_calls"


def test_an_unknown_reason_is_told() -> None:
    with pytest.warns(MalformedEventWarning, match="finish reason that is not known.*gone_fishing"):
        assert whole(HI, finish="gone_fishing").finish_reason == "error"


def test_an_empty_stream() -> None:
    assert list(chat.events([])) == [Finished("error")]


def test_usage_comes_in_a_chunk_without_choices() -> None:
    usage = {
        "prompt_tokens": 44,
        "completion_tokens": 48,
        "total_tokens": 92,
        "prompt_tokens_details": {"cached_tokens": 40, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 30,
            "accepted_prediction_tokens": 3,
            "rejected_prediction_tokens": 1,
        },
    }
    found = fold(chat.events([*stream(HI), {"id": "chatcmpl-7", "choices": [], "usage": usage}]))
    assert found.finish_reason == "stop"
    told = found.usage
    assert told is not None
    assert (told.prompt_tokens, told.completion_tokens, told.cached_tokens, told.reasoning_tokens) == (44, 48, 40, 30)
    assert (told.accepted_tokens, told.drafted_tokens) == (3, 4)


def test_no_usage_is_none_and_null_usage_too() -> None:
    assert fold(chat.events([{**item, "usage": None} for item in stream(HI)])).usage is None


def test_usage_at_every_chunk_is_a_total() -> None:
    chunks = [{**item, "usage": {"prompt_tokens": 5, "completion_tokens": n}} for n, item in enumerate(stream(HI))]
    told = fold(chat.events(chunks)).usage
    assert told is not None
    assert (told.prompt_tokens, told.completion_tokens) == (5, 2)


def test_timings_of_llama_server() -> None:
    timings = {"cache_n": 236, "prompt_n": 1, "prompt_ms": 30.5, "predicted_n": 35, "predicted_ms": 661.0}
    timings |= {"draft_n": 8, "draft_n_accepted": 5}
    told = fold(chat.events([*stream(HI), {"choices": [], "timings": timings}])).usage
    assert told is not None
    assert (told.prompt_tokens, told.cached_tokens, told.completion_tokens) == (237, 236, 35)
    assert (told.prefill_seconds, told.decode_seconds) == (0.0305, 0.661)
    assert (told.drafted_tokens, told.accepted_tokens) == (8, 5)


def test_numbers_that_are_none_are_left_out() -> None:
    usage = {"prompt_tokens": "many", "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": None}}
    with pytest.warns(MalformedEventWarning, match="prompt_tokens that is not a count: many"):
        told = fold(chat.events([*stream(HI), {"choices": [], "usage": usage}])).usage
    assert told is not None
    assert (told.prompt_tokens, told.completion_tokens, told.cached_tokens) == (0, 7, 0)


def test_one_of_several_choices() -> None:
    chunks = [
        chunk({"content": "a"}),
        chunk({"content": "x"}, index=1),
        chunk({"content": "b"}),
        chunk({}, "stop"),
        chunk({"content": "y"}, index=1),
        chunk({}, "length", index=1),
    ]
    assert [
        (found.content, found.finish_reason) for n in (0, 1) for found in [fold(chat.events(chunks, choice=n))]
    ] == [
        ("ab", "stop"),
        ("xy", "length"),
    ]


def test_a_refusal_is_content() -> None:
    assert shown(whole({"refusal": "I can't "}, {"refusal": "do that."})) == [("text", "I can't do that.")]


# Errors and what makes no sense


@pytest.mark.parametrize(
    ("sent", "message", "code"),
    [
        ({"error": {"code": 400, "message": "too long.", "type": "exceed_context_size_error"}}, "too long", 400),
        ({"error": "no such model"}, "no such model", None),
        ({"object": "error", "message": "bad request", "code": 40001}, "bad request", 40001),
        ({"choices": [{"index": 0, "error": {"code": 502, "message": "upstream"}}]}, "upstream", 502),
        ({"error": {"detail": "odd"}}, "'detail': 'odd'", None),
    ],
)
def test_an_error_of_the_server_is_raised(sent: Json, message: str, code: int | None) -> None:
    events = chat.events([*stream(HI, finish=None), sent])
    assert next(events) == ContentDelta("Hi there.", 0)
    with pytest.raises(RemoteError, match=message) as caught:
        list(events)
    assert caught.value.code == code


def test_a_null_error_is_none() -> None:
    assert fold(chat.events([{**item, "error": None} for item in stream(HI)])).content == "Hi there."


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        ({"ping": 1}, "without choices"),
        ({"choices": "none"}, "choices that are not a list of objects"),
        ({"choices": [3]}, "choices that are not a list of objects"),
        (chunk() | {"choices": [{"index": 0, "delta": "Hi"}]}, "delta that is not an object"),
        (chunk({"content": 5}), "content that is not text"),
        (chunk({"content": [{"type": "image_url"}]}), "part of the content"),
        (chunk({"tool_calls": {"index": 0}}), "tool_calls that are not a list"),
        (chunk({"tool_calls": [{"index": 0, "function": "f"}]}), "without a function"),
        (chunk({"tool_calls": ["f"]}), "tool_calls that are not a list of objects"),
        (chunk(usage=[1]), "usage that is not an object"),
        (chunk({"function_call": "f"}), "function_call that is not an object"),
    ],
)
def test_what_makes_no_sense_is_left_out_told_and_counted(odd: Json, what: str) -> None:
    events = chat.events([chunk({"content": "Hi"}), odd, chunk({"content": "!"}, "stop")])
    with pytest.warns(MalformedEventWarning, match=what):
        found = fold(events)
    assert (found.content, found.finish_reason, events.malformed) == ("Hi!", "stop", 1)


def test_what_is_no_stream_is_refused() -> None:
    with pytest.raises(RequestError, match="this is 3"):
        list(chat.events([3]))
    with pytest.raises(RequestError, match="no stream: hand over"):
        chat.events(3)  # pyright: ignore[reportArgumentType, reportCallIssue]

    async def create() -> None: ...

    coroutine = create()
    with pytest.raises(RequestError, match="await it first"):
        chat.events(coroutine)  # pyright: ignore[reportArgumentType, reportCallIssue]
    coroutine.close()


# Whole responses


def response(message: Json, finish: str = "stop") -> Json:
    return {"id": "chatcmpl-9", "object": "chat.completion", "choices": [{"message": message, "finish_reason": finish}]}


def test_a_whole_response() -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}},
    ]
    body = response({"role": "assistant", "content": "c", "reasoning_content": "r", "tool_calls": calls}, "tool_calls")
    body["usage"] = {"prompt_tokens": 3, "completion_tokens": 4}
    found = chat.completion(body)
    assert found.parts == (
        ReasoningPart(text="r"),
        TextPart(text="c"),
        ToolCall(id="a", name="f", arguments='{"x": 1}'),
        ToolCall(id="b", name="f", arguments="{}"),
    )
    assert found.finish_reason == "tool_calls"
    assert found.usage is not None
    assert found.usage.total_tokens == 7
    assert chat.completion(json.dumps(body)) == found


@pytest.mark.parametrize("content", ["<think>\nabc\n</think>\n\nHi", "<think>abc</think>Hi", "Hi"])
def test_a_whole_response_with_reasoning_twice(content: str) -> None:
    found = chat.completion(response({"role": "assistant", "content": content, "reasoning_content": "abc"}))
    assert (found.reasoning, found.content) == ("abc", "Hi")


def test_a_last_chunk_that_repeats_the_whole_message_is_not_read_twice() -> None:
    last = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi there."}, "finish_reason": "stop"}]
    }
    assert fold(chat.events([*stream(HI, finish=None), last])).content == "Hi there."


def test_a_stream_as_a_completion() -> None:
    assert chat.completion(stream(HI)).content == "Hi there."


class Dumps:
    """As objects of an OpenAI client are: fields that the client does not know are kept."""

    def __init__(self, fields: Json) -> None:
        self._fields = fields

    def model_dump(self) -> Json:
        return self._fields


def test_objects_of_a_client() -> None:
    chunks = [Dumps(item) for item in stream({"reasoning_content": "r"}, HI)]
    assert shown(fold(chat.events(chunks))) == [("reasoning", "r"), ("text", "Hi there.")]
    assert chat.completion(Dumps(response({"content": "Hi"}))).content == "Hi"


# Sync and async


class Source:
    """A stream that knows whether it was closed."""

    def __init__(self, chunks: list[Json]) -> None:
        self._chunks = iter(chunks)
        self.closed = 0

    def __iter__(self) -> Iterator[Json]:
        return self._chunks

    def close(self) -> None:
        self.closed += 1


def test_leaving_early_closes_the_source() -> None:
    source = Source(stream(HI, HI))
    events = chat.events(source)
    next(events)
    assert source.closed == 0
    events.close()
    assert source.closed == 1
    finished = Source(stream(HI))
    list(chat.events(finished))
    assert finished.closed == 1


def test_cancelling_ends_at_the_next_chunk() -> None:
    source = Source(stream({"content": "a"}, {"content": "b"}, call(0, '{"x', "f", "a")))
    events = chat.events(source)
    assert next(events) == ContentDelta("a", 0)
    events.cancel()
    assert list(events) == [Finished("cancelled")]
    assert source.closed == 1


def test_cancelling_before_the_first_chunk() -> None:
    source = Source(stream(HI))
    events = chat.events(source)
    events.cancel()
    assert list(events) == [Finished("cancelled")]
    assert source.closed == 1


async def later(chunks: list[Json], closed: list[bool]) -> AsyncIterator[Json]:
    try:
        for item in chunks:
            yield item
    finally:
        closed.append(True)


async def test_async_in_async_out() -> None:
    closed: list[bool] = []
    events = chat.events(later(stream({"reasoning_content": "r"}, HI), closed))
    found = [event async for event in events]
    assert found == list(chat.events(stream({"reasoning_content": "r"}, HI)))
    assert (closed, events.malformed) == ([True], 0)


async def test_leaving_an_async_stream_early_closes_its_source() -> None:
    closed: list[bool] = []
    events = chat.events(later(stream(HI, HI), closed))
    assert await anext(events) == ContentDelta("Hi there.", 0)
    await events.aclose()
    assert closed == [True]


async def test_cancelling_an_async_stream() -> None:
    closed: list[bool] = []
    events = chat.events(later(stream(HI, HI, HI), closed))
    assert await anext(events) == ContentDelta("Hi there.", 0)
    events.cancel()
    assert [event async for event in events] == [Finished("cancelled")]
    assert closed == [True]
    unread = chat.events(later(stream(HI), closed))
    unread.cancel()
    assert [event async for event in unread] == [Finished("cancelled")]


# Any chunking


TEXT = st.text(st.sampled_from('ab \n<>/think{}"é'), max_size=12)
CALLS = st.tuples(
    st.sampled_from(["f", "get_weather"]), st.sampled_from(["{}", '{"x": "a\\"b}"}', "", '{"x": [1, ', "null", "zz"])
)


@st.composite
def deltas(draw: st.DrawFn) -> list[Json]:
    """A turn: reasoning in any of the three ways, text, calls; interleaved calls too."""
    reasoning, content = draw(TEXT), draw(TEXT)
    way = draw(st.sampled_from(["separate", "inline", "both", "both, content first", "quoted"]))
    tagged = {"content": f"<think>\n{reasoning if way != 'quoted' else draw(TEXT)}\n</think>\n\n{content}"}
    separate = {"reasoning_content": reasoning}
    turn: list[Json] = {
        "separate": [separate, {"content": content}],
        "inline": [tagged],
        "both": [separate, tagged],
        "quoted": [separate, tagged],
        "both, content first": [tagged, separate],
    }[way]
    for index, (name, arguments) in enumerate(draw(st.lists(CALLS, max_size=3))):
        turn.append(call(index, arguments, name, f"call_{index}"))
        turn += draw(st.sampled_from([[], [{"content": content}]]))
    return turn


@settings(max_examples=300, deadline=None)
@given(turn=deltas(), cuts=st.lists(st.integers(1, 60), max_size=12), finish=st.sampled_from(["stop", "length", None]))
def test_any_chunking_gives_the_same_completion(turn: list[Json], cuts: list[int], finish: str | None) -> None:
    split = [part for delta in turn for part in split_delta(delta, cuts)]
    assert whole(*split, finish=finish) == whole(*turn, finish=finish)


@settings(max_examples=150, deadline=None)
@given(reasoning=TEXT.filter(str.strip), content=TEXT, data=st.data())
def test_reasoning_sent_twice_is_one_copy_at_any_pace(reasoning: str, content: str, data: st.DataObject) -> None:
    """Two copies, each in pieces of its own; which comes first at each point is drawn."""
    assume("</think" not in reasoning and not re.match(r"\s*<think>", reasoning))
    assume(not re.match(r"\s*</?think>", content))
    inline = [{"content": char} for char in f"<think>\n{reasoning}\n</think>\n\n{content}"]
    separate = [{"reasoning_content": char} for char in reasoning]
    turn: list[Json] = []
    while inline or separate:
        source = inline if not separate or (inline and data.draw(st.booleans())) else separate
        turn.append(source.pop(0))
    found = whole(*turn)
    assert found.reasoning.split() == reasoning.split()
    assert found.content.strip() == content.strip()
