"""Decoding on real weights: batches, sequences and their memory, samplers' rows, errors that llama.cpp would die of."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.pretending import Pretending
from files import model_files

from engine.llama import context as llama_backend
from engine.llama.context import LlamaBackend
from engine.llama.lib import Device
from engine.llama.model import Model
from engine.llama.plan.plan import Machine
from engine.runtime.cache.state_file import SavedState, read_state, write_state
from engine.runtime.loop.backend import Row
from engine.runtime.loop.config import ContextOptions, ModelOptions
from engine.support.errors import ContextOverflowError, DecodeError, EngineError, RequestError
from engine.types.prompt import Piece
from engine.types.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0)
TEXTS = ("hello world", "world hello hello world ab ab", "ab a b")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with Model.load(model_files.write(tmp_path_factory.mktemp("backend") / "m.gguf", "qwen3")) as model:
        yield model


@pytest.fixture
def backend(model: Model) -> Iterator[LlamaBackend]:
    backend = model.backend(ContextOptions(n_threads=1, n_sequences=4, n_ctx=1024))
    yield backend
    backend.close()


def prefill(backend: LlamaBackend, tokens: list[int], sequence: int = 0, start: int = 0) -> int:
    """Evaluate the tokens; gives the row that has logits."""
    last = len(tokens) - 1
    backend.decode([Row(token, start + index, sequence, index == last) for index, token in enumerate(tokens)])
    return last


def continue_greedily(
    backend: LlamaBackend, tokens: list[int], count: int, sequence: int = 0, start: int = 0
) -> list[int]:
    """Tokens drawn after those given, which go into the sequence at `start`."""
    sampler = backend.sampler(GREEDY)
    row, position, drawn = prefill(backend, tokens, sequence, start), start + len(tokens), list[int]()
    while len(drawn) < count:
        drawn.append(backend.sample(sampler, row))
        backend.decode([Row(drawn[-1], position, sequence, True)])
        row, position = 0, position + 1
    return drawn


def tokens_of(backend: LlamaBackend, text: str) -> list[int]:
    return backend.vocab.encode([Piece(text, trusted=True)], add_bos=True)


def test_several_sequences_in_one_batch_are_as_apart(model: Model, backend: LlamaBackend) -> None:
    apart: list[int] = []
    for text in TEXTS:
        alone = model.backend(ContextOptions(n_threads=1, n_ctx=256))
        row = prefill(alone, tokens_of(alone, text))
        apart.append(alone.sample(alone.sampler(GREEDY), row))
        alone.close()
    rows: list[Row] = []
    outputs: list[int] = []
    for sequence, text in enumerate(TEXTS):
        tokens = tokens_of(backend, text)
        rows += [Row(token, i, sequence, i == len(tokens) - 1) for i, token in enumerate(tokens)]
        outputs.append(len(rows) - 1)
    backend.decode(rows)
    sampler = backend.sampler(GREEDY)
    assert [backend.sample(sampler, row) for row in outputs] == apart
    assert len(set(apart)) > 1


def test_positions_grow_with_the_rows_and_trim_forgets(backend: LlamaBackend) -> None:
    assert backend.positions(1) == 0
    prefill(backend, [5, 6, 7, 8, 9], sequence=1)
    assert (backend.positions(0), backend.positions(1)) == (0, 5)
    assert backend.trim(1, 3)
    assert backend.positions(1) == 3
    assert backend.trim(1, 7)
    assert backend.positions(1) == 3
    assert backend.trim(1, 0)
    assert backend.positions(1) == 0


def test_a_trimmed_sequence_goes_on_as_if_the_rest_had_never_been(backend: LlamaBackend) -> None:
    tokens = tokens_of(backend, TEXTS[1])
    expected = continue_greedily(backend, tokens, 8)
    backend.trim(0, len(tokens) - 3)
    assert continue_greedily(backend, tokens[-3:], 8, start=len(tokens) - 3) == expected


@pytest.mark.parametrize("unified", [True, False])
@pytest.mark.parametrize("replaced", ["source", "target"])
def test_a_state_restored_right_after_a_copy_is_neither_copied_nor_copied_over(
    model: Model, unified: bool, replaced: str
) -> None:
    """Between buffers, llama.cpp puts the copy off to the next decode."""
    backend = model.backend(ContextOptions(n_threads=1, n_sequences=3, n_ctx=256, kv_unified=unified))
    one, other = tokens_of(backend, TEXTS[0] * 3), tokens_of(backend, TEXTS[1] * 2)
    assert one != other[: len(one)]
    expected: dict[str, list[int]] = {}
    prefill(backend, other[:-1])
    expected["restored"] = continue_greedily(backend, other[-1:], 8, start=len(other) - 1)
    backend.trim(0, len(other) - 1)
    state = backend.save(0)
    backend.trim(0, 0)
    prefill(backend, one[:-1])
    expected["copied"] = continue_greedily(backend, one[-1:], 8, start=len(one) - 1)
    backend.trim(0, len(one) - 1)
    backend.copy(0, 1, len(one) - 1)
    sequence, kept = (0, 1) if replaced == "source" else (1, 0)
    backend.trim(sequence, 0)
    backend.restore(sequence, state)
    found = {
        "restored": continue_greedily(backend, other[-1:], 8, sequence=sequence, start=len(other) - 1),
        "copied": continue_greedily(backend, one[-1:], 8, sequence=kept, start=len(one) - 1),
    }
    assert found == expected
    assert found["restored"] != found["copied"]
    backend.close()


@pytest.mark.parametrize("unified", [True, False])
def test_a_copied_prefix_goes_on_like_the_original(model: Model, unified: bool) -> None:
    backend = model.backend(ContextOptions(n_threads=1, n_sequences=2, n_ctx=512, kv_unified=unified))
    tokens = tokens_of(backend, TEXTS[1])
    expected = continue_greedily(backend, tokens, 8)
    backend.copy(0, 1, len(tokens) - 2)
    assert backend.positions(1) == len(tokens) - 2
    assert continue_greedily(backend, tokens[-2:], 8, sequence=1, start=len(tokens) - 2) == expected
    assert backend.positions(0) == len(tokens) + 8
    backend.close()


@pytest.mark.parametrize(
    ("options", "separate", "copy_cost"),
    [
        ({"kv_unified": False}, True, 10),
        ({}, True, 0),
        ({"n_sequences": 1}, False, 0),
        ({"n_sequences": 1, "kv_unified": True}, False, 0),
    ],
)
def test_what_is_better_decoded_separately_and_what_a_copy_costs(
    model: Model, options: dict[str, object], separate: bool, copy_cost: int
) -> None:
    asked: dict[str, Any] = {"n_sequences": 2, "n_ctx": 256, "n_threads": 1, **options}
    backend = model.backend(ContextOptions(**asked))
    assert (backend.info.separate_prefill, backend.info.copy_cost) == (separate, copy_cost)
    backend.close()


@pytest.mark.parametrize(
    ("architecture", "options", "cut_states", "passes"),
    [
        ("qwen3", {}, None, True),
        ("qwen3", {"kv_unified": False}, None, False),
        ("qwen3", {"n_sequences": 1}, None, False),
        ("gemma3", {}, 32, True),
        ("mamba", {}, 0, False),
        ("lfm2", {}, 0, False),
    ],
)
def test_whose_idle_sequences_attention_passes(
    tmp_path: Path, architecture: str, options: dict[str, Any], cut_states: int | None, *, passes: bool
) -> None:
    with Model.load(model_files.write(tmp_path / "m.gguf", architecture)) as model:
        asked: dict[str, Any] = {"n_sequences": 2, "n_ctx": 256, "n_threads": 1, **options}
        backend = model.backend(ContextOptions(**asked))
        assert (backend.info.cut_states, backend.info.passes_idle) == (cut_states, passes)
        backend.close()


def test_where_a_device_attends_batches_are_mixed_as_they_come(monkeypatch: pytest.MonkeyPatch, model: Model) -> None:
    card = Device("CUDA0", "a card", True, 1 << 30, 1 << 30)
    monkeypatch.setattr(model, "_machine", lambda: Machine(None, gpus=(card,)))
    monkeypatch.setattr(model, "options", ModelOptions(n_gpu_layers=1))
    backend = model.backend(ContextOptions(n_sequences=2, n_ctx=256, n_threads=1))
    assert not backend.info.separate_prefill
    backend.close()


def test_copying_nothing_and_too_much(backend: LlamaBackend) -> None:
    prefill(backend, [5, 6, 7])
    backend.copy(0, 1, 0)
    assert backend.positions(1) == 0
    with pytest.raises(DecodeError, match="holds 3 positions, 4 were asked for") as caught:
        backend.copy(0, 1, 4)
    assert caught.value.reason == "invalid"


def test_a_saved_sequence_is_restored(backend: LlamaBackend) -> None:
    tokens = tokens_of(backend, TEXTS[0])
    prefill(backend, tokens[:-1])
    state = backend.save(0)
    expected = continue_greedily(backend, tokens[-1:], 8, start=len(tokens) - 1)
    prefill(backend, [5] * 9, sequence=2)
    backend.restore(2, state)
    assert backend.positions(2) == len(tokens) - 1
    assert continue_greedily(backend, tokens[-1:], 8, sequence=2, start=len(tokens) - 1) == expected


def test_a_sequence_goes_to_a_file_and_into_another_context(
    model: Model, backend: LlamaBackend, tmp_path: Path
) -> None:
    tokens = tokens_of(backend, TEXTS[1])
    prefill(backend, tokens[:-1])
    write_state(tmp_path / "s", backend.origin, SavedState(tuple(tokens[:-1]), backend.save(0)))
    expected = continue_greedily(backend, tokens[-1:], 8, start=len(tokens) - 1)
    other = model.backend(ContextOptions(n_ctx=512, n_threads=1, n_sequences=4))
    saved = read_state(tmp_path / "s", other.origin)
    other.restore(0, saved.state)
    assert continue_greedily(other, tokens[-1:], 8, start=len(saved.tokens)) == expected
    quantised = model.backend(ContextOptions(n_ctx=512, n_threads=1, n_sequences=4, type_k="q8_0"))
    with pytest.raises(RequestError, match="of other settings"):
        read_state(tmp_path / "s", quantised.origin)
    tuned = Model.load(model_files.write(tmp_path / "m.gguf", "qwen3", model_files.Shape(seed=2)))
    with tuned, pytest.raises(RequestError, match="another model"):
        read_state(tmp_path / "s", tuned.backend(ContextOptions(n_ctx=512, n_threads=1)).origin)


def test_a_state_that_does_not_fit_is_refused(model: Model, backend: LlamaBackend) -> None:
    prefill(backend, [5, 6, 7])
    for state in (b"", b"nonsense", backend.save(0)[:-8]):
        with pytest.raises(DecodeError, match="does not fit this context"):
            backend.restore(1, state)
        assert backend.positions(1) == 0
    other = model.backend(ContextOptions(n_threads=1, n_ctx=256, type_k="f32"))
    with pytest.raises(DecodeError, match="does not fit this context"):
        other.restore(0, backend.save(0))
    other.close()


def test_a_state_of_more_than_a_sliding_window_cannot_be_cut(tmp_path: Path) -> None:
    """It holds only what its last token sees: `cut_states`."""
    with Model.load(model_files.write(tmp_path / "m.gguf", "gemma3")) as model:
        backend = model.backend(ContextOptions(n_threads=1, n_sequences=2, n_ctx=256))
        prefill(backend, list(range(5, 95)))
        for length in (90, 33, 32, 10):
            assert backend.trim(0, length)
            backend.restore(1, backend.save(0))
            assert backend.positions(1) == length
            assert backend.can_trim(1, length - 1) == (length <= 32)
        backend.close()


def test_a_recurrent_memory_is_not_trimmed_nor_shared_in_part(tmp_path: Path) -> None:
    for architecture in ("mamba", "lfm2"):
        with Model.load(model_files.write(tmp_path / "m.gguf", architecture)) as model:
            backend = model.backend(ContextOptions(n_threads=1, n_sequences=3, n_ctx=512))
            tokens = tokens_of(backend, TEXTS[1])
            expected = continue_greedily(backend, tokens, 6)
            held = backend.positions(0)
            assert not backend.trim(0, 4)
            assert backend.positions(0) == held
            assert backend.trim(0, held)
            with pytest.raises(DecodeError, match="can only be copied whole"):
                backend.copy(0, 1, 4)
            prefill(backend, tokens[:-1], sequence=2)
            state = backend.save(2)
            backend.copy(2, 1, len(tokens) - 1)
            assert continue_greedily(backend, tokens[-1:], 6, sequence=1, start=len(tokens) - 1) == expected
            backend.trim(1, 0)
            backend.restore(1, state)
            assert continue_greedily(backend, tokens[-1:], 6, sequence=1, start=len(tokens) - 1) == expected
            assert backend.trim(1, 0)


@pytest.mark.parametrize("unified", [True, False])
def test_a_recurrent_memory_is_taken_back_to_a_checkpoint(tmp_path: Path, *, unified: bool) -> None:
    """In its own sequence, and in another one that was copied from it; the whole state of a hybrid is larger."""
    for architecture in ("mamba", "lfm2"):
        with Model.load(model_files.write(tmp_path / "m.gguf", architecture)) as model:
            backend = model.backend(ContextOptions(n_threads=1, n_sequences=3, n_ctx=512, kv_unified=unified))
            tokens = tokens_of(backend, TEXTS[1])
            prefill(backend, tokens[:-1])
            point, at = backend.checkpoint(0), len(tokens) - 1
            assert (len(point) < len(backend.save(0))) == model.info.is_hybrid
            expected = continue_greedily(backend, tokens[-1:], 6, start=at)
            backend.copy(0, 1, backend.positions(0))
            for sequence in (0, 1, 0):
                assert backend.rewind(sequence, at, point)
                assert backend.positions(sequence) == at
                assert continue_greedily(backend, tokens[-1:], 6, sequence=sequence, start=at) == expected
            assert not backend.rewind(1, at - 1, point), "that is not where it was taken"
            assert backend.trim(1, 0)
            assert not backend.rewind(1, at, b"nonsense")
            backend.close()


def test_a_window_is_not_trimmed_behind_what_it_kept(tmp_path: Path) -> None:
    with Model.load(model_files.write(tmp_path / "m.gguf", "gemma3", model_files.Shape(n_ctx=2048))) as model:
        tokens = [5 + index % 40 for index in range(900)]
        for full in (True, False):
            backend = model.backend(ContextOptions(n_threads=1, n_ctx=1024, n_ubatch=64, swa_full=full))
            for start in range(0, 900, 60):
                prefill(backend, tokens[start : start + 60], start=start)
            assert backend.trim(0, 899)
            assert backend.can_trim(0, 100) == backend.trim(0, 100) == full
            assert backend.positions(0) == (100 if full else 899)
            assert backend.trim(0, 0)
            backend.close()


def test_logits_are_llama_cpps_own_memory(backend: LlamaBackend) -> None:
    row = prefill(backend, tokens_of(backend, TEXTS[0]))
    logits = backend.logits(row)
    assert logits.shape == (backend.vocab.size,)
    assert np.isfinite(logits).all()
    best = int(np.argmax(logits))
    assert backend.sample(backend.sampler(GREEDY), row) == best
    logits[best] = -np.inf
    second = backend.sample(backend.sampler(GREEDY), row)
    assert second != best
    drawn = {backend.sample(backend.sampler(SamplingParams(seed=seed, temperature=1)), row) for seed in range(40)}
    assert best not in drawn


def test_log_probabilities_are_of_the_row_asked_for(backend: LlamaBackend) -> None:
    row = prefill(backend, [5, 6, 7])
    token = int(backend.logits(row).argmax())
    found = backend.logprobs(row, token, 2)
    assert found.top[0] == found.drawn
    assert found.drawn.token == token
    assert found.top[1].logprob < found.drawn.logprob < 0
    with pytest.raises(DecodeError, match="has no logits"):
        backend.logprobs(0, token, 2)


@pytest.mark.parametrize("row", [0, 1, 3, 99, -1])
def test_a_row_without_output_has_no_logits(backend: LlamaBackend, row: int) -> None:
    prefill(backend, [5, 6, 7])
    with pytest.raises(DecodeError, match="has no logits"):
        backend.sample(backend.sampler(GREEDY), row)


def test_a_row_of_nothing_allowed_is_an_error(backend: LlamaBackend) -> None:
    row = prefill(backend, [5, 6, 7])
    backend.logits(row)[:] = -np.inf
    with pytest.raises(DecodeError):
        backend.sample(backend.sampler(SamplingParams(temperature=1)), row)


def test_nothing_to_decode(backend: LlamaBackend) -> None:
    prefill(backend, [5, 6])
    backend.decode([])
    assert backend.positions(0) == 2


@pytest.mark.parametrize(
    "row", [Row(10**6, 0, 0, True), Row(-1, 0, 0, True), Row(5, 0, 4, True), Row(5, 0, -1, True), Row(5, 7, 0, True)]
)
def test_impossible_rows_are_refused_and_nothing_is_lost(backend: LlamaBackend, row: Row) -> None:
    prefill(backend, [5, 6])
    with pytest.raises(DecodeError) as caught:
        backend.decode([row])
    assert caught.value.reason == "invalid"
    assert backend.positions(0) == 2
    with pytest.raises(DecodeError, match="has no logits"):
        backend.logits(0)
    backend.decode([Row(7, 2, 0, True)])
    assert backend.positions(0) == 3


def test_batches_are_bounded_by_rows_and_by_outputs(model: Model) -> None:
    backend = model.backend(ContextOptions(n_threads=1, n_ctx=256, n_sequences=1, n_batch=32, outputs_per_sequence=20))
    with pytest.raises(DecodeError, match="33 rows were given, but one batch takes 32"):
        prefill(backend, [5] * 33)
    with pytest.raises(DecodeError, match="21 rows ask for logits, but one batch gives 20"):
        backend.decode([Row(5, index, 0, True) for index in range(21)])
    backend.decode([Row(5, index, 0, index >= 4) for index in range(24)])
    assert [len(backend.logits(row)) for row in range(4, 24)] == [backend.vocab.size] * 20
    backend.close()


def test_a_batch_has_room_for_sixteen_outputs_at_least() -> None:
    """With room for fewer, llama.cpp's prefill was 15 % slower."""
    options = ContextOptions(outputs_per_sequence=1)
    assert [options.n_outputs(sequences) for sequences in (1, 4, 16, 20)] == [16, 16, 16, 20]
    assert ContextOptions(outputs_per_sequence=1, n_batch=8).n_outputs(1) == 8


