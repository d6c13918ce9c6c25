"""engine.llama.params: which attention the CPU computes where the caller leaves that open."""

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from files import model_files

from engine.llama.gguf.gguf import GgufFile, read_gguf
from engine.llama.lib import Device
from engine.llama.model import Model
from engine.llama.params import on_cpu
from engine.llama.plan.plan import Machine
from engine.runtime.loop.config import ContextOptions, ModelOptions
from engine.support.errors import RequestError

SHAPE = model_files.Shape(n_embd=128, n_ff=256, n_head=4, n_head_kv=2, n_ctx=32_768)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    return read_gguf(model_files.write(tmp_path_factory.mktemp("gguf") / "m.gguf", "qwen3", SHAPE))


@pytest.mark.parametrize(
    ("asked", "flash_attn", "rows"),
    [
        ({"kv_unified": False}, "off", 256),
        ({"kv_unified": False, "n_batch": 100}, "off", 100),
        ({"kv_unified": False, "n_ubatch": 512}, "off", 512),
        ({"kv_unified": False, "n_ubatch": 16}, "off", 16),
        ({"flash_attn": "off"}, "off", 256),
        ({"flash_attn": "on"}, "on", 256),
        ({"flash_attn": "on", "n_ubatch": 512}, "on", 512),
        ({"kv_unified": True}, "on", 256),
        ({"kv_unified": True, "flash_attn": "off"}, "off", 256),
        ({"kv_unified": True, "n_sequences": 1}, "off", 256),
        ({"type_k": "q8_0"}, "off", 256),
        ({"type_k": "f32", "type_v": "f32"}, "off", 256),
        ({"type_k": "q8_0", "type_v": "q8_0"}, "on", 256),
        ({"type_v": "bf16"}, "off", 256),
    ],
)
def test_the_default_of_a_layout(file: GgufFile, asked: dict[str, Any], flash_attn: str, rows: int) -> None:
    options = ContextOptions(**asked)
    found = on_cpu(file, options, 4096, options.n_sequences or 4)
    assert (found.flash_attn, found.rows_at_once) == (flash_attn, rows)
    assert found == replace(options, flash_attn=found.flash_attn, n_ubatch=found.n_ubatch)


def test_fewer_rows_at_once_in_a_long_context_without_flash_attention(file: GgufFile) -> None:
    assert on_cpu(file, ContextOptions(), 16_384, 4).n_ubatch == 256
    assert on_cpu(file, ContextOptions(), 16_385, 4).n_ubatch == 64
    assert on_cpu(file, ContextOptions(flash_attn="on"), 16_385, 4).n_ubatch == 256
    pool = ContextOptions(flash_attn="off", kv_unified=True, kv_tokens=100_000)
    assert on_cpu(file, pool, 512, 4).n_ubatch == 64
    assert on_cpu(file, replace(pool, kv_tokens=None), 512, 64).n_ubatch == 64, "a pool for many"


def test_on_a_device_llama_cpp_chooses(file: GgufFile) -> None:
    machine = Machine(None, gpus=(Device("CUDA0", "a card", True, 1 << 30, 1 << 30),))
    with Model.load(file.path, ModelOptions(n_gpu_layers=1), machine=lambda: machine) as model:
        assert model.backend(ContextOptions(n_ctx=512, n_threads=1)).options.flash_attn == "auto"
        here = model.backend(ContextOptions(n_ctx=512, n_sequences=1, n_threads=1, offload_kqv=False))
        assert here.options.flash_attn == "off"


def test_quantised_keys_that_cross_heads_are_refused(tmp_path: Path) -> None:
    """llama.cpp itself ends the process where flash attention is off."""
    shape = model_files.Shape(n_embd=32, n_head=4)
    with Model.load(model_files.write(tmp_path / "m.gguf", shape=shape)) as model:
        for flash_attn in ("auto", "off"):
            with pytest.raises(RequestError, match=r"32.*divide"):
                model.backend(ContextOptions(n_ctx=256, type_k="q8_0", flash_attn=flash_attn))


def test_llama_cpp_is_told(file: GgufFile, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="engine.llama")
    with Model.load(file.path) as model:
        chosen_here = ContextOptions(n_ctx=512, n_sequences=1, n_threads=1)
        asked = ContextOptions(n_ctx=512, n_threads=1, n_batch=100, flash_attn="on")
        for options, told in ((chosen_here, "disabled"), (asked, "enabled")):
            caplog.clear()
            backend = model.backend(options)
            assert re.search(rf"n_ubatch += {backend.options.rows_at_once}\n", caplog.text)
            assert re.search(rf"flash_attn += {told}\n", caplog.text)
            backend.close()
