"""Reads one assistant turn whose parts follow one another in a single text: content, reasoning spans, sections of
calls.

Theory of operation. The reader looks for the markers of a place (`Roles.at`) and passes on the text before the first
one. What that marker does is said by the two tables at the end, IN_TEXT and IN_REASONING: the first row acts that names
a role of the marker and whose condition holds. If none does, the marker is text. A new marker needs a role
(`roles.py`); a new meaning needs a row. A condition consumes nothing; an action consumes the marker, or writes it into
the text. docs/about/how-a-turn-is-read.md shows the tables.
"""

import re
from collections.abc import Callable, Generator
from functools import cache, partial
from typing import NamedTuple, TypeAlias, TypeVar, cast

from engine.formats.families import Format
from engine.formats.parsing.emitter import QUOTES, Emitter, Span
from engine.formats.parsing.lookahead import LONG_TRIAL, LONGEST, MOST, DraftTrial
from engine.formats.parsing.reader import CUT, WINDOW, Gen, Mark, Reader, Spelling, begins, compiled
from engine.formats.parsing.roles import BARE, Place, Role, roles_of
from engine.formats.parsing.shapes import Section, SectionReader
from engine.formats.parsing.shown import ShownCode
from engine.formats.parsing.unmarked import BareCalls, Demands, bare_calls
from engine.formats.parsing.whole_calls import WholeCalls

T = TypeVar("T")
Step: TypeAlias = Gen[T] | T
"""What a step of a table returns: a generator if it has to look ahead or read on."""

_SPACE = re.compile(r"\s+")
_TAGS = re.compile(r"(?:<[^<>\n]+>)+")
_ASIDE = 200
"""The longest prose, in characters, that is held between a section's opening marker, which begins a line, and its
first call."""

_HEADER = 200
"""The longest header of a message, in characters."""


class Row(NamedTuple):
    """One row of a table: what a marker with this role does if the condition holds. `ends`: it ends the text so far; if
    not, the text goes on behind it."""

    role: Role
    when: "Callable[[TextTurn, str], Step[bool]]"
    does: "Callable[[TextTurn, str], Step[None]]"
    ends: bool = True


Rows: TypeAlias = Callable[[frozenset[Role]], tuple[Row, ...]]
"""Returns the rows of a table for a marker with these roles, in order."""


