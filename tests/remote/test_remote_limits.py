"""engine.remote against a server that never ends: what a line and a turn may cost is bounded, however they are cut."""

import asyncio
import json
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import repeat
from typing import Any

import pytest
from fakes.server_streams import Json, call, chunk

from engine import remote
from engine.remote import chunks, wire
from engine.support.errors import RemoteError, RequestError

LONGEST = 50_000
PIECES = {
    "a text": "x" * 1000,
    "quotes": '"' * 1000,
    "closing braces": "}" * 1000,
    "objects": "{}" * 500,
    "escapes": "\\" * 999,
    "an open object": '{"a": ' * 100,
    "one character": "}",
}


class Counting:
    """Counts the characters that are parsed."""

    def __init__(self) -> None:
        self.parsed = 0

    def loads(self, text: str) -> Any:
        self.parsed += len(text)
        return json.loads(text)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    found = Counting()
    monkeypatch.setattr(wire, "json", found)
    monkeypatch.setattr(wire, "_LONGEST", LONGEST)
    return found


@pytest.mark.parametrize("begin", ["", "data: ", 'data: {"choices": "', ": comment\ndata: {", "\n", "\r"])
@pytest.mark.parametrize("kind", PIECES)
def test_a_line_without_end(kind: str, begin: str, counting: Counting) -> None:
    """It ends in an error at a most of characters, and none of it is parsed again with each piece."""
    read = 0

    def pieces() -> Iterator[str]:
        nonlocal read
        yield begin
        for piece in repeat(PIECES[kind]):
            read += len(piece)
            yield piece

    with pytest.raises(RemoteError, match="line of more than"):
        remote.events(pieces()).result()
    assert read <= LONGEST + 1000
    assert counting.parsed <= 3 * read


@pytest.mark.filterwarnings("ignore::engine.support.errors.MalformedEventWarning")
def test_lines_that_together_are_no_event(counting: Counting) -> None:
    line = 'data: {"a": ' + "1" * 10_000 + "\n"
    turn = remote.events(line for _ in range(200))
    turn.result()
    assert turn.malformed > 10
    assert counting.parsed <= 20 * 200 * len(line)


def test_a_line_as_long_as_an_answer_is_read() -> None:
    """However it is cut."""
    content = 'a "quoted" \\ {brace} ' * 20_000
    text = f"data: {json.dumps(chunk({'content': content}))}"
    for end in ("", "\n\n"):
        pieces = [(text + end)[start : start + 997] for start in range(0, len(text + end), 997)]
        assert remote.events([*pieces, "data: [DONE]"]).result().content == content


def test_more_events_than_any_answer_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_MOST_PIECES", 100)
    with pytest.raises(RemoteError, match="more than 100 pieces"):
        remote.events(repeat(chunk({"content": "x"}))).result()


HELD: dict[str, Callable[[int], Json]] = {
    "calls without end": lambda number: call(number, name="f", id_=str(number)),
    "arguments of a call behind an open one": lambda number: call(min(number, 1), "x", "f" if number < 2 else None),
    "text behind an open call": lambda number: {"content": "x"} if number else call(0, name="f", id_="1"),
    "nothing": lambda _: {},
}


@pytest.mark.parametrize("kind", HELD)
def test_what_waits_here_is_counted_too(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_MOST_PIECES", 100)
    read = 0

    def endless() -> Iterator[Json]:
        nonlocal read
        for number in range(10_000):
            read = number
            yield chunk(HELD[kind](number))

    with pytest.raises(RemoteError, match="more than 100 pieces"):
        remote.events(endless()).result()
    assert read <= 100


def test_few_warnings_about_a_stream_that_is_malformed_throughout() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        turn = remote.events([*[chunk({"content": 5}) for _ in range(500)], "data: [DONE]"])
        turn.result()
    assert turn.malformed == 500
    assert len(told) == 100


def slowly(kind: str, over: threading.Event) -> Iterator[object]:
    """A server that gets to no end within two seconds, in one of several ways; none of its items is late by itself."""
    if kind == "opening":
        over.wait(20)
    yield chunk({"content": "a"})
    for _ in range(1 if kind == "silence" else 100):
        if over.is_set():
            break
        if kind == "items":
            yield chunk({"content": "a"})
        elif kind == "comments":
            yield b": still there\n\n"
        elif kind == "a line":
            yield b"x"
        over.wait(20 if kind == "silence" else 0.02)


@pytest.mark.parametrize("kind", ["opening", "items", "comments", "a line", "silence"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_deadline_holds_over_the_whole_response(kind: str, is_async: bool) -> None:
    over, closed = threading.Event(), threading.Event()

    def items() -> Iterator[object]:
        try:
            yield from slowly(kind, over)
        finally:
            closed.set()

    async def waited() -> AsyncIterator[object]:
        try:
            if kind == "opening":
                await asyncio.sleep(20)
            yield chunk({"content": "a"})
            for _ in range(100):
                await asyncio.sleep(20 if kind == "silence" else 0.02)
                yield b"x" if kind == "a line" else chunk({"content": "a"})
        finally:
            closed.set()

    async def read() -> None:
        _ = await remote.events(waited(), seconds=0.2)

    with pytest.raises(RemoteError, match=r"no whole answer within 0\.2 s"):
        asyncio.run(read()) if is_async else remote.events(items(), seconds=0.2).result()
    over.set()
    assert closed.wait(10)


def test_a_deadline_changes_nothing_of_what_comes_in_time() -> None:
    answer = [*[chunk({"content": str(number)}) for number in range(100)], "data: [DONE]"]
    whole = remote.events(answer).result()
    assert remote.events(answer, seconds=60).result() == whole
    with pytest.raises(ZeroDivisionError):
        remote.events((1 // number for number in range(1)), seconds=60).result()
    with pytest.raises(RequestError, match="seconds=0 is not valid"):
        remote.events(answer, seconds=0)
