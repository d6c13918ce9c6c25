"""What is on a disk, where an error of the disk is an error: Python 3.13's `glob` and 3.14's `exists`, `is_file` and
`is_dir` take it for "nothing there"."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP})


def exists(path: Path) -> bool:
    """Whether something is there. Raises OSError if that cannot be told."""
    return _mode(path) != 0


def is_file(path: Path) -> bool:
    """Whether it is a regular file, or a link to one. Raises OSError if that cannot be told."""
    return stat.S_ISREG(_mode(path))


def is_dir(path: Path) -> bool:
    """Whether it is a directory, or a link to one. Raises OSError if that cannot be told."""
    return stat.S_ISDIR(_mode(path))


def listed(folder: Path) -> list[Path]:
    """Returns what a folder has, by name; nothing where there is no folder. Raises OSError."""
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def below(folder: Path) -> Iterator[Path]:
    """Yields everything in a folder and its subfolders but these themselves, by name; links are not followed. Raises
    OSError."""
    try:
        with os.scandir(folder) as entries:
            found = sorted((Path(entry.path), entry.is_dir(follow_symlinks=False)) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return
    for path, is_folder in found:
        if is_folder:
            yield from below(path)
        else:
            yield path


def _mode(path: Path) -> int:
    """Returns the mode of what is there; 0 if nothing is."""
    try:
        return path.stat().st_mode
    except ValueError:  # a null character
        return 0
    except OSError as error:
        if error.errno in _ABSENT:
            return 0
        raise
