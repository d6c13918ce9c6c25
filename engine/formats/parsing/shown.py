"""Whether what stands in code is only shown there: a call, or a mark, as where a text shows a whole turn. It may also
act: models leave code open. What follows tells.
"""

import re
from collections.abc import Callable, Iterable
from functools import partial

from engine.formats.families import ToolSyntax
from engine.formats.parsing.emitter import Emitter, Span
from engine.formats.parsing.lookahead import LONG_TRIAL, MOST, Trial
from engine.formats.parsing.quoting import Quoting
from engine.formats.parsing.reader import Gen, Reader, Spelling, begins, compiled
from engine.formats.parsing.shapes import SectionReader

ASIDE = 200
"""In characters: what is held behind a mark in code to find a call. Without one nothing can be run by mistake, so that
an answer passes on; behind one the end of the code is looked for as far as any held call goes."""
_RUNS = {char: re.compile(f"{char}+") for char in "`~"}


class ShownCode:
    """Knows which marks, and which calls, a turn only shows in code. `ends` close a call, `stops` the turn; `bare`: a
    bracket may begin a call; `syntax`: that of calls which nothing closes."""

    def __init__(
        self,
        reader: Reader,
        emitter: Emitter,
        spelling: Spelling,
        ends: Iterable[str],
        *,
        stops: Iterable[str] = (),
        bare: bool = False,
        syntax: ToolSyntax | None = None,
    ) -> None:
        self._reader, self._emitter = reader, emitter
        self._trial = partial(
            ShownTrial,
            reader,
            emitter,
            spelling,
            ends=frozenset(ends),
            stops=frozenset(stops),
            bare=bare,
            syntax=syntax,
        )
        self._until = 0  # where code ends that shows marks, counted like `Reader.consumed`
        self._failed = 0  # trials; long ones count more
        self._left: Quoting | None = None  # the fence in which a part of the turn ended

    def has_mark(self, span: Span, mark: str, *, closers: Iterable[str] = (), openers: Iterable[str]) -> Gen[bool]:
        """Whether the mark at the front, behind a span, is shown; for the rest see `ShownTrial`."""
        reader, emitter, code = self._reader, self._emitter, span.code
        if code is None:
            return False
        is_shown = reader.consumed < self._until
        if not is_shown:
            before = emitter.in_reasoning, reader.answer_start
            if emitter.in_reasoning:
                # While this is open, a constraint holds what follows to be what it looks like.
                emitter.in_reasoning, reader.answer_start = False, reader.consumed + len(mark)
            is_shown = yield from self._try(mark, code, closers, openers)
            if is_shown:
                emitter.in_reasoning, reader.answer_start = before
        if is_shown:
            span.show_mark()
        elif code.is_fence:
            self._left = code
        return is_shown

    def has_call(
        self, span: Span | None, mark: str = "", begins: Callable[[str], bool | None] | None = None
    ) -> Gen[bool]:
        """Whether the call at the front is shown: in code of the span, or in a fence in which a part of the turn ended.
        Where `begins` says that no call follows the mark, code shows it."""
        reader, left = self._reader, self._left
        code = span.code if span is not None and span.quotes_code(mark) else left
        if code is None or reader.consumed < self._until:
            return code is not None
        if begins is not None and (yield from reader.judged(begins, len(mark))) is False:
            return span is not None and span.quotes_mark(mark)
        self._left = None
        is_shown = yield from self._try(mark, code, called=True)
        self._left = left if is_shown else None
        if is_shown and span is not None and code is not left:
            span.show_mark()
        return is_shown

    def _try(
        self,
        mark: str,
        code: Quoting,
        closers: Iterable[str] = (),
        openers: Iterable[str] = (),
        *,
        called: bool = False,
    ) -> Gen[bool]:
        """Behind so much code that nothing ended, all that stands in code is text: that bounds the cost of a turn."""
        if self._failed >= MOST:
            return True
        trial = self._trial(mark, code, closers=closers, openers=openers, called=called)
        is_shown = yield from trial.succeeds()
        self._reader.call_start = None
        if is_shown:
            self._until = trial.end
        else:
            self._failed += 1 + trial.inner.consumed // LONG_TRIAL
        return is_shown


