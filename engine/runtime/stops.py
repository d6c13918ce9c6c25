"""Stop strings: where they begin in the content, or in anything that the model writes.

Knows: that text which may still become a stop is held back, and no more of it; that each character is looked at a
bounded number of times, however long a stop is. Does not know: tokens, parsers.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from engine.events import ContentDelta, Event, ToolCallStart
from engine.parsing.reader import Piece

Item = TypeVar("Item")


class _Stop:
    """One stop string, looked for character by character (Knuth, Morris and Pratt: "Fast pattern matching in strings").

    `matched`: how many of its characters the text so far ends with. `_borders[n]` is the length of the longest proper
    prefix of its first `n + 1` characters that they end with; known as far as was ever matched.
    """

    __slots__ = ("_borders", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._borders = [0]

    def follow(self, character: str) -> bool:
        """One more character; whether the stop is complete with it."""
        self.matched = self._longer(self.matched, character)
        while len(self._borders) < self.matched:
            self._borders.append(self._longer(self._borders[-1], self.text[len(self._borders)]))
        return self.matched == len(self.text)

    def _longer(self, matched: int, character: str) -> int:
        text, borders = self.text, self._borders
        while matched and text[matched] != character:
            matched = borders[matched - 1]
        return matched + (text[matched] == character)


class _Passage(Generic[Item]):
    """Lets pieces of a text pass, each with an item of its own, but for what is or may still become a stop string.

    `splits`: whether a part of a piece with this item may pass. `hit`: a stop is complete; nothing passes any more.
    """

    def __init__(self, stops: Sequence[str], splits: Callable[[Item], bool]) -> None:
        self._splits = splits
        self._texts = tuple(dict.fromkeys(filter(None, stops)))
        self._first = frozenset(text[0] for text in self._texts)
        self.hit = False
        self._begin()

    def _begin(self) -> None:
        self._stops = [_Stop(text) for text in self._texts]
        self._pending: deque[tuple[str, Item]] = deque()
        self._length = 0
        self._held = 0

    def push(self, text: str, item: Item) -> list[tuple[str, Item]]:
        """One more piece; what passes now. Where the stop that is complete first begins, everything ends."""
        if self.hit:
            return []
        read = self._follow(text)
        self._pending.append((text[:read], item))
        self._length += read
        passing: list[tuple[str, Item]] = []
        while self._pending and self._length - len(self._pending[0][0]) >= self._held:
            passing.append(self._pending.popleft())
            self._length -= len(passing[-1][0])
        if (more := self._length - self._held) > 0 and self._splits(self._pending[0][1]):
            text, item = self._pending[0]
            passing.append((text[:more], item))
            self._pending[0] = (text[more:], item)
            self._length = self._held
        return passing

    def _follow(self, text: str) -> int:
        """Characters of the text that were looked at; `_held` of all so far are, or may become, a stop."""
        for place, character in enumerate(text):
            if not self._held and character not in self._first:
                continue
            complete = [stop for stop in self._stops if stop.follow(character)]
            self._held = max(stop.matched for stop in complete or self._stops)
            if complete:
                self.hit = True
                return place + 1
        return len(text)

    def flush(self) -> list[tuple[str, Item]]:
        """What is held back: it became no stop. What follows is looked through anew."""
        held = [] if self.hit else list(self._pending)
        if self._length or self._pending:
            self._begin()
        return held


class ContentStops:
    """Ends the content where one of the strings begins. Holds back the shortest text that may still become one.

    `calls`: how many calls began before.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._passage: _Passage[ContentDelta] = _Passage(stops, lambda _: True)
        self._part = -1
        self.calls = 0

    @property
    def hit(self) -> bool:
        """Whether a stop was found."""
        return self._passage.hit

    def filter(self, events: Iterable[Event]) -> list[Event]:
        """These events, less what is held back or lies behind a stop."""
        out: list[Event] = []
        for event in events:
            if self.hit:
                break
            if isinstance(event, ContentDelta):
                if event.part != self._part:
                    out += self.flush()
                    self._part = event.part
                out += _joined(self._passage.push(event.text, event))
                continue
            out += self.flush()
            out.append(event)
            self.calls += isinstance(event, ToolCallStart)
        return out

    def flush(self) -> list[Event]:
        """What is held back: it became no stop."""
        return _joined(self._passage.flush())


def _joined(pieces: Sequence[tuple[str, ContentDelta]]) -> list[Event]:
    """Pieces of one part as one event."""
    text = "".join(piece for piece, _ in pieces)
    return [replace(pieces[-1][1], text=text)] if text else []


class OutputStops:
    """Ends the output itself where one of the strings begins: before it is parsed, control tokens' texts included. A
    control token that a stop begins within is left out whole."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._passage: _Passage[Piece] = _Passage(stops, lambda piece: not piece.special)

    @property
    def hit(self) -> bool:
        """Whether a stop was found."""
        return self._passage.hit

    def filter(self, piece: Piece) -> list[Piece]:
        """What may be parsed now."""
        return [Piece(text, each.special) for text, each in self._passage.push(piece.text, piece) if text]

    def flush(self) -> list[Piece]:
        """What is held back: it became no stop."""
        return [Piece(text, each.special) for text, each in self._passage.flush() if text]
