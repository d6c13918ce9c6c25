"""Whatever a request fails of, clean turns after it answer as before: on spoiled scripts, and on weights."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from failures import failing_requests
from fakes.doubles import Bench, echo

from engine.runtime.loop import sequence
from engine.runtime.loop.backend import Row
from engine.support.errors import DecodeError, EngineError

REASONS: tuple[Any, ...] = ("no_slot", "aborted", "invalid", "failed")


class Spoiled:
    """Lets the decodes of a scripted loop fail at random, and keeps numbers that are none in the cells that a guilty
    prompt (one with "!") wrote, until all are overwritten; `shared`: they spoil every sequence, as in one pool."""

    def __init__(self, bench: Bench, chance: random.Random, *, shared: bool) -> None:
        self.bench, self.chance, self.shared = bench, chance, shared
        self.dirty: set[int] = set()
        self.failing = True
        backend: Any = bench.backend
        self._sample, self._clear, self._copy, self._logprobs = (
            backend.sample, backend.clear, backend.copy, backend.logprobs,
        )  # fmt: skip
        backend.before_decode, backend.sample, backend.clear = self.before, self.sample, self.clear
        backend.copy, backend.logprobs = self.copy, self.logprobs

    def before(self, rows: Sequence[Row]) -> None:
        if self.failing and self.chance.random() < 0.02:
            if self.chance.random() < 0.2:
                raise MemoryError
            raise DecodeError("It fails, as it was told to.", self.chance.choice(REASONS))
        self.dirty |= {row.sequence for row in rows if row.token == ord("!") and self.chance.random() < 0.5}

    def check(self, row: int) -> None:
        backend: Any = self.bench.backend
        if self.dirty and (self.shared or backend._rows[row].sequence in self.dirty):
            raise DecodeError("The logits are not numbers.", "nan")

    def sample(self, sampler: Any, row: int, mask: Any = None, *more: Any) -> int:
        self.check(row)
        return self._sample(sampler, row, mask, *more)

    def logprobs(self, row: int, token: int, top: int) -> Any:
        self.check(row)
        return self._logprobs(row, token, top)

    def copy(self, source: int, target: int, positions: int) -> None:
        self._copy(source, target, positions)
        self.dirty |= {target} if source in self.dirty else set()

    def clear(self) -> None:
        self._clear()
        self.dirty.clear()


@pytest.mark.parametrize("shared", [False, True], ids=["buffers", "pool"])
@pytest.mark.parametrize("seed", range(6))
def test_a_script_whose_cells_are_spoiled(seed: int, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "ANSWER", 0)  # admission would have them wait for room in the pool
    chance = random.Random(seed)
    bench = Bench(echo, n_ctx=256, n_batch=16, n_sequences=3, kv_tokens=400 if shared else None)
    spoiled = Spoiled(bench, chance, shared=shared)
    for number in range(30):
        asked: dict[int, str] = {}
        for which in range(chance.randrange(1, 9)):
            text = f"{number}.{which} " + "x" * chance.randrange(60) + "!" * (chance.random() < 0.4)
            asked[bench.submit(text, deadline=chance.choice((None, None, 5.0)))] = text
            bench.step(chance.randrange(8))
        for id_ in asked:
            bench.step(chance.randrange(3))
            if chance.random() < 0.2:
                bench.loop.cancel(id_)
            bench.now += chance.choice((0.0, 0.0, 1.0))
        bench.run()
        for id_, text in asked.items():
            ended, error = bench.partial(id_), bench.replies[id_][-1].error
            assert error is None or isinstance(error, EngineError), error
            if "!" not in text:
                assert not (isinstance(error, DecodeError) and error.reason == "nan"), "another request's numbers"
            if error is None and ended.finish_reason == "stop":
                assert ended.content == echo(text)
        spoiled.failing = False
        clean = bench.submit(f"clean {number}")
        bench.run()
        assert bench.completion(clean).content == f"re: clean {number}"
        spoiled.failing = True


def test_whom_others_spoil_often_is_not_ended_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "ANSWER", 0)
    bench = Bench(echo, n_ctx=256, n_batch=16, n_sequences=3, kv_tokens=400)
    spoiled = Spoiled(bench, random.Random(1), shared=True)
    spoiled.failing = False
    long = bench.submit("long " + "x" * 60)
    bench.step(8)
    ended = 0
    for number in range(60):
        guilty = bench.submit(f"{number}!")
        while not bench.replies.get(guilty) or not bench.replies[guilty][-1].final:
            bench.step()
        ended += bench.replies[guilty][-1].error is not None
    assert ended > 20
    bench.run()
    assert bench.completion(long).content == "re: long " + "x" * 60


def test_nothing_starts_beside_a_request_that_is_computed_alone() -> None:
    bench = Bench(echo)
    first = bench.submit("one")
    bench.step()
    loop: Any = bench.loop
    loop._scheduler.running[0].alone = True
    second = bench.submit("two")
    bench.step()
    assert len(loop._scheduler.running) == 1
    bench.run()
    assert [bench.completion(id_).content for id_ in (first, second)] == ["re: one", "re: two"]


def test_weights(builtin_model_path: Path, tmp_path: Path) -> None:
    """A share of `benchmarks/failing_requests.py`: each kind once."""
    with failing_requests.opened(builtin_model_path, tmp_path, n_threads=1) as llm:
        right = [failing_requests.clean(llm, number) for number in range(4)]
        ends = {}
        for number, kind in enumerate(failing_requests.KINDS):
            ends[kind.__name__] = failing_requests.outcome(llm, kind, random.Random(number))
            assert failing_requests.clean(llm, number) == right[number % 4], kind.__name__
        assert "DecodeError" in ends.values(), f"nothing overflowed: {ends}"
