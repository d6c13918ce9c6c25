"""A seeded sample of what small models and attackers write; `benchmarks/fuzz.py --slips 60000` tries many."""

import random

from attacks.markup_values import families
from attacks.slips import KINDS, drawn, judged


def test_no_slip_is_run_lost_or_read_by_its_cut() -> None:
    chance, seen = random.Random(5), set[str]()
    for family in families():
        for _ in range(2 * len(KINDS)):
            slip = drawn(family, chance)
            seen.add(slip.kind)
            assert not judged(slip), (judged(slip), slip)
    assert seen >= {
        "envelope",
        "quoted in content",
        "quoted in reasoning",
        "name cut",
        "odd name",
        "answer",
        "prose in a gap",
    }
