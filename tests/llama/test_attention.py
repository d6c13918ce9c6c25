"""engine.llama.params: which attention the CPU computes where the caller leaves that open."""

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import model_files
import pytest

from engine.errors import RequestError
from engine.llama import model as llama
from engine.llama.gguf import GgufFile, read_gguf
from engine.llama.memory import estimate, scores
from engine.llama.model import Model
from engine.llama.params import chosen, leanest, takes_tiles
from engine.runtime.options import ContextOptions

SHAPE = model_files.Shape(n_embd=128, n_ff=256, n_head=4, n_head_kv=2, n_ctx=32_768)
MIB = 1 << 20


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    return read_gguf(model_files.write(tmp_path_factory.mktemp("gguf") / "m.gguf", "qwen3", SHAPE))


@pytest.mark.parametrize(
    ("asked", "flash_attn", "rows"),
    [
        ({}, "off", 256),
        ({"n_batch": 100}, "off", 100),
        ({"n_ubatch": 512}, "off", 512),
        ({"n_ubatch": 16}, "off", 16),
        ({"flash_attn": "off"}, "off", 256),
        ({"flash_attn": "on"}, "on", 256),
        ({"flash_attn": "on", "n_ubatch": 512}, "on", 512),
        ({"n_sequences": 4, "kv_unified": False}, "off", 256),
        ({"n_sequences": 4, "kv_unified": True}, "on", 256),
        ({"n_sequences": 4, "kv_unified": True, "flash_attn": "off"}, "off", 256),
        # Without tiles flash attention goes through prompts key by key, too.
        ({"n_sequences": 4, "kv_unified": True, "type_k": "q8_0"}, "off", 256),
        ({"type_k": "q8_0"}, "off", 256),
        ({"type_k": "f32", "type_v": "f32"}, "off", 256),
        ({"type_k": "q8_0", "type_v": "q8_0"}, "on", 256),
        ({"type_v": "bf16"}, "on", 256),
    ],
)
def test_what_is_chosen(file: GgufFile, asked: dict[str, Any], flash_attn: str, rows: int) -> None:
    found = chosen(file, ContextOptions(**asked), 4096, None)
    assert (found.flash_attn, found.rows_at_once) == (flash_attn, rows)
    assert found == replace(ContextOptions(**asked), flash_attn=found.flash_attn, n_ubatch=found.n_ubatch)


@pytest.mark.parametrize(("n_ctx", "rows"), [(32_768, 256), (40_960, 128), (81_920, 64), (1_000_000, 64)])
def test_fewer_rows_at_once_in_a_long_context(file: GgufFile, n_ctx: int, rows: int) -> None:
    """128 MiB of scores are always fine: 4 heads of 4 bytes for every row and cell. A quarter of this model's cache is
    less."""
    found = chosen(file, ContextOptions(), n_ctx, None)
    assert (found.flash_attn, found.n_ubatch) == ("off", rows)
    assert rows == 64 or scores(file, found, n_ctx) <= 128 * MIB


def test_a_large_cache_allows_more(tmp_path: Path) -> None:
    wide = replace(SHAPE, n_head_kv=4, n_layer=40)
    file = read_gguf(model_files.write(tmp_path / "m.gguf", "qwen3", wide))
    found = chosen(file, ContextOptions(), 100_096, None)
    assert found.n_ubatch == 256
    assert 128 * MIB < scores(file, found, 100_096) <= estimate(file, found, 100_096).cache // 4


def test_where_memory_is_short_scores_take_less_and_then_none(file: GgufFile) -> None:
    needs = {
        rows: estimate(file, ContextOptions(flash_attn="off", n_ubatch=rows), 32_768).total for rows in (256, 128, 64)
    }
    for rows, need in needs.items():
        assert chosen(file, ContextOptions(), 32_768, need).n_ubatch == rows
    assert chosen(file, ContextOptions(), 32_768, needs[64] - 1) == ContextOptions(flash_attn="on", n_ubatch=256)
    assert chosen(file, ContextOptions(flash_attn="off"), 32_768, needs[64] - 1).flash_attn == "off"