class TextTurn:
    """Reads a turn of a format without channels."""

    def __init__(self, reader: Reader, emitter: Emitter, format_: Format, spelling: Spelling, demands: Demands) -> None:
        self.reader, self.emitter, self.reasoning = reader, emitter, format_.reasoning
        self.roles = roles_of(format_, spelling, demands, tools=bool(emitter.tools))
        tools = format_.tools if demands.calls else None
        self.calls = SectionReader(reader, emitter, tools, spelling) if tools else None
        self.bare = bare_calls(reader, emitter, format_.tools, spelling, demands)
        self.whole = WholeCalls(reader, emitter, spelling)
        self.trial_of = partial(DraftTrial, reader, emitter, spelling=spelling)
        ends = [text for text, roles in self.roles.of.items() if Role.CLOSER in roles]
        stops = [text for role in (Role.END, Role.STOP, Role.ANSWER_END) for text in self.roles.marks[role]]
        syntax = None if ends else tools  # else what ends a call is known without reading it
        self.shown = ShownCode(reader, emitter, spelling, ends, stops=stops, bare=self.bare is not None, syntax=syntax)
        self.exact = demands.exact
        self.span, self.lead, self.edge = Span(emitter, reader, "content"), "", "space"
        self.untouched = True  # no marker and no call so far
        self.answering = self.called = self.fenced = False
        self.has_heading = self.calls is not None and self.calls.section.has_heading
        self.announced = not self.has_heading
        self.quoted = 0  # opening markers that were text: as many closing ones are text too
        self.closed = self.closed_for_good = False  # reasoning: by this part of the turn, by the prompt
        self.drafted = self.reasons_on = False  # a call stands, or stood, in reasoning that nothing has closed
        self.failed = 0  # trials
        self.ends_in_calls = False

    def seeded(self) -> None:
        """The prompt's part of the turn was replayed: in some families reasoning that it closed stays closed."""
        self.closed_for_good = self.closed and self.reasoning is not None and self.reasoning.when_closed == "drop"
        self.closed = False

    def run(self) -> Gen[None]:
        """Read the whole turn, to the end of the input."""
        yield from self._begin()
        while True:
            if self.reasons_on:
                self.reasons_on = False
                yield from self.reason(None, resumed=True)
            span = self.span = Span(self.emitter, self.reader, "content", self.lead, self.edge)
            self.lead, self.edge = "", "space"
            yield from self._space()
            first = yield from self._first()
            place = Place.IN_ANSWER if self.answering else Place.IN_CONTENT
            found = yield from self._read(_in_text, place, span.write, first)
            if found is None:
                span.end(exact=self.untouched or self.is_exact)
                return
            row, hit = found
            step = row.does(self, hit)
            if step is not None:  # not by `_run`: one generator less that each piece of text passes
                yield from step
            self.untouched = False

    def _begin(self) -> Gen[None]:
        """Read the marker that begins a message, and reasoning that begins without one."""
        reader, roles = self.reader, self.roles
        implicit = self.reasoning is not None and self.reasoning.implicit
        reader.undecided = implicit
        start = yield from reader.starts(roles.all(Role.START))
        if start is not None:
            self.untouched = False
            self.skip(start, roles.mark(Role.START, start))
            reader.answer_start = reader.consumed + len(self.lead)
        if implicit and (yield from reader.more()):
            hit = yield from reader.starts(roles.at[Place.AT_START])
            if hit is None or Role.OPENS in roles.of[hit]:
                self.untouched = reader.undecided = False
                yield from self.reason(None if hit is None else roles.mark(Role.OPENS, hit), self.lead)
        reader.undecided = False

    def _first(self) -> Gen[str | None]:
        """Returns the marker at the front of a text; None if it begins with other text."""
        in_answer = self.answering and self.roles.marks[Role.ANSWER_END]
        markers = self.roles.at[Place.IN_ANSWER if in_answer else Place.AT_START]
        hit = yield from self.reader.starts(markers)
        if hit is not None:
            return hit
        if self.reader.is_cut(markers):
            return CUT
        if self.bare is None:
            return None
        return BARE if (yield from self.bare.stands_here()) else CUT if self.bare.is_cut() else None

    def _read(
        self, rows: Rows, place: Place, write: Callable[[str], None], hit: str | None
    ) -> Gen[tuple[Row, str] | None]:
        """Read text, with the marker at its front (None: it has none), up to a marker that ends it. Returns that, not
        consumed, with its row; None at the end of the input."""
        reader, markers = self.reader, self.roles.at[place]
        while True:
            if hit is not None:
                row = yield from self._row(rows, hit)
                if row is None:
                    write(reader.take(len(hit)))
                elif row.ends:
                    return row, hit
                else:
                    yield from _run(row.does(self, hit))
            hit = yield from reader.until(markers, write, cuts=True)
            if hit is None:
                return None

    def _row(self, rows: Rows, hit: str) -> Gen[Row | None]:
        """Returns the row that acts; None if the marker is text."""
        for row in rows(self.roles.of[hit]):
            if (yield from _run(row.when(self, hit))):
                return row
        return None

    def _space(self) -> Gen[None]:
        """Pass all white space at the front to the span."""
        reader = self.reader
        while (yield from reader.more()):
            space = _SPACE.match(reader.buffer, reader.pos)
            if space is None:
                return
            self.span.write(reader.take(space.end() - reader.pos))

    def reason(self, open_: Mark | None, lead: str = "", *, resumed: bool = False) -> Gen[None]:
        """Read a span of reasoning, with its opening marker if it has one (if not, `lead` is the white space before
        it), and what ends it. `resumed`: it goes on after a call that stood in it, if anything follows."""
        reader, emitter = self.reader, self.emitter
        emitter.in_reasoning = not resumed
        yield from self._open_reasoning(open_, lead, resumed=resumed)
        behind = _Behind(self.span) if resumed else None
        passed = self.span.write if behind is None else behind.write

        def write(text: str) -> None:
            emitter.in_reasoning = True
            passed(text)

        first = CUT if reader.is_cut(self.roles.all(Role.OPENS)) else None
        found = yield from self._read(_in_reasoning, Place.IN_REASONING, write, first)
        if behind is not None:
            if found is None and not reader.cut:
                self.span.end()
                emitter.in_reasoning = False
                behind.span = self.span = Span(emitter, reader, "content")
            behind.settle()
        self.lead, self.edge = "", "reasoning-space"
        if found is None:
            self.span.end()
            return
        row, hit = found
        yield from _run(row.does(self, hit))

    def _open_reasoning(self, open_: Mark | None, lead: str, *, resumed: bool) -> Gen[None]:
        """Begin a span of reasoning. Models may open it again although the prompt has opened it; and behind a call in
        it, what closes the call or ends the turn may be left over."""
        reader, left_over = self.reader, self.roles.at[Place.BEHIND_CALL]
        self.span = Span(self.emitter, reader, "reasoning")
        while True:
            if open_ is not None:
                self.span.end()
                reader.take(len(open_.text), "reasoning-marker")
                open_, lead = None, open_.after
            self.span = Span(self.emitter, reader, "reasoning", lead, "reasoning-space")
            yield from self._space()
            if resumed and ((hit := (yield from reader.starts(left_over))) or reader.ends_in(left_over)):
                self.span.end()
                reader.take(len(hit) if hit else reader.left, "marker")
                continue
            open_ = yield from self._opening()
            if open_ is None:
                return

    def _opening(self) -> Gen[Mark | None]:
        """Returns the marker that opens reasoning, if one is at the front. Consumes nothing."""
        hit = yield from self.reader.starts(self.roles.all(Role.OPENS))
        return None if hit is None else self.roles.mark(Role.OPENS, hit)

    @property
    def is_exact(self) -> bool:
        return self.exact and not self.called

    @property
    def section(self) -> Section:
        """The section of calls; a marker of calls stands only where there is one."""
        return cast("SectionReader", self.calls).section

    def skip(self, text: str, mark: Mark, kind: str = "marker") -> None:
        """Consume a marker, which also ends the effect of a heading. What follows begins with the white space that the
        template writes after it."""
        self.announced = not self.has_heading
        self.reader.take(len(text), kind)
        self.lead = mark.after


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


