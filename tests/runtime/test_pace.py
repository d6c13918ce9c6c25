"""How prefill is sized by the time that batches took."""

import pytest

from engine.runtime.scheduler import Pace


def paced(*batches: tuple[int, float], n_batch: int = 512) -> int:
    """Rows that may come after these batches: (rows, seconds) of prefill each, or (0, seconds) of one stream's token.
    The target is 0.1 seconds."""
    pace = Pace(n_batch, 0.1)
    for rows, took in batches:
        pace.took(rows, 0 if rows else 1, took)
    return pace.rows


def streaming(streams: int, decode: float, *, prompts: int = 1, n_batch: int = 512) -> Pace:
    """A pace that has seen decodes of so many streams take so long, while so many prompts are being read."""
    pace = Pace(n_batch, 0.1)
    pace.serve(prompts, streams)
    for _ in range(2):
        pace.took(0, streams, decode)
    return pace


@pytest.mark.parametrize(
    ("batches", "rows"),
    [
        ([], 64),
        ([(64, 0.03)], 128),
        ([(64, 0.03), (128, 0.06)], 192),
        ([(64, 0.0)], 128),
        ([(64, 0.24)] * 4, 64),
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
    assert paced(*[(0, 0.2)] * 2, (64, 0.25)) == 128
    assert paced(*[(0, 0.01)] * 2, *[(64, 0.34)] * 2) == 18
    assert paced((0, 0.01), (0, 1.0), *[(64, 0.34)] * 2) == 18, "one that was held up does not count"
    assert paced(*[(0, 0.15)] * 2, (64, 0.29)) == 64
    assert paced(*[(0, 0.15)] * 2, *[(64, 0.44)] * 2) == 64, "half as long again, for a whole tile"
    assert paced(*[(0, 0.15)] * 2, *[(64, 0.46)] * 2) == 41, "and else no longer than two decodes"
    assert paced(*[(0, 0.2)] * 2, *[(64, 0.39)] * 2, (20, 0.45)) == 64, "a tile is no longer"


def test_prompts_get_their_share_of_the_time() -> None:
    def rows(prompts: int, streams: int, decode: float) -> int:
        pace = streaming(streams, decode, prompts=prompts)
        for _ in range(4):
            pace.took(pace.rows, 0, 0.001 * pace.rows)
        return pace.rows

    assert rows(1, 1, 0.04) == 128, "a tenth of a second, in whole tiles"
    assert rows(6, 1, 0.04) == 256, "six times as long as one decode"
    assert rows(6, 3, 0.04) == 128
    assert rows(1, 3, 0.04) == 128
    assert rows(30, 1, 0.04) == 512, "though not for ever"
    assert rows(6, 0, 0.04) == 128, "nobody waits for less"


def test_a_slow_tile_is_worth_it_while_more_are_read_than_heard() -> None:
    slow = [0.41] * 4
    for prompts, rows in ((1, 17), (4, 34), (8, 64), (100, 64)):
        pace = streaming(1, 0.055, prompts=prompts)
        for seconds in slow:
            pace.took(64, 0, seconds)
        assert pace.rows == rows, prompts
    crowd = streaming(1, 0.055, prompts=100)
    for _ in range(4):
        crowd.took(64, 0, 0.8)
    assert crowd.rows == 40, "at most half a second"


def test_a_tile_is_worth_it_where_fewer_rows_take_nearly_as_long() -> None:
    """The CPU's flash attention takes 64 rows together, and fewer one by one."""

    def small(tile: float, decode: float) -> Pace:
        pace = streaming(2, decode)
        for _ in range(2):
            pace.took(64, 0, tile)
        assert pace.rows < 64
        return pace

    def rows(tile: float, piece: float, decode: float) -> int:
        pace = small(tile, decode)
        for _ in range(6):
            pace.took(pace.rows, 0, tile if pace.rows == 64 else piece * pace.rows)
        return pace.rows

    assert rows(0.44, 0.015, 0.1) == 64
    assert rows(0.44, 0.013, 0.1) == 15, "0.83 seconds for 64 rows, less than two tiles"
    assert rows(0.62, 0.03, 0.1) == 8, "a tile is more than three times the target"
    assert rows(0.44, 0.015, 0.07) == 9, "and so here"
    pace = small(0.44, 0.1)
    for seconds in (0.2, 0.2, 0.9, 0.2):
        pace.took(16, 0, seconds)
    assert pace.rows == 16, "one that was held up does not count"
    for seconds in (0.9, 0.9):
        pace.took(4, 0, seconds)
    assert pace.rows == 8, "nor does the end of a prompt"


def test_single_tokens_in_a_batch_are_not_counted_as_prefill() -> None:
    pace = streaming(8, 0.2)
    pace.took(64, 0, 0.9)
    pace.took(64, 0, 0.9)
    assert pace.rows == 28
    pace.took(28, 8, 0.6)
    assert pace.rows == 28, "0.4 of the 0.6 seconds, twice a decode"
    pace.took(28, 8, 0.8)
    assert pace.rows == 18
    pace.took(18, 8, 0.2)
    assert pace.rows == 36, "as if they had taken no time"
    pace.took(0, 8, 0.3)
    pace.took(36, 8, 0.6)
    assert pace.rows == 36, "decodes that were held up do not count"


def test_decodes_are_timed_alone_where_prefill_is_small() -> None:
    pace = streaming(4, 0.01)
    assert not pace.unsure(5), "whole tiles"
    for _ in range(2):
        pace.took(64, 0, 0.8)
    assert pace.rows == 8
    assert not pace.unsure(4)
    assert pace.unsure(5)
    pace.took(0, 5, 0.02)
    assert pace.unsure(5), "one could have been held up"
    pace.took(0, 5, 0.02)
    for _ in range(16):
        assert not pace.unsure(5)
        pace.took(8, 5, 0.12)
    assert pace.unsure(5), "it may have changed since"
    pace.took(0, 5, 0.02)
    assert not pace.unsure(5)
    fast = streaming(4, 0.5)
    for _ in range(16):
        assert not fast.unsure(1)
        fast.took(512, 1, 0.6)
    assert fast.unsure(1), "with large batches less often, but before long"