def test_the_leanest_is_what_is_chosen_where_memory_is_short(file: GgufFile) -> None:
    lean = leanest(file, ContextOptions())
    assert lean == chosen(file, ContextOptions(), 32_768, estimate(file, lean, 32_768).total)
    shared = ContextOptions(n_sequences=4)
    assert leanest(file, shared) == replace(shared, n_ubatch=256)
    assert leanest(file, replace(shared, n_ubatch=512)).n_ubatch == 512
    assert leanest(file, ContextOptions(n_ubatch=32)).n_ubatch == 32


def test_tiles_are_for_flash_attention_over_plain_keys_and_values() -> None:
    assert takes_tiles(ContextOptions())
    assert takes_tiles(ContextOptions(type_k="f32", type_v="f32"))
    assert not takes_tiles(ContextOptions(type_k="f32"))
    assert not takes_tiles(ContextOptions(type_k="bf16", type_v="bf16"))
    assert not takes_tiles(ContextOptions(flash_attn="off"))


def test_a_context_of_its_own_choice_leaves_room_for_scores(file: GgufFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as fits into memory, and without flash attention all the same."""
    least = ContextOptions(flash_attn="off", n_ubatch=64)
    room = estimate(file, least, 16_384).total
    with Model.load(file.path) as model:
        monkeypatch.setattr(model, "_room", lambda: room)
        backend = model.backend(ContextOptions(n_threads=1))
        assert backend.n_ctx == 16_384
        assert (backend.options.flash_attn, backend.options.n_ubatch) == ("off", 64)


def test_what_was_asked_for_comes_before_speed(file: GgufFile, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ContextOptions(n_ctx=16_384, n_ubatch=512, n_threads=1)
    room = estimate(file, asked, 16_384).total
    with Model.load(file.path) as model:
        monkeypatch.setattr(model, "_room", lambda: room)
        assert model.backend(asked).options.flash_attn == "on"
        off = replace(asked, n_ubatch=None, flash_attn="off")
        assert model.backend(off).options.n_ubatch == 128, "as many rows as fit"
        unchecked = model.backend(replace(asked, check_memory=False))
        assert unchecked.options.flash_attn == "off"


def test_on_a_device_llama_cpp_chooses(file: GgufFile, monkeypatch: pytest.MonkeyPatch) -> None:
    with Model.load(file.path, replace(llama.ModelOptions(), n_gpu_layers=1)) as model:
        monkeypatch.setattr(llama, "_gpus", lambda: [object()])
        monkeypatch.setattr(model, "_room", lambda: None)
        assert model.backend(ContextOptions(n_ctx=512, n_threads=1)).options.flash_attn == "auto"
        here = model.backend(ContextOptions(n_ctx=512, n_threads=1, offload_kqv=False))
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
        chosen_here = ContextOptions(n_ctx=512, n_threads=1)
        asked = ContextOptions(n_ctx=512, n_threads=1, n_batch=100, flash_attn="on")
        for options, told in ((chosen_here, "disabled"), (asked, "enabled")):
            caplog.clear()
            backend = model.backend(options)
            assert re.search(rf"n_ubatch += {backend.options.rows_at_once}\n", caplog.text)
            assert re.search(rf"flash_attn += {told}\n", caplog.text)
            backend.close()


def test_a_short_context_has_few_scores(file: GgufFile) -> None:
    assert scores(file, ContextOptions(flash_attn="off", n_ubatch=2048), 256) == 256 * 256 * 4 * 4
    apart = ContextOptions(flash_attn="off", n_ubatch=64, n_sequences=2, kv_unified=False)
    assert scores(file, apart, 512) == 64 * 256 * 4 * 4
