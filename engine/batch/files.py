"""The files that a batch writes: output, errors, manifest, lock.

Knows: that a row counts once its line is complete; how torn tails, outdated lines and failures of rows that later
succeeded are removed; whether the files belong to the same job. Does not know: engines, how a row is computed.

A line is written by one call, to a file opened for appending; if that fails half-way the file is cut back. Otherwise
files are only replaced as a whole (written beside, synced, renamed), so that a process which dies at any moment leaves
complete lines and at most one torn line at the end.
"""

import contextlib
import errno
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, cast

from filelock import FileLock, Timeout

from engine.batch.rows import identity
from engine.batch.source import Index, State
from engine.errors import DiskFullError, EngineError, RequestError

IfChanged: TypeAlias = Literal["refuse", "continue", "restart"]

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
_SYNC_SECONDS = 1.0
_CHUNK = 1 << 20


def failure(path: Path, error: OSError) -> EngineError:
    """Returns the error to raise if a file cannot be written."""
    if error.errno in _FULL:
        return DiskFullError(f"{path} cannot grow: {error.strerror}. Make room, and run the same command to go on.")
    return EngineError(
        f"{path} cannot be written: {error.strerror or error}. Correct that, and run the same command again."
    )


class Lines:
    """One file of lines; any thread may append."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
        self._end = os.fstat(self._fd).st_size
        self._synced = self._end
        self._closed = False

    def append(self, line: bytes) -> None:
        """Append a line. Raises DiskFullError or EngineError if it cannot be written; then the file contains no part of
        it."""
        with self._lock:
            if self._closed:
                raise EngineError(f"{self._path} is closed; run the same command again to go on.")
            try:
                left = memoryview(line)
                while left:
                    left = left[os.write(self._fd, left) :]
            except OSError as error:
                with contextlib.suppress(OSError):  # the next start cuts a tail that stays
                    os.ftruncate(self._fd, self._end)
                raise failure(self._path, error) from error
            self._end += len(line)

    def sync(self) -> None:
        """Make everything that was appended before this call survive a power cut."""
        end = self._end
        if end == self._synced:
            return
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise failure(self._path, error) from error
        self._synced = end

    def close(self, *, keep_empty: bool = True) -> None:
        """Sync and close; without `keep_empty`, remove a file that nothing was written to."""
        try:
            self.sync()
        finally:
            with self._lock:
                self._closed = True
                os.close(self._fd)
        if not keep_empty and not self._end:
            self._path.unlink(missing_ok=True)


class Syncer:
    """Syncs files every second, in a thread of its own. A context manager; `fault` is the error that ended it, if
    any."""

    def __init__(self, *files: Lines) -> None:
        self._files = files
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="batch-sync", daemon=True)
        self.fault: EngineError | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_SYNC_SECONDS):
            try:
                for file in self._files:
                    file.sync()
            except EngineError as error:
                self.fault = error
                return


class Files:
    """All files of one batch, locked while this is open. A context manager.

    Raises RequestError if another process has locked them, or if output and errors are the same file.
    """

    def __init__(self, out: str | Path, errors: str | Path | None = None) -> None:
        self.out = Path(out)
        self.errors = self.out.with_name(f"{self.out.stem}.errors{self.out.suffix}") if errors is None else Path(errors)
        self._manifest = self.out.with_name(f"{self.out.name}.manifest.json")
        self._lock = FileLock(self.out.with_name(f".{self.out.name}.lock"), timeout=0, thread_local=False)
        if self.out.absolute() == self.errors.absolute():
            raise RequestError(f"{self.out} cannot hold output and errors at once; name another file for the errors.")

    def __enter__(self) -> Self:
        try:
            self._lock.acquire()
        except Timeout as error:
            raise RequestError(
                f"Another process is writing {self.out}; wait until it ends, or name another output."
            ) from error
        except OSError as error:
            raise failure(Path(self._lock.lock_file), error) from error
        for path in (self.out, self.errors, self._manifest):  # left behind by a process that died
            _beside(path).unlink(missing_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def claim(self, job: Mapping[str, Any], if_changed: IfChanged) -> None:
        """Check that the files belong to this job: plain values on which its answers depend.

        Raises RequestError for another job's files, unless `if_changed` is "continue" (what was written stays) or
        "restart" (it is deleted), and for an output that no batch wrote.
        """
        before = self._read_manifest()
        written = [path for path in (self.out, self.errors) if path.exists() and path.stat().st_size]
        if before is None and written and if_changed != "restart":
            raise RequestError(
                f"{written[0]} exists already, but no batch wrote it (its {self._manifest.name} is missing). Name "
                'another output, or pass if_changed="restart" (--if-changed restart) to overwrite it.'
            )
        changed = (
            [] if before is None else sorted(name for name in {*before, *job} if before.get(name) != job.get(name))
        )
        if changed and written and if_changed == "refuse":
            raise RequestError(
                f"{self.out} belongs to another job; it differs in: {', '.join(changed)}. Name another output, or pass "
                "if_changed= (--if-changed): continue keeps its rows, restart deletes them."
            )
        try:
            if if_changed == "restart" and (changed or before is None):
                for path in written:
                    os.truncate(path, 0)
            if before != job:
                _replace(self._manifest, [json.dumps(job, indent=2, sort_keys=True).encode() + b"\n"])
        except OSError as error:
            raise failure(self._manifest, error) from error

    def _read_manifest(self) -> Mapping[str, Any] | None:
        try:
            found: object = json.loads(self._manifest.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RequestError(f"{self._manifest} cannot be read ({error}); restore or delete it.") from error
        return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}

    def settle(self, index: Index) -> int:
        """Mark the rows in the index that are done or failed, and remove lines that do not count: a torn tail, lines of
        rows that have changed since, failures of rows that succeeded or are gone, and lines that no batch wrote.

        Output lines of rows that the input no longer has stay. Returns how many lines were removed.
        """
        try:
            for path in (self.out, self.errors):
                _cut(path)
            self._mark(index)
            removed = _filter(self.out, lambda key, name, place: _counts(index, key, name, place))
            removed += _filter(self.errors, lambda key, _, place: index.is_at(key, "failed", place))
            if removed:
                self._mark(index)
            if self.errors.exists() and not self.errors.stat().st_size:
                self.errors.unlink()
        except OSError as error:
            raise failure(self.out, error) from error
        return removed

    def _mark(self, index: Index) -> None:
        index.begin()
        for key, _, place, _ in _entries(self.out):
            index.mark(key, "done", place, over=True)
        for key, _, place, _ in _entries(self.errors):
            index.mark(key, "failed", place, over=False)
        index.commit()

    def sort(self, index: Index) -> None:
        """Sort the lines of both files into the order of the input."""
        self.settle(index)
        try:
            _sort(self.out, index, "done")
            _sort(self.errors, index, "failed")
        except OSError as error:
            raise failure(self.out, error) from error


def _counts(index: Index, key: str, name: str | None, place: int) -> bool:
    return index.is_at(key, "done", place) or not index.has_name(name)


def _entries(path: Path) -> Iterator[tuple[str, str | None, int, bytes]]:
    """Yields the lines of a file that a batch wrote: key, custom_id, offset, bytes."""
    if not path.exists():
        return
    place = 0
    with path.open("rb") as file:
        for line in file:
            found = identity(line)
            if found is not None:
                yield *found, place, line
            place += len(line)


def _cut(path: Path) -> None:
    """Cut off what follows the last line end."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = whole = file.seek(0, os.SEEK_END)
        while whole:
            start = max(0, whole - _CHUNK)
            file.seek(start)
            newline = file.read(whole - start).rfind(b"\n")
            if newline >= 0:
                whole = start + newline + 1
                break
            whole = start
        if whole < end:
            file.truncate(whole)
            os.fsync(file.fileno())


