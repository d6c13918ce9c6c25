"""A saved sequence comes back as it was, or with a reason why not."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from engine.runtime.cache.state_file import Origin, SavedState, read_state, write_state
from engine.support.errors import RequestError

ORIGIN = Origin("abc", "0.3.36", "f16", "f16", "auto", "rope_freq_scale=0.5", True, 1)
SAVED = SavedState((1, 2, 300_000), bytes(range(256)) * 10)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "prefix.state"
    write_state(path, ORIGIN, SAVED)
    return path


def test_a_state_comes_back(written: Path) -> None:
    assert read_state(written, ORIGIN) == SAVED
    assert [file.name for file in written.parent.iterdir()] == [written.name]


def test_an_empty_state_comes_back(tmp_path: Path) -> None:
    write_state(tmp_path / "s", ORIGIN, SavedState((), b""))
    assert read_state(tmp_path / "s", ORIGIN) == SavedState((), b"")


def test_it_is_replaced_whole(written: Path) -> None:
    write_state(written, ORIGIN, SavedState((9,), b"x"))
    assert read_state(written, ORIGIN) == SavedState((9,), b"x")


@pytest.mark.parametrize("change", [{field.name: 7} for field in fields(Origin)])
def test_a_state_of_another_origin_is_refused(written: Path, change: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="the state of another model, or of other settings"):
        read_state(written, replace(ORIGIN, **change))


def test_a_file_cut_off_anywhere(written: Path) -> None:
    data = written.read_bytes()
    for length in (*range(21, 400, 7), len(data) - 1):
        written.write_bytes(data[:length])
        with pytest.raises(RequestError, match="cut off or damaged"):
            read_state(written, ORIGIN)


@pytest.mark.parametrize("place", [-1, -40, -100, 21, 30, 60, 150])
def test_a_changed_byte(written: Path, place: int) -> None:
    data = bytearray(written.read_bytes())
    data[place] ^= 0xFF
    written.write_bytes(data)
    with pytest.raises(RequestError, match=r"cut off or damaged|head cannot be read"):
        read_state(written, ORIGIN)


@pytest.mark.parametrize("content", [b"", b"GGUF and so on"])
def test_no_state_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "s"
    path.write_bytes(content)
    with pytest.raises(RequestError, match="is not a state file"):
        read_state(path, ORIGIN)


def test_places_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        read_state(tmp_path / "absent", ORIGIN)
    with pytest.raises(RequestError, match="cannot be written"):
        write_state(tmp_path / "no" / "folder", ORIGIN, SAVED)
    (tmp_path / "folder").mkdir()
    with pytest.raises(RequestError, match="cannot be written"):
        write_state(tmp_path / "folder", ORIGIN, SAVED)
    assert [file.name for file in tmp_path.iterdir()] == ["folder"]
