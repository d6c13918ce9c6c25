"""The prefixes that callers pinned: which sequence holds each, and their state for a file.

Knows: that a pinned prefix keeps a sequence for itself, so that one must stay for requests. Does not know: requests,
generations, files.
"""

from engine.errors import RequestError
from engine.runtime.backend import Backend
from engine.runtime.prefix import PrefixCache
from engine.runtime.state_file import SavedState


class Pins:
    """Pinned prefixes, by the number of the request that evaluated each."""

    def __init__(self, backend: Backend, cache: PrefixCache) -> None:
        self._backend = backend
        self._cache = cache
        self._sequences: dict[int, int] = {}

    def __bool__(self) -> bool:
        """Whether any prefix is pinned."""
        return bool(self._sequences)

    def check(self, coming: int) -> None:
        """Raise RequestError where one more would leave no sequence for requests, with so many under way."""
        taken = len(self._sequences) + coming
        if taken + 1 >= self._backend.n_sequences:
            raise RequestError(
                f"A pinned prefix takes a sequence; of {self._backend.n_sequences}, {taken} are taken so, and one must "
                "stay for requests. Release one, or load with a larger n_sequences."
            )

    def keep(self, id_: int, sequence: int) -> None:
        """What the sequence holds stays until `release`."""
        self._cache.pin(sequence)
        self._sequences[id_] = sequence

    def release(self, id_: int) -> bool:
        """It may be forgotten when its cells are needed. Whether it was pinned."""
        sequence = self._sequences.pop(id_, None)
        if sequence is not None:
            self._cache.unpin(sequence)
        return sequence is not None

    def state(self, id_: int) -> SavedState:
        """Its tokens and what they evaluate to. Raises RequestError when it was released."""
        sequence = self._sequences.get(id_)
        if sequence is None:
            raise RequestError("This prefix was released; pin it again.")
        return SavedState(tuple(self._cache.held(sequence)), self._backend.save(sequence))
