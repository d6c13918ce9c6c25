"""engine.remote.events: how streams end, malformed input, whole responses, any chunking."""

import json
import math
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from fakes.server_streams import HI, Json, call, chunk, shown, split_delta, stream, whole
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine import remote
from engine.support.errors import MalformedEventWarning, RemoteError, RequestError
from engine.types.events import ContentDelta, Finished, fold
from engine.types.parts import ReasoningPart, TextPart, ToolCall

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
    with pytest.warns(MalformedEventWarning, match="unknown finish reason.*gone_fishing"):
        assert whole(HI, finish="gone_fishing").finish_reason == "error"


def test_an_empty_stream() -> None:
    assert list(remote.events([])) == [Finished("error")]


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
    found = fold(remote.events([*stream(HI), {"id": "chatcmpl-7", "choices": [], "usage": usage}]))
    assert found.finish_reason == "stop"
    told = found.usage
    assert told is not None
    assert (told.prompt_tokens, told.completion_tokens, told.cached_tokens, told.reasoning_tokens) == (44, 48, 40, 30)
    assert (told.accepted_tokens, told.drafted_tokens) == (3, 4)


def test_no_usage_is_an_empty_one_and_null_usage_too() -> None:
    assert not fold(remote.events([{**item, "usage": None} for item in stream(HI)])).usage


@pytest.mark.parametrize("count", [math.inf, math.nan, -1, "5", True])
def test_a_count_that_is_none_is_left_out(count: Any) -> None:
    chunks = [{**item, "usage": {"prompt_tokens": count, "completion_tokens": 3}} for item in stream(HI)]
    with pytest.warns(MalformedEventWarning, match="prompt_tokens that is not a count"):
        told = fold(remote.events(chunks)).usage
    assert told is not None
    assert (told.prompt_tokens, told.completion_tokens) == (0, 3)


def test_usage_at_every_chunk_is_a_total() -> None:
    chunks = [{**item, "usage": {"prompt_tokens": 5, "completion_tokens": n}} for n, item in enumerate(stream(HI))]
    told = fold(remote.events(chunks)).usage
    assert told is not None
    assert (told.prompt_tokens, told.completion_tokens) == (5, 2)


def test_timings_of_llama_server() -> None:
    timings = {"cache_n": 236, "prompt_n": 1, "prompt_ms": 30.5, "predicted_n": 35, "predicted_ms": 661.0}
    timings |= {"draft_n": 8, "draft_n_accepted": 5}
    told = fold(remote.events([*stream(HI), {"choices": [], "timings": timings}])).usage
    assert told is not None
    assert (told.prompt_tokens, told.cached_tokens, told.completion_tokens) == (237, 236, 35)
    assert (told.prefill_seconds, told.decode_seconds) == (0.0305, 0.661)
    assert (told.drafted_tokens, told.accepted_tokens) == (8, 5)


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
        (found.content, found.finish_reason) for n in (0, 1) for found in [fold(remote.events(chunks, choice=n))]
    ] == [
        ("ab", "stop"),
        ("xy", "length"),
    ]


def test_a_refusal_is_content() -> None:
    assert shown(whole({"refusal": "I can't "}, {"refusal": "do that."})) == [("text", "I can't do that.")]


# Errors and malformed input


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
    events = remote.events([*stream(HI, finish=None), sent])
    assert next(events) == ContentDelta("Hi there.", 0)
    with pytest.raises(RemoteError, match=message) as caught:
        list(events)
    assert caught.value.code == code


def test_a_null_error_is_none() -> None:
    assert fold(remote.events([{**item, "error": None} for item in stream(HI)])).content == "Hi there."


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
    events = remote.events([chunk({"content": "Hi"}), odd, chunk({"content": "!"}, "stop")])
    with pytest.warns(MalformedEventWarning, match=what):
        found = fold(events)
    assert (found.content, found.finish_reason, events.malformed) == ("Hi!", "stop", 1)


