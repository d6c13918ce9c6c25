"""What a projector is said to take, beside what clip's own log says, and what the planner leaves for the rest."""

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files import projector_files
from files.projector_files import KINDS, write_model, write_projector

from engine import Audio, Engine, Image
from engine.api.loading import TemplateChoice, load
from engine.llama.gguf.projector_file import read_projector
from engine.llama.lib import mtmd
from engine.llama.model import Model
from engine.llama.plan.plan import Machine
from engine.runtime.loop.config import ContextOptions, MediaOptions
from engine.runtime.media.media import MediaChunk
from engine.support.errors import ContextOverflowError, ModelLoadError
from engine.turns.options import settings
from engine.types.media import Media

GB, MIB = 10**9, 1 << 20
_BUFFER = re.compile(r"compute buffer size = +([\d.]+) MiB")


def encoded_with(model: Path, path: Path, media: Media, options: MediaOptions, log: Any) -> tuple[int, float]:
    """The estimate, and what clip says for this picture or sound, in bytes."""
    file = read_projector(path, options)
    with Model.load(model) as weights:
        backend = weights.backend(ContextOptions(n_ctx=512, n_threads=1, check_memory=False), file)
        assert backend.projector is not None
        log.clear()
        for part in backend.projector.read(media):
            if isinstance(part, MediaChunk):
                backend.projector.encode(part)
    told = [float(size) for record in log.records for size in _BUFFER.findall(record.getMessage())]
    assert told, "clip no longer says what it takes"
    return file.encode_bytes, max(told) * MIB


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("width", "inner"), [(32, 64), (512, 2048), (256, 2560)])
def test_the_estimate_is_near_what_clip_takes(
    name: str,
    width: int,
    inner: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is never too little by more than the log's last digit, and at most three fifths too much."""
    monkeypatch.setattr(projector_files, "_D", width)
    monkeypatch.setattr(projector_files, "_FF", inner)
    kind = replace(KINDS[name], image=448)
    model = write_model(tmp_path / "model.gguf", kind)
    path = write_projector(tmp_path / "mmproj.gguf", kind)
    random = np.random.default_rng(1)
    media: Media = Image(random.integers(0, 256, (448, 448, 3), np.uint8))
    if name == "ultravox":
        media = Audio(random.normal(0, 0.1, 16_000 * 20).clip(-1, 1).astype(np.float32), rate=16_000)
    mtmd()
    with caplog.at_level(logging.DEBUG, "engine.llama"):
        estimate, taken = encoded_with(model, path, media, MediaOptions(image_max_tokens=256), caplog)
    assert taken - 0.005 * MIB <= estimate <= 1.6 * taken, (estimate, taken)


@pytest.mark.parametrize("side", [560, 1120])
def test_windows_and_gates_count(
    side: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Qwen2.5-VL's kind: most layers see windows, of which there is a mask, and the feed-forward layers are gated."""
    width, inner = 256, 864
    monkeypatch.setattr(projector_files, "_D", width)
    monkeypatch.setattr(projector_files, "_FF", inner)
    picture: Any = projector_files._add_picture  # pyright: ignore[reportPrivateUsage]
    block: Any = projector_files._add_block  # pyright: ignore[reportPrivateUsage]

    def with_windows(writer: Any, *more: Any) -> None:
        writer.kv_data[0]["clip.projector_type"].value = "qwen2.5vl_merger"
        writer.add_uint32("clip.vision.n_wa_pattern", 2)
        picture(writer, *more)

    def with_gate(writer: Any, prefix: str, numbers: Any, **more: Any) -> None:
        block(writer, prefix, numbers, **more)
        writer.add_tensor(f"{prefix}ffn_gate.weight", numbers(inner, width))
        writer.add_tensor(f"{prefix}ffn_gate.bias", numbers(inner))

    monkeypatch.setattr(projector_files, "_add_picture", with_windows)
    monkeypatch.setattr(projector_files, "_add_block", with_gate)
    kind = projector_files.Kind("qwen2vl_merger", "qwen2vl", 560)
    model, path = write_model(tmp_path / "m.gguf", kind), write_projector(tmp_path / "mmproj.gguf", kind)
    random = np.random.default_rng(1)
    media = Image(random.integers(0, 256, (side, side, 3), np.uint8))
    mtmd()
    with caplog.at_level(logging.DEBUG, "engine.llama"):
        estimate, taken = encoded_with(model, path, media, MediaOptions(image_max_tokens=(side // 28) ** 2), caplog)
    assert taken <= estimate <= 1.6 * taken, (estimate, taken)


def test_more_rows_take_more(tmp_path: Path) -> None:
    path = write_projector(tmp_path / "mmproj.gguf", KINDS["qwen2vl"])
    few, many, most = (
        read_projector(path, MediaOptions(image_max_tokens=rows)).encode_bytes for rows in (100, 400, None)
    )
    assert (many, most) == (4 * few, 4096 * few // 100)
    fixed = write_projector(tmp_path / "llava.gguf", KINDS["llava"])
    with_limit = read_projector(fixed, MediaOptions(image_max_tokens=9999)).encode_bytes
    assert with_limit == read_projector(fixed).encode_bytes, "its pictures have one size"


def test_the_planner_leaves_room_for_it(tmp_path: Path, builtin_model_path: Path) -> None:
    path = write_projector(tmp_path / "mmproj.gguf", KINDS["llava"])
    trusting, need = TemplateChoice(trust_template=True), read_projector(path).memory

    def loaded(available: int, projector: Path | None, **options: Any) -> int:
        given = settings({"n_sequences": 1, **options})
        machine = Machine(available)
        made = load(builtin_model_path, given, trusting, preflight=False, machine=lambda: machine, projector=projector)
        n_ctx = made.backend.info.n_ctx
        made.weights.close()
        return n_ctx

    small = 60 * 10**6
    assert loaded(small, None) == loaded(small + need, path) > 0
    assert loaded(small + need - 8 * MIB, path) < loaded(small, None)
    assert loaded(small + need - (256 << 20), path, media_cache_mib=0) == loaded(small, None)
    with pytest.raises(ModelLoadError, match=r"for its weights.*The projector is counted, mmproj\.gguf: 256 MiB"):
        loaded(small, path)
    with pytest.raises(ContextOverflowError, match=r"the largest that fits is.*a smaller media_cache_mib or image_max"):
        loaded(small + need, path, n_ctx=4096)


def test_a_second_context_leaves_room_for_it_too(tmp_path: Path, builtin_model_path: Path) -> None:
    file = read_projector(write_projector(tmp_path / "mmproj.gguf", KINDS["llava"]))
    with Model.load(builtin_model_path, machine=lambda: Machine(GB)) as weights:
        weights.backend(ContextOptions(n_ctx=512), file).close()
    with (
        Model.load(builtin_model_path, machine=lambda: Machine(200 * MIB)) as weights,
        pytest.raises(ContextOverflowError),
    ):
        weights.backend(ContextOptions(n_ctx=512), file)


def test_the_log_says_what_it_takes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_projector(tmp_path / "mmproj.gguf", KINDS["llava"])
    with (
        caplog.at_level(logging.INFO, "engine.llama"),
        Engine.load(projector=path, family="qwen3", n_ctx=512, media_cache_mib=3),
    ):
        assert "the projector mmproj.gguf: 3 MiB (weights 0, buffers 0, rows kept at most 3)" in caplog.text
