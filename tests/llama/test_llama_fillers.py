"""Rows for idle sequences beside single tokens, on real contexts: nothing of them is left, and nothing changes."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import model_files
import numpy as np
import pytest

from engine.errors import DecodeError
from engine.llama.context import LlamaBackend
from engine.llama.fillers import Fillers
from engine.llama.model import Model
from engine.runtime.backend import Row
from engine.runtime.options import ContextOptions
from engine.types import SamplingParams

SEQUENCES = 6
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with Model.load(model_files.write(tmp_path_factory.mktemp("fillers") / "m.gguf", "qwen3")) as model:
        yield model


@pytest.fixture
def opened(model: Model) -> Iterator[Callable[..., LlamaBackend]]:
    """Backends, some of whose sequences hold tokens."""
    made: list[LlamaBackend] = []

    def make(held: Sequence[int] = (4, 0, 4, 3, 4, 9), **options: Any) -> LlamaBackend:
        chosen: dict[str, Any] = {"n_ctx": 64 * SEQUENCES, "n_sequences": SEQUENCES, "n_threads": 1, **options}
        backend = model.backend(ContextOptions(**chosen))
        made.append(backend)
        for sequence, count in enumerate(held):
            backend.decode([Row(10 + (7 * at + sequence) % 200, at, sequence, False) for at in range(count)])
        return backend

    yield make
    for backend in made:
        backend.close()


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[list[int]]]:
    """Let these sequences have rows, as far as they may; gives what was evaluated, batch by batch."""

    def give(*wanted: int) -> list[list[int]]:
        evaluated: list[list[int]] = []

        def choose(_: Fillers, busy: Sequence[int], usable: Callable[[int], bool]) -> tuple[int, ...]:
            return tuple(sequence for sequence in wanted if sequence not in busy and usable(sequence))

        def took(_: Fillers, sequences: Sequence[int], seconds: float) -> None:
            assert seconds > 0
            evaluated.append(list(sequences))

        monkeypatch.setattr(Fillers, "choose", choose)
        monkeypatch.setattr(Fillers, "took", took)
        return evaluated

    return give


def step(backend: LlamaBackend, *sequences: int, silent: Sequence[int] = ()) -> None:
    """One token more for each."""
    backend.decode(
        [Row(40 + sequence, backend.positions(sequence), sequence, sequence not in silent) for sequence in sequences]
    )


def held(backend: LlamaBackend) -> list[int]:
    return [backend.positions(sequence) for sequence in range(SEQUENCES)]


@pytest.mark.parametrize("unified", [True, False])
def test_rows_beside_others_change_nothing(
    opened: Callable[..., LlamaBackend], given: Callable[..., list[list[int]]], unified: bool
) -> None:
    plain, beside = opened(kv_unified=unified), opened(kv_unified=unified)
    given()
    step(plain, 0, 2, 4, silent=[2])
    states = [beside.save(sequence) for sequence in (1, 3, 5)]
    evaluated = given(1, 3, 5)
    step(beside, 0, 2, 4, silent=[2])
    assert evaluated == [[0, 1, 2, 3, 4, 5]]
    assert held(beside) == held(plain) == [5, 0, 5, 3, 5, 9]
    assert [beside.save(sequence) for sequence in (1, 3, 5)] == states
    for row in (0, 2):
        np.testing.assert_allclose(beside.logits(row), plain.logits(row), atol=0.01)
        assert beside.sample(beside.sampler(GREEDY), row) == int(plain.logits(row).argmax())
    for row in (-1, 1, 3, 4):
        with pytest.raises(DecodeError, match=f"Row {row} "):
            beside.logits(row)


@pytest.mark.parametrize(("unified", "expected"), [(True, [0, 1, 2]), (False, [0, 1])])
def test_between_separate_buffers_a_much_longer_sequence_is_left_alone(
    opened: Callable[..., LlamaBackend], given: Callable[..., list[list[int]]], unified: bool, expected: list[int]
) -> None:
    backend = opened([2, 2, 300, 0, 0, 0], n_ctx=400 * SEQUENCES, kv_unified=unified)
    evaluated = given(2)
    step(backend, 0, 1)
    assert evaluated == [expected]


def test_a_decode_after_one_with_fillers_counts_its_own_rows(
    opened: Callable[..., LlamaBackend], given: Callable[..., list[list[int]]]
) -> None:
    plain, beside = opened(), opened()
    for backend, wanted in ((plain, ()), (beside, (1, 3))):
        given(*wanted)
        step(backend, 0, 2, 4)
        backend.decode([Row(5, 5, 4, False), Row(6, 6, 4, True)])
    np.testing.assert_allclose(beside.logits(1), plain.logits(1), atol=0.01)


def test_a_full_sequence_is_left_alone(
    opened: Callable[..., LlamaBackend], given: Callable[..., list[list[int]]]
) -> None:
    full = 256
    backend = opened([full - 1, full, full - 1, 0, 0, 0], n_ctx=full * SEQUENCES, kv_unified=False)
    assert backend.n_ctx_sequence == full
    evaluated = given(1, 3)
    step(backend, 0, 2)
    assert evaluated == [[0, 2, 3]]


def test_a_buffer_without_room_evaluates_what_must_be(
    opened: Callable[..., LlamaBackend], given: Callable[..., list[list[int]]]
) -> None:
    backend = opened([20, 20, 0, 0, 0, 0], n_ctx=256, kv_unified=True)
    room = backend.n_ctx - 42
    backend.decode([Row(7, at, 5, False) for at in range(room)])
    evaluated = given(2, 3)
    step(backend, 0, 1)
    assert evaluated == []
    assert held(backend) == [21, 21, 0, 0, 0, room]
    assert backend.logits(1).size
    with pytest.raises(DecodeError, match="no room"):
        step(backend, 0, 1)
    assert held(backend) == [21, 21, 0, 0, 0, room]


def test_no_more_rows_than_a_batch_has(
    opened: Callable[..., LlamaBackend], given: Callable[..., list[list[int]]]
) -> None:
    backend = opened([1, 1, 0, 0, 0, 0], n_batch=SEQUENCES, n_ubatch=SEQUENCES)
    evaluated = given(2, 3, 4, 5)
    step(backend, 0, 1)
    assert evaluated == [[0, 1, 2, 3, 4, 5]]


def test_an_aborted_decode_leaves_no_row_behind(
    opened: Callable[..., LlamaBackend], given: Callable[..., list[list[int]]]
) -> None:
    backend = opened()
    given(1, 3)
    backend.abort()
    with pytest.raises(DecodeError, match="aborted"):
        step(backend, 0, 2, 4)
    backend.resume()
    assert [backend.positions(sequence) for sequence in (1, 3)] == [0, 3]


def test_long_chunks_and_single_streams_have_none(
    opened: Callable[..., LlamaBackend], given: Callable[..., list[list[int]]]
) -> None:
    backend = opened()
    evaluated = given(0, 1, 3, 5)
    step(backend, 2)
    backend.decode([Row(5, 5, 2, False), Row(6, 6, 2, True), Row(6, 4, 4, True)])
    assert evaluated == []


def test_a_window_lends_empty_sequences_only(tmp_path: Path, given: Callable[..., list[list[int]]]) -> None:
    with Model.load(model_files.write(tmp_path / "m.gguf", "gemma3")) as model:
        backend = model.backend(ContextOptions(n_ctx=256, n_sequences=4, n_threads=1))
        backend.decode([Row(5, at, 1, False) for at in range(3)])
        evaluated = given(1, 2)
        backend.decode([Row(5, 0, 0, True), Row(5, 0, 3, True)])
        assert evaluated == [[0, 2, 3]]
        backend.close()


@pytest.mark.parametrize("architecture", ["mamba", "lfm2"])
def test_a_state_that_cannot_be_cut_lends_nothing(
    tmp_path: Path, given: Callable[..., list[list[int]]], architecture: str
) -> None:
    with Model.load(model_files.write(tmp_path / "m.gguf", architecture)) as model:
        backend = model.backend(ContextOptions(n_ctx=256, n_sequences=4, n_threads=1))
        evaluated = given(1, 2)
        backend.decode([Row(5, 0, 0, True), Row(5, 0, 3, True)])
        assert evaluated == []
        backend.close()