def test_what_is_no_stream_is_refused() -> None:
    with pytest.raises(RequestError, match="this is 3"):
        list(remote.events([3]))
    with pytest.raises(RequestError, match="not a stream: pass"):
        remote.events(3)  # pyright: ignore[reportArgumentType, reportCallIssue]

    async def create() -> None: ...

    coroutine = create()
    with pytest.raises(RequestError, match="await it first"):
        remote.events(coroutine)  # pyright: ignore[reportArgumentType, reportCallIssue]
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
    found = remote.completion(body)
    assert found.parts == (
        ReasoningPart(text="r"),
        TextPart(text="c"),
        ToolCall(id="a", name="f", arguments='{"x": 1}'),
        ToolCall(id="b", name="f", arguments="{}"),
    )
    assert found.finish_reason == "tool_calls"
    assert found.usage
    assert found.usage.total_tokens == 7
    assert remote.completion(json.dumps(body)) == found


@pytest.mark.parametrize("content", ["<think>\nabc\n</think>\n\nHi", "<think>abc</think>Hi", "Hi"])
def test_a_whole_response_with_reasoning_twice(content: str) -> None:
    found = remote.completion(response({"role": "assistant", "content": content, "reasoning_content": "abc"}))
    assert (found.reasoning, found.content) == ("abc", "Hi")


def test_a_last_chunk_that_repeats_the_whole_message_is_not_read_twice() -> None:
    last = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi there."}, "finish_reason": "stop"}]
    }
    assert fold(remote.events([*stream(HI, finish=None), last])).content == "Hi there."


def test_a_stream_as_a_completion() -> None:
    assert remote.completion(stream(HI)).content == "Hi there."


class Dumps:
    """As objects of an OpenAI client are: fields that the client does not know are kept."""

    def __init__(self, fields: Json) -> None:
        self._fields = fields

    def model_dump(self) -> Json:
        return self._fields


def test_objects_of_a_client() -> None:
    chunks = [Dumps(item) for item in stream({"reasoning_content": "r"}, HI)]
    assert shown(fold(remote.events(chunks))) == [("reasoning", "r"), ("text", "Hi there.")]
    assert remote.completion(Dumps(response({"content": "Hi"}))).content == "Hi"


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


def test_cancelling_ends_at_the_next_chunk() -> None:
    source = Source(stream({"content": "a"}, {"content": "b"}, call(0, '{"x', "f", "a")))
    events = remote.events(source)
    assert next(events) == ContentDelta("a", 0)
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
    events = remote.events(later(stream({"reasoning_content": "r"}, HI), closed))
    found = [event async for event in events]
    assert found == list(remote.events(stream({"reasoning_content": "r"}, HI)))
    assert (closed, events.malformed) == ([True], 0)


async def test_leaving_an_async_stream_early_closes_its_source() -> None:
    closed: list[bool] = []
    events = remote.events(later(stream(HI, HI), closed))
    assert await anext(events) == ContentDelta("Hi there.", 0)
    await events.aclose()
    assert closed == [True]


async def test_cancelling_an_async_stream() -> None:
    closed: list[bool] = []
    events = remote.events(later(stream(HI, HI, HI), closed))
    assert await anext(events) == ContentDelta("Hi there.", 0)
    events.cancel()
    assert [event async for event in events] == [Finished("cancelled")]
    assert closed == [True]
    unread = remote.events(later(stream(HI), closed))
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


@settings(max_examples=150)
@given(turn=deltas(), cuts=st.lists(st.integers(1, 60), max_size=12), finish=st.sampled_from(["stop", "length", None]))
def test_any_chunking_gives_the_same_completion(turn: list[Json], cuts: list[int], finish: str | None) -> None:
    split = [part for delta in turn for part in split_delta(delta, cuts)]
    assert whole(*split, finish=finish) == whole(*turn, finish=finish)


@settings(max_examples=100)
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
