"""engine.llama.projector, against libmtmd's own helper on a bare context."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from projector_files import KINDS, Bare, Kind, media, write_model, write_projector

from engine.errors import DecodeError, ModelLoadError, RequestError
from engine.llama.context import LlamaBackend
from engine.llama.model import Model
from engine.llama.projector_file import MediaOptions, read_projector
from engine.media import Audio, Image, Media
from engine.runtime.backend import Row
from engine.runtime.config import ContextOptions
from engine.runtime.media import Unit

BEFORE, AFTER = b"See: ", b" what is it?"
OPTIONS = ContextOptions(n_ctx=2048, n_sequences=2, n_threads=1, n_ubatch=512)


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
    assert backend.projector is not None
    backend.trim(sequence, 0)
    place, sizes, rows = 0, list[tuple[int, int, int]](), list[Row]()
    for part in parts:
        if isinstance(part, bytes):
            made = [tuple(backend.vocab.tokenize(part.decode(), special=True))]
        else:
            made = backend.projector.read(part)
        for each in made:
            if isinstance(each, Unit):
                assert isinstance(part, Image | Audio)
                sizes.append((2 if isinstance(part, Audio) else 1, each.rows, each.positions))
                backend.decode_media(each, sequence, place)
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
