"""Downloads one file of the Hub into the cache: resumed where it stopped, checked, and only then given its name.

huggingface_hub's own download (2.4, and 1.x since the middle of 2026) starts again after every interruption, and
compares only the length. Here an unfinished file stays beside the cache's blobs, and its bytes are hashed. Bytes come
over HTTP even where the Hub offers Xet, which cannot resume.
"""

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import IO

from engine.hub import api, cache
from engine.hub.api import Blob, Unavailable
from engine.hub.variants import File, size_text
from engine.support import paths
from engine.support.errors import ModelLoadError

WAITS = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before each further attempt while no bytes arrive; then the download fails."""

_REQUEST = 16 << 30  # bytes of one request: content networks refuse to send more than 50 GB at once
_PIECE = 1 << 20
_POLL = 0.5  # seconds between looks at a file that another process downloads
_UNFINISHED = f".llama-engine{cache.UNFINISHED}"

At = Callable[[int], None]


def unfinished_size(blob: Blob) -> int:
    """Returns how many bytes of a file are in the cache already."""
    if cache.is_whole(_stored(blob), blob.size):
        return blob.size
    path = _unfinished(blob)
    with cache.on_disk():
        return min(path.stat().st_size, blob.size) if paths.is_file(path) else 0


def check_room(missing: int) -> None:
    """Raise ModelLoadError if `missing` bytes do not fit on the cache's disk."""
    directory = api.cache_directory()
    with cache.on_disk():
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
    with cache.on_disk(), _alone(blob, at, waiting):
        if not cache.is_whole(path, blob.size):  # another process may have been sooner
            if not cache.is_whole(_stored(blob), blob.size):
                _complete(blob, at)
            _place(blob, path)
        _unfinished(blob).unlink(missing_ok=True)
    at(blob.size)
    return path


@contextmanager
def _alone(blob: Blob, at: At, waiting: Callable[[], None]) -> Generator[None]:
    """Hold the lock of a file, which only one process can; report the file's size while waiting. A process that dies
    releases its lock."""
    with ExitStack() as stack:
        for attempt in count():
            with suppress(TimeoutError):
                stack.enter_context(api.lock(blob.repo, blob.etag, _POLL))
                break
            if attempt == 0:
                waiting()
            at(unfinished_size(blob))
        yield


class _Partial:
    """An unfinished file: its size, and the hash of its bytes. It is SHA-256 for files stored as large files, git's
    blob hash for the others."""

    def __init__(self, blob: Blob, file: IO[bytes]) -> None:
        self._blob, self._file = blob, file
        self._begin()
        file.seek(0)
        while piece := file.read(_PIECE):
            self.hash.update(piece)
            self.size += len(piece)
        if self.size > blob.size:
            self.empty()

    def _begin(self) -> None:
        self.size = 0
        is_git = len(self._blob.etag) == 40
        self.hash = hashlib.new("sha1" if is_git else "sha256", usedforsecurity=False)
        self.hash.update(b"blob %d\0" % self._blob.size if is_git else b"")

    def empty(self) -> None:
        self._file.truncate(0)
        self._begin()

    def append(self, piece: bytes) -> None:
        """Write the next bytes, without those that a server sends after the file's end."""
        piece = piece[: self._blob.size - self.size]
        self._file.write(piece)
        self._file.flush()  # others read the file's size, and a process that dies leaves all that it received
        self.hash.update(piece)
        self.size += len(piece)


def _complete(blob: Blob, at: At) -> None:
    """Download the rest of the unfinished file, and check it."""
    path = _unfinished(blob)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        partial = _Partial(blob, file)
        _transfer(blob, partial, at)
        os.fsync(file.fileno())
    digest = partial.hash.hexdigest()
    if len(blob.etag) in (40, 64) and digest != blob.etag:
        path.unlink()
        raise ModelLoadError(
            f"{blob.repo}/{blob.path} arrived damaged: its hash is {digest}, but should be {blob.etag}. It was "
            "removed; call again to download it anew. If the same happens again, something on the way (a proxy, the "
            "disk, the memory) changes bytes, or several processes write to a disk that supports no locks."
        )


def _transfer(blob: Blob, partial: _Partial, at: At) -> None:
    """Append the missing bytes, over as many connections as needed."""
    failures, furthest = 0, partial.size
    while partial.size < blob.size:
        error = None
        try:
            _receive(blob, partial, at)
        except Unavailable as unavailable:
            if not unavailable.passing:
                raise
            error = unavailable
        is_further, furthest = partial.size > furthest, max(partial.size, furthest)
        if is_further and error is None:
            continue
        failures = 1 if is_further else failures + 1
        if failures > len(WAITS):
            raise ModelLoadError(
                f"The download of {blob.repo}/{blob.path} stopped at {size_text(partial.size)} of "
                f"{size_text(blob.size)}, and {len(WAITS)} more attempts brought nothing: "
                f"{error or 'the server ended it early.'} The part downloaded so far is kept; call again to go on."
            ) from error
        time.sleep(WAITS[failures - 1])


def _receive(blob: Blob, partial: _Partial, at: At) -> None:
    """Append what one request brings."""
    with api.opened(blob, partial.size, min(partial.size + _REQUEST, blob.size)) as (start, pieces):
        if start != partial.size:  # the server sends the whole file
            partial.empty()
        for piece in pieces:
            partial.append(piece)
            at(partial.size)
            if partial.size == blob.size:
                break  # a server may send more than it announced


def _place(blob: Blob, path: Path) -> None:
    """Give a complete file its name in the cache, and link it at the commit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = _stored(blob)
    is_stored = cache.is_whole(stored, blob.size)
    if not api.has_links():
        shutil.copyfile(stored, path) if is_stored else _unfinished(blob).replace(path)
        return
    if not is_stored:
        _unfinished(blob).replace(stored)
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(stored, path.parent))


def _stored(blob: Blob) -> Path:
    return api.repository_directory(blob.repo) / "blobs" / blob.etag


def _unfinished(blob: Blob) -> Path:
    return _stored(blob).with_name(blob.etag + _UNFINISHED)
