"""Whether a mark in code is only shown there, as where a text shows a whole turn. It may also act: models leave code
open.
"""

import re
from collections.abc import Iterable
from functools import partial

from engine.formats.parsing.emitter import Emitter, Span
from engine.formats.parsing.lookahead import LONG_TRIAL, MOST, Trial
from engine.formats.parsing.quoting import Code
from engine.formats.parsing.reader import Gen, Reader, Spelling, compiled

ASIDE = 200
"""In characters: what is held behind a mark in code to find a call. Without one nothing can be run by mistake, so that
an answer passes on; behind one the end of the code is looked for as far as any held call goes."""
_TICK = "`"
_TICKS = re.compile("`+")


class ShownCode:
    """Knows which marks, and which calls, a turn only shows in code. `ends` close a call; `bare`: a bracket may begin
    one."""

    def __init__(
        self, reader: Reader, emitter: Emitter, spelling: Spelling, ends: Iterable[str], *, bare: bool = False
    ) -> None:
        self._reader, self._emitter = reader, emitter
        self._trial = partial(ShownTrial, reader, emitter, spelling, ends=frozenset(ends), bare=bare)
        self._until = 0  # where code ends that shows marks, counted like `Reader.consumed`
        self._failed = 0  # trials; long ones count more
        self._left_fence: Code | None = None  # the fence in which a part of the turn ended

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
            self._left_fence = code
        return is_shown

    def has_call(self) -> Gen[bool]:
        """Whether the call at the front is shown, in a fence in which a part of the turn ended."""
        fence, self._left_fence = self._left_fence, None
        if fence is None:
            return False
        is_shown = self._reader.consumed < self._until or (yield from self._try("", fence, called=True))
        self._left_fence = fence if is_shown else None
        return is_shown

    def _try(
        self, mark: str, code: Code, closers: Iterable[str] = (), openers: Iterable[str] = (), *, called: bool = False
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
    cut before that can be told, the mark is shown if a call follows it. A fence that begins the text may hold all of
    it, a call too: it shows that only if text follows.

    openers: what begins a call, and `ends` what closes it: backticks between them are the call's own, unless nothing
    closes it; `bare`: a bracket directly behind the mark begins one, too. called: the front is a call in the code, and
    the mark stood before it.
    """

    def __init__(
        self,
        reader: Reader,
        emitter: Emitter,
        spelling: Spelling,
        mark: str,
        code: Code,
        *,
        ends: frozenset[str] = frozenset(),
        closers: Iterable[str] = (),
        openers: Iterable[str] = (),
        bare: bool = False,
        called: bool = False,
    ) -> None:
        super().__init__(reader, emitter, spelling, compiled())
        self._begun = reader.consumed
        self._mark, self._code, self._bare, self._called = mark, code, bare and not called, called
        if called:
            reader.call_start = self._begun
        self._closers = frozenset(closers) - {""}
        self._call_ends = ends - self._closers
        self._markers = compiled(*self._closers, *openers, *self._call_ends, "\n", _TICK)
        self._in_call = called and bool(self._call_ends)
        self._ended_in_call = False  # backticks in a call would end the code
        self._depth = 1  # of code: a fence with a word behind it opens another
        self._blank = False  # the line has only white space so far
        self._held_call = False  # the code, which has ended, held a call
        self._shown: bool | None = None
        self.end = self._begun
        """Where the code ends that shows the mark, counted like `Reader.consumed`."""

    def _reads(self) -> Gen[None]:
        reader = self.inner
        reader.take(len(self._mark))
        if self._bare and (yield from reader.after_space()) in ("{", "[") and not self._is_late:
            self._meets_call()
        while self._shown is None and (hit := (yield from reader.until(self._markers, self._write))) is not None:
            if self._shown is not None:
                return  # the text before the marker tells
            if self._is_late:
                self._shown = False
            elif hit == _TICK:
                yield from self._ticks()
            else:
                self._read_mark(hit)
                reader.take(len(hit))

    def _read_mark(self, hit: str) -> None:
        if hit == "\n":
            ends_code = self._blank and self._depth and not self._code.is_fence and not self._in_call
            self._shown = False if ends_code else None
        elif hit in self._call_ends:
            self._in_call = False
        elif hit not in self._closers:
            self._meets_call()
        elif not self._depth:
            self._shown = True
        self._blank = hit == "\n"

    def _write(self, text: str) -> None:
        is_space = text.isspace()
        self._blank = self._blank and is_space
        self._shown = self._shown or (True if self._held_call and not is_space else None)

    def _ticks(self) -> Gen[None]:
        """Read backticks: they may end the code, or open or end other code in it."""
        reader, begun, ends_line = self.inner, self.inner.consumed, self._blank
        ticks = len((yield from reader.all_of(_TICKS, "marker")))
        self._blank = False
        if not self._depth:
            return
        if not self._code.is_fence:
            if ticks == self._code.ticks:
                self._ends_code(alone=begun == len(self._mark))
        elif ends_line and ticks >= self._code.ticks:
            if (yield from reader.judged(self._ends_code_here)) is False:
                self._depth += not self._in_call
            else:
                self._depth -= not self._in_call
                self._ends_code(alone=False)

    @staticmethod
    def _ends_code_here(rest: str) -> bool | None:
        """Whether a fence ends code: a word behind it would open other code."""
        rest = rest.lstrip(" \t")
        return not rest[0].isalnum() if rest else None

    def _ends_code(self, *, alone: bool) -> None:
        if self._in_call:
            self._ended_in_call = True
            return
        if not self._code.is_fence:
            self._depth = 0
        if self._depth == 0:
            self.end = self._begun + self.inner.consumed
            self._held_call = self._called
            self._shown = True if alone or (self._called and not self._code.begins) else None

    def _meets_call(self) -> None:
        self._in_call = bool(self._call_ends)
        if not self._called:
            self._called, self._outer.call_start = True, self._begun + self.inner.consumed

    def _fed(self) -> bool | None:
        return False if self._shown is None and self._is_late else self._shown

    @property
    def _is_late(self) -> bool:
        return not self._called and self.inner.consumed > len(self._mark) + ASIDE

    def _ended_output(self) -> bool:
        self.inner.closed = True
        self._advance()
        if self._in_call and self._ended_in_call:
            return True  # nothing closes the call: the code ended in it
        return self._outer.cut and self._called if self._shown is None else self._shown
