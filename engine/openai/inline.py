"""Finds out, while a stream is read, in which of three ways a server sends reasoning.

Knows: the three ways: a field of its own, inline in the content between markers, or both at once ("deepseek-legacy" of
llama.cpp's server, README of tools/server, `--reasoning-format`). Does not know: field names, chunks, calls.
"""

from collections import deque
from typing import Literal

from engine.events import Event, Finished, ReasoningDelta
from engine.openai.calls import Parts
from engine.parsing import Parser
from engine.types import FinishReason

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
        self._raw: list[str] = []
        self._undecided = True
        self._lead = ""
        self._separate = False
        self._pair: _Pair | None = _Pair()
        self._copied: list[str] = []
        self._some_inline = False

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
        if not self._separate:
            self._lead += text
            if not self._lead.strip():
                return
            text, self._lead, self._separate = self._lead, "", True
        if self._pair is None:
            self._parts.text("reasoning", text)
        elif self._undecided:
            self._pair.feed("separate", text)
            self._parts.text("reasoning", text)
            if self._pair.differs:
                self._release()
        else:
            self._copied.append(text)
            beyond = self._pair.feed("separate", text)
            if self._pair.differs:
                beyond, self._pair = "".join(self._copied), None
            if beyond:
                self._copied.clear()
                self._parts.text("reasoning", beyond)

    def settle(self, reason: FinishReason = "stop") -> None:
        """Treat no further content as markup: a call begins, or the turn is over."""
        if self._parser is None:
            return
        self._take(self._parser.close(reason))
        if self._undecided:
            # The inline copy has no closing marker, so it was cut: only what goes beyond the separate copy counts.
            self._confirm()
        self._parser = None

    def _take(self, events: list[Event]) -> None:
        other = False
        for event in events:
            if isinstance(event, Finished):
                continue
            if isinstance(event, ReasoningDelta):
                self._inline(event.text)
            else:
                other = True
                if self._undecided:
                    self._decide()
                if self._parser is not None:
                    self._parts.forward(event)
            if self._parser is None:
                return
        if other and self._only_at_start:
            parser, self._parser = self._parser, None
            for event in parser.close() if parser else ():
                self._parts.forward(event)

    def _inline(self, text: str) -> None:
        self._some_inline = True
        if self._undecided and self._separate:
            assert self._pair is not None  # it is kept while nothing is decided
            self._pair.feed("inline", text)
            if self._pair.differs:
                self._release()
            return
        self._undecided = False
        self._raw.clear()
        beyond = self._pair.feed("inline", text) if self._pair else text
        if self._pair and self._pair.differs:
            self._pair = None
        self._parts.text("reasoning", beyond)

    def _decide(self) -> None:
        """Decide whether the markup was a copy, at the start of the content's own text."""
        assert self._pair is not None  # it is kept while nothing is decided
        if self._some_inline and self._pair.waiting("separate").strip():
            self._release()
            return
        self._confirm()

    def _confirm(self) -> None:
        """Treat the markup, if any, as a copy."""
        assert self._pair is not None  # it is kept while nothing is decided
        self._undecided = False
        self._raw.clear()
        if self._some_inline:
            more = self._pair.waiting("inline")
            self._parts.text("reasoning", more if more.strip() else "")
        else:
            self._pair = None

    def _release(self) -> None:
        """Treat the markup as content, as written: the server did not add it."""
        self._undecided, self._parser, self._pair = False, None, None
        self._parts.text("content", "".join(self._raw))
        self._raw.clear()


class _Pair:
    """Compares two copies of one text that arrive at different paces; white space at the start does not count."""

    def __init__(self) -> None:
        self._ahead: deque[str] = deque()
        self._offset = 0
        self._owner: Source | None = None
        self._begun: set[Source] = set()
        self.differs = False

    def feed(self, source: Source, text: str) -> str:
        """Add to one copy. Returns the part that the other copy has not brought yet; if they differ, everything from
        there on."""
        if source not in self._begun:
            text = text.lstrip()
            self._begun.add(source)
        while text and self._ahead and self._owner != source:
            head = self._ahead[0]
            size = min(len(head) - self._offset, len(text))
            if not head.startswith(text[:size], self._offset):
                self.differs = True
                same = next(at for at in range(size) if head[self._offset + at] != text[at])
                return text[same:]
            text = text[size:]
            self._offset += size
            if self._offset == len(head):
                self._ahead.popleft()
                self._offset = 0
        if text:
            self._owner = source
            self._ahead.append(text)
        return text

    def waiting(self, source: Source) -> str:
        """Returns what this copy has beyond the other."""
        return "".join(self._ahead)[self._offset :] if self._owner == source else ""
