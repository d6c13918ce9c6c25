"""One open file of lines, which no other process writes meanwhile.

A line is written by one call, to a file opened for appending; if that fails half-way the file is cut back. Otherwise
the file is only replaced as a whole, so that a process which dies at any moment leaves complete lines and at most one
torn line at the end. Whatever else touches the file while it is open ends the batch with an error.
"""

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from engine.batch.rows import identity, is_torn_line
from engine.support.errors import DiskFullError, EngineError, RequestError
from engine.support.output_file import lock, replacing, sync_folder

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
_FLAGS = os.O_RDWR | os.O_APPEND | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)


def failure(path: Path, error: OSError) -> EngineError:
    """Returns the error to raise if a file cannot be written."""
    if error.errno in _FULL:
        return DiskFullError(f"{path} cannot grow: {error.strerror}. Make room, and run the same command to go on.")
    return EngineError(
        f"{path} cannot be written: {error.strerror or error}. Correct that, and run the same command again."
    )


@contextmanager
def writing(path: Path) -> Generator[None]:
    """Names the file in errors of the block."""
    try:
        yield
    except OSError as error:
        raise failure(path, error) from error


def changed(path: Path) -> EngineError:
    """Returns the error to raise if something else has written a file of the batch, moved it or deleted it."""
    return EngineError(
        f"{path} was deleted, replaced or changed by something else while the batch was writing it. Run the same "
        "command again: it computes the rows that are missing."
    )


class Lines:
    """A file, open and locked until `close`; any thread may append. `path` has no links (`output_file.resolved`).

    `created`: it did not exist. Raises RequestError if another process has locked it, EngineError if it cannot be
    opened or locked.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.created = self._open()
        self._closed = False

    def _open(self) -> bool:
        """Open and lock the file; returns whether it is new."""
        with writing(self.path):
            self._fd, created = _opened(self.path)
        try:
            _lock_file(self.path, self._fd)
            if not self._is_at_path():  # another process has just replaced or removed it
                raise _taken(self.path)
            self._end = self._synced = self._size()
            if created:
                sync_folder(self.path.parent)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                os.close(self._fd)
            raise
        return created

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._end

    @property
    def permissions(self) -> int:
        """The rights of the file; raises OSError."""
        return os.fstat(self._fd).st_mode & 0o777

    def append(self, line: bytes) -> None:
        """Append a line. Raises DiskFullError or EngineError if it cannot be written; then the file contains no part of
        it."""
        with self._lock:
            if self._closed:
                raise EngineError(f"{self.path} is closed; run the same command again to go on.")
            try:
                left = memoryview(line)
                while left:
                    left = left[os.write(self._fd, left) :]
            except OSError as error:
                with contextlib.suppress(OSError):  # the next start cuts a tail that stays
                    os.ftruncate(self._fd, self._end)
                raise failure(self.path, error) from error
            self._end += len(line)

    def sync(self) -> None:
        """Make everything that was appended before this call survive a power cut. Raises EngineError if the file is no
        longer at its path, or has another size than this process gave it."""
        self.check()
        end = self._end
        if end == self._synced:
            return
        with writing(self.path):
            os.fsync(self._fd)
        self._synced = end

    def check(self) -> None:
        """Raise EngineError if something else has deleted, replaced, cut or extended the file."""
        with self._lock:
            if not self._is_at_path() or self._size() != self._end:
                raise changed(self.path)

    def _is_at_path(self) -> bool:
        with writing(self.path):
            try:
                return os.path.samestat(self.path.stat(follow_symlinks=False), os.fstat(self._fd))
            except FileNotFoundError:
                return False

    def _size(self) -> int:
        with writing(self.path):
            return os.fstat(self._fd).st_size

    def lines(self) -> Generator[tuple[int, bytes]]:
        """Yields the offset and the bytes of every line, also of one without its end. Raises EngineError if something
        else has the file's place."""
        with writing(self.path), self.reader() as file:
            place = 0
            for line in file:
                yield place, line
                place += len(line)

    def entries(self) -> Iterator[tuple[bytes, str | None, int]]:
        """Yields key, custom_id and offset of the lines that a batch wrote."""
        for place, line in self.lines():
            if (row := identity(line)) is not None:
                yield *row, place

    def lines_at(self, places: Iterable[int]) -> Iterator[bytes]:
        """Yields the lines at these offsets."""
        with writing(self.path), self.reader() as file:
            for place in places:
                file.seek(place)
                yield file.readline()

    def reader(self) -> IO[bytes]:
        """Returns the file opened for reading."""
        self.check()
        return self.path.open("rb")

    def is_of_a_batch(self) -> bool:
        """Whether a batch may have written the file: a line of one is in it, or nothing but the beginning of a line."""
        with contextlib.closing(self.lines()) as lines:
            return any(
                identity(line) is not None or (place == 0 and len(line) == self._end and is_torn_line(line))
                for place, line in lines
            )

    def cut(self) -> None:
        """Cut off what follows the last line end."""
        with contextlib.closing(self.lines()) as lines:
            whole = next((place for place, line in lines if not line.endswith(b"\n")), self._end)
        if whole < self._end:
            os.ftruncate(self._fd, whole)
            os.fsync(self._fd)
            self._end = self._synced = whole

    @contextmanager
    def replacing(self) -> Generator[tuple[IO[bytes], Path]]:
        """Yields a new file and its path; it takes this one's place, locked as well, when the block ends."""
        fd = None
        with contextlib.ExitStack() as undo:
            with replacing(self.path) as (file, path):
                yield file, path
                file.flush()
                self.check()
                if sys.platform == "win32":  # where no open file can be replaced
                    os.close(self._fd)
                    undo.callback(self._open)
                else:
                    fd, _ = _opened(path)
                    undo.callback(os.close, fd)
                    _lock_file(path, fd)
            if fd is not None:
                undo.pop_all()
                old, self._fd = self._fd, fd
                os.close(old)
        self._end = self._synced = self._size()

    def close(self, *, remove_empty: bool = False) -> None:
        """Close the file; with `remove_empty` also remove it if it is empty."""
        with self._lock, writing(self.path):
            try:
                if remove_empty and self._is_at_path() and not self._size():
                    self.path.unlink()
            finally:
                self._closed = True
                os.close(self._fd)


def _opened(path: Path) -> tuple[int, bool]:
    """Returns a descriptor, and whether the file is new."""
    try:
        return os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666), True
    except FileExistsError:
        return os.open(path, _FLAGS), False


def _taken(path: Path) -> RequestError:
    return RequestError(f"Another process is writing {path}; wait until it ends, or name another output.")


def _lock_file(path: Path, fd: int) -> None:
    """Lock the file; the lock ends with the process, however it ends."""
    try:
        is_free = lock(fd)
    except OSError as error:
        raise EngineError(
            f"{path} cannot be locked ({error.strerror or error}), so two batches could write it at once. Write to a "
            "file system that has locks, a local disk for one."
        ) from error
    if not is_free:
        raise _taken(path)