def test_a_full_cache_says_so_and_goes_on(model: Model) -> None:
    backend = model.backend(ContextOptions(n_threads=1, n_ctx=256, n_sequences=2, kv_tokens=256))
    prefill(backend, [5] * 200)
    prefill(backend, [5] * 56, sequence=1)
    with pytest.raises(DecodeError, match="no room for 1 more") as caught:
        backend.decode([Row(5, 200, 0, True)])
    assert caught.value.reason == "no_slot"
    assert (backend.positions(0), backend.positions(1)) == (200, 56)
    backend.trim(1, 0)
    backend.decode([Row(5, 200, 0, True)])
    assert backend.positions(0) == 201
    backend.close()


def test_an_abort_stops_the_next_decode_only(backend: LlamaBackend) -> None:
    backend.abort()
    with pytest.raises(DecodeError, match="aborted") as caught:
        prefill(backend, [5, 6, 7])
    assert caught.value.reason == "aborted"
    backend.trim(0, 0)
    prefill(backend, [5, 6, 7])
    assert backend.positions(0) == 3


def test_an_abort_from_another_thread_ends_a_long_decode(tmp_path: Path) -> None:
    shape = model_files.Shape(n_embd=256, n_head=4, n_ff=1024, n_layer=6, n_ctx=4096)
    with Model.load(model_files.write(tmp_path / "m.gguf", shape=shape)) as model:
        backend = model.backend(ContextOptions(n_threads=1, n_sequences=1, n_batch=4096, n_ubatch=64))
        started = threading.Event()

        def stop() -> None:
            started.wait()
            time.sleep(0.02)
            backend.abort()

        thread = threading.Thread(target=stop)
        thread.start()
        started.set()
        with pytest.raises(DecodeError, match="aborted"):
            prefill(backend, [5] * 4096)
        thread.join()
        held = backend.positions(0)
        assert held < 4096
        backend.decode([Row(5, held, 0, True)])
        assert backend.positions(0) == held + 1


