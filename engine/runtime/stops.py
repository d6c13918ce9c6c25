"""Stop strings: where they begin in the content, or in anything that the model writes.

Knows: that text which may still become a stop is held back, and no more of it. Does not know: tokens, parsers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from engine.events import ContentDelta, Event, ToolCallStart
from engine.parsing.reader import Piece


class _Matcher:
    """Finds the earliest of some strings in a text, and what at its end may still become one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._prefixes = {stop[:length] for stop in self._stops for length in range(1, len(stop))}
        self._longest = max(map(len, self._prefixes), default=0)

    def find(self, text: str) -> int:
        """Where the first begins; -1 when there is none."""
        return min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=-1)

    def undecided(self, text: str) -> int:
        """The length of the longest end of the text that begins a stop string."""
        for length in range(min(self._longest, len(text)), 0, -1):
            if text[-length:] in self._prefixes:
                return length
        return 0


class ContentStops:
    """Ends the content where one of the strings begins. Holds back the shortest text that may still become one.

    `hit`: one was found. `calls`: how many calls began before.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._matcher = _Matcher(stops)
        self._held: ContentDelta | None = None
        self.hit = False
        self.calls = 0

    def filter(self, events: Iterable[Event]) -> list[Event]:
        """These events, less what is held back or lies behind a stop."""
        out: list[Event] = []
        for event in events:
            if self.hit:
                break
            if isinstance(event, ContentDelta):
                self._content(event, out)
                continue
            out += self.flush()
            out.append(event)
            self.calls += isinstance(event, ToolCallStart)
        return out

    def flush(self) -> list[Event]:
        """What is held back: it became no stop."""
        held, self._held = self._held, None
        return [held] if held is not None else []

    def _content(self, event: ContentDelta, out: list[Event]) -> None:
        held = self._held
        if held is not None and held.part == event.part:
            event = replace(event, text=held.text + event.text)
        elif held is not None:
            out.append(held)
        self._held = None
        text = event.text
        at = self._matcher.find(text)
        if at >= 0:
            self.hit = True
            keep = at
        else:
            keep = len(text) - self._matcher.undecided(text)
            if keep < len(text):
                self._held = replace(event, text=text[keep:])
        if keep:
            out.append(event if keep == len(text) else replace(event, text=text[:keep]))


class OutputStops:
    """Ends the output itself where one of the strings begins: before it is parsed, control tokens' texts included.

    `hit`: one was found.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._matcher = _Matcher(stops)
        self._held: list[Piece] = []
        self.hit = False

    def filter(self, piece: Piece) -> list[Piece]:
        """What may be parsed now. A control token that a stop begins within is left out whole."""
        if self.hit:
            return []
        pieces = [*self._held, piece]
        text = "".join(part.text for part in pieces)
        at = self._matcher.find(text)
        self.hit = at >= 0
        keep = at if self.hit else len(text) - self._matcher.undecided(text)
        let: list[Piece] = []
        while pieces and (len(pieces[0].text) <= keep):
            let.append(pieces.pop(0))
            keep -= len(let[-1].text)
        if pieces and keep and not pieces[0].special:
            let.append(Piece(pieces[0].text[:keep], False))
            pieces[0] = Piece(pieces[0].text[keep:], False)
        self._held = [] if self.hit else pieces
        return let

    def flush(self) -> list[Piece]:
        """What is held back: it became no stop."""
        held, self._held = self._held, []
        return held