def _run(step: Step[T]) -> Gen[T]:
    """Returns what a step of a table returns, now or once it has looked ahead."""
    if isinstance(step, Generator):
        return (yield from cast("Gen[T]", step))
    return cast("T", step)


# Conditions: the page says them in the words of their first sentences.


def _always(_turn: TextTurn, _hit: str) -> bool:
    """Always."""
    return True


def _stands_in_code(turn: TextTurn, hit: str) -> bool:
    """It stands in code: between backticks, or in a fence."""
    return turn.span.quotes_mark(hit)


def _whole_calls_stand(turn: TextTurn, _hit: str) -> Step[bool]:
    """It begins a word, and the whole of what it begins are calls of declared tools that fit; they are not shown in
    code, nor in a fence that began the text."""
    return turn.span.begins_word and not turn.span.is_fenced and _whole_calls_act(turn)


def _whole_calls_act(turn: TextTurn) -> Gen[bool]:
    return (yield from turn.whole.stands_here()) and not (yield from turn.shown.has_call(turn.span))


def _is_owed(turn: TextTurn, hit: str) -> Step[bool]:
    """Its section or call is open, and the text does not quote it."""
    return turn.section.owes(hit) and _is_unquoted(turn, hit)


def _is_unquoted(turn: TextTurn, marker: str) -> Gen[bool]:
    """No opening marker before it was text, and it does not stand between quotation marks."""
    if turn.quoted or not turn.span.quotes:
        return not turn.quoted
    return (
        yield from turn.reader.judged(lambda rest: rest[0] not in QUOTES if rest else None, len(marker))
    ) is not False


def _is_behind_call(turn: TextTurn, _hit: str) -> bool:
    """A call came before, and no text since."""
    return turn.called and turn.span.blank


