"""engine.llama.projector, against libmtmd's own helper on a bare context."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from files.projector_files import KINDS, Bare, Kind, media, write_model, write_projector
from numpy.typing import NDArray

from engine.llama.context import LlamaBackend
from engine.llama.gguf.projector_file import read_projector
from engine.llama.model import Model
from engine.runtime.loop.backend import Row
from engine.runtime.loop.config import ContextOptions, MediaOptions
from engine.runtime.media.media import MediaChunk, PromptPart
from engine.support.errors import DecodeError, EngineError, RequestError
from engine.types.media import Audio, Image, Media

BEFORE, AFTER = b"See: ", b" what is it?"
OPTIONS = ContextOptions(n_ctx=2048, n_sequences=2, kv_unified=False, n_threads=1, n_ubatch=512)


@pytest.fixture(scope="module", params=KINDS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def kind(name: str) -> Kind:
    return KINDS[name]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, kind: Kind) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("projector")
    return write_model(folder / "model.gguf", kind), write_projector(folder / "mmproj.gguf", kind)


@pytest.fixture(scope="module")
def backend(files: tuple[Path, Path]) -> Iterator[LlamaBackend]:
    with Model.load(files[0]) as model:
        yield model.backend(OPTIONS, read_projector(files[1]))


@pytest.fixture(scope="module")
def bare(files: tuple[Path, Path]) -> Iterator[Bare]:
    made = Bare(*files)
    yield made
    made.close()


def evaluated(
    backend: LlamaBackend, parts: Sequence[bytes | Media], sequence: int = 0
) -> tuple[NDArray[np.float32], list[tuple[int, int, int]], int]:
    """Evaluate parts as the bare context does; returns the same."""
    backend.trim(sequence, 0)
    place, sizes, rows = 0, list[tuple[int, int, int]](), list[Row]()
    for part in parts:
        if isinstance(part, bytes):
            made = [tuple(backend.vocab.tokenize(part.decode(), special=True))]
        else:
            assert backend.projector is not None
            made = backend.projector.read(part)
        for each in made:
            if isinstance(each, MediaChunk):
                assert isinstance(part, Image | Audio)
                assert backend.projector is not None
                sizes.append((2 if isinstance(part, Audio) else 1, each.rows, each.positions))
                backend.decode_media(each, sequence, place, backend.projector.encode(each))
                place += each.positions
            else:
                sizes.append((0, len(each), len(each)))
                rows = [Row(token, place + at, sequence, at == len(each) - 1) for at, token in enumerate(each)]
                backend.decode(rows)
                place += len(each)
            assert backend.positions(sequence) == place
    return backend.logits(len(rows) - 1).copy(), sizes, place


def joined(sizes: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Neighbouring texts as one: libmtmd joins them."""
    found: list[tuple[int, int, int]] = []
    for kind, rows, positions in sizes:
        if found and kind == 0 and found[-1][0] == 0:
            found[-1] = (0, found[-1][1] + rows, found[-1][2] + positions)
        else:
            found.append((kind, rows, positions))
    return found


def test_logits_are_those_of_the_chunks_one_by_one(backend: LlamaBackend, bare: Bare, kind: Kind) -> None:
    first, other = media(kind), media(kind, 1)
    expected, chunks, past = bare.evaluate([BEFORE, first, AFTER])
    logits, sizes, place = evaluated(backend, [BEFORE, first, AFTER])
    assert (joined(sizes), place) == (joined(chunks), past)
    assert np.abs(logits - expected).max() < 1e-3
    changed, _, _ = evaluated(backend, [BEFORE, other, AFTER])
    assert np.abs(changed - expected).max() > 0.05
    two, sizes, place = evaluated(backend, [BEFORE, first, b" and ", other, AFTER], sequence=1)
    expected, chunks, past = bare.evaluate([BEFORE, first, b" and ", other, AFTER])
    assert (joined(sizes), place) == (joined(chunks), past)
    assert np.abs(two - expected).max() < 1e-3


