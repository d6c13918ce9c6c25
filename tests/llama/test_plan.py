"""What is planned on made-up machines: what the caller gave is kept or refused, the rest is what fits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from files import model_files

from engine.llama.gguf.gguf import GgufFile, read_gguf
from engine.llama.lib import Device
from engine.llama.params import on_cpu
from engine.llama.plan.footprint import cells_of, estimate, layer_caches, shares, weights
from engine.llama.plan.plan import RESERVE, Machine, longest, plan
from engine.runtime.loop.config import ContextOptions, ModelOptions
from engine.support.errors import ContextOverflowError, ModelLoadError

MIB = 1 << 20


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    """Ten layers, trained on 16,384 tokens; the embeddings are the output matrix, too."""
    shape = model_files.Shape(n_embd=256, n_ff=512, n_head=4, n_head_kv=2, n_layer=10, n_ctx=16_384, n_vocab=4000)
    return read_gguf(model_files.write(tmp_path_factory.mktemp("plan") / "m.gguf", shape=shape))


def having(room: int, *devices: int) -> Machine:
    """A machine with so many bytes that can be planned with, and devices."""
    gpus = tuple(
        Device(f"CUDA{index}", "a card", True, int(size / (1 - RESERVE)) + 1, size)
        for index, size in enumerate(devices)
    )
    return Machine(int(room / (1 - RESERVE)) + 1, gpus=gpus)


def context_size(file: GgufFile, n_ctx: int, n_sequences: int = 1, **options: Any) -> int:
    made = on_cpu(
        file, ContextOptions(**dict[str, Any]({"kv_unified": n_sequences > 1, **options})), n_ctx, n_sequences
    )
    return estimate(file, made, cells_of(made, n_ctx, n_sequences)).total


@pytest.mark.parametrize(("n_sequences", "kv_unified"), [(1, None), (3, None), (3, False)])
def test_the_longest_context_is_the_last_that_fits(file: GgufFile, n_sequences: int, kv_unified: bool | None) -> None:
    options = ContextOptions(n_sequences=n_sequences, kv_unified=kv_unified)
    given = {} if kv_unified is None else {"kv_unified": kv_unified}
    room = weights(file).total + context_size(file, 2560, n_sequences, **given)
    for size, found in ((room, 2560), (room - 2, 2304), (weights(file).total, 0)):
        assert longest(file, ModelOptions(), options, 10_000, having(size)) == found
    assert longest(file, ModelOptions(), options, 1000, having(room)) == 1000


def test_who_shares_a_pool(file: GgufFile, tmp_path: Path) -> None:
    """Where it saves memory, unless the positions depend on its size; or as the caller says."""
    recurrent = read_gguf(model_files.write(tmp_path / "r.gguf", "mamba"))
    by_length = replace(file, shape=replace(file.shape, turns_by_length=True))
    for model, sequences, wanted in ((file, 2, True), (file, 1, False), (recurrent, 2, False), (by_length, 2, False)):
        assert shares(model, ContextOptions(), sequences) is wanted
        assert shares(model, ContextOptions(kv_tokens=512), sequences)
        assert shares(model, ContextOptions(kv_unified=True), sequences)
        assert not shares(model, ContextOptions(kv_unified=False), sequences)


def test_whatever_the_memory_the_plan_fits_or_is_refused(file: GgufFile) -> None:
    """Every size from nothing to plenty, every way to ask: never more than there is, never less than asked for."""
    asked: list[dict[str, Any]] = [
        {},
        {"n_ctx": 4096},
        {"n_sequences": 3},
        {"n_ctx": 2048, "n_sequences": 4},
        {"kv_tokens": 6000},
        {"kv_unified": False, "n_sequences": 3},
        {"kv_unified": False},
        {"type_k": "q8_0", "type_v": "q8_0"},
    ]
    refused = planned = 0
    for options in asked:
        lengths: list[int] = []
        for size in range(20, 300, 7):
            machine = having(size * MIB)
            try:
                made = plan(file, ModelOptions(), ContextOptions(**options), machine)
            except (ModelLoadError, ContextOverflowError) as error:
                refused += "MiB" in str(error)
                continue
            planned += 1
            assert made.need.host <= (machine.room or 0)
            assert made.n_ctx == options.get("n_ctx", made.n_ctx)
            assert made.context.n_sequences == options.get("n_sequences", made.context.n_sequences)
            assert made.need.host == weights(file).total + estimate(file, made.context, made.cells).total
            lengths.append(made.n_ctx)
        assert lengths[-1] == options.get("n_ctx", min(8192, options.get("kv_tokens", 8192)))
    assert (refused > 20, planned > 150) == (True, True)


def test_what_fits_is_said_in_one_line_with_the_numbers(file: GgufFile) -> None:
    told = plan(file, ModelOptions(), ContextOptions(n_sequences=1), having(60 * MIB)).summary
    for part in ("(what fits), n_sequences=1 (as asked for)", "MiB of 60 MiB (weights ", ", KV cache ", ", compute "):
        assert part in told
    assert "\n" not in told
    assert "n_gpu_layers" not in told


def test_layers_go_to_the_devices_as_far_as_they_fit(file: GgufFile) -> None:
    """The last layers and the output matrix, with their part of the cache and the compute buffers."""
    options = ContextOptions(n_ctx=4096, n_sequences=1)
    every = plan(file, ModelOptions(), options, having(1 << 40, 1 << 40))
    assert every.model.n_gpu_layers == len(file.shape.layers) + 1
    assert every.context.flash_attn == "auto"
    caches = layer_caches(file, every.context, every.cells)
    compute = estimate(file, every.context, every.cells).compute
    for count in range(1, len(file.shape.layers) + 2):
        moved = count - 1
        size = file.shape.output + sum(layer.weights for layer in file.shape.layers[len(caches) - moved :]) + compute
        size += sum(caches[len(caches) - moved :])
        for less, layers in ((0, count), (2, count - 1)):
            half = (size - less) // 2
            made = plan(file, ModelOptions(), options, having(1 << 40, half, size - less - half))
            assert made.model.n_gpu_layers == layers
            assert made.need.device <= size - less
            assert f"n_gpu_layers={layers} of 11 (what fits)" in made.summary


def test_given_layers_are_kept_or_refused(file: GgufFile) -> None:
    small = having(1 << 30, 30 * MIB)
    assert plan(file, ModelOptions(n_gpu_layers=0), ContextOptions(), small).need.device == 0
    assert plan(file, ModelOptions(n_gpu_layers=2), ContextOptions(n_ctx=512), small).model.n_gpu_layers == 2
    with pytest.raises(ContextOverflowError, match="n_ctx=16,384 needs about"):
        plan(file, ModelOptions(n_gpu_layers=-1), ContextOptions(n_ctx=16_384, n_sequences=1), small)
    shorter = plan(file, ModelOptions(n_gpu_layers=-1), ContextOptions(n_sequences=1), having(1 << 30, 40 * MIB))
    assert 0 < shorter.n_ctx < 8192
    assert shorter.need.device <= 40 * MIB


def test_weights_too_large_for_memory_fit_beside_a_device(file: GgufFile) -> None:
    """What is on devices need not be here."""
    layers = tuple(replace(layer, weights=100 * MIB) for layer in file.shape.layers)
    big = replace(file, shape=replace(file.shape, layers=layers), weights=1000 * MIB)
    options = ContextOptions(n_ctx=512, n_sequences=1)
    with pytest.raises(ModelLoadError, match=r"needs 1,0\d\d MiB for its weights, but only 600 MiB of memory can be"):
        plan(big, ModelOptions(), options, having(600 * MIB))
    made = plan(big, ModelOptions(), options, having(600 * MIB, 700 * MIB))
    assert 5 < (made.model.n_gpu_layers or 0) < 9
    with pytest.raises(ModelLoadError):
        plan(big, ModelOptions(n_gpu_layers=0), options, having(600 * MIB, 700 * MIB))


def test_tensors_that_are_laid_out_anew_are_counted(file: GgufFile) -> None:
    """The tied embeddings twice; pages of the file that were copied can be taken back."""
    plain, anew = weights(file), weights(file, {"F32"})
    assert anew.total == plain.total + file.shape.tied
    assert anew.copies == sum(file.shape.matrices.values()) - file.shape.tied
    assert weights(file, {"F32"}, mapped=False).copies == 0
    assert weights(file, {"Q4_K"}) == plain