def _filter(path: Path, counts: Callable[[str, str | None, int], bool]) -> int:
    """Keep only the lines that count; returns how many were removed. Does not touch the file if all count."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        total = sum(1 for _ in file)
    kept = sum(1 for key, name, place, _ in _entries(path) if counts(key, name, place))
    if kept < total:
        _replace(path, (line for key, name, place, line in _entries(path) if counts(key, name, place)))
    return total - kept


def _sort(path: Path, index: Index, state: State) -> None:
    """Sort the rows into the order of the input; rows that it does not have come last."""
    if not path.exists() or _ascending(index.places(state)):
        return
    with path.open("rb") as file:

        def lines() -> Iterator[bytes]:
            for place in index.places(state):
                file.seek(place)
                yield file.readline()
            yield from (line for key, _, place, line in _entries(path) if not index.is_at(key, state, place))

        _replace(path, lines())


def _ascending(places: Iterable[int]) -> bool:
    """Whether the lines are in this order already."""
    last = -1
    for place in places:
        if place < last:
            return False
        last = place
    return True


def _replace(path: Path, lines: Iterable[bytes]) -> None:
    """Replace a file, completely or not at all."""
    beside = _beside(path)
    try:
        with beside.open("wb") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            beside.chmod(path.stat().st_mode & 0o777)
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _sync_folder(folder: Path) -> None:
    """Make new names in the folder durable, if the system can."""
    if os.name != "posix":
        return
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
