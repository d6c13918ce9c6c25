"""What is there is told apart from what cannot be read, on every version of Python."""

import errno
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.support import paths

QUESTIONS: dict[str, Callable[[Path], object]] = {
    "exists": paths.exists,
    "is_file": paths.is_file,
    "is_dir": paths.is_dir,
    "listed": lambda path: paths.listed(path.parent),
    "below": lambda path: list(paths.below(path.parent.parent)),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    path.touch()
    return path


def test_what_is_there(file: Path) -> None:
    folder = file.parent
    loop = folder / "loop"
    loop.symlink_to(loop)
    for path, answers in (
        (file, (True, True, False)),
        (folder, (True, False, True)),
        (folder / "none", (False, False, False)),
        (file / "below a file", (False, False, False)),
        (loop, (False, False, False)),
        (folder / "null\0", (False, False, False)),
    ):
        assert (paths.exists(path), paths.is_file(path), paths.is_dir(path)) == answers, path
    assert paths.listed(folder) == [file, loop]
    assert paths.listed(file) == paths.listed(folder / "none") == list(paths.below(file)) == []


def test_links_to_folders_are_not_followed(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "again"
    link.symlink_to(tmp_path)
    assert list(paths.below(tmp_path)) == [link, file]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize("question", QUESTIONS)
def test_an_error_of_the_disk_is_no_answer(file: Path, tmp_path: Path, question: str) -> None:
    from failures.failing_disk import failing

    with failing(tmp_path, 1, errno.EIO) as disk, pytest.raises(OSError, match=r"Input/output|error"):
        QUESTIONS[question](file)
    assert disk.failed
