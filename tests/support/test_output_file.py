"""Files that we write: replaced whole, through links, with their permissions; only regular files are replaced."""

import os
import socket
import sys
import threading
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import pytest

from engine import ChatTemplate, Engine, RequestError, Transcript
from engine.cli.chat import Chat
from engine.cli.screen import Screen
from engine.runtime.cache.state_file import Origin, SavedState, write_state
from engine.support.output_file import identity, replacing, resolved, write_file
from engine.testing.scripted import ByteVocab, ScriptedBackend

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and FIFOs")
ORIGIN = Origin("m", "0", "f16", "f16", "auto", "", False, 1)


def save_transcript(path: Path) -> None:
    Transcript().save(path)


def save_state(path: Path) -> None:
    write_state(path, ORIGIN, SavedState((1, 2), b"state"))


def save_chat(path: Path) -> None:
    backend = ScriptedBackend("Yes.", vocab=ByteVocab(["<|im_start|>"]))
    asked = patch("sys.stdin", StringIO(f"/save {path}\n"))
    with Engine.over(backend, ChatTemplate(None, family="qwen3")) as llm, asked:
        Chat(Screen(said := StringIO()), llm, turn={}, commands=True).run(lambda: "")
    if "cannot be saved" in said.getvalue():
        raise RequestError(said.getvalue())
    assert "saved to" in said.getvalue()


SAVERS = (save_transcript, save_state, save_chat)


@pytest.mark.parametrize("save", SAVERS)
def test_a_link_stays_and_its_file_keeps_its_permissions(tmp_path: Path, save: Callable[[Path], None]) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    target, link = folder / "target", tmp_path / "link"
    link.symlink_to(target)
    save(link)
    first = target.read_bytes()
    assert first
    assert target.stat().st_mode & 0o777 == 0o600
    target.write_bytes(b"old")
    target.chmod(0o640)
    save(link)
    assert link.is_symlink()
    assert target.read_bytes() == first
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["elsewhere", "link", "target"]


@pytest.mark.parametrize("save", SAVERS)
def test_only_a_regular_file_is_replaced(tmp_path: Path, save: Callable[[Path], None]) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "to fifo").symlink_to("fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        folder = os.open(tmp_path, os.O_RDONLY)
        listening.bind(f"/proc/self/fd/{folder}/socket" if sys.platform == "linux" else str(tmp_path / "socket"))
        os.close(folder)
    kinds = {path: path.lstat().st_mode for path in tmp_path.iterdir()}
    assert len(kinds) == 5
    for path in (*kinds, Path("/dev/null"), Path(), Path(".."), Path("/"), tmp_path / "a\0b"):
        with pytest.raises((OSError, RequestError)):
            save(path)
    assert {path: path.lstat().st_mode for path in tmp_path.iterdir()} == kinds


def test_a_descriptor_without_a_name_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb") as file:
        assert resolved(f"/dev/fd/{file.fileno()}") == (tmp_path / "x").resolve()
        (tmp_path / "x").unlink()
        with pytest.raises(OSError, match="a file that has no name"):
            resolved(f"/dev/fd/{file.fileno()}")


def test_a_file_that_others_replace_all_the_time_is_found(tmp_path: Path) -> None:
    path, stop = tmp_path / "x", threading.Event()
    path.touch()

    def replace() -> None:
        while not stop.is_set():
            new = path.with_name("new")
            new.touch()
            new.replace(path)

    other = threading.Thread(target=replace)
    other.start()
    try:
        assert {resolved(path) for _ in range(2_000)} == {path.resolve()}
    finally:
        stop.set()
        other.join()


def test_an_error_leaves_the_old_file_and_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / ("long name " * 25)
    write_file(path, b"old")

    def interrupted() -> None:
        with replacing(path) as (file, _):
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [(path.name, b"old")]


def test_two_names_of_one_file_have_one_identity(tmp_path: Path) -> None:
    """Also where the file does not exist, and where a folder is a link."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "same").symlink_to("folder")
    (tmp_path / "dangling").symlink_to("folder/x")
    alike = [tmp_path / name for name in ("folder/x", "same/x", "dangling", "folder/../same/x", "folder/X")]
    assert len({identity(path) for path in alike}) == 1
    assert len({identity(tmp_path / name) for name in ("x", "folder/x", "folder/y", "no/folder/x", "folder")}) == 5
    for path in alike[:2]:
        path.write_bytes(b"")
    os.link(tmp_path / "folder" / "x", tmp_path / "hard")
    assert len({identity(path) for path in (*alike[:4], tmp_path / "hard")}) == 1
