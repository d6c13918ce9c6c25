"""The adapters that a backend holds, and those of them that are in force."""

import logging
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path

from engine.runtime.adapters.adapters import Adapters, Scales
from engine.runtime.loop.backend import Backend
from engine.support.errors import EngineError, RequestError

_log = logging.getLogger("engine.runner")


class LoadedAdapters:
    """Loads, changes and frees the adapters of a backend. Only the engine's thread uses it. `in_force`: those that the
    next decode computes with. `leaving`: those to be freed once no request uses them, with their keys, by the id of
    the drop."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._keys: defaultdict[str, set[int]] = defaultdict(set)
        self.leaving: dict[int, tuple[str, int]] = {}
        self.in_force: Scales = ()

    def check(self, adapters: Adapters) -> None:
        """Raise RequestError for an adapter that was dropped after it was named."""
        if any(not self._keys[digest] for digest, _ in adapters.scales):
            raise RequestError("An adapter of this request was dropped before the request began; load it again.")

    def use(self, scales: Scales) -> None:
        """Put these adapters in force, unless they are: a change takes about a millisecond."""
        if scales != self.in_force:
            self._backend.adapt(scales)
            self.in_force = scales

    def load(self, digest: str, path: Path, key: int) -> None:
        """Load a file, unless it is loaded with another key. Raises EngineError if llama.cpp refuses it."""
        if not self._keys[digest]:
            self._backend.load_adapter(digest, path)
        self._keys[digest].add(key)

    def drop(self, id_: int, digest: str, key: int) -> None:
        """Let `settle` free the adapter, and return this id then."""
        self.leaving[id_] = digest, key

    def settle(self, used: Collection[str]) -> list[int]:
        """Free the adapters that are dropped and that no request uses; returns the ids of the drops that are done. One
        that cannot be taken out of force stays loaded until the next call. `used`: the adapters of all requests."""
        done: list[int] = []
        for id_, (digest, key) in list(self.leaving.items()):
            if self._keys[digest] == {key}:
                if digest in used:
                    continue
                try:
                    if any(digest == each for each, _ in self.in_force):
                        self.use(())  # llama.cpp would go on reading what is freed
                    self._backend.free_adapter(digest)
                except EngineError as error:
                    _log.warning("An adapter was not freed, which is tried again later: %s", error)
                    continue
            self._keys[digest].discard(key)
            del self.leaving[id_]
            done.append(id_)
        return done

    def abandon(self) -> list[int]:
        """Forget the drops under way; returns their ids."""
        ids = list(self.leaving)
        self.leaving.clear()
        return ids
