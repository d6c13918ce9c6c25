"""Downloads one file of the Hub into the cache: resumed where it stopped, checked, and only then given its name.

huggingface_hub's own download (2.4, and 1.x since the middle of 2026) starts again after every interruption, and
compares only the length. Here an unfinished file stays beside the cache's blobs, and its bytes are hashed: the cache
names a large file by its SHA-256, so a file with that name has been checked once. Bytes come over HTTP even where the
Hub offers Xet, which cannot resume.
"""

import errno
import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Protocol

from engine.errors import ModelLoadError
from engine.hub import api, cache
from engine.hub.api import Blob, Unavailable
from engine.hub.variants import File, size_text

WAITS = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before each further attempt while no bytes arrive; then the download fails."""

_REQUEST = 16 << 30  # bytes of one request: content networks refuse to send more than 50 GB at once
_PIECE = 1 << 20
_POLL = 0.5  # seconds between looks at a file that another process downloads
_UNFINISHED = f".llama-engine{cache.UNFINISHED}"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

At = Callable[[int], None]


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


def unfinished_size(blob: Blob) -> int:
    """Returns how many bytes of a file are in the cache already."""
    if _is_whole(_stored(blob), blob):
        return blob.size
    path = _unfinished(blob)
    return min(path.stat().st_size, blob.size) if path.is_file() else 0


def check_room(missing: int) -> None:
    """Raise ModelLoadError if `missing` bytes do not fit on the cache's disk."""
    directory = api.cache_directory()
    with on_disk():
        directory.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(directory).free
    if missing > free:
        raise ModelLoadError(
            f"The disk of {directory} has {size_text(free)} free, but {size_text(missing)} must be downloaded. Free "
            "some space (`llama-engine models list` shows the models there), or set HF_HOME to a directory on another "
            "disk."
        )


def download(blob: Blob, at: At, waiting: Callable[[], None]) -> Path:
    """Download what is missing of a file, and return its path in the cache.

    `at` is called with the number of bytes in the cache; `waiting` once, if another process downloads the same file.
    Raises ModelLoadError; the bytes received so far are kept, and the next call continues after them.
    """
    path = cache.path_of(blob.repo, blob.commit, File(blob.path))
    with on_disk(), _alone(blob, at, waiting):
        if not _is_whole(path, blob):  # another process may have been sooner
            if not _is_whole(_stored(blob), blob):
                _complete(blob, at)
            _place(blob, path)
        _unfinished(blob).unlink(missing_ok=True)
    at(blob.size)
    return path


@contextmanager
def on_disk() -> Generator[None]:
    """Raise errors of the disk as ModelLoadError."""
    try:
        yield
    except OSError as error:
        directory, reason = api.cache_directory(), error.strerror or str(error)
        if error.errno in _FULL:
            raise ModelLoadError(
                f"The disk of {directory} is full ({reason}). The part downloaded so far is kept: free some space "
                "(`llama-engine models list` shows the models there) and call again to go on; or set HF_HOME to a "
                "directory on another disk."
            ) from error
        raise ModelLoadError(
            f"The Hub's cache, {directory}, cannot be used ({reason}: {error.filename or 'no file named'}). Correct "
            "its permissions, or set HF_HOME to a directory that can be written."
        ) from error


@contextmanager
def _alone(blob: Blob, at: At, waiting: Callable[[], None]) -> Generator[None]:
    """Hold the lock of a file, which only one process can; report the file's size while waiting. A process that dies
    releases its lock."""
    with ExitStack() as held:
        told = False
        while True:
            try:
                held.enter_context(api.lock(blob.repo, blob.etag, _POLL))
                break
            except TimeoutError:
                if not told:
                    waiting()
                told = True
                at(unfinished_size(blob))
        yield


