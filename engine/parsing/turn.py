"""One assistant turn of a format whose parts stand in one run of text: content, reasoning spans, sections of tool
calls.

Knows: where each kind of part may begin and what ends it. Does not know: the inside of a call (`shapes`), formats
made of messages with headers (`channels`).
"""

import re
from collections.abc import Mapping

from engine.families import Format, ToolSyntax
from engine.parsing.emitter import Emitter, Span
from engine.parsing.marks import Mark, Spelling
from engine.parsing.reader import Markers, Reader, Reading
from engine.parsing.shapes import JsonShape, Section
from engine.types import Tool

_STRING = re.compile(r'"([^"\\]*)("?)')
_SPACE = re.compile(r"\s*")


class TextTurn:
    """Reads a turn. `calls`: whether call markup is markup (else it is content); `bare`: whether a JSON object at the
    start of the answer may be a call."""

    def __init__(
        self, reader: Reader, emitter: Emitter, format_: Format, spelling: Spelling, *, calls: bool, bare: bool
    ) -> None:
        self._reader = reader
        self._emitter = emitter
        self._start = spelling.mark(format_.start)
        self._section = Section(reader, emitter, format_.tools, spelling) if format_.tools and calls else None
        self._bare = _BareCalls(reader, emitter, format_.tools, spelling) if bare and calls else None
        reasoning = format_.reasoning
        self._open = spelling.mark(reasoning.open) if reasoning else Mark()
        self._close = spelling.mark(reasoning.close) if reasoning else Mark()
        openers = list(self._section.openers) if self._section else []
        self._is_open = Markers([self._open.text])
        anywhere = [self._open.text] if reasoning and reasoning.where == "anywhere" else []
        self._in_content = Markers([*openers, *anywhere])
        self._in_reasoning = Markers([self._close.text, *(openers if reasoning and reasoning.ends_on_call else [])])
        self._at_start = Markers([*openers, self._open.text, self._close.text])
        closers = self._section.closers.literals if self._section else ()
        self._after_call = Markers([*self._at_start.literals, *closers])

    def run(self) -> Reading[None]:
        """The whole turn, to the end of the input."""
        reader = self._reader
        lead, edge = "", "space"
        if self._start.text and (yield from reader.match(Markers([self._start.text]), "header")):
            lead = self._start.after
        untouched = not lead
        while True:
            span = Span(self._emitter, reader, "content", lead, edge)
            hit = yield from self._content(span)
            lead, edge = "", "space"
            if hit is None:
                if not reader.left:
                    span.close(exact=untouched)
                    return
                span.end()
                yield from self._bare_call()
            elif hit == self._open.text:
                span.end(self._open.before)
                lead = yield from self._reasoning()
                edge = "reasoning-space"
            elif hit == self._close.text:
                # A closing marker with nothing open: a prompt that closed reasoning, or a model that declined it.
                span.end(self._close.before)
                reader.take(len(hit), "reasoning-marker")
                lead, edge = self._close.after, "reasoning-space"
            else:
                lead = yield from self._calls(span, hit)
            untouched = False

    def _content(self, span: Span) -> Reading[str | None]:
        """Text up to a marker, answered and not consumed. None: the input ended, or a bare call stands here."""
        reader = self._reader
        while (yield from reader.more()):
            space = _SPACE.match(reader.buffer, reader.pos)
            if space is None or space.end() == reader.pos:
                break
            span.write(reader.take(space.end() - reader.pos))
        hit = yield from reader.starts(self._after_call if self._emitter.calls else self._at_start)
        if hit is not None:
            return hit
        if self._bare is not None and (yield from self._bare.stands_here()):
            return None
        return (yield from reader.until(self._in_content, span.write))

    def _reasoning(self) -> Reading[str]:
        """A span of reasoning from its opening marker on. Answers the white space after its closing one."""
        reader, emitter = self._reader, self._emitter
        emitter.in_reasoning = True
        reader.take(len(self._open.text), "reasoning-marker")
        span = Span(emitter, reader, "reasoning", self._open.after, "reasoning-space")
        while (yield from reader.more()):
            space = _SPACE.match(reader.buffer, reader.pos)
            if space is not None and space.end() > reader.pos:
                span.write(reader.take(space.end() - reader.pos))
            elif (yield from reader.starts(self._is_open)) is not None:
                # Models whose prompt has opened reasoning open it once more.
                span.end()
                reader.take(len(self._open.text), "reasoning-marker")
                span = Span(emitter, reader, "reasoning", self._open.after, "reasoning-space")
            else:
                break
        hit = yield from reader.until(self._in_reasoning, span.write)
        if hit is None:
            span.close(exact=False)
            return ""
        emitter.in_reasoning = False
        if hit == self._close.text:
            span.end(self._close.before)
            reader.take(len(hit), "reasoning-marker")
            return self._close.after
        span.end(self._opener(hit).before)
        return ""

    def _calls(self, span: Span, hit: str) -> Reading[str]:
        assert self._section is not None  # only a section's markers are left
        openers = self._section.openers
        span.end(openers[hit].before if hit in openers else "")
        self._reader.take(len(hit), "marker")
        if hit not in openers:
            return ""
        return (yield from self._section.read(hit))

    def _opener(self, text: str) -> Mark:
        openers: Mapping[str, Mark] = self._section.openers if self._section else {}
        return openers[text]

    def _bare_call(self) -> Reading[None]:
        assert self._bare is not None  # `_content` leaves text unread only where a bare call stands
        yield from self._bare.read()


