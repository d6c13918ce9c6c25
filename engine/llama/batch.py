"""What llama_decode takes: a reusable batch of tokens, or rows of embeddings."""

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Column: TypeAlias = tuple[int, ...]
"""One field of all rows."""


class LlamaBatch:
    """One reusable llama_batch: the arrays are ours, allocated once; filling is one slice assignment per column.
    `width`: the numbers of the hidden state that each row has beside its token; 0 for none."""

    def __init__(self, lib: Any, capacity: int, width: int = 0) -> None:
        self._tokens = (ctypes.c_int32 * capacity)()
        self._positions = (ctypes.c_int32 * capacity)()
        self._sequences = (ctypes.c_int32 * capacity)()
        self._counts = (ctypes.c_int32 * capacity)(*([1] * capacity))
        self._outputs = (ctypes.c_int8 * capacity)()
        int32_p = ctypes.POINTER(ctypes.c_int32)
        base = ctypes.addressof(self._sequences)
        self._lists = (int32_p * capacity)(*(ctypes.cast(base + 4 * index, int32_p) for index in range(capacity)))
        self._filled = 0
        self._width = width
        self._states = (ctypes.c_float * (capacity * width))()
        self._struct = lib.llama_batch(
            n_tokens=0,
            token=ctypes.cast(self._tokens, int32_p),
            embd=ctypes.cast(self._states, ctypes.POINTER(ctypes.c_float)) if width else None,
            pos=ctypes.cast(self._positions, int32_p),
            n_seq_id=ctypes.cast(self._counts, int32_p),
            seq_id=ctypes.cast(self._lists, ctypes.POINTER(int32_p)),
            logits=ctypes.cast(self._outputs, ctypes.POINTER(ctypes.c_int8)),
        )

    def states(self, states: Sequence[bytes | None]) -> None:
        """Set the hidden states of the first rows: `width` float32 numbers each, or None for zeros."""
        size = 4 * self._width
        whole = b"".join(bytes(size) if state is None else state for state in states)
        ctypes.memmove(self._states, whole, size * len(states))

    def fill(self, tokens: Column, positions: Column, sequences: Column, outputs: Column) -> Any:
        """Fill the arrays and return the struct to pass to llama_decode, by value."""
        count = len(tokens)
        self._tokens[:count] = tokens
        self._positions[:count] = positions
        self._sequences[:count] = sequences
        self._outputs[:count] = outputs
        self._filled = self._struct.n_tokens = count
        return self._struct

    def forget(self) -> None:
        """Mark all rows as without logits, after a failed decode."""
        self._filled = 0

    def has_logits(self, row: int) -> bool:
        """Whether the row was decoded with `output`."""
        return 0 <= row < self._filled and bool(self._outputs[row])

    def sequence(self, row: int) -> int:
        """Returns the sequence of a row."""
        return self._sequences[row]


class EmbeddingBatch:
    """Rows of embeddings for one sequence, without logits, as a llama_batch: `rows` of shape (rows, width), at
    `positions` of shape (sections, rows)."""

    def __init__(self, lib: Any, rows: "NDArray[np.float32]", positions: "NDArray[np.int32]", sequence: int) -> None:
        import numpy as np

        int32_p = ctypes.POINTER(ctypes.c_int32)
        count = len(rows)
        self._rows, self._positions = np.ascontiguousarray(rows), np.ascontiguousarray(positions)
        self._sequence = ctypes.c_int32(sequence)
        self._counts = (ctypes.c_int32 * count)(*([1] * count))
        self._lists = (int32_p * count)(*([ctypes.pointer(self._sequence)] * count))
        self._outputs = (ctypes.c_int8 * count)()
        self.struct = lib.llama_batch(
            n_tokens=count,
            token=None,
            embd=self._rows.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
            pos=self._positions.ctypes.data_as(int32_p),
            n_seq_id=ctypes.cast(self._counts, int32_p),
            seq_id=ctypes.cast(self._lists, ctypes.POINTER(int32_p)),
            logits=ctypes.cast(self._outputs, ctypes.POINTER(ctypes.c_int8)),
        )
