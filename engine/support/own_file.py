"""Files where strangers may have left something: opened without waiting, and looked at before they are used."""

import os
import stat
from pathlib import Path
from typing import BinaryIO

_SOON = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def open_regular(path: Path, *, own: bool = False) -> BinaryIO:
    """Open a regular file to read it; never waits, as a FIFO would. `own`: links are not followed, and the file must be
    one that only this user may write to. Raises OSError, and ValueError for a null character."""
    return _looked_at(os.open(path, os.O_RDONLY | _SOON | (_NO_LINK if own else 0)), path, own=own)


def read_regular(path: Path, most: int) -> bytes:
    """Returns what is in a regular file of at most `most` bytes. Raises OSError, ValueError for more and for a null
    character."""
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return data


def open_lock(path: Path) -> BinaryIO:
    """Open a file of our own for a lock; it is made if it is not there, and its content is left alone. Nobody else may
    open it then. Raises OSError."""
    file = _looked_at(os.open(path, os.O_RDWR | os.O_CREAT | _SOON | _NO_LINK, 0o600), path, own=True)
    if os.name == "posix":
        os.fchmod(file.fileno(), 0o600)
    return file


def is_own(found: os.stat_result) -> bool:
    """Whether this is ours, and only we may write to it."""
    return os.name != "posix" or (found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def own_folder(path: Path) -> bool:
    """Whether this is a folder of our own, and no link. Raises OSError; FileNotFoundError if nothing is there."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and is_own(found)


def own_regular(path: Path) -> os.stat_result | None:
    """Returns what is known of a regular file of our own; None for anything else, and for nothing. Raises OSError."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found if stat.S_ISREG(found.st_mode) and is_own(found) else None


def _looked_at(number: int, path: Path, *, own: bool) -> BinaryIO:
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is not a regular file")
        if own and not is_own(found):
            raise PermissionError(f"{path} belongs to another user, or others may write to it")
        return os.fdopen(number, "rb")
    except BaseException:
        os.close(number)
        raise
