"""Stop strings: finds where they begin, in the content or in the whole output."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from engine.events import ContentDelta, Event, ToolCallStart
from engine.parsing.reader import Piece

Item = TypeVar("Item")


class _Stop:
    """One stop string, searched character by character (Knuth, Morris and Pratt: "Fast pattern matching in strings").

    `matched`: how many of its characters the text so far ends with. `_borders[n]` is the length of the longest proper
    prefix of the string that its first `n + 1` characters end with; computed as far as was ever matched.
    """

    __slots__ = ("_borders", "matched", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._borders = [0]

    def follow(self, character: str) -> bool:
        """Take one more character. Returns whether the stop string is now complete."""
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
    """Passes pieces of a text on, each with an item of its own, except for what is or may still become a stop string.

    `splits`: whether a part of a piece with this item may pass. `hit`: a stop string is complete; nothing passes any
    more.
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
        """Take one more piece. Returns what passes now. Everything ends where the stop string that completes first
        begins."""
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
        """Returns how many characters of the text were looked at. The last `_held` characters of all so far are, or may
        become, a stop string."""
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
        """Returns what was held back, which became no stop string, and starts the search afresh."""
        held = [] if self.hit else list(self._pending)
        if self._length or self._pending:
            self._begin()
        return held


class ContentStops:
    """Ends the content where one of the strings begins. Holds back the shortest text that may still become one.

    `calls`: how many calls began before the stop.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._passage: _Passage[ContentDelta] = _Passage(stops, lambda _: True)
        self._part = -1
        self.calls = 0

    @property
    def hit(self) -> bool:
        """Whether a stop string was found."""
        return self._passage.hit

    def filter(self, events: Iterable[Event]) -> list[Event]:
        """Returns these events, without what is held back or follows a stop string."""
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
        """Returns what was held back, which became no stop string."""
        return _joined(self._passage.flush())


def _joined(pieces: Sequence[tuple[str, ContentDelta]]) -> list[Event]:
    """Returns pieces of one part as one event."""
    text = "".join(piece for piece, _ in pieces)
    return [replace(pieces[-1][1], text=text)] if text else []


class OutputStops:
    """Ends the output where one of the strings begins: before it is parsed, with the texts of control tokens included.
    A control token in which a stop string begins is left out entirely."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._passage: _Passage[Piece] = _Passage(stops, lambda piece: not piece.special)

    @property
    def hit(self) -> bool:
        """Whether a stop string was found."""
        return self._passage.hit

    def filter(self, piece: Piece) -> list[Piece]:
        """Returns the pieces that may be parsed now."""
        return [Piece(text, each.special) for text, each in self._passage.push(piece.text, piece) if text]

    def flush(self) -> list[Piece]:
        """Returns what was held back, which became no stop string."""
        return [Piece(text, each.special) for text, each in self._passage.flush() if text]