class ShownTrial(Trial):
    """Whether the mark at the front, which stands in code, is shown: the code ends behind a call in it, or with the
    mark; or the code ends, and a marker that does what the mark does (`closers`) follows later. Where the output was
    cut behind a whole call, before that can be told, the mark is shown. A fence that begins the text may hold all of
    it, a call too: it shows that only if text follows.

    openers: what begins a call, and `ends` what closes it: backticks between them are the call's own, unless nothing
    closes it; `stops` say nothing; `bare`: a bracket directly behind the mark begins a call, too. called: the mark
    begins a call in the code.
    """

    def __init__(
        self,
        reader: Reader,
        emitter: Emitter,
        spelling: Spelling,
        mark: str,
        code: Quoting,
        *,
        ends: frozenset[str] = frozenset(),
        stops: frozenset[str] = frozenset(),
        closers: Iterable[str] = (),
        openers: Iterable[str] = (),
        bare: bool = False,
        syntax: ToolSyntax | None = None,
        called: bool = False,
    ) -> None:
        super().__init__(reader, emitter, spelling, compiled())
        self._begun, self._reasons = reader.consumed, emitter.in_reasoning
        self._mark, self._bare, self._begins_call, self._called = mark, bare and not called, called, False
        self._depth, self._begins = code.depth, code.begins
        self._code = self._with_call = code.copy()  # what the text is without calls, and with the one that is open
        self._closers = frozenset(closers) - {""}
        self._call_ends = ends - self._closers
        self._stops = stops - self._closers - self._call_ends
        self._calls = SectionReader(self.inner, self.emitter, syntax, spelling) if syntax else None
        self._markers = compiled(*self._closers, *openers, *self._call_ends, *self._stops, "\n", *_RUNS)
        self._in_call = False
        self._ended_in_call = False  # backticks in a call would end the code
        self._over = False  # the code has ended
        self._held_call = False  # the code, which has ended, held a call
        self._shown: bool | None = None
        self._at = 0  # behind the last mark of code, or line
        self.end = self._begun
        """Where the code ends that shows the mark, counted like `Reader.consumed`."""

    def _reads(self) -> Gen[None]:
        reader = self.inner
        reader.take(len(self._mark))
        if self._begins_call:
            yield from self._meets_call(self._mark)
        elif self._bare and (yield from reader.after_space()) in ("{", "[") and not self._is_late:
            yield from self._meets_call("")
        while self._shown is None and (hit := (yield from reader.until(self._markers, self._write))) is not None:
            if self._shown is not None:
                return  # the text before the marker tells
            if self._is_late:
                self._shown = False
            elif hit[0] in _RUNS:
                yield from self._read_run(hit)
            else:
                reader.take(len(hit))
                yield from self._read_mark(hit)

    def _read_run(self, hit: str) -> Gen[None]:
        """Read backticks or tildes; in some families backticks close a call."""
        begun = self.inner.consumed
        run = yield from self.inner.all_of(_RUNS[hit[0]], "marker")
        if run == hit and self._in_call and hit in self._call_ends:
            self._in_call = self._ended_in_call = False
        else:
            self._add(run, alone=begun == len(self._mark))

    def _read_mark(self, hit: str) -> Gen[None]:
        if hit == "\n":
            self._add(hit)
            return
        if hit in self._stops and not (yield from self.inner.judged(self._goes_on)):
            return
        self._code.write("x")  # its line has a word
        if hit in self._stops:
            return
        if hit in self._closers:
            self._shown = True if self._over else None
        elif hit in self._call_ends:
            self._in_call = self._ended_in_call = False
        else:
            yield from self._meets_call(hit)

    def _goes_on(self, rest: str) -> bool | None:
        """Whether text follows what stops the turn, rather than more of the same."""
        rest = rest.lstrip()
        if found := begins(rest, self._stops):
            stop = next(stop for stop in self._stops if rest.startswith(stop))
            return self._goes_on(rest.removeprefix(stop))
        return True if rest and found is False else None

    def _meets_call(self, opener: str) -> Gen[None]:
        """Read a call, behind its opening marker: up to what closes it, or, if nothing does, with the real reader."""
        if not self._called:
            self._called = True
            if not self._reasons:
                self._outer.call_start = self._begun + self.inner.consumed - len(opener)
        if self._in_call:
            return
        self._in_call, self._with_call = bool(self._call_ends), self._code.copy()
        if self._calls is None:
            return
        self.inner.record = taken = list[str]()
        yield from self._calls.read(opener)
        self.inner.record = None
        self._take_note()
        text = "".join(taken)
        self._in_call = not self._whole
        self._add(text if self._in_call else "x" + text[len(text.rstrip()) :])

    def _write(self, text: str) -> None:
        self._add(text)
        if self._held_call and not text.isspace():
            self._shown = True

    def _add(self, text: str, *, alone: bool = False) -> None:
        """Follow the text: it may end the code, directly behind the mark (`alone`) too."""
        code = self._with_call if self._in_call else self._code
        code.write(text)
        if text[0] in "\n`~":
            self._at = self.inner.consumed
        self._look(code, alone=alone)

    def _look(self, code: Quoting, *, alone: bool = False) -> None:
        if self._over or self._ended_in_call or code.depth >= self._depth:
            return
        if self._in_call:
            # A line that is not in the code ends the code in the midst of the call, which it does not show then.
            self._shown = False if code.ended == "line" else None
            self._ended_in_call = code.ended == "mark"
        elif code.ended == "paragraph":
            self._shown = False
        else:
            self._over, self._held_call, self.end = True, self._called, self._begun + self._at
            self._shown = True if alone or (self._called and not self._begins) else None

    def _fed(self) -> bool | None:
        return False if self._shown is None and self._is_late else self._shown

    @property
    def _is_late(self) -> bool:
        return not self._called and self.inner.consumed > len(self._mark) + ASIDE

    def _ended_output(self) -> bool:
        self.inner.closed, self.inner.cut = True, self._outer.cut
        self._advance()
        if self._shown is None:
            code = self._with_call if self._in_call else self._code
            code.end()
            self._look(code)
        if self._in_call and self._ended_in_call:
            return True  # nothing closes the call: the code ended in it
        if self._shown is not None:
            return self._shown
        return self._outer.cut and self._called and not self._in_call and (self._held_call or not self._over)
