"""The rows of one decode as llama.cpp takes them: arrays, one for each field.

Knows: the structure llama_batch, and which rows llama.cpp takes. Does not know: contexts, or what a row means.
"""

import ctypes
from collections.abc import Sequence
from typing import Any, TypeAlias

from engine.errors import DecodeError
from engine.runtime.backend import Row

Column: TypeAlias = tuple[int, ...]  # one field of all rows


def check_rows(rows: Sequence[Row], columns: Sequence[Column], n_outputs: int, n_sequences: int, n_tokens: int) -> None:
    """Raise DecodeError for what llama.cpp would answer by ending the process, or in words that name no row."""
    tokens, _, sequences, outputs = columns
    if sum(outputs) > n_outputs:
        raise DecodeError(
            f"{sum(outputs)} rows ask for logits, but one batch gives {n_outputs}; split them, or "
            "raise outputs_per_sequence.",
            "invalid",
        )
    if min(tokens) < 0 or max(tokens) >= n_tokens or min(sequences) < 0 or max(sequences) >= n_sequences:
        bad = next(row for row in rows if not (0 <= row.sequence < n_sequences and 0 <= row.token < n_tokens))
        raise DecodeError(
            f"{bad} is not possible here: sequences run from 0 to {n_sequences - 1}, tokens from 0 to {n_tokens - 1}.",
            "invalid",
        )


class LlamaBatch:
    """One reusable llama_batch: the arrays are ours, allocated once; filling is one slice assignment per column."""

    def __init__(self, lib: Any, capacity: int) -> None:
        self._tokens = (ctypes.c_int32 * capacity)()
        self._positions = (ctypes.c_int32 * capacity)()
        self._sequences = (ctypes.c_int32 * capacity)()
        self._counts = (ctypes.c_int32 * capacity)(*([1] * capacity))
        self._outputs = (ctypes.c_int8 * capacity)()
        int32_p = ctypes.POINTER(ctypes.c_int32)
        base = ctypes.addressof(self._sequences)
        self._lists = (int32_p * capacity)(*(ctypes.cast(base + 4 * index, int32_p) for index in range(capacity)))
        self._filled = 0
        self._places: Sequence[int] | None = None
        self._struct = lib.llama_batch(
            n_tokens=0,
            token=ctypes.cast(self._tokens, int32_p),
            embd=None,
            pos=ctypes.cast(self._positions, int32_p),
            n_seq_id=ctypes.cast(self._counts, int32_p),
            seq_id=ctypes.cast(self._lists, ctypes.POINTER(int32_p)),
            logits=ctypes.cast(self._outputs, ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(
        self, tokens: Column, positions: Column, sequences: Column, outputs: Column, places: Sequence[int] | None = None
    ) -> Any:
        """The struct to pass to llama_decode, by value. `places`: of all rows those to be asked for, in their order;
        None for all."""
        count = len(tokens)
        self._tokens[:count] = tokens
        self._positions[:count] = positions
        self._sequences[:count] = sequences
        self._outputs[:count] = outputs
        self._filled = self._struct.n_tokens = count
        self._places = places
        return self._struct

    def forget(self) -> None:
        """After a failed decode no row has logits."""
        self._filled = 0

    def place(self, row: int) -> int | None:
        """Where a row stands in llama.cpp's batch; None where it has no logits, or is none."""
        if (places := self._places) is not None:
            row = places[row] if 0 <= row < len(places) else -1
        return row if 0 <= row < self._filled and self._outputs[row] else None

    def sequence(self, place: int) -> int:
        """Whose row stands there."""
        return self._sequences[place]