def _is_left_over(turn: TextTurn, hit: str) -> Step[bool]:
    """It stands alone, on a line of its own, at the end of an answer."""
    if turn.quoted or turn.exact or turn.span.quotes or not turn.span.begins_line:
        return False
    ends = [text for role in (Role.END, Role.STOP, Role.ANSWER_END) for text in turn.roles.marks[role]]
    return _TAGS.fullmatch(turn.reader.plain(hit)) is not None and _precedes_end(turn, hit, tuple(ends))


def _fences_answer(turn: TextTurn, hit: str) -> Gen[bool]:
    """It stands alone on the first line, or, if that did, at the end."""
    if turn.span.blank:
        turn.fenced = (yield from turn.reader.judged(lambda rest: begins(rest, ["\n"]), len(hit))) is True
        return turn.fenced
    return turn.fenced and (yield from _precedes_end(turn, hit))


def _precedes_end(turn: TextTurn, hit: str, ends: tuple[str, ...] = ()) -> Gen[bool]:
    """Nothing follows it."""

    def over(text: str) -> bool | None:
        rest = text.lstrip()
        return begins(rest, ends) if rest else True if turn.reader.closed else None

    return (yield from turn.reader.judged(over, len(hit))) is True


def _opens(turn: TextTurn, hit: str) -> bool:
    """It begins a line or is a token; in some families always."""
    anywhere = turn.reasoning is not None and turn.reasoning.where == "anywhere"
    is_token = Role.CONTROL in turn.roles.of[hit] or turn.reader.token == hit
    return anywhere or turn.span.begins_line or is_token


def _opens_what_is_closed(turn: TextTurn, hit: str) -> bool:
    """It begins a line or is a token, and the prompt has closed reasoning for good."""
    return turn.closed_for_good and _opens(turn, hit)


def _announces(turn: TextTurn, hit: str) -> Gen[bool]:
    """Its end follows soon, on the same line."""

    def ends(text: str) -> bool | None:
        header, end, _ = text.partition(turn.roles.header_end.text)
        fits = "\n" not in header and len(header) < _HEADER
        return fits if end or not fits else None

    found = yield from turn.reader.judged(ends, len(hit))
    return found or (found is None and turn.reader.cut)


def _begins_call(turn: TextTurn, hit: str) -> Step[bool]:
    """A call can follow it: a name, or an object; in some families a declared name, or a heading before it."""
    calls = turn.calls
    if calls is None or not turn.announced:
        return False
    syntax = calls.section.syntax
    declared = syntax.shape == "tagged_json" and syntax.names_declared
    return calls.names_a_tool(hit) if declared else calls.section.begins(hit)


def _in_answer(turn: TextTurn, _hit: str) -> bool:
    """The answer is open."""
    return turn.answering


def _before_answer(turn: TextTurn, _hit: str) -> bool:
    """No answer is open."""
    return not turn.answering


def _before_text(turn: TextTurn, _hit: str) -> bool:
    """No text precedes it."""
    return turn.span.blank


def _closes_what_was_text(turn: TextTurn, _hit: str) -> bool:
    """An opening marker before it was text."""
    return turn.quoted > 0


def _closes_unquoted(turn: TextTurn, _hit: str) -> bool:
    """An opening marker before it was text, and no quotation mark precedes it."""
    return turn.quoted > 0 and not turn.span.quotes


def _no_quote_before(turn: TextTurn, _hit: str) -> bool:
    """No quotation mark precedes it."""
    return not turn.span.quotes


def _introduces_call(turn: TextTurn, opener: str) -> Step[bool]:
    """It begins a line, and some prose, and then a call, follow it."""
    return not turn.span.quotes and turn.announced and turn.span.begins_line and _stands_before_prose(turn, opener)


def _stands_before_prose(turn: TextTurn, opener: str) -> Gen[bool]:
    section, markers = turn.section, turn.roles.behind_section

    def introduces(text: str) -> bool | None:
        found = markers.pattern.search(text)
        if found and (marker := found.group(1)):
            begun = found.start() <= _ASIDE and marker in section.is_call.literals
            return begun and section.would_begin(marker, text[found.end() :])
        return False if (found.start() if found else len(text)) > _ASIDE else None

    found = yield from turn.reader.judged(introduces, len(opener), _ASIDE + WINDOW)
    section.is_open = found or (found is None and turn.reader.cut)  # if it is text, so is what closes it
    return section.is_open


