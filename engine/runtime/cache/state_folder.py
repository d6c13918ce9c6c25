"""States on disk: a folder where a stranger may have left anything, so all in it is looked at before it is used."""

import contextlib
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.runtime.adapters.adapters import BASE, Adapters
from engine.runtime.cache.state_file import Origin, SavedState, read_head, read_state, write_state
from engine.support.errors import RequestError
from engine.support.output_file import lock
from engine.support.own_file import is_own, open_lock, own_folder, own_regular

_log = logging.getLogger("engine.runner")
_FOLDER = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"[0-9a-f]{64}\.state")
_TEMPORARY = re.compile(r"\.[0-9a-f]{32,40}\..*")
_LOCK = ".llama-engine-states.lock"
_REST = 1024
"""Bytes in a file besides its tokens and its state, at most."""
_PATIENCE = 5.0
"""Seconds that one write waits for another process's."""
_LOOK = 0.02


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """A state in the store: the tokens that it holds, the adapters that computed them, and where it is (in memory if
    `path` is None)."""

    tokens: tuple[int, ...]
    adapters: Adapters = BASE
    path: Path | None = None


class StateFolder:
    """The states on disk: `<path>/<digest of the origin>/<digest of the tokens>.state`. Other files are left alone, and
    so is what others may write to. Raises RequestError for a path that is no folder of ours."""

    def __init__(self, path: Path, budget: int) -> None:
        self.budget = budget
        self._patience = _PATIENCE
        self._known: dict[Path, tuple[int, dict[str, Stored]]] = {}
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path = path.resolve()
            found = self._path.stat()
        except (OSError, ValueError) as error:
            raise RequestError(f"{path} cannot be a folder for states ({error}); choose another path.") from error
        if not is_own(found):
            raise RequestError(
                f"Others may write to {path}, and so decide what a model has read; choose a new folder, which is made."
            )

    def entries(self, origin: Origin) -> list[Stored]:
        """Returns the states of this origin. The heads of the files are read once."""
        folder = self._place(origin)
        try:
            if not own_folder(folder):
                raise PermissionError("it is no folder that only this user may write to")
            changed = folder.stat().st_mtime_ns
            before, known = self._known.get(folder, (-1, {}))
            if changed != before:
                names = [each.name for each in os.scandir(folder) if _FILE.fullmatch(each.name)]
                known = {name: known.get(name) or _head(folder / name, origin) for name in names}
                self._known[folder] = (changed, known)
        except FileNotFoundError:
            return []
        except OSError as error:
            _log.warning("The states in %s cannot be read: %s", folder, error)
            return []
        return [entry for entry in known.values() if entry.tokens]

    def read(self, origin: Origin, entry: Stored) -> bytes | None:
        path = entry.path
        assert path is not None, "an entry of the folder has a path"
        try:
            saved = read_state(path, origin, own=True)
        except RequestError as error:
            with contextlib.suppress(OSError):
                if own_regular(path) is not None:
                    _log.warning("A state is not used, and deleted: %s", error)
                    unlink(path)
            return None
        with contextlib.suppress(OSError):  # deleted by another process meanwhile
            os.utime(path)
        return saved.state if (saved.tokens, saved.adapters) == (entry.tokens, entry.adapters) else None

    def write(self, origin: Origin, saved: SavedState, covered: Sequence[Path]) -> None:
        """Write a state, after deleting the `covered` ones and as many old ones as the budget wants."""
        folder = self._place(origin)
        tokens = json.dumps((saved.tokens, saved.adapters)).encode()
        name = hashlib.sha256(tokens).hexdigest() + ".state"
        try:
            with self._locked():
                for path in covered:
                    unlink(path)
                self._make_room(len(saved.state) + len(tokens) + _REST)
                folder.mkdir(mode=0o700, exist_ok=True)
                if not own_folder(folder):
                    raise PermissionError("it is no folder that only this user may write to")
                (folder / name).unlink(missing_ok=True)  # a link would be followed, and permissions kept
                write_state(folder / name, origin, saved)
                self._make_room(0)
        except (OSError, RequestError) as error:
            _log.warning("A state was not written to %s: %s", folder, error)

    def clear(self) -> None:
        try:
            with self._locked():
                for path, _ in self._files():
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise RequestError(f"The states in {self._path} cannot be deleted ({error}); delete the folder.") from error

    def sizes(self) -> tuple[int, int]:
        """Returns the number of files and their bytes; of a folder that cannot be read, none."""
        try:
            sizes = [found.st_size for _, found in self._files()]
        except OSError as error:
            _log.warning("The states in %s cannot be read: %s", self._path, error)
            return 0, 0
        return len(sizes), sum(sizes)

    def _make_room(self, size: int) -> None:
        """Delete the least recently used files until `size` more bytes fit. Called under the lock, so a temporary file
        was left by a process that died."""
        for path, _ in self._files(_TEMPORARY):
            unlink(path)
        aged = sorted((found.st_mtime_ns, path, found.st_size) for path, found in self._files())
        total = sum(each[2] for each in aged)
        for _, path, bytes_ in aged:
            if total + size <= self.budget:
                break
            unlink(path)
            total -= bytes_

    def _files(self, names: "re.Pattern[str]" = _FILE) -> Iterator[tuple[Path, os.stat_result]]:
        for folder in self._path.iterdir():
            if _FOLDER.fullmatch(folder.name) and own_folder(folder):
                for path in folder.iterdir():
                    if names.fullmatch(path.name) and (found := own_regular(path)) is not None:
                        yield path, found

    def _place(self, origin: Origin) -> Path:
        return self._path / hashlib.sha256(json.dumps(asdict(origin), sort_keys=True).encode()).hexdigest()[:32]

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Keep other processes from writing and deleting; where the system has no such locks, the budget may be
        exceeded for a moment. Raises OSError, TimeoutError if another process keeps the lock."""
        with open_lock(self._path / _LOCK) as file:
            until = time.monotonic() + self._patience
            while not _taken(file.fileno()):
                if time.monotonic() >= until:
                    self._patience = 0.0  # until it is free again, nobody waits for it a second time
                    raise TimeoutError(f"another process does not let go of {file.name}")
                time.sleep(_LOOK)
            self._patience = _PATIENCE
            yield


def _taken(descriptor: int) -> bool:
    try:
        return lock(descriptor)
    except OSError:
        return True


def _head(path: Path, origin: Origin) -> Stored:
    """Returns the entry of a file; without tokens if it cannot be used."""
    try:
        return Stored(*read_head(path, origin, own=True), path)
    except RequestError as error:
        _log.warning("A state is not used: %s", error)
        return Stored((), path=path)


def unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        _log.warning("%s cannot be deleted: %s", path, error)
