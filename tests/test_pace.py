"""How prefill is sized by the time that batches took."""

import pytest

from engine.runtime.pace import Pace


def paced(*batches: tuple[int, float], n_batch: int = 512) -> int:
    """Rows that may come after batches of one sequence: (rows, seconds) each. The target is 0.1 seconds."""
    pace = Pace(n_batch, 0.1)
    for rows, took in batches:
        pace.took(rows, 1, took)
    return pace.rows


@pytest.mark.parametrize(
    ("batches", "rows"),
    [
        ([], 64),
        ([(64, 0.03)], 128),
        ([(64, 0.03), (128, 0.06)], 192),
        ([(64, 0.0)], 128),
        ([(64, 0.24)], 64),
        ([(64, 0.24), (20, 0.11)], 64),
        ([(64, 0.34)], 64),
        ([(64, 0.34)] * 2, 18),
        ([*[(64, 0.34)] * 2, (18, 0.08)], 22),
        ([(64, 9.0)] * 2, 8),
    ],
    ids=[
        "at first a tile",
        "no more than doubled",
        "whole tiles",
        "too fast to be timed",
        "a tile may take longer",
        "whatever fewer rows beside it took",
        "even much longer, once",
        "but not again",
        "nor shorter than it may",
        "never less than a few",
    ],
)
def test_prefill_takes_about_as_long_as_it_may(batches: list[tuple[int, float]], rows: int) -> None:
    assert paced(*batches) == rows


def test_a_batch_smaller_than_a_tile_is_sized_by_time_too() -> None:
    assert [paced(*[(48, 5.0)] * times, n_batch=48) for times in (1, 2)] == [48, 8]
    assert paced((48, 0.24), n_batch=48) == 48


def test_a_prompts_last_rows_do_not_make_the_next_chunks_smaller() -> None:
    """A few rows cost almost as much as the pass over the weights that they share."""
    fast = [(64, 0.03), (128, 0.06)]
    assert paced(*fast, (10, 0.04)) == 192
    assert paced((10, 0.004)) == 128, "but they show when more is possible"
    assert paced(*fast, (10, 0.2)) == 64, "and when even they take too long"
    slow = [*[(64, 0.34)] * 2, (18, 0.09)]
    assert paced(*slow, (10, 0.055)) == 20
    assert paced(*slow, (10, 0.2)) == 8


def test_a_tile_that_took_too_long_is_tried_again_some_day() -> None:
    slow = [*[(64, 0.34)] * 2, *[(18, 0.1)] * 15]
    assert paced(*slow) == 18
    assert paced(*slow, (18, 0.1)) == 36, "on the way to 64, which might take half of what smaller ones do"
    assert paced(*slow, (18, 0.1), (36, 0.19)) == 64
    assert paced(*slow, (18, 0.18)) == 10, "and that would still be too long"
    assert paced(*slow, (18, 0.1), *[(64, 0.34)] * 2, (18, 0.1)) == 18, "not soon after it took too long again"


def test_where_a_token_takes_long_so_may_prefill() -> None:
    assert paced(*[(1, 0.2)] * 2, (64, 0.25)) == 128
    assert paced(*[(1, 0.01)] * 2, *[(64, 0.34)] * 2) == 18
    assert paced((1, 0.01), (1, 1.0), *[(64, 0.34)] * 2) == 18, "one that was held up does not count"
    assert paced(*[(1, 0.15)] * 2, (64, 0.29)) == 64
    assert paced(*[(1, 0.15)] * 2, *[(64, 0.35)] * 2) == 54, "no longer than two decodes"