def _precedes_call(turn: TextTurn, hit: str) -> Step[bool]:
    """An opening marker of calls directly follows it, and no quotation mark precedes it."""
    return not turn.span.quotes and _is_before_call(turn, hit)


def _is_before_call(turn: TextTurn, hit: str) -> Gen[bool]:
    openers = turn.roles.marks[Role.CALLS]
    return (yield from turn.reader.judged(lambda rest: begins(rest.lstrip(), openers), len(hit))) is True


def _is_shown(turn: TextTurn, hit: str) -> Gen[bool]:
    """It stands in code, and the code ends behind a call in it, or another such marker follows behind the code."""
    marks, reasons = turn.roles.marks, turn.emitter.in_reasoning
    closers = (hit, *marks[Role.CLOSES if reasons else Role.ANSWER_END])
    if reasons and hit in marks[Role.ANSWER_END]:
        closers = ()  # an answer may have ended with it
    return turn.shown.has_mark(turn.span, hit, closers=closers, openers=marks[Role.CALLS])


def _shows_call(turn: TextTurn, hit: str) -> Gen[bool]:
    """It stands in code, or a part of the turn ended in a fence, and the code ends behind the call."""
    if hit == BARE:
        return turn.shown.has_call(None)
    return turn.shown.has_call(turn.span, hit, lambda rest: turn.section.would_begin(hit, rest))


def _begins_no_draft(turn: TextTurn, opener: str) -> Gen[bool]:
    """No code shows it, and a call follows it that is neither a draft nor a mention of one."""
    return not (yield from _shows_call(turn, opener)) and (yield from _is_no_draft(turn, opener))


def _is_no_draft(turn: TextTurn, opener: str) -> Gen[bool]:
    reader, emitter, section = turn.reader, turn.emitter, turn.section
    if turn.ends_in_calls:
        return True
    if not turn.announced or turn.failed >= MOST or not (yield from section.begins(opener)):
        return False
    before, at_once = (
        (emitter.in_reasoning, reader.answer_start),
        turn.reasoning is not None and turn.reasoning.ends_on_call,
    )
    wrapped = opener in section.wrappers
    if at_once and wrapped:
        # While this is open, a constraint holds the text to be the call that it looks like.
        emitter.in_reasoning, reader.answer_start, reader.call_start = False, reader.consumed, reader.consumed
    trial = turn.trial_of(section.syntax, ends=turn.roles.ends_draft, at_once=at_once, wrapped=wrapped)
    is_call = yield from trial.succeeds()
    reader.call_start = None
    turn.ends_in_calls = is_call and not at_once
    if not is_call:
        turn.failed += 1 + trial.inner.consumed // LONG_TRIAL
        emitter.in_reasoning, reader.answer_start = before
    return is_call


# Actions that end the text: the span before the marker is over, and what follows begins anew.


def _leave_out_rest(turn: TextTurn, _hit: str) -> None:
    """It is left out."""
    turn.span.end(turn.roles.before(Role.CALLS))
    turn.reader.take(turn.reader.left, "marker")


def _read_bare(turn: TextTurn, _hit: str) -> Gen[None]:
    """The calls are read, as they come."""
    return _read_unmarked(turn, cast("BareCalls", turn.bare))


def _read_whole(turn: TextTurn, _hit: str) -> Gen[None]:
    """The calls are read, with the fence around them."""
    return _read_unmarked(turn, turn.whole)


def _read_unmarked(turn: TextTurn, calls: BareCalls | WholeCalls) -> Gen[None]:
    turn.span.end()
    turn.called, turn.reader.call_start = True, turn.reader.consumed
    yield from calls.read()
    turn.reader.call_start = None


def _read_calls(turn: TextTurn, hit: str) -> Gen[None]:
    """The section of calls is read, with what closes it."""
    reader = turn.reader
    turn.span.end(turn.roles.mark(Role.CALLS, hit).before)
    turn.called, reader.call_start = True, reader.consumed
    reader.take(len(hit), "marker")
    turn.lead = yield from cast("SectionReader", turn.calls).read(hit)
    reader.call_start = None
    turn.reasons_on, turn.drafted = turn.drafted, False