def test_a_sampler_of_another_kind(backend: LlamaBackend) -> None:
    class Other:
        def accept(self, token: int) -> None: ...
        def close(self) -> None: ...

    row = prefill(backend, [5])
    with pytest.raises(EngineError, match="made by another backend"):
        backend.sample(Other(), row)


def test_closing_closes_the_samplers(model: Model) -> None:
    backend = model.backend(ContextOptions(n_threads=1, n_ctx=256))
    sampler = backend.sampler(SamplingParams(temperature=1))
    backend.close()
    with pytest.raises(EngineError, match="sampler is closed"):
        sampler.accept(5)


def test_many_rows_with_logits_are_read_right(model: Model) -> None:
    backend = model.backend(ContextOptions(n_threads=1, n_ctx=256, n_sequences=16, outputs_per_sequence=16))
    tokens = [5 + index % 30 for index in range(100)]
    backend.decode([Row(token, index, 0, True) for index, token in enumerate(tokens)])
    together = [int(backend.logits(row).argmax()) for row in range(100)]
    one = model.backend(ContextOptions(n_threads=1, n_ctx=256))
    apart: list[int] = []
    for index, token in enumerate(tokens):
        one.decode([Row(token, index, 0, True)])
        apart.append(int(one.logits(0).argmax()))
    # Kernels round differently at another batch width, so a near tie may fall otherwise; a mixed-up row would not be
    # one.
    assert sum(a == b for a, b in zip(together, apart, strict=True)) >= 98
    one.close()
    backend.close()


