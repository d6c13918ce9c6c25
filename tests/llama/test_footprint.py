"""Estimates of memory: the cache exactly as llama.cpp allocates it, the rest never below it."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import model_files
import pytest

from engine.llama.gguf import read_gguf
from engine.llama.memory import copy_cost, estimate, largest_context, padded
from engine.llama.model import Model
from engine.runtime.options import ContextOptions

MIB = 1 << 20
BUFFER = re.compile(r"(KV|RS|compute|output) buffer size = +([\d.]+) MiB")


@dataclass
class Buffers:
    """What llama.cpp said it allocated, in bytes, by kind."""

    cache: float = 0.0
    compute: float = 0.0

    def add(self, line: str) -> None:
        if found := BUFFER.search(line):
            size = float(found[2]) * MIB
            if found[1] in ("KV", "RS"):
                self.cache += size
            else:
                self.compute += size


def test_a_copy_costs_more_tokens_where_buffers_are_long_and_weights_few(tmp_path: Path) -> None:
    shape = model_files.Shape(n_embd=256, n_ff=512, n_head=4, n_head_kv=2, n_vocab=20_000)
    model = read_gguf(model_files.write(tmp_path / "m.gguf", shape=shape))
    apart = ContextOptions(n_sequences=4, kv_unified=False)
    size = estimate(model, apart, 4 * 8192).cache / 4
    computed = model.parameters - 20_000 * 256
    assert copy_cost(model, apart, 4 * 8192) == int(size * 20 / (2 * computed)) > 10
    assert copy_cost(model, apart, 4 * 1024) == copy_cost(model, apart, 4 * 8192) // 8
    assert copy_cost(model, ContextOptions(n_sequences=4, kv_unified=True), 4 * 8192) == 0
    assert copy_cost(model, ContextOptions(kv_unified=False), 8192) == 0


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("qwen3", {}),
        ("qwen3", {"flash_attn": "off"}),
        ("qwen3", {"n_sequences": 4}),
        ("qwen3", {"n_sequences": 4, "kv_unified": False}),
        ("qwen3", {"type_k": "q8_0", "type_v": "q4_0"}),
        ("qwen3", {"n_ubatch": 2048, "outputs_per_sequence": 512}),
        ("gemma3", {}),
        ("mamba", {"n_sequences": 4}),
        ("lfm2", {"n_sequences": 4}),
    ],
)
def test_what_llama_cpp_allocates_was_foreseen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, architecture: str, options: dict[str, Any]
) -> None:
    shape = model_files.Shape(n_embd=256, n_ff=512, n_head=4, n_head_kv=2, n_vocab=20_000, n_ctx=16_384)
    made = ContextOptions(n_ctx=8192, n_threads=1, **options)
    with Model.load(model_files.write(tmp_path / "m.gguf", architecture, shape)) as model:
        caplog.set_level(logging.DEBUG, logger="engine.llama")
        caplog.clear()
        backend = model.backend(made)
        buffers = Buffers()
        for record in caplog.records:
            buffers.add(record.getMessage())
        foreseen = estimate(model.file, made, backend.n_ctx)
    assert buffers.compute > 0
    assert buffers.cache > 0
    # Recurrent states are estimated for all layers, though a hybrid has fewer; the log rounds to hundredths of a MiB.
    assert buffers.cache - 0.05 * MIB <= foreseen.cache <= buffers.cache + 0.3 * MIB
    assert buffers.compute <= foreseen.compute <= 8 * buffers.compute + 64 * MIB


def test_windowed_layers_take_less_when_they_may(tmp_path: Path) -> None:
    def windows(writer: Any) -> None:
        writer.add_sliding_window_pattern([True, False])
        writer.add_sliding_window(64)

    model = read_gguf(model_files.write(tmp_path / "m.gguf", change=windows))
    full = estimate(model, ContextOptions(), 100_096).cache
    windowed = estimate(model, ContextOptions(swa_full=False), 100_096).cache
    assert full / 2 < windowed < full * 0.51
    apart = ContextOptions(swa_full=False, n_sequences=4, kv_unified=False, n_ubatch=512)
    each = estimate(model, ContextOptions(n_ubatch=512, swa_full=False), 25_088).cache
    assert estimate(model, apart, 4 * 25_088).cache == 4 * each


@pytest.mark.parametrize(
    ("n_ctx", "options", "cells"),
    [
        (1, {}, 256),
        (256, {}, 256),
        (257, {}, 512),
        (257, {"n_sequences": 4}, 512),
        (257, {"n_sequences": 4, "kv_unified": False}, 1024),
        (1025, {"n_sequences": 4, "kv_unified": False}, 2048),
    ],
)
def test_contexts_are_padded_as_llama_cpp_does(tmp_path: Path, n_ctx: int, options: dict[str, Any], cells: int) -> None:
    made = ContextOptions(n_ctx=n_ctx, n_threads=1, **options)
    assert padded(n_ctx, made) == cells
    with Model.load(model_files.write(tmp_path / "m.gguf")) as model:
        assert model.backend(made).n_ctx == cells


def test_the_largest_context_is_the_last_that_fits(tmp_path: Path) -> None:
    model = read_gguf(model_files.write(tmp_path / "m.gguf"))
    for options in (ContextOptions(), ContextOptions(n_sequences=3, kv_unified=False)):
        step = padded(1, options)
        room = estimate(model, options, 10 * step).total
        assert largest_context(model, options, 100 * step, room) == 10 * step
        assert largest_context(model, options, 100 * step, room - 1) == 9 * step
        assert largest_context(model, options, 5 * step, room) == 5 * step
        assert largest_context(model, options, 100 * step, 0) == 0