def _skip(turn: TextTurn, hit: str) -> None:
    """It is left out, with the white space around it."""
    mark = turn.roles.skipped.get(hit, Mark())
    is_last = not turn.roles.of[hit].isdisjoint((Role.END, Role.STOP))
    turn.span.end(mark.before, exact=turn.is_exact and is_last)
    turn.skip(hit, mark)


def _close_owed(turn: TextTurn, hit: str) -> None:
    """It is left out; a section is over, or a call in it."""
    section = turn.section
    section.call_is_open = False
    section.is_open = section.is_open and hit != section.close.text
    _skip(turn, hit)


def _start_message(turn: TextTurn, hit: str) -> None:
    """It is left out, and no answer is open."""
    turn.answering = False
    _skip(turn, hit)
    turn.reader.answer_start = turn.reader.consumed + len(turn.lead)


def _open_answer(turn: TextTurn, hit: str) -> None:
    """It is left out, and the answer is open."""
    mark = turn.roles.mark(Role.ANSWER, hit)
    turn.span.end(mark.before)
    turn.skip(hit, mark)
    turn.answering = True


def _close_answer(turn: TextTurn, hit: str) -> None:
    """It is left out, and the answer is over."""
    mark = turn.roles.mark(Role.ANSWER_END, hit)
    turn.span.end(mark.before, exact=turn.is_exact)
    turn.skip(hit, mark)
    turn.answering = False


def _read_reasoning(turn: TextTurn, hit: str) -> Gen[None]:
    """Reasoning is read, with what ends it."""
    mark = turn.roles.mark(Role.OPENS, hit)
    turn.span.end(mark.before)
    return turn.reason(mark)


def _skip_opening(turn: TextTurn, hit: str) -> None:
    """It is left out."""
    _skip_reasoning(turn, hit, Role.OPENS)


def _skip_closing(turn: TextTurn, hit: str) -> None:
    """It is left out: the prompt closed reasoning, or the model skipped it."""
    _skip_reasoning(turn, hit, Role.CLOSES)


def _skip_reasoning(turn: TextTurn, hit: str, role: Role) -> None:
    mark = turn.roles.mark(role, hit)
    turn.span.end(mark.before)
    turn.skip(hit, mark, "reasoning-marker")
    turn.edge = "reasoning-space"
    turn.reader.answer_start = turn.reader.consumed


def _read_header(turn: TextTurn, hit: str) -> Gen[None]:
    """The header is left out; it announces a call."""
    reader, end = turn.reader, compiled(turn.roles.header_end.text)
    turn.span.end(turn.roles.mark(Role.HEADER, hit).before)
    yield from reader.until(end, lambda text: reader.note("header", text))
    yield from reader.match(end, "header")
    turn.announced, turn.lead = True, turn.roles.header_end.after


def _leave_reasoning_cut(turn: TextTurn, _hit: str) -> None:
    """It is left out."""
    turn.span.end(turn.roles.before(Role.CLOSES))
    turn.reader.take(turn.reader.left, "marker")


def _close_reasoning(turn: TextTurn, hit: str) -> None:
    """It is left out, and reasoning is over."""
    turn.emitter.in_reasoning, turn.closed = False, True
    _skip_closing(turn, hit)


def _end_reasoning(turn: TextTurn, hit: str) -> None:
    """Reasoning is over; what the marker does is said by the other table."""
    _leave_reasoning(turn, turn.roles.mark(Role.OTHER, hit))


def _interrupt_reasoning(turn: TextTurn, hit: str) -> None:
    """Reasoning is over, unless text behind the call and a closing marker show that it goes on."""
    turn.drafted = True
    _leave_reasoning(turn, turn.roles.mark(Role.CALLS, hit))


def _leave_reasoning(turn: TextTurn, mark: Mark) -> None:
    turn.emitter.in_reasoning = False
    turn.reader.answer_start = turn.reader.consumed
    turn.span.end(mark.before)


# Actions that do not end it: the marker becomes text, or is left out of the text around it.


def _write(turn: TextTurn, hit: str) -> None:
    """It is text."""
    turn.span.write(turn.reader.take(len(hit)))


