"""Estimates of memory: the cache exactly as llama.cpp allocates it, the rest never below it."""

import logging
import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from files import model_files, vector_files

from engine.llama.gguf.gguf import read_gguf
from engine.llama.gguf.gguf_header import read_header
from engine.llama.lib import library
from engine.llama.model import Model
from engine.llama.plan.footprint import Cells, cells_of, checkpoint_bytes, copy_cost, estimate, weights
from engine.runtime.loop.backend import Row
from engine.runtime.loop.config import ContextOptions

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
    options = ContextOptions()
    size = estimate(model, options, Cells(4, 8192, 4)).cache / 4
    computed = model.parameters - 20_000 * 256
    assert copy_cost(model, options, Cells(4, 8192, 4)) == int(size * 20 / (2 * computed)) > 10
    assert copy_cost(model, options, Cells(4, 1024, 4)) == copy_cost(model, options, Cells(4, 8192, 4)) // 8
    assert copy_cost(model, options, Cells(1, 4 * 8192, 4)) == 0
    assert copy_cost(model, options, Cells(1, 8192, 1)) == 0


@pytest.mark.parametrize(
    ("architecture", "options"),
    [
        ("qwen3", {"n_sequences": 1}),
        ("qwen3", {"n_sequences": 1, "flash_attn": "on"}),
        ("qwen3", {"n_sequences": 4}),
        ("qwen3", {"n_sequences": 4, "kv_unified": False}),
        ("qwen3", {"n_sequences": 32}),
        ("qwen3", {"n_sequences": 4, "kv_unified": True, "kv_tokens": 12_288}),
        ("qwen3", {"type_k": "q8_0", "type_v": "q4_0"}),
        ("qwen3", {"n_ubatch": 2048, "outputs_per_sequence": 512}),
        ("gemma3", {}),
        ("mamba", {"n_sequences": 4}),
        ("lfm2", {"n_sequences": 4}),
        ("lfm2", {"n_sequences": 4, "kv_unified": False}),
    ],
)
def test_what_llama_cpp_allocates_was_foreseen(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, architecture: str, options: dict[str, Any]
) -> None:
    shape = model_files.Shape(n_embd=256, n_ff=512, n_head=4, n_head_kv=2, n_vocab=20_000, n_ctx=16_384)
    made = ContextOptions(n_ctx=8192, n_threads=1, checkpoint_mib=0, **options)
    with Model.load(model_files.write(tmp_path / "m.gguf", architecture, shape)) as model:
        caplog.set_level(logging.DEBUG, logger="engine.llama")
        caplog.clear()
        backend = model.backend(made)
        buffers = Buffers()
        for record in caplog.records:
            buffers.add(record.getMessage())
        sequences = backend.info.n_sequences
        foreseen = estimate(model.file, backend.options, backend.cells)
    assert buffers.compute > 0
    assert buffers.cache > 0
    assert buffers.cache == pytest.approx(foreseen.cache, abs=0.05 * MIB)  # the log rounds to hundredths of a MiB
    # The buffer that logits are read from has one row for each sequence, and grows when a batch asks for more.
    rows = max(min(backend.info.n_outputs, backend.options.rows_at_once), sequences) - sequences
    grown = buffers.compute + rows * model.file.tokens.n_vocab * 4
    assert grown == pytest.approx(foreseen.compute, rel=0.1, abs=3 * MIB)


VECTORS: dict[str, tuple[vector_files.Kind, int, dict[str, Any]]] = {
    **{name: (kind, 4, {}) for name, kind in (vector_files.KINDS | vector_files.RERANKERS).items()},
    "bert, no flash attention": (vector_files.KINDS["bert-mean"], 4, {"flash_attn": "off"}),
    "bert, narrow": (vector_files.KINDS["bert-cls"], 1, {}),
    "nomic, no flash attention": (vector_files.KINDS["nomic-mean"], 2, {"flash_attn": "off", "n_ctx": 600}),
    "nomic, narrow": (vector_files.KINDS["nomic-mean"], 1, {}),
    "qwen3, no flash attention": (vector_files.KINDS["qwen3-mean"], 4, {"flash_attn": "off", "n_ctx": 500}),
    "qwen3, narrow": (vector_files.KINDS["qwen3-last"], 1, {"flash_attn": "off"}),
}


