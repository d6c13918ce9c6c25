"""engine.remote.events: each of llama.cpp's reasoning formats, however the stream is handed over."""

from collections.abc import AsyncIterator, Callable, Iterable

import pytest
from fakes.server_streams import Json, call, in_order, shown, sse, stream

from engine import remote
from engine.types.events import ContentDelta, Event, ReasoningDelta, ToolCallStart, fold

REASONING, ANSWER, ARGUMENTS = "First, I look.\n\nThen I call.", "I call it now.", '{"city": "Paris", "days": 2}'
CALL = [call(0, "", "get_weather", "call_1"), call(0, ARGUMENTS[:9]), call(0, ARGUMENTS[9:])]


def spread(field: str, text: str, size: int = 5) -> list[Json]:
    return [{field: text[at : at + size]} for at in range(0, len(text), size)]


def both(reasoning: str, answer: str) -> list[Json]:
    """As `deepseek-legacy` streams: the field, and the tags in the content, chunk beside chunk."""
    opened = [{"content": "<think>", "reasoning_content": ""}]
    beside = [
        {"reasoning_content": field["reasoning_content"], "content": copy["content"]}
        for field, copy in zip(spread("reasoning_content", reasoning), spread("content", reasoning), strict=True)
    ]
    return [*opened, *beside, *spread("content", f"</think>{answer}")]


FORMATS: dict[str, list[Json]] = {
    "deepseek": [*spread("reasoning_content", REASONING), *spread("content", ANSWER)],
    "none": spread("content", f"<think>{REASONING}</think>{ANSWER}"),
    "deepseek-legacy": both(REASONING, ANSWER),
}


def dictionaries(chunks: list[Json]) -> Iterable[object]:
    return chunks


def sdk_objects(chunks: list[Json]) -> Iterable[object]:
    types = pytest.importorskip("openai.types.chat")
    return [types.ChatCompletionChunk.model_validate(item) for item in chunks]


def lines(chunks: list[Json]) -> Iterable[object]:
    return sse(chunks).split("\n")


def byte_lines(chunks: list[Json]) -> Iterable[object]:
    return [line.encode() + b"\n" for line in sse(chunks).split("\n")]


def blocks(chunks: list[Json]) -> Iterable[object]:
    whole = sse(chunks, "\r\n").encode()
    return [whole[at : at + 17] for at in range(0, len(whole), 17)]


WAYS = [dictionaries, sdk_objects, lines, byte_lines, blocks]
each_format = pytest.mark.parametrize("format_", FORMATS)
each_way = pytest.mark.parametrize("way", WAYS)
Way = Callable[[list[Json]], Iterable[object]]


async def later(items: Iterable[object]) -> AsyncIterator[object]:
    for item in items:
        yield item


def check(events: list[Event]) -> None:
    """One copy of the reasoning, ended before the content begins, and that before the call."""
    completion = fold(in_order(events))
    assert shown(completion) == [("reasoning", REASONING), ("text", ANSWER), ("get_weather", ARGUMENTS)]
    assert completion.finish_reason == "tool_calls"
    places = [type(event) for event in events if isinstance(event, ReasoningDelta | ContentDelta | ToolCallStart)]
    assert places == sorted(places, key=[ReasoningDelta, ContentDelta, ToolCallStart].index)


@each_format
@each_way
def test_reasoning_is_found_however_the_stream_comes(format_: str, way: Way) -> None:
    check(list(remote.events(way(stream(*FORMATS[format_], *CALL, finish="tool_calls")))))


@each_format
@each_way
async def test_the_same_from_an_async_stream(format_: str, way: Way) -> None:
    chunks = way(stream(*FORMATS[format_], *CALL, finish="tool_calls"))
    check([event async for event in remote.events(later(chunks))])


@each_format
def test_reasoning_streams_as_it_comes(format_: str) -> None:
    """Each chunk's reasoning is out when the chunk is read, but for a tag's beginning and white space."""
    seen: list[Json] = []
    out = 0
    for event in remote.events(later_than(stream(*FORMATS[format_]), seen)):
        if isinstance(event, ReasoningDelta):
            out += len(event.text)
            came = sum(len(delta.get("reasoning_content") or delta.get("content") or "") for delta in seen)
            assert came - out <= len("<think>") + 2 * 5
    assert out == len(REASONING)


def later_than(chunks: list[Json], seen: list[Json]) -> Iterable[Json]:
    """The chunks, each of them noted when it is read."""
    for item in chunks:
        seen.append(item["choices"][0]["delta"])
        yield item


@each_format
@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_stream_that_breaks_off_is_an_error_and_keeps_what_came(format_: str, cut: int) -> None:
    chunks = stream(*FORMATS[format_], *CALL, finish=None)[:cut]
    completion = fold(in_order(remote.events(chunks)))
    assert completion.finish_reason == "error"
    assert REASONING.startswith(completion.reasoning.rstrip("<"))
    for part in completion.tool_calls:
        assert part.error == "truncated" or part.arguments == ARGUMENTS
