"""How many tokens a sequence guesses: as many as promise the most tokens per second, by what was measured; none where
guesses do not pay."""

from collections.abc import Iterable

_PRIOR, _PRIOR_TESTED = 1.5, 2.0
"""What a new engine assumes: three of four guesses are right."""
_OF_ENGINE, _OF_SEQUENCE = 0.98, 0.8
"""How much of the guesses counted so far remains at the next draft, for all sequences and for one."""
_OF_TIMES = 0.98
_LATEST = 10
_SURE = 0.98  # no guess is more probable
_OUTLIER = 4.0
"""Decodes that take longer than this many times the expected time count as that long: something else ran."""
_MEASURED = 3
"""Decodes without guesses that are measured before the first draft."""
_LEAST_SPREAD = 0.003
"""The least variance of the numbers of rows, in squares of their mean, from which the time of a row is computed."""
_GAIN = 1.05
"""How much faster guesses must promise to be: reading what they follow takes time, too, and measurements vary."""
_REST = 4
"""Tokens without a guess, after guesses did not pay for the first time."""


class DraftRecord:
    """What one sequence's guesses came to. `undrafted` counts the tokens drawn without a guess because guesses did not
    pay."""

    __slots__ = ("accepted", "drafted", "rest", "right", "tested", "tries", "undrafted", "wait")

    def __init__(self) -> None:
        self.drafted = self.accepted = self.undrafted = 0
        self.right = self.tested = 0.0
        self.wait = 0
        self.rest = 0  # 0: as long as the engine's
        self.tries = False


class DraftRule:
    """Chooses the size of each draft, and pauses, for every kind of guesses.

    A draft of k guesses, each right with probability p if those before it are, yields 1 + p + .. + p^k tokens. It takes
    the time of a decode with k more rows for each sequence, and the time to make the guesses. Both are measured. Where
    no size is faster than none, the sequence pauses for some tokens, then tries the smallest size once, and pauses
    twice as long after each try that changes nothing, up to `longest_rest` tokens. `sizes`: those to choose from.
    """

    def __init__(self, sizes: Iterable[int], longest_rest: int) -> None:
        self.sizes = sorted(sizes)
        self._longest_rest = longest_rest
        self._rest = _REST
        self._right, self._tested = _PRIOR, _PRIOR_TESTED
        self._times = _Line()

    def size(self, record: DraftRecord, room: int, sequences: int, cost: float) -> int:
        """Returns how many tokens to guess, at most `room`. `sequences` are decoded together; to make one guess for
        each of them takes `cost` seconds."""
        if room < 1 or not self.sizes or not self._times.covers(sequences):
            return 0
        if not record.wait:
            if size := self._best(record, room, sequences, cost):
                record.rest = self._rest = _REST
                record.tries = False
                return size
            if record.tries:
                record.tries = False
                return self.sizes[0]
            record.wait = record.rest or self._rest
            record.rest = self._rest = min(2 * record.wait, self._longest_rest)
        record.wait -= 1
        record.tries = not record.wait
        record.undrafted += 1
        return 0

    def _best(self, record: DraftRecord, room: int, sequences: int, cost: float) -> int:
        prior = self._right / self._tested
        chance = min((record.right + _PRIOR_TESTED * prior) / (record.tested + _PRIOR_TESTED), _SURE)
        best, best_speed = 0, 0.0
        for size in (0, *self.sizes):
            if size > room:
                break
            tokens = (1 - chance ** (size + 1)) / (1 - chance)
            seconds = self._times.at(sequences * (size + 1)) + size * cost
            speed = tokens / (seconds or 1.0)
            if speed > best_speed:
                best, best_speed = size, speed if size else speed * _GAIN
        return best

    def decoded(self, rows: int, seconds: float) -> None:
        """Record that a decode without prompts had so many rows and took `seconds`."""
        self._times.add(rows, seconds)

    def judged(self, record: DraftRecord, drafted: int, accepted: int) -> None:
        """Record that `accepted` of a draft's `drafted` tokens were right."""
        tested = min(accepted + 1, drafted)  # what follows a wrong guess is not tested
        record.drafted += drafted
        record.accepted += accepted
        record.right = record.right * _OF_SEQUENCE + accepted
        record.tested = record.tested * _OF_SEQUENCE + tested
        self._right = self._right * _OF_ENGINE + accepted
        self._tested = self._tested * _OF_ENGINE + tested


class _Line:
    """The seconds of a decode by its rows: the straight line through the latest decodes."""

    def __init__(self) -> None:
        self._count = 0
        self._weight = self._rows = self._seconds = self._squares = self._products = 0.0
        self._base = self._slope = 0.0

    def at(self, rows: int) -> float:
        return self._base + self._slope * rows

    def covers(self, rows: int) -> bool:
        """Whether the time of so few rows is known. If not, some decodes must have no guesses."""
        return self._count > _MEASURED and (self._is_spread or self._rows <= rows * self._weight * 1.001)

    @property
    def _is_spread(self) -> bool:
        mean = self._rows / self._weight
        return self._squares / self._weight - mean**2 > _LEAST_SPREAD * mean**2

    def add(self, rows: int, seconds: float) -> None:
        self._count += 1
        if self._count == 1:  # which may have loaded pages
            return
        if expected := self.at(rows):
            seconds = min(seconds, _OUTLIER * expected)
        self._weight = self._weight * _OF_TIMES + 1
        self._rows = self._rows * _OF_TIMES + rows
        self._seconds = self._seconds * _OF_TIMES + seconds
        self._squares = self._squares * _OF_TIMES + rows * rows
        self._products = self._products * _OF_TIMES + rows * seconds
        mean_rows, mean_seconds = self._rows / self._weight, self._seconds / self._weight
        if self._is_spread:
            spread = self._squares / self._weight - mean_rows**2
            slope = (self._products / self._weight - mean_rows * mean_seconds) / spread
            self._slope = min(max(slope, 0.0), mean_seconds / mean_rows)
        self._base = max(mean_seconds - self._slope * mean_rows, 0.0)


class MeanCost:
    """The mean seconds of a repeated piece of work, of which the latest count most."""

    __slots__ = ("_count", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self._count = 0

    def add(self, seconds: float) -> None:
        self._count += 1
        if self.seconds:
            seconds = min(seconds, _OUTLIER * self.seconds)
        self.seconds += (seconds - self.seconds) / min(self._count, _LATEST)
