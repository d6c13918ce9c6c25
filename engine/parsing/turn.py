"""One assistant turn of a format whose parts stand in one run of text: content, reasoning spans, sections of tool
calls.

Knows: where each kind of part may begin and what ends it. Does not know: the inside of a call (`shapes`), formats
made of messages with headers (`channels`).
"""

import re
from collections.abc import Mapping

from engine.families import Format
from engine.parsing.bare import BareCalls, Demands
from engine.parsing.emitter import Emitter, Span
from engine.parsing.reader import Mark, Markers, Reader, Reading, Spelling
from engine.parsing.shapes import SectionReader

_SPACE = re.compile(r"\s+")


class TextTurn:
    """Reads a turn."""

    def __init__(self, reader: Reader, emitter: Emitter, format_: Format, spelling: Spelling, demands: Demands) -> None:
        self._reader = reader
        self._emitter = emitter
        tools = format_.tools
        self._calls = SectionReader(reader, emitter, tools, spelling) if tools and demands.calls else None
        self._bare = None
        if demands.calls and (demands.demanded or (tools.bare if tools else emitter.tools is not None)):
            self._bare = BareCalls(reader, emitter, tools, spelling, demands)
        self._marks = marks = _Marks(format_, spelling, fenced=demands.json)
        openers: Mapping[str, Mark] = self._calls.section.openers if self._calls else {}
        self._openers = openers
        self._implicit = format_.reasoning is not None and format_.reasoning.implicit
        ends_on_call = format_.reasoning is not None and format_.reasoning.ends_on_call
        anywhere: Mapping[str, Mark] = (
            marks.opens if format_.reasoning is not None and format_.reasoning.where == "anywhere" else {}
        )
        self._drops = format_.reasoning is not None and format_.reasoning.when_closed == "drop"
        self._closed = self._closed_for_good = self._fenced = False
        self._is_open = Markers(marks.opens)
        self._is_start = Markers(marks.start)
        self._header_end = Markers([marks.header_end.text])
        self._in_reasoning = Markers([*marks.closes, *(openers if ends_on_call else [])])
        in_content = [*openers, *anywhere, *marks.ends, *marks.stops, *marks.fences]
        self._in_content = Markers(in_content)
        self._in_answer = Markers([*in_content, *marks.answer_end])
        at_start = [*openers, *marks.opens, *marks.closes, *marks.answer, *marks.start, *marks.header]
        at_start += marks.fences
        at_start += [*marks.ends, *marks.stops]
        self._at_start = Markers(at_start)
        self._after_call = Markers([*at_start, *(self._calls.section.closers.literals if self._calls else ())])

    def seeded(self) -> None:
        """The prompt's part of the turn was replayed: what it closed, some families hold closed."""
        self._closed_for_good = self._drops and self._closed

    def run(self) -> Reading[None]:
        """The whole turn, to the end of the input."""
        reader, marks = self._reader, self._marks
        lead, edge, untouched = "", "space", True
        started = yield from reader.starts(self._is_start)
        if started is not None:
            lead, untouched = self._skip(started, marks.start[started]), False
        if self._implicit and (yield from reader.more()):
            hit = yield from reader.starts(self._at_start)
            if hit is None or hit in marks.opens:
                lead = yield from self._reasoning(marks.opens.get(hit or ""), lead)
                edge, untouched = "reasoning-space", False
        answering = False
        while True:
            span = Span(self._emitter, reader, "content", lead, edge)
            hit = yield from self._content(span, answering=answering)
            lead, edge = "", "space"
            if hit is None:
                if not reader.left:
                    span.close(exact=untouched)
                    return
                span.end()
                assert self._bare is not None  # `_content` leaves text unread only where a bare call stands
                yield from self._bare.read()
            elif hit in marks.opens and self._closed_for_good:
                span.end(marks.opens[hit].before)
                lead, edge = self._skip(hit, marks.opens[hit], "reasoning-marker"), "reasoning-space"
            elif hit in marks.opens:
                span.end(marks.opens[hit].before)
                lead, edge = (yield from self._reasoning(marks.opens[hit])), "reasoning-space"
            elif hit in marks.closes and span.blank:
                # A closing marker with nothing open: a prompt that closed reasoning, or a model that declined it.
                span.end(marks.closes[hit].before)
                lead, edge = self._skip(hit, marks.closes[hit], "reasoning-marker"), "reasoning-space"
            elif hit in marks.answer and not answering:
                span.end(marks.answer[hit].before)
                lead, answering = self._skip(hit, marks.answer[hit]), True
            elif hit in marks.answer_end:
                span.end(marks.answer_end[hit].before)
                lead, answering = self._skip(hit, marks.answer_end[hit]), False
            else:
                lead = yield from self._markup(span, hit)
            untouched = False

    def _skip(self, text: str, mark: Mark, kind: str = "marker") -> str:
        """Consume a marker. Answers the white space that the template writes after it."""
        self._reader.take(len(text), kind)
        return mark.after

    def _markup(self, span: Span, hit: str) -> Reading[str]:
        """A call, or a marker that only leads to what follows. Answers the white space after it."""
        reader, marks = self._reader, self._marks
        if hit in self._openers:
            assert self._calls is not None  # only its section has openers
            span.end(self._openers[hit].before)
            reader.take(len(hit), "marker")
            return (yield from self._calls.read(hit))
        if hit in marks.header:
            span.end(marks.header[hit].before)
            yield from reader.until(self._header_end, lambda text: reader.note("header", text))
            yield from reader.match(self._header_end, "header")
            return marks.header_end.after
        skipped = (
            marks.fences.get(hit) or marks.start.get(hit) or marks.ends.get(hit) or Mark()
        )  # else a stop, or a call's stray closing marker
        span.end(skipped.before)
        return self._skip(hit, skipped)

    def _content(self, span: Span, *, answering: bool) -> Reading[str | None]:
        """Text up to a marker, answered and not consumed. None: the input ended, or a bare call stands here."""
        reader = self._reader
        yield from self._space(span)
        if not (answering and self._marks.answer_end):
            at_start = self._after_call if self._emitter.calls else self._at_start
        else:
            at_start = self._in_answer
        hit = yield from reader.starts(at_start)
        if hit is None and self._bare is not None and (yield from self._bare.stands_here()):
            return None
        while True:
            if hit is not None and (yield from self._acts(hit, opens=span.blank)):
                return hit
            if hit is not None:
                span.write(reader.take(len(hit)))
            hit = yield from reader.until(self._in_answer if answering else self._in_content, span.write)
            if hit is None:
                return None

    def _acts(self, hit: str, *, opens: bool) -> Reading[bool]:
        """Whether a marker acts as one.

        A stop, or a fence that does not open, does so only at the end; some calls only before a declared name.
        """
        if hit in self._marks.fences and opens:
            self._fenced = yield from self._ends_line(hit)
            return self._fenced
        if hit in self._marks.stops or (hit in self._marks.fences and self._fenced):
            return (yield from self._ends_here(hit))
        if hit in self._marks.fences:
            return False
        if self._calls is None or hit not in self._openers:
            return True
        if self._calls.section.syntax.names_declared:
            return (yield from self._calls.names_a_tool(hit))
        return (yield from self._calls.section.begins(hit))

    def _ends_line(self, text: str) -> Reading[bool]:
        reader = self._reader
        while reader.left == len(text) and not reader.closed:
            yield
        return reader.buffer.startswith("\n", reader.pos + len(text))

    def _ends_here(self, stop: str) -> Reading[bool]:
        """Whether nothing follows the stop at the front. Generation ends before one; other text may hold it."""
        reader = self._reader
        while not reader.behind(len(stop)):
            if reader.closed:
                return True
            yield
        return False

    def _space(self, span: Span) -> Reading[None]:
        """Hand white space to the span, all that stands here."""
        reader = self._reader
        while (yield from reader.more()):
            space = _SPACE.match(reader.buffer, reader.pos)
            if space is None:
                return
            span.write(reader.take(space.end() - reader.pos))

    def _reasoning(self, open_: Mark | None, lead: str = "") -> Reading[str]:
        """A span of reasoning, from its opening marker on if it has one (else `lead` is the white space before it).

        Answers the white space after its closing marker.
        """
        reader, emitter, marks = self._reader, self._emitter, self._marks
        emitter.in_reasoning = True
        span = Span(emitter, reader, "reasoning")
        while True:
            if open_ is not None:
                span.end()
                reader.take(len(open_.text), "reasoning-marker")
            span = Span(emitter, reader, "reasoning", open_.after if open_ else lead, "reasoning-space")
            yield from self._space(span)
            # Models whose prompt has opened reasoning may open it once more.
            again = yield from reader.starts(self._is_open)
            if again is None:
                break
            open_ = marks.opens[again]
        hit = yield from reader.until(self._in_reasoning, span.write)
        while hit is not None and not (yield from self._acts(hit, opens=False)):
            span.write(reader.take(len(hit)))
            hit = yield from reader.until(self._in_reasoning, span.write)
        if hit is None:
            span.close(exact=False)
            return ""
        emitter.in_reasoning = False
        if hit in marks.closes:
            self._closed = True
            span.end(marks.closes[hit].before)
            return self._skip(hit, marks.closes[hit], "reasoning-marker")
        span.end(self._openers[hit].before)
        return ""


class _Marks:
    """A format's markers outside of calls, by their text."""

    __slots__ = ("answer", "answer_end", "closes", "ends", "fences", "header", "header_end", "opens", "start", "stops")

    def __init__(self, format_: Format, spelling: Spelling, *, fenced: bool) -> None:
        reasoning = format_.reasoning

        def marks(*literals: str) -> dict[str, Mark]:
            found = [spelling.mark(literal) for literal in literals]
            return {mark.text: mark for mark in found if mark.text}

        self.start = marks(format_.start)
        self.opens = marks(reasoning.open, *reasoning.also_open) if reasoning else {}
        self.closes = marks(reasoning.close, *reasoning.also_close) if reasoning else {}
        self.answer = marks(format_.content[0])
        self.answer_end = marks(format_.content[1])
        self.header = marks(format_.header[0])
        self.header_end = spelling.mark(format_.header[1])
        self.fences = marks("\n```json\n", "\n```\n") if fenced else {}
        self.ends = marks(*format_.ends)
        own = {*self.answer_end, *self.ends, *self.closes}
        self.stops = {text: mark for text, mark in marks(*format_.stops).items() if text not in own}