def test_a_unit_in_pieces_has_the_logits_of_one_decode(
    backend: LlamaBackend, files: tuple[Path, Path], kind: Kind
) -> None:
    expected, sizes, _ = evaluated(backend, [BEFORE, media(kind), AFTER])
    rows = max(rows for of_media, rows, _ in sizes if of_media)
    with Model.load(files[0]) as model:
        small = model.backend(replace(OPTIONS, n_batch=rows // 2 + 8), read_projector(files[1]))
        logits, _, _ = evaluated(small, [BEFORE, media(kind), AFTER])
    assert np.abs(logits - expected).max() < 1e-3


def test_rows_are_encoded_once_and_found_by_content(backend: LlamaBackend, kind: Kind) -> None:
    reader = backend.projector
    assert reader is not None
    assert set(backend.info.media) == reader.kinds == {media(kind).kind}
    first, again, other = (first_unit(reader.read(media(kind, seed))) for seed in (0, 0, 1))
    assert first.key == again.key != other.key
    rows = reader.encode(first)
    assert rows.shape == (first.rows, kind.width * (1 + kind.deepstack))
    assert reader.encode(again) is rows
    assert not np.array_equal(reader.encode(other)[:4], rows[:4])


def test_what_does_not_fit_the_cache_is_encoded_again(files: tuple[Path, Path], kind: Kind) -> None:
    with Model.load(files[0]) as model:
        reader = model.backend(OPTIONS, read_projector(files[1], MediaOptions(media_cache_mib=0))).projector
        assert reader is not None
        unit = first_unit(reader.read(media(kind)))
        rows = reader.encode(unit)
        assert reader.encode(unit) is not rows
        assert np.array_equal(reader.encode(unit), rows)


def test_an_aborted_unit_leaves_nothing(backend: LlamaBackend, kind: Kind) -> None:
    assert backend.projector is not None
    expected, _, _ = evaluated(backend, [BEFORE, media(kind), AFTER])
    unit = first_unit(backend.projector.read(media(kind)))
    rows = backend.projector.encode(unit)
    backend.trim(0, 3)
    backend.abort()
    with pytest.raises(DecodeError) as caught:
        backend.decode_media(unit, 0, 3, rows)
    assert caught.value.reason == "aborted"
    assert backend.positions(0) == 3
    again, _, _ = evaluated(backend, [BEFORE, media(kind), AFTER])
    assert np.abs(again - expected).max() < 1e-3


def test_trimmed_and_copied_sequences_know_where_units_end(backend: LlamaBackend, kind: Kind) -> None:
    reader = backend.projector
    assert reader is not None
    unit = first_unit(reader.read(media(kind)))
    backend.trim(0, 0)
    backend.trim(1, 0)
    start, end = 3, 3 + unit.positions
    backend.decode([Row(token, token, 0, False) for token in range(start)])
    backend.decode_media(unit, 0, start, reader.encode(unit))
    backend.decode([Row(7, end, 0, False)])
    assert backend.positions(0) == end + 1
    assert backend.trim(0, end)
    assert backend.positions(0) == end
    backend.copy(0, 1, end)
    backend.decode([Row(9, end, 1, True)])
    logits = backend.logits(0).copy()
    assert (backend.positions(0), backend.positions(1)) == (end, end + 1)
    backend.decode([Row(9, end, 0, True)])
    assert np.abs(backend.logits(0) - logits).max() < 1e-3
    assert backend.trim(0, start)
    assert backend.positions(0) == start
    backend.decode([Row(7, start, 0, False)])
    assert backend.positions(0) == start + 1


def test_a_sequence_or_a_context_that_there_is_not(backend: LlamaBackend, files: tuple[Path, Path], kind: Kind) -> None:
    assert backend.projector is not None
    unit = first_unit(backend.projector.read(media(kind)))
    rows = backend.projector.encode(unit)
    with pytest.raises(DecodeError, match="has 2 sequences, and a projector"):
        backend.decode_media(unit, 2, 0, rows)
    with Model.load(files[0]) as model:
        plain = model.backend(OPTIONS)
        assert (plain.projector, plain.info.media) == (None, ())
        with pytest.raises(DecodeError, match="no projector"):
            plain.decode_media(unit, 0, 0, rows)


def first_unit(parts: Sequence[PromptPart]) -> MediaChunk:
    return next(part for part in parts if isinstance(part, MediaChunk))


class TestOneProjector:
    """What needs one of the projectors."""

    def test_a_picture_that_sees_all_of_itself_widens_the_micro_batch(self, tmp_path: Path) -> None:
        kind = replace(KINDS["gemma3"], image=14 * 48)  # 576 rows
        model_file = write_model(tmp_path / "model.gguf", kind)
        file = read_projector(write_projector(tmp_path / "mmproj.gguf", kind))
        assert file.at_once == 576
        bare = Bare(model_file, file.path, rows=576)
        expected, _, _ = bare.evaluate([BEFORE, media(kind), AFTER])
        bare.close()
        with Model.load(model_file) as model:
            wide = model.backend(replace(OPTIONS, n_ubatch=None), file)
            logits, sizes, _ = evaluated(wide, [BEFORE, media(kind), AFTER])
            assert 576 in [rows for _, rows, _ in sizes]
            assert np.abs(logits - expected).max() < 1e-3
            text, _, _ = evaluated(wide, [b"causal again"])
            plain, _, _ = evaluated(model.backend(OPTIONS), [b"causal again"])
            assert np.abs(text - plain).max() < 1e-3
            narrow = model.backend(replace(OPTIONS, n_ctx=512, n_sequences=1), file)
            assert narrow.projector is not None
            unit = first_unit(narrow.projector.read(media(kind)))
            rows = narrow.projector.encode(unit)
            with pytest.raises(DecodeError, match=r"576 rows, which must be evaluated at once, but a micro-batch 512"):
                narrow.decode_media(unit, 0, 0, rows)

    def test_idefics3_s_tiles_are_units_with_tokens_between_them(self, tmp_path: Path) -> None:
        kind = KINDS["idefics3"]
        path = write_projector(tmp_path / "mmproj.gguf", kind)
        with Model.load(write_model(tmp_path / "model.gguf", kind)) as model:
            backend = model.backend(OPTIONS, read_projector(path))
            assert backend.projector is not None
            parts = backend.projector.read(media(kind))
            read = [
                [*map(backend.vocab.text, part)] if not isinstance(part, MediaChunk) else part.rows for part in parts
            ]
            assert len({part.key for part in parts if isinstance(part, MediaChunk)}) == 5
        around, overview, *tiles = kind.tokens
        first, *others = ([around, tile] for tile in tiles)
        ends = [*others[:1], ["\n", *others[1]], *others[2:]]
        assert read[:2] == [first, 4]
        assert read[2:8:2] == ends
        assert read[8:] == [["\n\n", around, overview], 4, [around]]

    def test_limits_on_rows_are_part_of_the_key(self, tmp_path: Path) -> None:
        kind = KINDS["qwen2vl"]
        picture = Image(np.zeros((280, 280, 3), np.uint8))
        path = write_projector(tmp_path / "mmproj.gguf", kind)
        with Model.load(write_model(tmp_path / "model.gguf", kind)) as model:
            units: list[MediaChunk] = []
            for options in (MediaOptions(), MediaOptions(image_max_tokens=20), MediaOptions(image_min_tokens=400)):
                reader = model.backend(OPTIONS, read_projector(path, options)).projector
                assert reader is not None
                units.append(first_unit(reader.read(picture)))
        assert units[1].rows <= 20 < units[0].rows < 400 <= units[2].rows
        assert len({unit.key for unit in units}) == 3

    def test_what_a_projector_cannot_read_is_refused_by_name(self, tmp_path: Path) -> None:
        path = write_projector(tmp_path / "mmproj.gguf", KINDS["ultravox"])
        with Model.load(write_model(tmp_path / "model.gguf", KINDS["ultravox"])) as model:
            backend = model.backend(OPTIONS, read_projector(path))
            reader = backend.projector
            assert reader is not None
            with pytest.raises(RequestError, match="399 samples is too short"):
                reader.read(Audio(np.zeros(399, np.float32), rate=16_000))
            long = reader.read(Audio(np.zeros(16_000 * 31, np.float32), rate=16_000))
            assert [part.rows for part in long if isinstance(part, MediaChunk)] == [75, 75]
        with pytest.raises(EngineError, match="closed"):
            reader.read(media(KINDS["ultravox"]))

    def test_markers_that_the_vocabulary_lacks(self, tmp_path: Path) -> None:
        path = write_projector(tmp_path / "mmproj.gguf", Kind("idefics3"))
        with Model.load(write_model(tmp_path / "model.gguf", Kind("idefics3"))) as model:
            reader = model.backend(OPTIONS, read_projector(path)).projector
            assert reader is not None
            with pytest.raises(RequestError, match="not in this model's vocabulary"):
                reader.read(media(KINDS["llava"]))

    def test_weights_are_freed_when_the_projector_is_gone(self, tmp_path: Path) -> None:
        path = write_projector(tmp_path / "mmproj.gguf", KINDS["llava"])
        freed: list[int] = []
        with Model.load(write_model(tmp_path / "model.gguf", KINDS["llava"])) as model:
            shared: Any = cast("Any", model)._shared
            free = shared._free

            def note(pointer: int) -> None:
                freed.append(pointer)
                free(pointer)

            shared._free = note
            model.backend(OPTIONS, read_projector(path))  # collected, not closed
            kept = model.backend(OPTIONS, read_projector(path))
            assert kept.projector is not None
            with cast("Any", kept.projector)._shared:  # a read that is still running
                model.close()
                assert not freed
            assert freed
