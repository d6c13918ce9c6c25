"""A store of states: what a cache forgets stays in memory, then on disk, and is found again by its tokens."""

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from engine.runtime.adapters.adapters import Adapters
from engine.runtime.cache.state_file import Origin, SavedState
from engine.runtime.cache.state_folder import StateFolder, Stored, unlink
from engine.support.errors import RequestError, shown

_Key: TypeAlias = tuple[Origin, tuple[int, ...], Adapters]
_log = logging.getLogger("engine.runner")
_UNWRITTEN = 1 << 30
"""Bytes that may wait to be written; a state beyond them is kept in memory only."""


class StoreSizes(NamedTuple):
    """How many states a store has in memory and on disk, and their bytes."""

    states: int
    memory: int
    files: int
    disk: int


class StateStore:
    """States of conversations and pinned prefixes, within a budget of bytes in memory and one on disk; the least
    recently used go first.

    memory: bytes in memory, 512 MiB by default. path: a folder for states on disk, which processes may share; made if
    it is not there. disk: bytes on disk, needed with a path. What is on disk are the conversations that the model read,
    and only this user may read it. Whoever may write there decides what the model has read.

    Engines may share one store, also one after the other: pass it as `Engine.load(states=...)`. In a child process
    (`isolated=True`) a store has a memory of its own, and the same disk. Thread-safe. Raises RequestError for sizes
    that are not valid and for a folder that cannot be used or that others may write to.
    """

    def __init__(self, memory: int = 512 << 20, path: str | Path | None = None, disk: int = 0) -> None:
        for name, value in (("memory", memory), ("disk", disk)):
            if type(value) is not int or value < 0:
                raise RequestError(f"{name}={shown(value)} is not valid: it must be a number of bytes, 0 or more.")
        if (path is None) != (disk == 0):
            raise RequestError("A store on disk needs both: path, a folder, and disk, the most bytes in it.")
        self._arguments = (memory, path, disk)
        self._budget = memory
        self._states: OrderedDict[_Key, bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()
        self._folder = None if path is None else StateFolder(Path(path).expanduser(), disk)
        self._begin_writing()

    def _begin_writing(self) -> None:
        self._process = os.getpid()
        self._writer: ThreadPoolExecutor | None = None
        self._writes: set[Future[None]] = set()
        self._unwritten = 0

    def __reduce__(self) -> tuple[type["StateStore"], tuple[Any, ...]]:
        return StateStore, self._arguments

    @property
    def memory(self) -> int:
        """The most bytes in memory."""
        return self._budget

    def on_disk(self) -> "StateStore":
        """Returns a store of the same folder without a memory."""
        _, path, disk = self._arguments
        return StateStore(0, path, disk)

    @property
    def durable(self) -> bool:
        """Whether states are written to disk."""
        return self._folder is not None

    @property
    def sizes(self) -> StoreSizes:
        """What the store holds now."""
        files, disk = (0, 0) if self._folder is None else self._folder.sizes()
        return StoreSizes(len(self._states), self._bytes, files, disk)

    def __repr__(self) -> str:
        return f"<StateStore: {self.sizes}>"

    def entries(self, origin: Origin) -> Iterator[Stored]:
        """Yields the states of this origin, those in memory first."""
        with self._lock:
            known = [(tokens, adapters) for found, tokens, adapters in self._states if found == origin]
        yield from starmap(Stored, known)
        if self._folder is not None:
            yield from self._folder.entries(origin)

    def read(self, origin: Origin, entry: Stored) -> bytes | None:
        """Returns a state, which then counts as used; None if it is gone, or damaged, in which case it is deleted."""
        if entry.path is not None and self._folder is not None:
            return self._folder.read(origin, entry)
        with self._lock:
            key = origin, entry.tokens, entry.adapters
            state = self._states.get(key)
            if state is not None:
                self._states.move_to_end(key)
            return state

    def takes(self, size: int) -> bool:
        """Whether a state of so many bytes is kept at all."""
        return size <= max(self._budget, 0 if self._folder is None else self._folder.budget)

    def put(self, origin: Origin, saved: SavedState, covered: Iterable[Stored] = ()) -> None:
        """Keep a state, instead of the `covered` ones. It is written to disk in another thread."""
        key = origin, saved.tokens, saved.adapters
        with self._lock:
            for entry in covered:
                self._drop((origin, entry.tokens, entry.adapters))
            self._drop(key)
            if len(saved.state) <= self._budget:
                self._states[key] = saved.state
                self._bytes += len(saved.state)
            while self._bytes > self._budget:
                self._drop(next(iter(self._states)))
        if self._folder is not None:
            self._write(self._folder, origin, saved, [entry.path for entry in covered if entry.path is not None])

    def discard(self, origin: Origin, entry: Stored) -> None:
        """Forget a state that could not be used."""
        if entry.path is not None:
            unlink(entry.path)
            return
        with self._lock:
            self._drop((origin, entry.tokens, entry.adapters))

    def flush(self) -> None:
        """Wait until everything is written to disk."""
        if self._process == os.getpid():  # a fork does not have the thread that writes
            for write in list(self._writes):
                write.result()

    def clear(self) -> None:
        """Forget all states in memory, and delete those on disk. Raises RequestError if one cannot be deleted."""
        self.flush()
        with self._lock:
            self._states.clear()
            self._bytes = 0
        if self._folder is not None:
            self._folder.clear()

    def _drop(self, key: _Key) -> None:
        self._bytes -= len(self._states.pop(key, b""))

    def _write(self, folder: StateFolder, origin: Origin, saved: SavedState, covered: list[Path]) -> None:
        size = len(saved.state)
        with self._lock:
            if self._process != os.getpid():
                self._begin_writing()
            if size > folder.budget or self._unwritten + size > _UNWRITTEN:
                return
            self._unwritten += size
            if self._writer is None:
                self._writer = ThreadPoolExecutor(1, thread_name_prefix="llama-engine-states")
            writer = self._writer
        try:
            write = writer.submit(folder.write, origin, saved, covered)
        except RuntimeError as error:  # no thread is left; what was not written is not counted, and not written later
            with self._lock:
                self._unwritten -= size
                self._writer = None
            _log.warning("A state is not written to disk: %s", error)
            return
        self._writes.add(write)
        write.add_done_callback(lambda _: self._written(write, size))

    def _written(self, write: "Future[None]", size: int) -> None:
        self._writes.discard(write)
        with self._lock:
            self._unwritten -= size


class Saves(Protocol):
    """What `OriginStates.keep` needs of a `Backend`."""

    def state_size(self, sequence: int) -> int: ...
    def save(self, sequence: int) -> bytes: ...


class OriginStates:
    """The states of one origin in a store. `longest`: the most tokens of a state that can be cut (None: any); a longer
    one is only of use in full."""

    def __init__(self, store: StateStore, origin: Callable[[], Origin]) -> None:
        self.store = store
        self._find_origin = origin

    @cached_property
    def _origin(self) -> Origin:
        return self._find_origin()

    def find(self, shared: Callable[[Stored], int], least: int, longest: int | None) -> tuple[Stored, int] | None:
        """Returns the state that shares most with a prompt, and how many tokens; None if those are fewer than
        `least`."""
        best: tuple[Stored, int] | None = None
        for entry in self.store.entries(self._origin):
            length = shared(entry)
            if length >= least and (length == len(entry.tokens) or _is_cut(entry.tokens, longest)):
                best, least = (entry, length), length + 1
        return best

    def read(self, entry: Stored) -> bytes | None:
        """Returns a state, or None if it is gone."""
        return self.store.read(self._origin, entry)

    def discard(self, entry: Stored) -> None:
        """Forget a state that could not be used."""
        self.store.discard(self._origin, entry)

    def keep(
        self, tokens: Sequence[int], adapters: Adapters, memory: Saves, sequence: int, longest: int | None
    ) -> None:
        """Put a state into the store, unless one there holds all of these tokens. States that it continues go."""
        held = tuple(tokens)
        covered: list[Stored] = []
        for entry in self.store.entries(self._origin):
            other = entry.tokens
            if entry.adapters != adapters:
                continue
            if other == held or (_is_cut(other, longest) and other[: len(held)] == held):
                return
            if _is_cut(held, longest) and held[: len(other)] == other:
                covered.append(entry)
        if self.store.takes(memory.state_size(sequence)):
            self.store.put(self._origin, SavedState(held, memory.save(sequence), adapters), covered)


def _is_cut(tokens: Sequence[int], longest: int | None) -> bool:
    """Whether a state of these tokens can be cut."""
    return longest is None or len(tokens) <= longest
