"""Reads one assistant turn whose parts follow one another in a single text: content, reasoning spans, sections of
calls.
"""

import re
from collections.abc import Mapping
from functools import lru_cache, partial
from itertools import repeat

from engine.formats.families import Format
from engine.formats.parsing.emitter import QUOTES, Emitter, Span
from engine.formats.parsing.lookahead import LONGEST, MOST, DraftTrial
from engine.formats.parsing.reader import CUT, WINDOW, Gen, Mark, Reader, Spelling, begins, compiled
from engine.formats.parsing.shapes import SectionReader
from engine.formats.parsing.unmarked import BareCalls, Demands, is_bare
from engine.formats.parsing.whole_calls import FENCE, WholeCalls
from engine.formats.parsing.whole_calls import MARKS as WHOLE

_SPACE = re.compile(r"\s+")
_TOKEN = re.compile(r"<[^<>\s]+>|\[/?[^\[\]\s]+\]")
_TAGS = re.compile(r"(?:<[^<>\n]+>)+")
_ASIDE = 200
"""The longest prose, in characters, that is held between a section's opening marker, which begins a line, and its
first call."""

_HEADER = 200
"""The longest header of a message, in characters."""


class TextTurn:
    """Reads a turn of a format without channels."""

    def __init__(self, reader: Reader, emitter: Emitter, format_: Format, spelling: Spelling, demands: Demands) -> None:
        self._reader = reader
        self._emitter = emitter
        tools, reasoning = format_.tools, format_.reasoning
        self._calls = SectionReader(reader, emitter, tools, spelling) if tools and demands.calls else None
        self._bare = None
        whole = tools if tools and (tools.shape == "json" or tools.shape == "pythonic") else None
        # An answer's format, and an answer where no call is wanted, leave only the family's own form.
        own_only = demands.drops or demands.json
        without_markers = whole is not None and is_bare(whole) if own_only else tools is None or whole is not None
        if demands.calls and (demands.demanded or (without_markers and emitter.tools is not None)):
            self._bare = BareCalls(reader, emitter, tools, spelling, demands)
        self._whole = None
        anywhere = tools and (tools.shape == "json" or tools.shape == "tagged_json") and tools.whole_objects
        if demands.calls and anywhere and emitter.tools and not (demands.json or demands.drops):
            self._whole = WholeCalls(reader, emitter)
        self._marks = marks = _Marks(format_, spelling, demands)
        openers: Mapping[str, Mark] = self._calls.section.openers if self._calls else {}
        self._openers = openers
        self._implicit = reasoning is not None and reasoning.implicit
        self._anywhere = reasoning is not None and reasoning.where == "anywhere"
        self._drops = reasoning is not None and reasoning.when_closed == "drop"
        self._closed = self._closed_for_good = self._fenced = self._called = False
        self._exact = demands.exact
        self._has_heading = self._calls is not None and self._calls.section.has_heading
        self._announced = not self._has_heading
        self._names_declared = tools is not None and tools.shape == "tagged_json" and tools.names_declared
        self._quoted = 0  # opening markers that were text: as many closing ones are text too
        self._is_open = compiled(*marks.opens)
        self._is_start = compiled(*marks.start)
        self._header_end = compiled(marks.header_end.text)
        self._ends_on_call = reasoning is not None and reasoning.ends_on_call
        self._wrappers = self._calls.section.wrappers if self._calls else frozenset[str]()
        self._trial_of = partial(DraftTrial, reader, emitter, spelling=spelling)
        self._in_code = False  # behind a code fence that is text
        self._failed = 0  # trials
        self._unmarked: BareCalls | WholeCalls | None = None  # those whose call begins at the front
        self._drafted = self._reasons_on = False  # a call stands, or stood, in reasoning that nothing has closed
        self._reasoning_ends = compiled(*marks.closes, *marks.others)
        # In the order of their places in the format, so that compiled patterns are shared.
        # A call without its section is one in reasoning, too, if it names a declared tool and ends the output.
        calls = [text for text in openers if text in self._wrappers or emitter.tools]
        self._in_reasoning = compiled(*marks.closes, *marks.others, *calls)
        opens = [text for text in marks.opens if self._anywhere or text in marks.tokens]
        in_content = [*openers, *opens, *marks.others, *marks.strays, *marks.ends, *marks.stops, *marks.fences]
        known = {*in_content, *marks.answer_end, *marks.closes, *marks.start, *marks.header}
        closers = self._calls.section.closers.literals if self._calls else ()
        self._left_over(known, closers)
        in_content += [*self._call_ends, *sorted(self._elements), *(WHOLE if self._whole else ())]
        self._in_content = compiled(*in_content, *(marks.answer if format_.content_repeats else ()))
        self._in_answer = compiled(*in_content, *marks.answer_end)
        at_start = [*openers, *marks.opens, *marks.closes, *marks.answer, *marks.start, *marks.header]
        at_start += [*marks.fences, *marks.ends, *marks.stops, *marks.strays, *self._call_ends]
        self._at_start = compiled(*at_start)
        self._after_call = compiled(*at_start, *closers)
        # What may be left over behind a call in reasoning.
        self._behind_call = compiled(*marks.ends, *marks.stops, *marks.answer_end, *closers)
        self._before_any = max((mark.before for mark in openers.values()), key=len, default="")

    def _left_over(self, known: set[str], closers: tuple[str, ...]) -> None:
        """Set the markers of calls that may stand where they mean nothing."""
        openers = self._openers
        self._call_ends = [text for text in closers if text not in known]
        self._sections = frozenset[str]()
        if self._calls and self._calls.section.is_call.literals:
            self._sections = frozenset(openers) - frozenset(self._calls.section.is_call.literals)
        begins = self._calls.section.is_call.literals if self._calls else ()
        others_than_calls = (
            text for text in (*openers, *closers) if not any(map(str.startswith, begins, repeat(text)))
        )
        self._behind_aside = compiled(*begins, *others_than_calls)
        # An element that the text opens has a closing marker of its own.
        names = [text[2:-1] for text in self._call_ends if text.startswith("</")]
        elements = {f"<{name}{end}" for name in names for end in "> "} - known
        starts = tuple(openers)
        self._elements = frozenset(
            text for text in elements if not (text.startswith(starts) or any(map(str.startswith, starts, repeat(text))))
        )

    def seeded(self) -> None:
        """The prompt's part of the turn was replayed: in some families reasoning that it closed stays closed."""
        self._closed_for_good = self._drops and self._closed
        self._closed = False

    def run(self) -> Gen[None]:
        """Read the whole turn, to the end of the input."""
        reader, marks = self._reader, self._marks
        lead, edge, untouched = "", "space", True
        reader.undecided = self._implicit
        started = yield from reader.starts(self._is_start)
        if started is not None:
            lead, untouched = self._skip(started, marks.start[started]), False
            reader.answer_start = reader.consumed + len(lead)
        if self._implicit and (yield from reader.more()):
            hit = yield from reader.starts(self._at_start)
            if hit is None or hit in marks.opens:
                reader.undecided = False
                lead = yield from self._reasoning(marks.opens.get(hit or ""), lead)
                edge, untouched = "reasoning-space", False
        reader.undecided = answering = False
        while True:
            if self._reasons_on:
                self._reasons_on = False
                lead, edge = (yield from self._reasoning(None, resumed=True)), "reasoning-space"
            span = Span(self._emitter, reader, "content", lead, edge)
            hit = yield from self._content(span, answering=answering)
            lead, edge = "", "space"
            if hit is None:
                if not reader.left:
                    span.end(exact=untouched or self._is_exact)
                    return
                span.end()
                assert self._unmarked is not None  # `_content` leaves text unread only if a call begins here
                self._called = True
                reader.call_start = reader.consumed
                yield from self._unmarked.read()
                reader.call_start = None
            elif hit == CUT:
                span.end(self._before_any)
                reader.take(reader.left, "marker")
            elif answering and hit in marks.answer_end:
                span.end(marks.answer_end[hit].before, exact=self._is_exact)
                lead, answering = self._skip(hit, marks.answer_end[hit]), False
            elif hit in marks.opens and self._closed_for_good:
                span.end(marks.opens[hit].before)
                lead, edge = self._skip(hit, marks.opens[hit], "reasoning-marker"), "reasoning-space"
                reader.answer_start = reader.consumed
            elif hit in marks.opens:
                span.end(marks.opens[hit].before)
                lead, edge = (yield from self._reasoning(marks.opens[hit])), "reasoning-space"
            elif hit in marks.closes and span.blank:
                # A closing marker without an open span: the prompt closed reasoning, or the model skipped it.
                span.end(marks.closes[hit].before)
                lead, edge = self._skip(hit, marks.closes[hit], "reasoning-marker"), "reasoning-space"
                reader.answer_start = reader.consumed
            elif hit in marks.answer and not answering:
                span.end(marks.answer[hit].before)
                lead, answering = self._skip(hit, marks.answer[hit]), True
            else:
                answering = answering and hit not in marks.start
                lead = yield from self._markup(span, hit)
            untouched = False

    @property
    def _is_exact(self) -> bool:
        return self._exact and not self._called

    def _skip(self, text: str, mark: Mark, kind: str = "marker") -> str:
        """Consume a marker, which also ends the effect of a heading. Returns the white space that the template writes
        after it."""
        self._announced = not self._has_heading
        self._reader.take(len(text), kind)
        return mark.after

    def _markup(self, span: Span, hit: str) -> Gen[str]:
        """Read a section of calls, or consume a marker that only introduces what follows. Returns the white space after
        it."""
        reader, marks = self._reader, self._marks
        if hit in self._openers:
            assert self._calls is not None  # only its section has openers
            span.end(self._openers[hit].before)
            reader.call_start = reader.consumed
            reader.take(len(hit), "marker")
            self._called = True
            after = yield from self._calls.read(hit)
            reader.call_start = None
            self._reasons_on, self._drafted = self._drafted, False
            return after
        if hit in marks.header:
            span.end(marks.header[hit].before)
            yield from reader.until(self._header_end, lambda text: reader.note("header", text))
            yield from reader.match(self._header_end, "header")
            self._announced = True
            return marks.header_end.after
        skipped = (
            marks.fences.get(hit) or marks.start.get(hit) or marks.ends.get(hit) or marks.answer_end.get(hit) or Mark()
        )  # otherwise a stop, or a control token without meaning here
        if hit in self._call_ends:
            skipped = Mark("\n", hit)
        span.end(skipped.before, exact=self._is_exact and (hit in marks.ends or hit in marks.stops))
        lead = self._skip(hit, skipped)
        if hit in marks.start:
            reader.answer_start = reader.consumed + len(lead)
        return lead

    def _content(self, span: Span, *, answering: bool) -> Gen[str | None]:
        """Read text up to a marker, and return the marker without consuming it. None: the input ended, or a bare call
        begins here."""
        reader = self._reader
        yield from self._space(span)
        if not (answering and self._marks.answer_end):
            at_start = self._after_call if self._called else self._at_start
        else:
            at_start = self._in_answer
        hit = yield from reader.starts(at_start)
        if hit is None and reader.is_cut(at_start):
            return CUT
        if hit is None and self._bare is not None:
            if (yield from self._bare.stands_here()):
                self._unmarked = self._bare
                return None
            if self._bare.is_cut():
                return CUT
        while True:
            quoted = hit in self._openers and span.holds_call(hit or "")
            if self._whole is not None and hit in WHOLE:
                if not self._in_code and span.begins_word and (yield from self._whole.stand_here()):
                    self._unmarked = self._whole
                    return None
                self._in_code ^= hit == FENCE
            elif hit == CUT or (hit is not None and not quoted and (yield from self._acts(hit, span))):
                return hit
            if hit is None:
                pass
            elif not quoted and (self._is_stray(hit, span) or (yield from self._is_left_out(hit, span))):
                span.settle(parted=hit in self._marks.closes and not (self._closed or self._exact))
                reader.take(len(hit), "marker")
            else:
                self._quoted += hit in self._openers or hit in self._marks.opens or hit in self._elements
                span.write(reader.take(len(hit)))
            markers = self._in_answer if answering else self._in_content
            hit = yield from reader.until(markers, span.write, cuts=True)
            if hit is None:
                return None

    def _acts(self, hit: str, span: Span) -> Gen[bool]:
        """Whether a marker takes effect; if not, it is text or is dropped (`_is_stray`).

        A stop, and a fence that does not open one, takes effect only at the end; some families' calls only before a
        declared name, or after a heading that announced them; a marker that opens reasoning in mid-line, or closes it
        when none is open, only as a token.
        """
        marks = self._marks
        if hit in self._elements:
            return False
        section = self._calls.section if self._calls else None
        if section is not None and section.owes(hit) and not (yield from self._is_quoted(hit, span)):
            section.call_is_open = False
            section.is_open = section.is_open and hit != section.close.text
            return True
        if hit in self._call_ends:
            return (self._called and span.blank) or (yield from self._is_left_over(hit, span))
        if hit in marks.fences and span.blank:
            self._fenced = yield from self._ends_line(hit)
            return self._fenced
        if hit in marks.stops or (hit in marks.fences and self._fenced):
            return (yield from self._ends_here(hit))
        if hit in marks.fences:
            return False
        if hit in marks.opens:
            return self._opens(hit, span)
        if hit in marks.header:
            return (yield from self._announces(hit))
        if self._calls is None or hit not in self._openers:
            return span.blank or not self._is_idle(hit)
        if not self._announced:
            return False
        if self._names_declared:
            return (yield from self._calls.names_a_tool(hit))
        return (yield from self._calls.section.begins(hit))

    def _opens(self, hit: str, span: Span) -> bool:
        """Whether an opening marker opens reasoning, rather than being quoted in text."""
        return self._anywhere or span.begins_line or hit in self._marks.control or self._reader.token == hit

    def _announces(self, hit: str) -> Gen[bool]:
        """Whether a header, which is short and has no line break, stands at the front: its end follows."""

        def ends(text: str) -> bool | None:
            header, end, _ = text.partition(self._marks.header_end.text)
            fits = "\n" not in header and len(header) < _HEADER
            return fits if end or not fits else None

        found = yield from self._reader.judged(ends, len(hit))
        return found or (found is None and self._reader.cut)

    def _is_idle(self, hit: str) -> bool:
        """Whether a marker has no effect in the middle of content."""
        marks = self._marks
        return hit in marks.strays and not (hit in marks.answer_end or hit in marks.ends or hit in marks.others)

    def _is_stray(self, hit: str, span: Span) -> bool:
        """Whether a marker that takes no effect is dropped: a control token, or one that closes what is not open,
        unless the text quotes it."""
        if hit in self._marks.control:
            return True
        if hit not in self._marks.strays:
            return False
        if self._quoted:
            self._quoted -= 1
            return False
        return not span.quotes

    def _is_left_over(self, closer: str, span: Span) -> Gen[bool]:
        """Whether a call's closing marker stands alone at the end of an answer that opened none."""
        if self._calls is None or self._quoted or span.quotes:
            return False
        if self._exact or not span.begins_line or _TAGS.fullmatch(self._reader.plain(closer)) is None:
            return False
        return (yield from self._ends_here(closer, (*self._marks.ends, *self._marks.stops, *self._marks.answer_end)))

    def _is_quoted(self, marker: str, span: Span) -> Gen[bool]:
        """Whether the text quotes the marker at the front: an opening marker before it was text, or it stands between
        quotation marks."""
        reader = self._reader
        if self._quoted or not span.quotes:
            return bool(self._quoted)
        return (yield from reader.judged(lambda rest: rest[0] in QUOTES if rest else None, len(marker))) is True

    def _is_left_out(self, hit: str, span: Span) -> Gen[bool]:
        """Whether a call's marker means nothing here and is no text either."""
        if span.quotes or self._calls is None:
            return False
        if hit in self._sections and self._announced and span.begins_line:
            self._calls.section.is_open = is_aside = yield from self._introduces(hit)
            return is_aside
        if hit not in self._call_ends:
            return False
        if self._quoted:
            self._quoted -= 1
            return False
        return (yield from self._precedes_call(hit))

    def _introduces(self, opener: str) -> Gen[bool]:
        """Whether prose, and then a call, follow a section's opening marker."""
        assert self._calls is not None  # its section has the opener
        section = self._calls.section

        def introduces(text: str) -> bool | None:
            found = self._behind_aside.pattern.search(text)
            if found and (marker := found.group(1)):
                begun = found.start() <= _ASIDE and marker in section.is_call.literals
                return begun and section.would_begin(marker, text[found.end() :])
            return False if (found.start() if found else len(text)) > _ASIDE else None

        found = yield from self._reader.judged(introduces, len(opener), _ASIDE + WINDOW)
        return found or (found is None and self._reader.cut)

    def _precedes_call(self, hit: str) -> Gen[bool]:
        """Whether an opening marker directly follows the closing one at the front."""
        return (yield from self._reader.judged(lambda rest: begins(rest.lstrip(), self._openers), len(hit))) is True

    def _ends_line(self, text: str) -> Gen[bool]:
        return (yield from self._reader.judged(lambda rest: begins(rest, ["\n"]), len(text))) is True

    def _ends_here(self, stop: str, ends: tuple[str, ...] = ()) -> Gen[bool]:
        """Whether nothing, or one of the ends, follows the stop at the front. Generation ends at a stop; other text may
        contain it."""
        reader = self._reader

        def over(text: str) -> bool | None:
            rest = text.lstrip()
            return begins(rest, ends) if rest else True if reader.closed else None

        return (yield from reader.judged(over, len(stop))) is True

    def _space(self, span: Span) -> Gen[None]:
        """Pass all white space at the front to the span."""
        reader = self._reader
        while (yield from reader.more()):
            space = _SPACE.match(reader.buffer, reader.pos)
            if space is None:
                return
            span.write(reader.take(space.end() - reader.pos))

    def _reasoning(self, open_: Mark | None, lead: str = "", *, resumed: bool = False) -> Gen[str]:
        """Read a span of reasoning, including its opening marker if it has one (if not, `lead` is the white space
        before it). `resumed`: it goes on after a call that stood in it, if anything follows.

        Returns the white space after its closing marker.
        """
        reader, emitter, marks = self._reader, self._emitter, self._marks
        emitter.in_reasoning = not resumed
        span = Span(emitter, reader, "reasoning")
        while True:
            if open_ is not None:
                span.end()
                reader.take(len(open_.text), "reasoning-marker")
            span = Span(emitter, reader, "reasoning", open_.after if open_ else lead, "reasoning-space")
            yield from self._space(span)
            if resumed and ((yield from reader.match(self._behind_call)) or reader.cut_marker(self._behind_call)):
                continue
            # Models may open reasoning again although the prompt has opened it.
            open_ = marks.opens.get((yield from reader.starts(self._is_open)) or "")
            if open_ is None:
                break
        behind = _Behind(span) if resumed else None
        hit = CUT if reader.is_cut(self._is_open) else (yield from self._until_reasoning_ends(span, behind))
        if behind is not None and hit is None and not reader.cut:
            span.end()
            emitter.in_reasoning = False
            behind.span = span = Span(emitter, reader, "content")
        if behind is not None:
            behind.settle()
        if hit == CUT:
            span.end(max((mark.before for mark in marks.closes.values()), key=len))
            reader.take(reader.left, "marker")
            return ""
        if hit is None:
            span.end()
            return ""
        emitter.in_reasoning = False
        if hit in marks.closes:
            self._closed = True
            span.end(marks.closes[hit].before)
            after = self._skip(hit, marks.closes[hit], "reasoning-marker")
            reader.answer_start = reader.consumed
            return after
        self._drafted = hit not in marks.others
        reader.answer_start = reader.consumed
        span.end((marks.others.get(hit) or self._openers[hit]).before)
        return ""

    def _until_reasoning_ends(self, span: Span, behind: "_Behind | None") -> Gen[str | None]:
        """Read text up to a marker that ends reasoning, and return the marker without consuming it."""
        reader, emitter = self._reader, self._emitter
        passed = span.write if behind is None else behind.write

        def write(text: str) -> None:
            emitter.in_reasoning = True
            passed(text)

        while True:
            hit = yield from reader.until(self._in_reasoning, write, cuts=True)
            if hit is None or hit == CUT or hit not in self._openers or hit in self._marks.others:
                return hit
            if not span.holds_call(hit) and (yield from self._is_call(hit)):
                return hit
            write(reader.take(len(hit)))

    def _is_call(self, opener: str) -> Gen[bool]:
        """Whether a call begins at the front of reasoning, rather than a draft or a mention of one."""
        reader, emitter = self._reader, self._emitter
        assert self._calls is not None  # its section has the opener
        if not self._announced or self._failed == MOST or not (yield from self._calls.section.begins(opener)):
            return False
        before, syntax = (emitter.in_reasoning, reader.answer_start), self._calls.section.syntax
        wrapped = opener in self._wrappers
        if self._ends_on_call and wrapped:
            # While this is open, a constraint holds the text to be the call that it looks like.
            emitter.in_reasoning, reader.answer_start, reader.call_start = False, reader.consumed, reader.consumed
        trial = self._trial_of(syntax, ends=self._reasoning_ends, at_once=self._ends_on_call, wrapped=wrapped)
        is_call = yield from trial.succeeds()
        reader.call_start = None
        if not is_call:
            self._failed += 1
            emitter.in_reasoning, reader.answer_start = before
        return is_call


