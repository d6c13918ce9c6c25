"""A file that we write: links are followed, only a regular file is taken, and it is replaced whole or not at all."""

import contextlib
import errno
import os
import stat
import sys
import tempfile
import unicodedata
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeAlias

Identity: TypeAlias = tuple[int, int, tuple[str, ...]]
"""Device and inode of a file; where it does not exist yet, those of the nearest folder that does, and the names below
it."""

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_NAME_LENGTH = 40
_LOOKS = 100  # at a file that others replace meanwhile
_LOCKED_BYTE = (1 << 31) - 1  # on Windows, where a lock covers bytes


def resolved(path: str | Path) -> Path:
    """Returns the path of the file itself, with all links followed; it need not exist. Raises OSError for a directory,
    a FIFO, a device, and for a path that no file can have."""
    path = Path(path)
    for _ in range(_LOOKS):
        try:
            real = Path(os.path.realpath(path))
        except ValueError as error:  # a null character
            raise OSError(errno.EINVAL, str(error), str(path)) from error
        try:
            found = path.stat()
        except FileNotFoundError:
            if not real.is_symlink():
                return real
            continue
        if not stat.S_ISREG(found.st_mode):
            kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
            number = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
            raise OSError(number, f"it is {kind}, not a regular file", str(path))
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(real.stat(follow_symlinks=False), found):
                return real
        # Another process has just replaced it, a link was not read, or it is a descriptor of a file that was deleted.
    raise OSError(errno.EINVAL, "it is a link to a file that has no name", str(path))


def identity(path: str | Path) -> Identity:
    """Returns a value that two paths share if they name the same file, whether it exists or not. Names of files that do
    not exist are compared without case, as some file systems do. Raises OSError."""
    try:
        real = Path(os.path.realpath(path))
        missing: list[str] = []
        while True:
            try:
                found = real.stat()
            except (FileNotFoundError, NotADirectoryError):
                missing.append(unicodedata.normalize("NFC", real.name).casefold())
                real = real.parent
                continue
            return found.st_dev, found.st_ino, tuple(missing)
    except ValueError as error:  # a null character
        raise OSError(errno.EINVAL, str(error), str(path)) from error


def temporary_prefix(path: Path) -> str:
    """Returns how the names of the temporary files begin that `replacing` makes beside a file."""
    return f".{path.name[:_NAME_LENGTH]}."


@contextmanager
def replacing(path: str | Path, *, mode: int = 0o600) -> Generator[tuple[IO[bytes], Path]]:
    """Yields a new file in the same folder, and its path; it takes the place of `path` when the block ends well.

    The permissions of the old file are kept; `mode` is for a file that is new. Whatever dies, `path` is the old file or
    the new one. Of a file with several names (hard links) only this name gets the new content. Raises OSError.
    """
    target = resolved(path)
    number, made = tempfile.mkstemp(dir=target.parent, prefix=temporary_prefix(target))
    name = Path(made)
    try:
        with _opened(number) as file:
            yield file, name
            file.flush()
            _keep_permissions(target, name, mode)
            os.fsync(number)
        name.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            name.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def write_file(path: str | Path, *parts: bytes) -> None:
    """Replace a file by these bytes, whole or not at all. Only the user may read a file that is new. Raises OSError."""
    with naming(path), replacing(path) as (file, _):
        file.writelines(parts)


@contextmanager
def naming(path: str | Path) -> Generator[None]:
    """Names the file in OSErrors of the block that name none, as those of reads and writes."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def lock(descriptor: int) -> bool:
    """Lock an open file itself, so that all its names are locked; returns False if another process has it. The lock
    ends with the descriptor, or with the process, however that ends. Raises OSError where there are no locks."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


def _opened(number: int) -> IO[bytes]:
    try:
        return os.fdopen(number, "wb")
    except BaseException:
        os.close(number)
        raise


def _keep_permissions(target: Path, name: Path, mode: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        old = target.stat()
        mode = stat.S_IMODE(old.st_mode)
        if os.name == "posix":
            try:
                os.chown(name, -1, old.st_gid)
            except PermissionError:  # another group must not get the rights of this one
                mode &= ~0o070
    name.chmod(mode)


def sync_folder(folder: Path) -> None:
    """Make new names in a folder survive a power cut, where the system can do that."""
    if os.name != "posix":
        return
    with contextlib.suppress(OSError):  # some file systems cannot; the files themselves are complete
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
