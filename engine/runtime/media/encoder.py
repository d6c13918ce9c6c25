"""Encodes pictures and sounds beside the thread of the loop, so that what needs none goes on."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from queue import SimpleQueue

from engine.runtime.loop.sequence import SequenceState
from engine.runtime.media.media import Embeddings, MediaChunk
from engine.support import threads
from engine.support.errors import EngineError


class Encoder:
    """Encodes one unit at a time, each in a thread of its own. Only the loop's thread calls it; `done` is called in the
    other one when a unit is done.

    A thread ends with its unit, because libgomp keeps the workers of a thread as long as it lives, and they would slow
    down every decode (`made_in_thread` says how much).
    """

    def __init__(self, encode: Callable[[MediaChunk], Embeddings], done: Callable[[], object]) -> None:
        self._encode = encode
        self._done = done
        self._thread: threading.Thread | None = None
        self._finished: SimpleQueue[tuple[bytes, Embeddings | BaseException]] = SimpleQueue()
        self._rows: dict[bytes, Embeddings] = {}

    @property
    def is_busy(self) -> bool:
        """Whether a unit is being encoded; `done` is called after it."""
        return self._thread is not None and self._finished.empty()

    def serve(self, states: Iterable[SequenceState]) -> Iterator[tuple[SequenceState, BaseException]]:
        """Give requests the rows of their next units, in this order, as far as these are encoded; also those whose text
        before it is not evaluated yet. Yields the requests whose unit could not be encoded, and why."""
        seeing = [(state, unit) for state in states if (unit := state.next_unit) is not None]
        results = self.encoded([unit for _, unit in seeing])
        for state, unit in seeing:
            result = results.get(unit.key)
            if isinstance(result, BaseException):
                yield state, result
            else:
                state.rows = result

    def encoded(self, units: Sequence[MediaChunk]) -> "Mapping[bytes, Embeddings | BaseException]":
        """Returns the rows of those units that are encoded, by key, or why one could not be, which is said once; and
        encodes the next of the others. What was encoded and is not among the units is forgotten."""
        results: dict[bytes, Embeddings | BaseException] = {**self._rows}
        if not self._finished.empty():
            self._join()
            results.update((self._finished.get(),))
        results = {unit.key: results[unit.key] for unit in units if unit.key in results}
        self._rows = {key: result for key, result in results.items() if not isinstance(result, BaseException)}
        unit = next((unit for unit in units if unit.key not in results), None)
        if unit is not None and self._thread is None and (error := self._begin(unit)) is not None:
            results[unit.key] = error
        return results

    def _begin(self, unit: MediaChunk) -> EngineError | None:
        """Begin to encode a unit. Returns the error if that is not possible."""
        self._thread = threading.Thread(target=self._run, args=(unit,), name="llama-engine-encode", daemon=True)
        try:
            threads.start(self._thread)
        except EngineError as error:
            self._thread = None
            return error
        return None

    def _run(self, unit: MediaChunk) -> None:
        try:
            result: Embeddings | BaseException = self._encode(unit)
        except BaseException as error:  # noqa: BLE001 - the requests that wait for the unit end with it
            result = error
        self._finished.put((unit.key, result))
        self._done()

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def close(self) -> None:
        """Wait for the unit that is being encoded, which cannot be stopped."""
        self._join()
        self._rows.clear()