@pytest.mark.parametrize("name", VECTORS)
def test_what_a_context_for_vectors_takes_is_foreseen_and_not_much_more(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says the buffers but for that of outputs, which grows with the first decode of many: a row of logits and
    of an embedding for each (llama-context.cpp, `output_reserve`)."""
    kind, wider, options = VECTORS[name]
    path = vector_files.write(
        tmp_path / "m.gguf", kind, width=256, context=1024, words=4000, wider=wider, classes=len(kind.labels)
    )
    with Model.load(path) as model:
        caplog.set_level(logging.DEBUG, logger="engine.llama")
        caplog.clear()
        backend = model.backend(ContextOptions(n_threads=1, **options))
        made = backend.options
        lines = [record.getMessage() for record in caplog.records]
        taken = sum(float(found[2]) for found in map(BUFFER.search, lines) if found and found[1] != "output") * MIB
        taken += (model.file.tokens.n_vocab + model.file.shape.n_embd) * backend.info.n_outputs * 4
        cells = cells_of(made, made.n_ctx or 0, made.n_sequences or 1)
        foreseen = estimate(model.file, made, cells).total
    assert taken > MIB
    assert taken - 0.01 * MIB <= foreseen <= 1.25 * taken


def test_windowed_layers_take_less_when_they_may(tmp_path: Path) -> None:
    def windows(writer: Any) -> None:
        writer.add_sliding_window_pattern([True, False])
        writer.add_sliding_window(64)

    model = read_gguf(model_files.write(tmp_path / "m.gguf", change=windows))
    full = estimate(model, ContextOptions(), Cells(1, 100_096, 1)).cache
    windowed = estimate(model, ContextOptions(swa_full=False), Cells(1, 100_096, 1)).cache
    assert full / 2 < windowed < full * 0.51
    options = ContextOptions(swa_full=False, n_ubatch=512)
    each = estimate(model, options, Cells(1, 25_088, 1)).cache
    assert estimate(model, options, Cells(4, 25_088, 4)).cache == 4 * each


@pytest.mark.parametrize(
    ("n_ctx", "options", "cells"),
    [
        (1, {"n_sequences": 1}, (1, 256)),
        (256, {"n_sequences": 1}, (1, 256)),
        (257, {"n_sequences": 1}, (1, 512)),
        (257, {"n_sequences": 4, "kv_unified": False}, (4, 512)),
        (257, {"n_sequences": 4}, (1, 1280)),
        (256, {"n_sequences": 20}, (1, 5120)),
        (4096, {"n_sequences": 20}, (1, 10_240)),
        (4096, {"n_sequences": 3, "kv_unified": True}, (1, 8192)),
        (16_000, {"n_sequences": 4}, (1, 16_128)),
        (257, {"n_sequences": 4, "kv_unified": True, "kv_tokens": 700}, (1, 768)),
    ],
)
def test_buffers_are_padded_as_llama_cpp_does(
    tmp_path: Path, n_ctx: int, options: dict[str, Any], cells: tuple[int, int]
) -> None:
    made = ContextOptions(n_ctx=n_ctx, n_threads=1, **options)
    with Model.load(model_files.write(tmp_path / "m.gguf")) as model:
        backend = model.backend(made)
        assert cells_of(backend.options, n_ctx, options["n_sequences"]) == (*cells, options["n_sequences"])
        context = backend._handle()  # pyright: ignore[reportPrivateUsage]
        assert library().llama_n_ctx(context) == cells[0] * cells[1]
        assert library().llama_n_ctx_seq(context) == cells[1]
        assert backend.info.n_ctx == n_ctx, "what was asked for, not what it is padded to"
        pool = options["n_sequences"] > 1 and options.get("kv_unified", True)
        assert backend.info.kv_tokens == (cells[1] if pool else 0)


def test_checkpoints_count_as_memory(tmp_path: Path) -> None:
    """Eight recurrent states for each conversation, as far as the option allows; as large as llama.cpp makes them."""
    cells = Cells(2, 512, 2)
    plain = read_gguf(model_files.write(tmp_path / "m.gguf"))
    assert checkpoint_bytes(plain, ContextOptions(), 2) == 0
    with Model.load(model_files.write(tmp_path / "m.gguf", "mamba")) as model:
        backend = model.backend(ContextOptions(n_ctx=512, n_sequences=2, n_threads=1))
        backend.decode([Row(5, 0, 0, False)])
        state = len(backend.checkpoint(0))
        foreseen = checkpoint_bytes(model.file, ContextOptions(), 2)
        assert 16 * (state - 1024) <= foreseen <= 16 * state
        without = estimate(model.file, ContextOptions(checkpoint_mib=0), cells)
        assert estimate(model.file, ContextOptions(), cells).cache == without.cache + foreseen
        assert backend.info.checkpoint_bytes == foreseen
    shape = model.file.shape
    layers = tuple(replace(layer, state=1 << 21) for layer in shape.layers)
    wide = replace(model.file, shape=replace(shape, layers=layers))
    assert checkpoint_bytes(wide, ContextOptions(), 8) == 256 * MIB
    assert checkpoint_bytes(wide, ContextOptions(checkpoint_mib=20), 8) == 20 * MIB


TAKEN = """
import contextlib, sys
from engine.llama.lib import library
from engine.llama.vocab import LlamaVocab

def resident():
    return int(open("/proc/self/status").read().partition("RssAnon:")[2].split()[0]) << 10

lib, before = library(), resident()
options = lib.llama_model_default_params()
options.vocab_only = True
model = lib.llama_model_load_from_file(sys.argv[1].encode(), options)
vocab = LlamaVocab(contextlib.nullcontext(model))
texts = [vocab.token_bytes(token) for token in range(vocab.size)]
print(resident() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", ["llama-spm", "qwen2", "llama-bpe"])
def test_what_a_vocabulary_takes_is_foreseen_and_not_much_more(tmp_path: Path, name: str) -> None:
    path = Path(os.environ.get("LLAMA_CPP_MODELS", "")) / f"ggml-vocab-{name}.gguf"
    if not path.is_file():
        pytest.skip(f"LLAMA_CPP_MODELS does not name a folder with {path.name}")
    header = read_header(path)
    file = read_gguf(model_files.write(tmp_path / "m.gguf"))
    tokens = replace(
        file.tokens,
        kind=header.text("tokenizer.ggml.model"),
        n_vocab=header.count("tokenizer.ggml.tokens"),
        n_merges=header.count("tokenizer.ggml.merges"),
    )
    model = replace(file, tokens=tokens)
    done = subprocess.run([sys.executable, "-c", TAKEN, path], capture_output=True, text=True, check=True)
    assert 0.8 * weights(model).tables - 4 * MIB < int(done.stdout) < weights(model).tables
