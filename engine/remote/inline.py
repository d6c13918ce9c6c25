"""Finds out, while a stream is read, in which of three ways a server sends reasoning: in a field of its own, inline in
the content between markers, or both at once ("deepseek-legacy" of llama.cpp's server)."""

from io import SEEK_END, StringIO
from typing import Literal

from engine.formats.parsing import Parser
from engine.formats.parsing.emitter import common_prefix
from engine.remote.calls import Parts
from engine.types.events import Event, Finished, ReasoningDelta
from engine.types.sampling import FinishReason

Source = Literal["separate", "inline"]


class Inline:
    """Merges reasoning from two sources into one.

    - If the content begins with reasoning markup and no separate reasoning came before, the markup is reasoning. A
      separate copy that comes later is dropped as far as it is the same.
    - If separate reasoning comes first, markup at the start of the content is dropped if its text is the same.
      Otherwise it is content, as written. Only content with such markup is held back, until that is decided.

    `only_at_start`: the parser's format has only reasoning markup at the start, so that the parser is finished at the
    first other text.
    """

    def __init__(self, parts: Parts, parser: Parser, *, only_at_start: bool) -> None:
        self._parts = parts
        self._parser: Parser | None = parser
        self._only_at_start = only_at_start
        self._undecided = True
        self._raw: list[str] = []
        self._copies = _Copies()
        self._copied: list[str] = []

    def content(self, text: str) -> None:
        """Add content, as the server sent it."""
        if self._parser is None:
            self._parts.text("content", text)
            return
        if self._undecided:
            self._raw.append(text)
        self._take(self._parser.feed(text))

    def reasoning(self, text: str) -> None:
        """Add reasoning that the server sent in a field of its own. White space alone does not count."""
        if self._copies.over:
            self._parts.text("reasoning", text)
            return
        beyond = self._copies.feed("separate", text)
        if self._undecided:
            self._parts.text("reasoning", text)
            if self._copies.over:
                self._release()
            return
        self._copied.append(text)
        if self._copies.over:
            beyond = "".join(self._copied)
        if beyond:
            self._copied.clear()
            self._parts.text("reasoning", beyond)

    def settle(self, reason: FinishReason = "stop") -> None:
        """Treat no further content as markup: a call begins, or the turn is over."""
        if self._parser is None:
            return
        self._take(self._parser.close(reason))
        if self._undecided:
            _ = self._decide(cut=True)
        self._parser = None

    def _take(self, events: list[Event]) -> None:
        other = False
        for event in events:
            if self._parser is None:
                return
            if isinstance(event, ReasoningDelta):
                self._inline(event.text)
            elif not isinstance(event, Finished):
                other = True
                if self._undecided and not self._decide():
                    return
                self._parts.forward(event)
        if other and self._only_at_start and self._parser is not None:
            parser, self._parser = self._parser, None
            for event in parser.close():
                self._parts.forward(event)

    def _inline(self, text: str) -> None:
        text = self._copies.feed("inline", text)
        if self._undecided and self._copies.has("separate"):
            if self._copies.over:
                self._release()
            return
        if self._undecided:
            self._undecided, self._parts.blank = False, ""
            self._raw.clear()
        self._parts.text("reasoning", text)

    def _decide(self, *, cut: bool = False) -> bool:
        """Decide whether the markup was a copy, at the start of the content's own text. Returns False if it was not.
        `cut`: the copy has no closing marker, so only what goes beyond the separate reasoning counts."""
        if self._copies.has("inline") and not cut and self._copies.waiting("separate").strip():
            self._release()
            return False
        self._undecided = False
        self._raw.clear()
        if not self._copies.has("inline"):
            self._copies.over = True
        elif (more := self._copies.waiting("inline")).strip():
            self._parts.text("reasoning", more)
        return True

    def _release(self) -> None:
        """Treat the markup as content, as written: the server did not add it."""
        self._undecided, self._parser, self._copies.over = False, None, True
        self._parts.text("content", "".join(self._raw))
        self._raw.clear()


class _Copies:
    """Compares two copies of one text that arrive at different paces; white space at the start does not count. `over`:
    they differ, or there is only one."""

    def __init__(self) -> None:
        self._longer = StringIO()
        self._compared = 0
        self._owner: Source | None = None
        self._begun: set[Source] = set()
        self.over = False

    def has(self, source: Source) -> bool:
        """Whether this copy has begun."""
        return source in self._begun

    def feed(self, source: Source, text: str) -> str:
        """Add to one copy. Returns the part that the other copy has not brought yet; if they differ, everything from
        there on."""
        if self.over:
            return text
        if source not in self._begun and (text := text.lstrip()):
            self._begun.add(source)
        if self._owner != source:
            self._longer.seek(self._compared)
            ahead = self._longer.read(len(text))
            size = common_prefix(text, ahead)
            self.over = size < len(ahead)
            self._compared += size
            text = text[size:]
        if text and not self.over:
            self._owner = source
            self._longer.seek(0, SEEK_END)
            self._longer.write(text)
        return text

    def waiting(self, source: Source) -> str:
        """Returns what this copy has beyond the other."""
        self._longer.seek(self._compared)
        return self._longer.read() if self._owner == source else ""
