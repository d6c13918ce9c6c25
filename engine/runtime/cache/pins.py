"""Prefixes that callers pinned: each occupies a sequence until it is released."""

from engine.runtime.cache.prefix import PrefixCache
from engine.runtime.loop.backend import Backend
from engine.support.errors import RequestError


class Pins:
    """Pinned prefixes, by the id of the request that evaluated each."""

    def __init__(self, backend: Backend, cache: PrefixCache) -> None:
        self._backend = backend
        self._cache = cache
        self._sequences: dict[int, int] = {}

    def check(self, coming: int) -> None:
        """Raise RequestError if one more prefix, in addition to `coming` ones under way, would leave no sequence for
        requests."""
        taken = len(self._sequences) + coming
        n_sequences = self._backend.info.n_sequences
        if taken + 1 >= n_sequences:
            raise RequestError(
                f"A pinned prefix takes a sequence. Pinned prefixes take {taken} of {n_sequences} already, and one "
                "must stay for requests; release a prefix, or load with a larger n_sequences."
            )

    def keep(self, id_: int, sequence: int) -> None:
        """Keep what the sequence holds until `release`."""
        self._cache.pin(sequence)
        self._sequences[id_] = sequence

    def release(self, id_: int) -> bool:
        """Allow the prefix to be forgotten when its cells are needed. Returns whether it was pinned."""
        sequence = self._sequences.pop(id_, None)
        if sequence is not None:
            self._cache.unpin(sequence)
        return sequence is not None
