"""Which of the three ways a server hands reasoning over, found out while it does.

Knows: a field of its own, inline in the content between markers, both at once ("deepseek-legacy" of llama.cpp's server,
README of tools/server, `--reasoning-format`). Does not know: field names, chunks, calls.
"""

from collections import deque
from typing import Literal

from engine.events import Event, Finished, ReasoningDelta
from engine.openai.calls import Parts
from engine.parsing import Parser
from engine.types import FinishReason

Source = Literal["separate", "inline"]


class Inline:
    """Reasoning from two sources becomes one.

    - Content that begins with reasoning markup, when no separate reasoning came before: the markup is reasoning, and a
      separate copy that comes later is dropped as far as it is one.
    - Separate reasoning first: markup at the start of the content is a copy when its text is the same, and dropped;
      else it is content, as written. Until that is decided such content is held back, and no other is.

    `only_at_start`: the parser's format has no markup but reasoning at the start, so that it is done with at the first
    other text.
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
        """More of the content, as the server sent it."""
        if self._parser is None:
            self._parts.text("content", text)
            return
        if self._undecided:
            self._raw.append(text)
        self._take(self._parser.feed(text))

    def reasoning(self, text: str) -> None:
        """More of the reasoning that the server sent by itself. White space only is none."""
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
        """No more content is markup: a call begins, or the turn is over."""
        if self._parser is None:
            return
        self._take(self._parser.close(reason))
        if self._undecided:
            # The copy has no end of its own, so it was cut: what it has more than the other is all that counts.
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
        """The content's own text begins."""
        assert self._pair is not None  # it is kept while nothing is decided
        if self._some_inline and self._pair.waiting("separate").strip():
            self._release()
            return
        self._confirm()

    def _confirm(self) -> None:
        """The markup was a copy, or there was none."""
        assert self._pair is not None  # it is kept while nothing is decided
        self._undecided = False
        self._raw.clear()
        if self._some_inline:
            more = self._pair.waiting("inline")
            self._parts.text("reasoning", more if more.strip() else "")
        else:
            self._pair = None

    def _release(self) -> None:
        """The markup is none of the server's making: content, as written."""
        self._undecided, self._parser, self._pair = False, None, None
        self._parts.text("content", "".join(self._raw))
        self._raw.clear()


class _Pair:
    """Two copies of one text that come at different paces, compared as they come; white space at the start does not
    count."""

    def __init__(self) -> None:
        self._ahead: deque[str] = deque()
        self._offset = 0
        self._owner: Source | None = None
        self._begun: set[Source] = set()
        self.differs = False

    def feed(self, source: Source, text: str) -> str:
        """More of one copy. Answers what of it the other has not brought yet; when they differ, from there on."""
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
        """What this copy has and the other has not."""
        return "".join(self._ahead)[self._offset :] if self._owner == source else ""
