"""engine.remote against a server that never ends: what a line and a turn may cost is bounded, however they are cut."""

import json
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest
from server_streams import chunk

from engine import remote
from engine.remote import chunks, wire
from engine.support.errors import RemoteError

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
    monkeypatch.setattr(chunks, "_MOST_EVENTS", 100)
    with pytest.raises(RemoteError, match="more than 100 pieces"):
        remote.events(repeat(chunk({"content": "x"}))).result()
