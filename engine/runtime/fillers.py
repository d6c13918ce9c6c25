"""Idle sequences that are given a row along with a step's single tokens, where more rows take less time than fewer.

Knows: the times that passes over so many rows took, and how llama.cpp cuts single tokens into passes. Does not know:
batches, what is in a sequence, clocks.

Two facts make that happen. Between separate KV buffers a pass takes only sequences whose numbers follow one another
(llama-batch.cpp, `split_equal`), and each pass reads all weights. And the kernels for repacked weights take rows by
fours (ggml-cpu/repack.cpp): seven rows can take longer than eight. Whether it is so for a model on its device is not
assumed but tried, and measured.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, takewhile
from operator import lt
from statistics import median
from typing import NamedTuple

_BLOCK = 4
_HOPE = 0.7
"""What a full block is expected to take, of the time of fewer rows, until it was tried."""
_WIDEST_GAP = 3
_STALE = 512
"""Passes after which a time is forgotten, so that what was found once is tried again."""


class _Run(NamedTuple):
    """Sequences `start` to `stop` (exclusive), all of which have a row."""

    start: int
    stop: int


class _Plan(NamedTuple):
    """What some runs are expected to take with these fillers."""

    seconds: float
    fillers: tuple[int, ...]


class _Times:
    """The last seconds of passes over one number of rows, their median, and when the newest of them was."""

    __slots__ = ("median", "newest", "seconds")

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=3)
        self.median = 0.0
        self.newest = 0


class Fillers:
    """For a context of so many `sequences`. `neighbours`: only those whose numbers follow one another share a pass."""

    def __init__(self, sequences: int, *, neighbours: bool) -> None:
        self._sequences = sequences
        self._neighbours = neighbours
        self._times: dict[int, _Times] = {}
        self._clock = 0

    def choose(self, busy: Sequence[int], usable: Callable[[int], bool]) -> tuple[int, ...]:
        """The sequences to give a row beside the `busy` ones, which are in ascending order. `usable` tells whether an
        idle one may have a row."""
        if len(busy) == self._sequences:
            return ()
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
            for first in range(last, -1, -1):
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

    def took(self, sequences: Sequence[int], seconds: float) -> None:
        """A batch of a row for each of these sequences, fillers among them, took so long."""
        passes = [run.stop - run.start for run in _runs(sequences)] if self._neighbours else [len(sequences)]
        self._clock += 1
        shares = [self._expected(rows) or 1.0 for rows in passes]
        for rows, share in zip(passes, shares, strict=True):
            times = self._times.setdefault(rows, _Times())
            times.seconds.append(seconds * share / sum(shares))
            times.median, times.newest = median(times.seconds), self._clock
        if self._clock % _STALE == 0:
            kept = {rows: times for rows, times in self._times.items() if self._clock - times.newest < _STALE}
            self._times = kept

    def _expected(self, rows: int) -> float:
        """Seconds of a pass: as they were, or a hope worth trying."""
        if (known := self._times.get(rows)) is not None:
            return known.median
        for fewer in range(rows - 1, 0, -1):
            if (known := self._times.get(fewer)) is not None:
                return known.median * (1.0 if rows % _BLOCK else _HOPE)
        return 0.0


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
