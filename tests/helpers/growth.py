"""What parsing costs as an output grows, counted: the characters that every step has before it, not seconds.

A long run of one filling is put into a family's output, at any of its places. Doubling the run may at most double the
count (and a fifth, for what is held back at its beginning): a parser that looks again at what it has seen fails that.
"""

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from cases.parsing_cases import CASES, Case, markers

from engine.formats.parsing import parser as parser_module
from engine.formats.parsing.reader import Reader

LENGTH = 800
GRACE = 1.2
NAMES = ("one call", "every JSON type", "reasoning and content", "malformed arguments, then a good call")
FILLINGS = (" ", "\n", "ab ", "<", '"', "'", "\\", "`", "{", "[", "(", ",", "=", ">", "</", '"\\"\\\\')


class CountingReader(Reader):
    """Counts, at each look at the buffer, all that is in it."""

    __slots__ = ("_text",)
    looked = 0

    @property
    def buffer(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        CountingReader.looked += len(self._text) - self.pos
        return self._text

    @buffer.setter
    def buffer(self, text: str) -> None:
        self._text = text


class Run(NamedTuple):
    """A case's output with a place where a filling goes."""

    case: Case
    place: int
    filling: str

    def __str__(self) -> str:
        return f"{self.case}: {self.filling!r} behind {self.case.output[: self.place][-30:]!r}"


def runs(family: str) -> Iterator[Run]:
    """All fillings at the beginning, the middle and the end of each part of the family's outputs."""
    own = [marker[:-1] for marker in markers(family)[:6] if len(marker) > 1]
    for case in CASES:
        if case.family == family and case.name in NAMES:
            for place in _places(case):
                yield from (Run(case, place, filling) for filling in (*FILLINGS, *own))


def sample(family: str, count: int) -> list[Run]:
    """As many of these, the same every time."""
    found = list(runs(family))
    return random.Random(family).sample(found, min(count, len(found)))


def _places(case: Case) -> list[int]:
    parser = case.parser(trace=True)
    parser.feed(case.output)
    parser.close()
    places, at = {0}, 0
    for segment in parser.trace:
        places |= {at + len(segment.text) // 2, at + len(segment.text)}
        at += len(segment.text)
    return sorted(places)


def growth(monkeypatch: pytest.MonkeyPatch, run: Run) -> float:
    """How many times as much a run of twice the length costs."""
    with monkeypatch.context() as patched:
        patched.setattr(parser_module, "Reader", CountingReader)
        once, twice = (_cost(run, length) for length in (LENGTH, 2 * LENGTH))
    return twice / once


def _cost(run: Run, length: int) -> int:
    output, place = run.case.output, run.place
    text = output[:place] + (run.filling * (length // len(run.filling) + 1))[:length] + output[place:]
    parser = run.case.parser()
    CountingReader.looked = 0
    for at in range(0, len(text), 3):
        parser.feed(text[at : at + 3])
    parser.close()
    return CountingReader.looked
