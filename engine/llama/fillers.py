"""Idle sequences that are given a row along with a step's single tokens, where more rows take less time than fewer.

Knows: the times that batches took, by the rows of their passes, and how llama.cpp cuts single tokens into passes. Does
not know: batches, what is in a sequence, clocks.

Two facts make that happen. Between separate KV buffers a pass takes only sequences whose numbers follow one another
(llama-batch.cpp, `split_equal`), and each pass reads all weights. And the kernels for repacked weights take rows by
fours (ggml-cpu/repack.cpp): seven rows can take longer than eight. Whether it is so for a model on its device is not
assumed: what single passes were seen to take only says what is worth a try, and whole batches with fillers and without
are compared.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import chain, islice, takewhile
from operator import lt
from statistics import median_low
from typing import NamedTuple, TypeAlias

_BLOCK = 4
_HOPE = 0.7
"""What a full block is expected to take, of the time of fewer rows, until it was tried."""
_WIDEST_GAP = 3
_MOST_RUNS = 16
"""Made one, at most: so that many sequences do not take long to look through."""
_ENOUGH = 2
"""Batches of a shape before their time is believed: the first of a kind can take twice as long."""
_STALE = 512
"""Batches after which a time is forgotten that was not measured again: what is slower may not stay so."""
_FRESH = 32
"""Batches after which it is looked anew for what to fill."""

_Shape: TypeAlias = tuple[int, ...]
"""The rows of each pass of a batch, in ascending order."""


class _Run(NamedTuple):
    """Sequences `start` to `stop` (exclusive), all of which have a row."""

    start: int
    stop: int


class _Plan(NamedTuple):
    """What some runs are expected to take with these fillers."""

    seconds: float
    fillers: tuple[int, ...]


class _Times:
    """The last seconds of batches of one shape, the middle one, and when the newest of them was."""

    __slots__ = ("middle", "newest", "seconds")

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=3)
        self.middle = 0.0
        self.newest = 0


class Fillers:
    """For a context of so many `sequences`. `neighbours`: only those whose numbers follow one another share a pass."""

    def __init__(self, sequences: int, *, neighbours: bool) -> None:
        self._sequences = sequences
        self._neighbours = neighbours
        self._times: dict[_Shape, _Times] = {}
        self._alike: dict[int, _Shape] = {}  # the last batch whose passes all had so many rows
        self._passes: dict[int, float] = {}  # what a pass of so many rows is taken to need, from other batches
        self._clock = 0
        self._busy: tuple[int, ...] = ()
        self._planned: tuple[int, ...] = ()
        self._until = 0  # the clock to which this plan is good

    def choose(self, busy: Sequence[int], usable: Callable[[int], bool]) -> tuple[int, ...]:
        """The sequences to give a row beside the `busy` ones, which are in ascending order. `usable` tells whether an
        idle one may have a row, and is asked for each that is chosen."""
        busy = tuple(busy)
        if len(busy) == self._sequences:
            return ()
        if busy != self._busy or self._clock >= self._until or not all(map(usable, self._planned)):
            self._busy, self._planned = busy, self._plan(busy, cache(usable))
            self._until = self._clock + _FRESH
        fillers = self._planned
        if not fillers or not self._pays(self._shape(busy), self._shape(sorted((*busy, *fillers)))):
            return ()
        return fillers

    def took(self, sequences: Sequence[int], seconds: float) -> None:
        """A batch of a row for each of these sequences, fillers among them, took so long."""
        shape = self._shape(sequences)
        self._clock += 1
        if len(self._times) > _STALE:
            self._times = {known: times for known, times in self._times.items() if self._is_fresh(times)}
        times = self._times.get(shape)
        if times is None or not self._is_fresh(times):
            times = self._times[shape] = _Times()
        times.seconds.append(seconds)
        times.middle, times.newest = median_low(times.seconds), self._clock
        if len(times.seconds) <= _ENOUGH:  # something was learned
            self._until = self._clock
        if shape[0] == shape[-1]:
            self._alike[shape[0]] = shape
        else:
            self._share_out(shape, times.middle)

    def _pays(self, bare: _Shape, filled: _Shape) -> bool:
        """Whether to evaluate the batch with fillers: as what was measured says, or to measure it."""
        without, beside = self._known(bare), self._known(filled)
        if without is None or len(without.seconds) < _ENOUGH:
            return False
        if beside is None or len(beside.seconds) < _ENOUGH:
            return True
        return beside.middle < without.middle

    def _plan(self, busy: Sequence[int], usable: Callable[[int], bool]) -> tuple[int, ...]:
        """The fillers that are expected to save the most; as few as will do."""
        if not self._neighbours:
            idle = (sequence for sequence in range(self._sequences) if sequence not in busy and usable(sequence))
            return min(self._options(_Plan(0.0, ()), len(busy), (), idle), key=_cost).fillers
        runs = _runs(busy)
        best = [_Plan(0.0, ())]  # for the first so many runs
        for last, run in enumerate(runs):
            # Without a gap before the next run the two would be one.
            end = runs[last + 1].start - 1 if run is not runs[-1] else self._sequences
            options: list[_Plan] = []
            between: tuple[int, ...] = ()
            for first in range(last, max(last - _MOST_RUNS, -1), -1):
                if first < last:
                    gap = range(runs[first].stop, runs[first + 1].start)
                    if len(gap) > _WIDEST_GAP or not all(map(usable, gap)):
                        break
                    between = (*gap, *between)
                beyond = takewhile(usable, range(run.stop, end))
                if not first:
                    beyond = chain(beyond, takewhile(usable, range(runs[0].start - 1, -1, -1)))
                options += self._options(best[first], run.stop - runs[first].start, between, beyond)
            best.append(min(options, key=_cost))
        return best[-1].fillers

    def _options(self, before: _Plan, rows: int, between: tuple[int, ...], beyond: Iterable[int]) -> Iterator[_Plan]:
        """So many more rows, `between` them fillers already, as they are; and with as many from `beyond` as make the
        blocks full."""
        seconds, fillers = before
        yield _Plan(seconds + self._expected(rows), fillers + between)
        missing = -rows % _BLOCK
        if missing and len(more := tuple(islice(beyond, missing))) == missing:
            yield _Plan(seconds + self._expected(rows + missing), fillers + between + more)

    def _expected(self, rows: int) -> float:
        """Seconds of a pass: as they were, or a hope worth trying."""
        for number in range(rows, 0, -1):
            seconds = self._alone(number)
            if seconds is None:
                seconds = self._passes.get(number)
            if seconds is not None:
                return seconds * (_HOPE if number < rows and not rows % _BLOCK else 1.0)
        return 0.0

    def _alone(self, rows: int) -> float | None:
        """Seconds of a pass of so many rows, as batches show it that have no other passes."""
        shape = self._alike.get(rows, ())
        known = self._known(shape)
        return None if known is None else known.middle / len(shape)

    def _share_out(self, shape: _Shape, seconds: float) -> None:
        """What a batch took beyond those of its passes whose time is known is the others' time."""
        alone = [self._alone(rows) for rows in shape]
        unknown = [rows for rows, known in zip(shape, alone, strict=True) if known is None]
        rest = max(0.0, seconds - sum(known for known in alone if known is not None))
        self._passes |= {rows: rest / len(unknown) for rows in unknown}

    def _known(self, shape: _Shape) -> _Times | None:
        times = self._times.get(shape)
        return times if times is not None and self._is_fresh(times) else None

    def _is_fresh(self, times: _Times) -> bool:
        return self._clock - times.newest < _STALE

    def _shape(self, sequences: Sequence[int]) -> _Shape:
        """Of a batch of a row for each of these, in ascending order."""
        if not self._neighbours:
            return (len(sequences),)
        return tuple(sorted(run.stop - run.start for run in _runs(sequences)))


def one_each(sequences: Sequence[int]) -> bool:
    """Whether these are the sequences of single tokens, several of them, in ascending order."""
    return len(sequences) > 1 and all(map(lt, sequences, sequences[1:]))


def _cost(plan: _Plan) -> tuple[float, int]:
    """The fewer fillers, the better, where they gain nothing."""
    return plan.seconds, len(plan.fillers)


def _runs(sequences: Sequence[int]) -> list[_Run]:
    """Sequences in ascending order as runs without a gap."""
    runs: list[_Run] = []
    for sequence in sequences:
        if runs and runs[-1].stop == sequence:
            runs[-1] = _Run(runs[-1].start, sequence + 1)
        else:
            runs.append(_Run(sequence, sequence + 1))
    return runs
