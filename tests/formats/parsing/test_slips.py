"""A seeded sample of what small models and attackers write; `benchmarks/fuzz.py --slips 60000` tries many."""

import random

import pytest
from attacks.markup_values import families
from attacks.slip import ODD_NAMES, judged
from attacks.slips import KINDS, drawn, odd_name


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
        "turn shown in content",
        "turn shown in reasoning",
        "code left open",
        "name cut",
        "odd name",
        "answer",
        "prose in a gap",
    }


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_tool_may_have_a_name_that_formats_use(name: str) -> None:
    for family in families():
        slip = odd_name(family, name, {"to": "Rome"})
        assert not judged(slip), (judged(slip), slip)
