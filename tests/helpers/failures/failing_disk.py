"""A disk that fails: calls of `os`, `io` and `fcntl` that touch a folder are counted, and one of them raises, or all
from it on that its error concerns. What C and C++ open for themselves (pyarrow, llama.cpp) is not seen."""

import builtins
import errno
import fcntl
import io
import os
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

SHORT = 0
"""In place of an error: a write that takes only a part of the bytes."""
_PATHS = (
    *("stat", "lstat", "unlink", "remove", "mkdir", "rmdir", "chmod", "chown", "utime", "truncate"),
    *("replace", "rename", "scandir", "listdir", "readlink", "statvfs"),
)
_LINKS = ("symlink", "link")
_DESCRIPTORS = ("read", "fstat", "fsync", "fdatasync", "ftruncate", "sendfile")
_READS = {"open", "fdopen", "read", "stat", "lstat", "fstat", "scandir", "listdir", "readlink", "statvfs"}
_GROWS = {"create", "write", "mkdir", "symlink", "link", "replace", "rename", "fsync", "sendfile"}
_OF_DESCRIPTORS = {*_DESCRIPTORS, "write", "truncate", "close", "flock", "fdopen"}
_LASTING: dict[int, Callable[[str], bool]] = {
    errno.ENOSPC: lambda call: call in _GROWS,
    errno.EROFS: lambda call: call not in {*_READS, "close", "flock"},
    errno.EACCES: lambda call: call not in _OF_DESCRIPTORS,
    errno.EIO: lambda _: True,
}
"""Which calls an error concerns that lasts."""
_readlink = os.readlink


class Disk:
    """The number of the call that fails (`at`, from 1 on), and with which error; `lasting`: those after it fail too.
    `calls` are those that were made, `failed` those that failed."""

    def __init__(self, folder: Path, at: int, error: int, *, lasting: bool = False) -> None:
        self._folder = os.path.realpath(folder)
        self._at = at
        self.error = error
        self.lasting = lasting
        self._lock = threading.Lock()
        self.is_on = True
        self.calls: list[str] = []
        self.failed: list[str] = []

    def path(self, place: Any, folder: int | None = None) -> str | None:
        """Returns the path that a call touches, given as such or as a descriptor, if it is in the folder."""
        if isinstance(place, int):
            try:
                path = _readlink(f"/proc/self/fd/{place}")
            except OSError:
                return None
        else:
            name = os.fsdecode(place)
            at = "" if folder is None else _readlink(f"/proc/self/fd/{folder}")
            path = os.path.abspath(f"{at}/{name}" if at else name)  # noqa: PTH100 - links are not followed
        return path if self.is_on and f"{path}/".startswith(f"{self._folder}/") else None

    def meets(self, call: str, place: Any, folder: int | None = None) -> bool:
        """Count a call, and raise the error if it is to fail. Returns whether a write is to be short."""
        if (path := self.path(place, folder)) is None:
            return False
        with self._lock:
            told = f"{call} {os.path.relpath(path, self._folder)}"
            self.calls.append(told)
            number = len(self.calls)
            fails = number == self._at or (self.lasting and bool(self.failed))
            fails = fails and _concerns(self.error, call, lasting=self.lasting)
            if fails:
                self.failed.append(told)
        if fails and self.error != SHORT:
            raise OSError(self.error, os.strerror(self.error), *([] if call in _OF_DESCRIPTORS else [path]))
        return fails


def _concerns(error: int, call: str, *, lasting: bool) -> bool:
    return call == "write" if error == SHORT else not lasting or _LASTING[error](call)