def _complete(blob: Blob, at: At) -> None:
    """Download the rest of the unfinished file, and check it."""
    path = _unfinished(blob)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    digest = _digest(blob)
    with path.open("r+b", buffering=0) as file:
        here = _read_again(file, blob, digest)
        check_room(blob.size - here)
        digest = _transfer(blob, file, here, digest, at)
        os.fsync(file.fileno())
    found = digest.hexdigest()
    if _expected(blob) not in (None, found):
        path.unlink()
        raise ModelLoadError(
            f"{blob.repo}/{blob.path} arrived damaged: its hash is {found}, but should be {blob.etag}. It was removed; "
            "call again to download it anew. If the same happens again, something on the way (a proxy, the disk, the "
            "memory) changes bytes."
        )


def _read_again(file: IO[bytes], blob: Blob, digest: _Digest) -> int:
    """Hash the bytes of earlier attempts; returns how many there are. A file that is too long is emptied."""
    here = os.fstat(file.fileno()).st_size
    if here > blob.size:
        file.truncate(0)
        return 0
    file.seek(0)
    while piece := file.read(_PIECE):
        digest.update(piece)
    return here


def _transfer(blob: Blob, file: IO[bytes], here: int, digest: _Digest, at: At) -> _Digest:
    """Append the missing bytes, over as many connections as needed; returns the digest of the whole file."""
    failures, furthest = 0, here
    while here < blob.size:
        try:
            with api.opened(blob, here, min(here + _REQUEST, blob.size)) as (start, pieces):
                if start != here:  # the server sends the whole file
                    file.truncate(0)
                    here, digest = 0, _digest(blob)
                for piece in pieces:
                    _append(file, here, piece[: blob.size - here])
                    digest.update(piece[: blob.size - here])
                    here = min(here + len(piece), blob.size)
                    at(here)
                    if here == blob.size:
                        break  # a server may send more than it announced
            error = None
        except Unavailable as unavailable:
            if not unavailable.passing:
                raise
            error = unavailable
        is_further, furthest = here > furthest, max(here, furthest)
        if is_further and error is None:
            continue
        failures = 1 if is_further else failures + 1
        if failures > len(WAITS):
            raise ModelLoadError(
                f"The download of {blob.repo}/{blob.path} stopped at {size_text(here)} of {size_text(blob.size)}, and "
                f"{len(WAITS)} more attempts brought nothing: {error or 'the server ended it early.'} The part "
                "downloaded so far is kept; call again to go on."
            ) from error
        time.sleep(WAITS[failures - 1])
    return digest


def _append(file: IO[bytes], here: int, data: bytes) -> None:
    """Append `data`. Raises ModelLoadError if another process wrote, too: some network file systems grant one lock to
    several processes."""
    if os.fstat(file.fileno()).st_size != here:
        raise ModelLoadError(
            f"Another process downloads the same file into {api.cache_directory()}, whose file system does not "
            "support locks. Wait until that is done, or set HF_HOME to a directory on a local disk."
        )
    file.seek(here)
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _place(blob: Blob, path: Path) -> None:
    """Move a complete file to its name in the cache, and link it at the commit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stored, unfinished = _stored(blob), _unfinished(blob)
    if not api.has_links():
        if _is_whole(stored, blob):
            shutil.copyfile(stored, path)
        else:
            unfinished.replace(path)
        return
    if not _is_whole(stored, blob):
        unfinished.replace(stored)
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(stored, path.parent))


def _is_whole(path: Path, blob: Blob) -> bool:
    return path.is_file() and path.stat().st_size == blob.size


def _stored(blob: Blob) -> Path:
    return api.repository_directory(blob.repo) / "blobs" / blob.etag


def _unfinished(blob: Blob) -> Path:
    return _stored(blob).with_name(blob.etag + _UNFINISHED)


def _expected(blob: Blob) -> str | None:
    """Returns the hash in the etag; None if the etag is something else, as on mirrors of the Hub."""
    return blob.etag if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", blob.etag) else None


def _digest(blob: Blob) -> _Digest:
    """Returns SHA-256 for files stored as large files, git's blob hash for the others."""
    if len(blob.etag) == 40:
        return hashlib.sha1(b"blob %d\0" % blob.size, usedforsecurity=False)
    return hashlib.sha256()