class _Behind:
    """Text behind a call that stood in reasoning. It is held, since it is reasoning only if a marker closes that later,
    and otherwise the answer. Text longer than any held call is reasoning."""

    def __init__(self, span: Span) -> None:
        self.span = span
        self._held: list[str] = []
        self._size = 0

    def write(self, text: str) -> None:
        """Add text."""
        self._held.append(text)
        self._size += len(text)
        if self._size > LONGEST:
            self.settle()

    def settle(self) -> None:
        """Pass on what was held."""
        for text in self._held:
            self.span.write(text)
        self._held.clear()


class _Marks:
    """A format's markers outside calls, by their text."""

    __slots__ = (
        "answer",
        "answer_end",
        "closes",
        "control",
        "ends",
        "fences",
        "header",
        "header_end",
        "opens",
        "others",
        "start",
        "stops",
        "strays",
        "tokens",
    )

    def __init__(self, format_: Format, spelling: Spelling, demands: Demands) -> None:
        reasoning, tools, marks = format_.reasoning, format_.tools, spelling.marks
        opens = (reasoning.open, *reasoning.also_open) if reasoning else ()
        closes = (reasoning.close, *reasoning.also_close) if reasoning else ()
        self.start = marks(format_.start)
        self.opens = marks(*opens)
        self.closes = marks(*closes)
        self.answer = marks(format_.content[0])
        self.answer_end = marks(format_.content[1])
        self.header = marks(format_.header[0])
        self.header_end = spelling.mark(format_.header[1])
        self.fences = marks(*(("\n```json\n", "\n```\n") if demands.json else ()))
        self.ends = marks(*format_.ends)
        own = {*self.answer_end, *self.ends, *self.closes}
        self.stops = {text: mark for text, mark in marks(*format_.stops).items() if text not in own}
        # A marker that begins another part of the turn ends the previous part, if it cannot occur in prose.
        self.others = marks(*filter(spelling.is_hard, (format_.content[0], format_.start)))
        later = reasoning is not None and reasoning.where != "start"
        self.tokens = frozenset(marks(*filter(_is_token, opens if later else ())))
        # Without tool calls (tool_choice "none"), calls are content, including their markers.
        self.control = frozenset(spelling.characters.values() if demands.calls else ())
        over = [format_.content[1], *(tools.section[1:] + tools.call_marks[1:] if tools and demands.calls else ())]
        hard = filter(spelling.is_hard, (*closes, *over))
        self.strays = frozenset([*marks(*filter(_is_token, closes if later else ()), *hard), *self.control])


@lru_cache
def _is_token(literal: str) -> bool:
    """Whether a marker looks like one token rather than prose."""
    return _TOKEN.fullmatch(literal.strip()) is not None