@contextmanager
def failing(folder: Path, at: int, error: int, *, lasting: bool = False) -> Generator[Disk]:
    """Yields the disk of a folder, whose call number `at` fails within the block."""
    disk = Disk(folder, at, error, lasting=lasting)
    opened = _io_open(disk, io.open)
    wrapped: list[tuple[Any, str, Any]] = [(io, "open", opened), (builtins, "open", opened)]
    wrapped += [(os, name, _of_path(disk, name, getattr(os, name))) for name in _PATHS]
    wrapped += [(os, name, _of_link(disk, name, getattr(os, name))) for name in _LINKS]
    wrapped += [(os, name, _of_descriptor(disk, name, getattr(os, name))) for name in _DESCRIPTORS]
    wrapped += [(os, "open", _os_open(disk, os.open)), (os, "write", _os_write(disk, os.write))]
    wrapped += [(os, "close", _os_close(disk, os.close)), (fcntl, "flock", _flock(disk, fcntl.flock))]
    with ExitStack() as stack:
        for module, name, function in wrapped:
            stack.enter_context(patch.object(module, name, function))
        try:
            yield disk
        finally:
            disk.is_on = False


def _of_path(disk: Disk, name: str, function: Any) -> Any:
    def call(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
        disk.meets(name, path, kwargs.get("dir_fd"))
        return function(path, *args, **kwargs)

    return call


def _of_link(disk: Disk, name: str, function: Any) -> Any:
    def call(source: Any, path: Any, *args: Any, **kwargs: Any) -> Any:
        disk.meets(name, path)
        return function(source, path, *args, **kwargs)

    return call


def _of_descriptor(disk: Disk, name: str, function: Any) -> Any:
    def call(fd: int, *args: Any) -> Any:
        disk.meets(name, fd)
        return function(fd, *args)

    return call


def _os_open(disk: Disk, function: Any) -> Any:
    def call(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
        writes = flags & (os.O_CREAT | os.O_WRONLY | os.O_RDWR)
        disk.meets("create" if writes else "open", path, kwargs.get("dir_fd"))
        return function(path, flags, *args, **kwargs)

    return call


def _os_write(disk: Disk, function: Any) -> Any:
    def call(fd: int, data: Any) -> int:
        return function(fd, _half(data) if disk.meets("write", fd) else data)

    return call


def _os_close(disk: Disk, function: Any) -> Any:
    def call(fd: int) -> None:
        try:
            disk.meets("close", fd)
        finally:  # as on Linux: the descriptor is free, whatever the system says
            function(fd)

    return call


def _flock(disk: Disk, function: Any) -> Any:
    def call(file: Any, operation: int) -> None:
        disk.meets("flock", file if isinstance(file, int) else file.fileno())
        function(file, operation)

    return call


def _half(data: Any) -> memoryview:
    view = memoryview(data).cast("B")
    return view[: max(1, len(view) // 2)]


class _File(io.FileIO):
    """A file whose calls are counted."""

    def __init__(self, disk: Disk, file: Any, mode: str, closefd: bool, opener: Any) -> None:
        self._disk = disk
        super().__init__(file, mode, closefd, opener)

    def write(self, data: Any) -> int:
        return super().write(_half(data) if self._disk.meets("write", self.fileno()) else data)

    def readinto(self, buffer: Any) -> int:
        self._disk.meets("read", self.fileno())
        return super().readinto(buffer)

    def readall(self) -> bytes:
        self._disk.meets("read", self.fileno())
        return super().readall()

    def truncate(self, size: int | None = None) -> int:
        self._disk.meets("truncate", self.fileno())
        return super().truncate(size)

    def close(self) -> None:
        if self.closed:
            return
        try:
            self._disk.meets("close", self.fileno())
        finally:
            super().close()


def _io_open(disk: Disk, function: Any) -> Any:
    def call(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        if disk.path(file) is None:
            return function(file, mode, buffering, encoding, errors, newline, closefd, opener)
        plain = mode.replace("b", "").replace("t", "")
        if isinstance(file, int):
            disk.meets("fdopen", file)
        elif opener is None:
            disk.meets("open" if plain == "r" else "create", file)
        raw = _File(disk, file, plain, closefd, opener)
        if buffering == 0:
            return raw
        kind = io.BufferedRandom if "+" in plain else io.BufferedReader if plain == "r" else io.BufferedWriter
        return kind(raw) if "b" in mode else io.TextIOWrapper(kind(raw), encoding, errors, newline)

    return call