def _write_opening(turn: TextTurn, hit: str) -> None:
    """It is text, and so is what closes it."""
    turn.quoted += 1
    turn.span.write(turn.reader.take(len(hit)))


def _write_closing(turn: TextTurn, hit: str) -> None:
    """It is text."""
    turn.quoted -= 1
    turn.span.write(turn.reader.take(len(hit)))


def _write_in_code(turn: TextTurn, hit: str) -> None:
    """It is text."""
    closes = not turn.roles.of[hit].isdisjoint((Role.CLOSER, Role.CLOSES))
    turn.quoted -= 1 if closes and turn.quoted else 0
    turn.span.write(turn.reader.take(len(hit)))


def _drop(turn: TextTurn, hit: str) -> None:
    """It is left out of the text around it."""
    is_first = Role.CLOSES in turn.roles.of[hit] and not (turn.closed or turn.exact)
    turn.span.settle(parted=is_first)
    turn.reader.take(len(hit), "marker")


IN_TEXT = (
    Row(Role.CUT, _always, _leave_out_rest),
    Row(Role.BARE, _shows_call, _write, ends=False),
    Row(Role.BARE, _always, _read_bare),
    Row(Role.WHOLE, _whole_calls_stand, _read_whole),
    Row(Role.PART, _is_shown, _write, ends=False),
    Row(Role.CALLS, _shows_call, _write_opening, ends=False),
    Row(Role.OPENS, _stands_in_code, _write_opening, ends=False),
    Row(Role.ELEMENT, _always, _write_opening, ends=False),
    Row(Role.CLOSER, _is_owed, _close_owed),
    Row(Role.CALL_END, _is_behind_call, _skip),
    Row(Role.CALL_END, _is_left_over, _skip),
    Row(Role.FENCE, _fences_answer, _skip),
    Row(Role.STOP, _precedes_end, _skip),
    Row(Role.OPENS, _opens_what_is_closed, _skip_opening),
    Row(Role.OPENS, _opens, _read_reasoning),
    Row(Role.HEADER, _announces, _read_header),
    Row(Role.CALLS, _begins_call, _read_calls),
    Row(Role.ANSWER_END, _in_answer, _close_answer),
    Row(Role.CLOSES, _before_text, _skip_closing),
    Row(Role.ANSWER, _before_answer, _open_answer),
    Row(Role.START, _always, _start_message),
    Row(Role.END, _always, _skip),
    Row(Role.ANSWER_END, _always, _skip),
    Row(Role.ANSWER, _always, _skip),
    Row(Role.LONE, _before_text, _skip),
    Row(Role.STRAY, _stands_in_code, _write_in_code, ends=False),
    Row(Role.CONTROL, _always, _drop, ends=False),
    Row(Role.STRAY, _closes_what_was_text, _write_closing, ends=False),
    Row(Role.STRAY, _no_quote_before, _drop, ends=False),
    Row(Role.SECTION, _introduces_call, _drop, ends=False),
    Row(Role.CALL_END, _closes_unquoted, _write_closing, ends=False),
    Row(Role.CALL_END, _precedes_call, _drop, ends=False),
    Row(Role.CALLS, _always, _write_opening, ends=False),
    Row(Role.OPENS, _always, _write_opening, ends=False),
)
"""What markers do in content and at its start, the first row first."""

IN_REASONING = (
    Row(Role.CUT, _always, _leave_reasoning_cut),
    Row(Role.CLOSES, _is_shown, _write, ends=False),
    Row(Role.CLOSES, _always, _close_reasoning),
    Row(Role.OTHER, _is_shown, _write, ends=False),
    Row(Role.OTHER, _always, _end_reasoning),
    Row(Role.CALLS, _begins_no_draft, _interrupt_reasoning),
)
"""The same in reasoning."""


def _rows_of(table: tuple[Row, ...]) -> Rows:
    def rows(roles: frozenset[Role]) -> tuple[Row, ...]:
        return tuple(row for row in table if row.role in roles)

    return cache(rows)


_in_text, _in_reasoning = _rows_of(IN_TEXT), _rows_of(IN_REASONING)
