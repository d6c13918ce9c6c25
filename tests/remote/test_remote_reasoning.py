"""engine.remote.events: reasoning in a field of its own, inline, or both."""

import math
import time

import pytest
from fakes.server_streams import HI, Json, call, chunk, in_order, shown, stream, whole

from engine import remote
from engine.support.errors import RemoteError, RequestError
from engine.types.events import ContentDelta, Event, Finished, ReasoningDelta


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_in_a_field_of_its_own(field: str) -> None:
    events = in_order(remote.events(stream({field: "Let me"}, {field: " see.\n"}, {"content": "Hi"}, {"content": "!"})))
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
    events = list(remote.events(stream({"content": "<thi"}, {"content": "nk>a"}, {"content": "b</think>"}, HI)))
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
        pytest.param(
            [
                {"reasoning_content": "abc d"},
                *({"content": text} for text in ("<think>\na", "b", "c d\n</think>\n\nHi")),
            ],
            id="one of them in pieces",
        ),
    ],
)
def test_reasoning_sent_twice_is_one_copy(deltas: list[Json]) -> None:
    found = shown(whole(*deltas))
    assert [(kind, " ".join(text.split())) for kind, text in found] == [("reasoning", "abc d"), ("text", "Hi")]


@pytest.mark.parametrize("first", [{"reasoning_content": ""}, {"content": "<think>"}], ids=["separate", "inline"])
def test_long_reasoning_costs_no_more_per_piece(first: Json) -> None:
    """Pieces of a page, so that copying all earlier ones for each would take most of the time."""

    def seconds(count: int) -> float:
        (name,) = first
        deltas = [first, *({name: "wind and rain " * 200} for _ in range(count))]
        best = math.inf
        for _ in range(3):
            start = time.process_time()
            for _ in remote.events(map(chunk, deltas)):
                pass
            best = min(best, time.process_time() - start)
        return best

    short, long = seconds(200), seconds(1600)
    assert long < 20 * short, f"{short:.3f} s, and {long:.3f} s for eight times as much"


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
    after = whole({"reasoning_content": "a"}, call(0, "{}", "f", "a"), {"reasoning_content": "\n"}, {"content": "b"})
    assert shown(after) == [("reasoning", "a"), ("f", "{}"), ("text", "b")]


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
    events = list(remote.events(stream({"content": "<"}, {"content": "b>bold"})))
    assert events[0] == ContentDelta("<b>bold", 0)
    assert shown(whole({"content": "<thi"})) == [("text", "<thi")]
    assert shown(whole({"content": "<thi"}, finish="length")) == [], "a tag that the limit cut off"


def test_content_in_a_family_s_own_markup() -> None:
    text = '<think>\nI call.\n</think>\n\nNow.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    found = whole({"content": text[:40]}, {"content": text[40:]}, family="qwen3")
    assert shown(found) == [("reasoning", "I call."), ("text", "Now."), ("f", '{"a": 1}')]
    assert found.finish_reason == "tool_calls"
    assert found.tool_calls[0].id


def test_reasoning_of_a_family_that_has_none_in_its_content() -> None:
    with pytest.raises(RequestError, match="no reasoning in its content"):
        remote.events([], family="content-only", in_reasoning=True)


def test_tags_that_can_no_longer_be_a_copy_are_let_go_at_once() -> None:
    deltas = {"reasoning_content": "ab"}, {"content": "<think>abc"}, {"reasoning_content": "x"}
    found: list[Event] = []
    with pytest.raises(RemoteError):
        found.extend(remote.events([*map(chunk, deltas), {"error": "stop here"}]))
    assert found == [ReasoningDelta("ab", 0), ReasoningDelta("x", 0), ContentDelta("<think>abc", 1)]
