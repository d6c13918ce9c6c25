"""A few tokens given to a chain of llama.cpp's as its candidates, in place of a record of every token.

Knows: how candidates are given to a chain. Does not know: how the tokens were chosen (`filters`), or what the chain
does with them.
"""

import ctypes
from typing import TYPE_CHECKING, Any

from engine.runtime.filters import Filter
from engine.runtime.llama_lib import brief, library

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Shortlist:
    """The tokens that a filter leaves, drawn from by a chain that goes on from there."""

    def __init__(self, first: Filter) -> None:
        self._first = first
        self._apply = brief("llama_sampler_apply")
        self._array: Any = library().llama_token_data_array()
        self._pointer = ctypes.byref(self._array)
        self._room = 0
        self._make_room(512)

    def draw(self, chain: int, logits: "NDArray[np.float32]") -> int:
        """The token that the chain selects; the chain is not told to accept it. Raises DecodeError("nan") when the
        logits are not numbers."""
        kept, ranked = self._first(logits)
        count = int(kept.size)
        if count > self._room:
            self._make_room(2 * count)
        self._ids[:count] = kept
        self._logits[:count] = logits[kept]
        array = self._array
        array.data, array.size, array.selected, array.sorted = self._start, count, -1, ranked
        self._apply(chain, self._pointer)
        chosen: Any = array.data[array.selected]  # the chain may have put other data there
        return int(chosen.id)

    def _make_room(self, count: int) -> None:
        import numpy as np

        record, pointer_to = library().llama_token_data, ctypes.POINTER
        make: Any = pointer_to
        self._buffer: Any = (record * count)()
        self._start: Any = ctypes.cast(self._buffer, make(record))
        layout = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        records: Any = np.frombuffer(self._buffer, dtype=layout)
        self._ids, self._logits = records["id"], records["logit"]
        self._room = count
