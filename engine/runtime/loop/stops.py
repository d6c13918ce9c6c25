"""Stop strings: finds where they begin in the content."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

from engine.types.events import ContentDelta, Event, ToolCallStart


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


class ContentStops:
    """Ends the content where the stop string begins that completes first. Holds back the shortest text that may still
    become one.

    `hit`: a stop string is complete, and nothing passes any more. `calls`: how many calls began before it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._texts = tuple(dict.fromkeys(filter(None, stops)))
        self._first = frozenset(text[0] for text in self._texts)
        self._part = -1
        self.hit = False
        self.calls = 0
        self._begin()

    def _begin(self) -> None:
        """Start the search afresh."""
        self._stops = [_Stop(text) for text in self._texts]
        self._pending: deque[ContentDelta] = deque()
        self._length = 0  # of the pending text, of which the last `_held` characters may be a stop string
        self._held = 0

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
                out += _joined(self._push(event))
                continue
            out += self.flush()
            out.append(event)
            self.calls += isinstance(event, ToolCallStart)
        return out

    def flush(self) -> list[Event]:
        """Returns what was held back, which became no stop string, and starts the search afresh."""
        held = [] if self.hit else _joined(self._pending)
        if self._pending:
            self._begin()
        return held

    def _push(self, event: ContentDelta) -> list[ContentDelta]:
        """Take one more piece of content. Returns what passes now."""
        read = self._follow(event.text)
        self._pending.append(replace(event, text=event.text[:read]))
        self._length += read
        passing: list[ContentDelta] = []
        while (more := self._length - self._held) > 0:
            piece = self._pending.popleft()
            if len(piece.text) > more:
                self._pending.appendleft(replace(piece, text=piece.text[more:]))
                piece = replace(piece, text=piece.text[:more])
            self._length -= len(piece.text)
            passing.append(piece)
        return passing

    def _follow(self, text: str) -> int:
        """Returns how many characters of the text were looked at."""
        for place, character in enumerate(text):
            if not self._held and character not in self._first:
                continue
            complete = [stop for stop in self._stops if stop.follow(character)]
            self._held = max(stop.matched for stop in complete or self._stops)
            if complete:
                self.hit = True
                return place + 1
        return len(text)


def _joined(pieces: Sequence[ContentDelta] | deque[ContentDelta]) -> list[Event]:
    """Returns pieces of one part as one event."""
    text = "".join(piece.text for piece in pieces)
    return [replace(pieces[-1], text=text)] if text else []