@pytest.mark.parametrize(("code", "says"), [(-3, "failed with code -3"), (-1, "rejected a batch of 1 rows")])
def test_failures_tell_what_llama_cpp_said(
    backend: LlamaBackend, monkeypatch: pytest.MonkeyPatch, code: int, says: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(backend, "_lib", Pretending("the card fell off", llama_decode=code))
        with pytest.raises(DecodeError, match=rf"{says}.*the card fell off"):
            backend.decode([Row(5, 0, 0, True)])
    backend.decode([Row(5, 0, 0, True)])
    assert backend.positions(0) == 1


def test_views_of_logits_do_not_pile_up(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_backend, "_CACHED_VIEWS", 4)
    backend = model.backend(ContextOptions(n_ctx=256, n_threads=1))
    backend.decode([Row(5, index, 0, True) for index in range(10)])
    for row in range(10):
        assert backend.logits(row).ctypes.data == backend.logits(row).ctypes.data
    assert len({backend.logits(row).ctypes.data for row in range(10)}) == 10
    backend.close()


def test_memory_that_llama_cpp_cannot_have_is_told(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Pretending("failed to allocate buffer of size 9", llama_init_from_model=None)
    monkeypatch.setattr(llama_backend, "library", lambda: library)
    with pytest.raises(ContextOverflowError, match=r"could not allocate a context of 256 tokens \(failed to allocate"):
        model.backend(ContextOptions(n_ctx=256))


def test_a_model_without_memory_is_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_backend, "library", lambda: Pretending(llama_get_memory=None))
    with pytest.raises(EngineError, match="keeps no memory between tokens"):
        model.backend(ContextOptions(n_ctx=256))
