"""Which idle sequences are given a row, for devices whose times are made up."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.llama.fillers import Fillers, one_each

Curve = Callable[[int], float]


def by_fours(rows: int) -> float:
    """As kernels behave that take four rows at once, and one at a time what is left."""
    return 4.0 + 3.0 * (rows // 4) + 2.2 * (rows % 4)


def evenly(rows: int) -> float:
    """As kernels behave that take every row by itself."""
    return 0.5 + 0.3 * rows


def in_one(rows: int) -> float:
    """As a device behaves that only waits for its weights."""
    return 5.0 + 0.01 * rows


def passes(sequences: Sequence[int]) -> list[int]:
    """Rows of each pass between separate buffers."""
    found: list[int] = []
    for before, sequence in zip([-2, *sequences], sequences, strict=False):
        if sequence == before + 1:
            found[-1] += 1
        else:
            found.append(1)
    return found


def settled(
    fillers: Fillers, busy: Sequence[int], curve: Curve, *, neighbours: bool, barred: int = -1, steps: int = 40
) -> list[int]:
    """All that have a row in the end, after so many steps that took what the curve says; one may not."""
    every: list[int] = []
    for _ in range(steps):
        every = sorted([*busy, *fillers.choose(busy, lambda sequence: sequence != barred)])
        seconds = sum(map(curve, passes(every))) if neighbours else curve(len(every))
        fillers.took(every, seconds)
    return every


@pytest.mark.parametrize("neighbours", [True, False])
@pytest.mark.parametrize(
    ("curve", "busy", "expected"),
    [
        (by_fours, 2, 4),
        (by_fours, 3, 4),
        (by_fours, 4, 4),
        (by_fours, 5, 5),
        (by_fours, 7, 8),
        (by_fours, 16, 16),
        (evenly, 3, 3),
        (evenly, 7, 7),
        (in_one, 3, 3),
    ],
)
def test_blocks_are_filled_where_that_is_faster(curve: Curve, busy: int, expected: int, neighbours: bool) -> None:
    fillers = Fillers(16, neighbours=neighbours)
    assert settled(fillers, range(busy), curve, neighbours=neighbours) == list(range(expected))


@pytest.mark.parametrize(
    ("curve", "busy", "expected"),
    [
        (by_fours, [0, 2], [0, 1, 2, 3]),
        (by_fours, [0, 2, 4, 6], [*range(8)]),
        (by_fours, [13, 14, 15], [12, 13, 14, 15]),
        (by_fours, [9, 10, 11, 13, 14, 15], [*range(8, 16)]),
        (by_fours, [2, 3, 14, 15], [2, 3, 4, 5, 14, 15]),  # beyond the last there is no room
        (in_one, [0, 2, 4, 6], [*range(7)]),
        (in_one, [0, 1, 5, 6], [*range(7)]),
        (in_one, [0, 1, 6, 7], [0, 1, 6, 7]),  # too wide a gap to look at
        (evenly, [0, 2, 4, 6], [*range(7)]),  # 2.6 seconds instead of 3.2
        (evenly, [0, 1, 4, 5], [0, 1, 4, 5]),  # 2.2 and 2.3
        (evenly, [0, 4, 8], [0, 4, 8]),
    ],
)
def test_gaps_between_buffers_are_filled_where_that_is_faster(
    curve: Curve, busy: list[int], expected: list[int]
) -> None:
    assert settled(Fillers(16, neighbours=True), busy, curve, neighbours=True) == expected


def test_in_one_buffer_gaps_do_not_matter() -> None:
    assert settled(Fillers(16, neighbours=False), [0, 2, 4, 6], by_fours, neighbours=False) == [0, 2, 4, 6]


def test_what_may_not_be_used_is_not() -> None:
    fillers = Fillers(8, neighbours=True)
    assert settled(fillers, [0, 2, 4], in_one, neighbours=True, barred=1) == [0, 2, 3, 4]
    assert settled(fillers, [0, 2, 4], in_one, neighbours=True) == [0, 1, 2, 3, 4]
    assert fillers.choose([0, 2, 4], lambda sequence: sequence != 1) == (3,)
    assert fillers.choose([0, 2, 4], lambda _: False) == ()
    assert settled(fillers, [0, 2, 4], in_one, neighbours=True) == [0, 1, 2, 3, 4], "they are usable again"


def test_what_was_slow_once_is_tried_again() -> None:
    fillers = Fillers(4, neighbours=False)
    fillers.took(range(4), 100.0)  # somebody else used the machine
    tried = 0
    for _ in range(1200):
        every = sorted([0, 1, 2, *fillers.choose([0, 1, 2], lambda _: True)])
        tried += len(every) == 4
        fillers.took(every, by_fours(len(every)))
    assert tried > 50


def shares(busy: Sequence[int], curve: Curve, slow: int = 0, steps: int = 3000) -> tuple[float, float]:
    """Seconds with fillers between buffers, first and later, beside those without; the first `slow` batches take three
    times as long."""
    fillers = Fillers(16, neighbours=True)
    took: list[float] = []
    for step in range(steps):
        every = sorted([*busy, *fillers.choose(busy, lambda _: True)])
        took.append(sum(map(curve, passes(every))))
        fillers.took(every, took[-1] * (3.0 if step < slow else 1.0))
    bare = sum(map(curve, passes(busy)))
    return sum(took[:100]) / (100 * bare), sum(took[100:]) / (len(took[100:]) * bare)


def steeply(rows: int) -> float:
    """As a device behaves that computes every row apart."""
    return 0.1 + rows


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("curve", [by_fours, evenly, steeply])
@pytest.mark.parametrize("busy", [[4, 8, 9, 14], [1, 5, 6, 10, 15], [0, 15], [0, 1, 2, 3, 8, 12], [0, 1, 2, 3, 4]])
def test_passes_of_different_sizes_do_not_hide_what_fillers_cost(busy: list[int], curve: Curve, slow: int) -> None:
    """What a batch of several passes takes does not tell which of them took how much."""
    first, later = shares(busy, curve, slow)
    assert first < 1.15
    assert later < 1.02


@pytest.mark.parametrize(("then", "expected"), [(0.5, [0, 1, 2, 3]), (2.0, [0, 1, 2])])
def test_what_was_slower_is_tried_again(then: float, expected: list[int]) -> None:
    fillers = Fillers(4, neighbours=False)
    before = expected == [0, 1, 2]  # whether fillers are faster at first

    def first(rows: int) -> float:
        return (0.5 if before else 2.0) if rows == 4 else 1.4

    assert settled(fillers, [0, 1, 2], first, neighbours=False) == ([0, 1, 2, 3] if before else [0, 1, 2])
    assert settled(fillers, [0, 1, 2], lambda rows: then if rows == 4 else 1.4, neighbours=False, steps=600) == expected


@pytest.mark.parametrize("bare", [0.4, 1.4])
def test_without_fillers_is_measured_again(bare: float) -> None:
    """Their own times may not change when those without them do."""
    fillers = Fillers(4, neighbours=False)
    assert settled(fillers, [0, 1, 2], lambda rows: 0.5 if rows == 4 else 1.4, neighbours=False) == [0, 1, 2, 3]
    found = settled(fillers, [0, 1, 2], lambda rows: 0.5 if rows == 4 else bare, neighbours=False, steps=600)
    assert found == ([0, 1, 2] if bare < 0.5 else [0, 1, 2, 3])


def test_what_was_long_ago_is_measured_anew() -> None:
    fillers = Fillers(16, neighbours=False)
    assert settled(fillers, [0, 1, 2], evenly, neighbours=False) == [0, 1, 2]
    settled(fillers, range(9), evenly, neighbours=False, steps=600)
    assert settled(fillers, [0, 1, 2], by_fours, neighbours=False, steps=6) == [0, 1, 2, 3]


def test_many_sequences_are_looked_through_only_when_they_change() -> None:
    fillers = Fillers(256, neighbours=True)
    asked: list[int] = []

    def usable(sequence: int) -> bool:
        asked.append(sequence)
        return True

    busy = range(0, 256, 2)
    for _ in range(8):
        fillers.took(busy, 1.0)
    fillers.choose(busy, usable)
    assert len(asked) == len(set(asked)), "each is asked for once"
    asked.clear()
    chosen = fillers.choose(busy, usable)
    assert set(asked) == set(chosen), "and then those that are to have a row"


def test_a_single_slow_pass_does_not_change_the_choice() -> None:
    fillers = Fillers(4, neighbours=False)
    settled(fillers, [0, 1, 2], by_fours, neighbours=False)
    fillers.took(range(4), 100.0)
    assert fillers.choose([0, 1, 2], lambda _: True) == (3,)


@given(
    sequences=st.integers(2, 24),
    draws=st.lists(st.tuples(st.sets(st.integers(0, 23), min_size=1), st.sets(st.integers(0, 23))), max_size=12),
    neighbours=st.booleans(),
    speeds=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=7),
)
def test_only_idle_and_usable_sequences_are_chosen_once(
    sequences: int, draws: list[tuple[set[int], set[int]]], neighbours: bool, speeds: list[float]
) -> None:
    fillers = Fillers(sequences, neighbours=neighbours)
    for number, (some, barred) in enumerate(draws):
        busy = sorted(sequence for sequence in some if sequence < sequences) or [0]
        chosen = fillers.choose(busy, lambda sequence, barred=barred: sequence not in barred)
        assert len(set(chosen)) == len(chosen)
        assert not set(chosen) & (set(busy) | barred)
        assert all(0 <= sequence < sequences for sequence in chosen)
        fillers.took(sorted([*busy, *chosen]), speeds[number % len(speeds)])


def test_what_are_single_tokens() -> None:
    assert one_each([0, 3, 4])
    assert not one_each([2])
    assert not one_each([0, 0, 1])
    assert not one_each([1, 0])