class _BareCalls:
    """A JSON object without markers, which is a call when it names a declared tool."""

    def __init__(self, reader: Reader, emitter: Emitter, syntax: ToolSyntax | None, spelling: Spelling) -> None:
        json = syntax if syntax is not None and syntax.shape == "json" else ToolSyntax(shape="json", bare=True)
        unmarked = json.model_copy(update={"section": ("", ""), "bare": True})
        self._reader = reader
        self._syntax = unmarked
        self._tools: Mapping[str, Tool] = emitter.tools or {}
        self._shape = JsonShape(Section(reader, emitter, unmarked, spelling), spelling)

    def read(self) -> Reading[None]:
        yield from self._shape.call()

    def stands_here(self) -> Reading[bool]:
        """Whether a call begins here, decided once its name is."""
        reader = self._reader
        while True:
            decided = self._names_a_tool(reader.buffer[reader.pos :])
            if decided is not None:
                return decided
            if reader.closed:
                return False
            yield

    def _names_a_tool(self, text: str) -> bool | None:
        """None while the text is too short to tell. Before the name only short string members may come."""
        if not text.startswith("{"):
            return False if text else None
        allowed = (*self._syntax.name_fields, *self._syntax.id_fields, "type")
        at = 1
        while True:
            key, at = _string_at(text, at, allowed)
            if key is None:
                return None if at < 0 else False
            at = _skip(text, at, ":")
            if at < 0 or at >= len(text):
                return None if at != -2 else False
            named = key in self._syntax.name_fields
            value, at = _string_at(text, at, tuple(self._tools) if named else None)
            if value is None:
                return None if at < 0 else False
            if named:
                return value in self._tools
            at = _skip(text, at, ",")
            if at < 0:
                return None if at != -2 else False


def _skip(text: str, at: int, expected: str) -> int:
    """The place after the expected character and white space; -1 when the text ends, -2 when another stands there."""
    match = _SPACE.match(text, at)
    at = match.end() if match else at
    if at == len(text):
        return -1
    if text[at] != expected:
        return -2
    match = _SPACE.match(text, at + 1)
    return match.end() if match else at + 1


def _string_at(text: str, at: int, allowed: tuple[str, ...] | None) -> tuple[str | None, int]:
    """A short string at this place and the place after it. (None, -1): the text ends within one that may still be
    allowed; (None, 0): none stands there, or one that is not allowed."""
    space = _SPACE.match(text, at)
    at = space.end() if space else at
    if at == len(text):
        return None, -1
    found = _STRING.match(text, at)
    if found is None:
        return None, 0
    content, closed = found.groups()
    if not closed:
        cut = found.end() == len(text)
        possible = allowed is None or any(option.startswith(content) for option in allowed)
        return (None, -1) if cut and possible else (None, 0)
    return (content, found.end()) if allowed is None or content in allowed else (None, 0)
