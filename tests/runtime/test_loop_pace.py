"""How the loop sizes prefill beside streams, by the time that batches took."""

from collections.abc import Callable, Sequence

import pytest
from doubles import Bench, echo

from engine.runtime.backend import Row


def timed(bench: Bench, seconds: Callable[[Sequence[Row]], float]) -> None:
    """From now on a decode of these rows takes so long."""

    def pass_time(rows: Sequence[Row]) -> None:
        bench.now += seconds(rows)

    bench.backend.before_decode = pass_time


def test_prefill_chunks_are_sized_by_time() -> None:
    bench = Bench(lambda _: "y" * 50, n_batch=512, n_sequences=2)

    timed(bench, lambda rows: 0.006 * len(rows))  # 16 rows in 0.1 s
    bench.submit("s")
    bench.step(2)
    bench.submit("x" * 440)
    bench.step(4)
    assert bench.backend.batches == [1, 1, 65, 65, 17, 17]

    timed(bench, lambda rows: 0.0001 * len(rows))
    bench.step(4)
    assert bench.backend.batches[6:] == [17, 33, 65, 129], "from 64 rows on, multiples of 64"


def test_what_decodes_take_is_not_counted_as_prefill() -> None:
    bench = Bench(lambda _: "y" * 99, n_batch=512, n_sequences=4)

    timed(bench, lambda rows: sum(8 if row.output else 2 for row in rows) / 128)
    for text in "abc":
        bench.submit(text)
    bench.step(2)
    bench.submit("x" * 440)
    bench.step(2)
    assert bench.backend.batches == [3, 3, 67, 67], "a whole tile, tried twice"
    bench.step(3)
    assert bench.backend.batches[4:] == [27, 27, 27], "twice as long as the decodes take: 24 rows"


def test_a_crowd_of_prompts_gets_its_share_of_the_time() -> None:
    bench = Bench(lambda _: "y" * 99, n_batch=512, n_sequences=8)

    timed(bench, lambda rows: 0.05 if rows[0].output else 0.001 * len(rows))
    bench.submit("a", priority=1)
    bench.step(3)
    for letter in "bcdefg":
        bench.submit(letter * 600)
    bench.backend.mixed_rows = 8
    bench.step(4)
    assert bench.backend.batches[3:] == [1, 64, 1, 128, 1, 256, 1, 320], "six prompts beside 0.05 seconds"


@pytest.mark.parametrize(
    ("options", "first"),
    [({}, 64), ({"mixed_rows": 63}, 64), ({"mixed_rows": 0}, 50), ({"trimmable": False}, 50)],
    ids=["shared cells", "shared cells, streams apart", "buffers of their own", "recurrent states"],
)
def test_prompts_share_a_batch_where_they_share_cells(options: dict[str, object], first: int) -> None:
    bench = Bench(echo, **options)
    ids = [bench.submit(letter * 50) for letter in "ab"]
    bench.run()
    assert bench.backend.batches[0] == first
    assert [bench.completion(id_).content for id_ in ids] == [f"re: {letter * 50}" for letter in "ab"]


def test_decodes_that_are_timed_alone_are_no_more_than_belong_together() -> None:
    bench = Bench(lambda _: "y" * 99, n_batch=512, n_sequences=4, mixed_rows=2)

    timed(bench, lambda rows: 0.02 * len(rows))
    for text in "abc":
        bench.submit(text)
    bench.step(2)
    bench.submit("x" * 440)
    bench.step(4)
    assert bench.backend.batches == [2, 1, 2, 1, 2, 1, 64, 2, 1, 64, 2, 1, 8, 2, 1, 8]


def test_decodes_are_timed_alone_when_others_join_them() -> None:
    bench = Bench(lambda _: "y" * 99, n_batch=512, n_sequences=4)

    timed(bench, lambda rows: len(rows) / 128)
    bench.submit("a")
    bench.step(2)
    bench.submit("x" * 440)
    bench.step(3)
    assert bench.backend.batches == [1, 1, 65, 65, 13]
    bench.submit("b", priority=1)
    bench.step(4)
    assert bench.backend.batches[5:] == [2, 12, 2, 12, 14, 14]


def test_a_large_model_prefills_in_chunks_worth_a_pass_over_its_weights() -> None:
    bench = Bench(lambda _: "x" * 30, n_batch=512, n_sequences=2)

    timed(bench, lambda rows: 0.2 + 0.001 * len(rows))
    bench.submit("s")
    bench.step(3)
    bench.submit("y" * 1000)
    bench.step(12)
    sizes = [size - 1 for size in bench.backend.batches[3:]]
    assert max(sizes) > 100, "100 ms would be less than one row"
    alone = Bench(echo, n_batch=512)

    def very_slow(_: object) -> None:
        alone.now += 1

    alone.backend.before_decode = very_slow
    alone.submit("y" * 1000)
    alone.step(5)
    assert alone.backend.batches == [64] * 5
