"""Top-p as the first filter, over the array of logits; then llama.cpp's chain runs on the few tokens that are left.

Knows: top-p, and how candidates are given to a chain. Does not know: what the chain does with them. llama.cpp makes a
record of every token and sorts them: in a decode loop over 152,000 tokens that takes 2 ms, and this 0.4 ms. For top-k
and min-p, whose records need no sorting, arrays were not faster.
"""

import ctypes
import math
from typing import TYPE_CHECKING, Any

from engine.errors import DecodeError
from engine.runtime.llama_lib import brief, library

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_DEPTHS = (5.0, 9.0, 13.0, 18.0)  # how far below the largest logit the tokens are looked for, try by try


def check_number(largest: float) -> None:
    """Raises DecodeError("nan") when a row's maximum is not a number: then some logit is not, or none is possible."""
    if not math.isfinite(largest):
        raise _no_numbers()


def check_token(token: int, size: int) -> None:
    """Raises DecodeError("nan") for what is drawn from such a row where nobody looked at it: no token."""
    if not 0 <= token < size:
        raise _no_numbers()


def _no_numbers() -> DecodeError:
    return DecodeError(
        "The model computed logits that are not numbers; its file may be damaged, or it needs a wider KV cache "
        '(type_k="f32", type_v="f32") or flash_attn="off".',
        "nan",
    )


class Nucleus:
    """The most likely tokens whose probabilities first reach `top_p`, drawn from by a chain without a top-p of its
    own."""

    def __init__(self, top_p: float) -> None:
        self._top_p = top_p
        self._apply = brief("llama_sampler_apply")
        self._array: Any = library().llama_token_data_array()
        self._pointer = ctypes.byref(self._array)
        self._room = 0
        self._make_room(512)

    def draw(self, chain: int, logits: "NDArray[np.float32]", largest: float) -> int:
        """The token that the chain selects; the chain is not told to accept it. `largest` is the largest logit."""
        kept = self._kept(logits, largest)
        count = int(kept.size)
        if count > self._room:
            self._make_room(2 * count)
        self._ids[:count] = kept
        self._logits[:count] = logits[kept]
        array = self._array
        array.data, array.size, array.selected, array.sorted = self._start, count, -1, True
        self._apply(chain, self._pointer)
        chosen: Any = array.data[array.selected]  # the chain may have put other data there
        return int(chosen.id)

    def _kept(self, logits: Any, largest: float) -> Any:
        """Token numbers, best first."""
        import numpy as np

        weights = np.exp(logits - np.float32(largest))
        wanted = self._top_p * float(weights.sum())
        for depth in _DEPTHS:
            kept = np.flatnonzero(logits >= np.float32(largest - depth))
            if float(weights[kept].sum()) >= wanted:
                break
        else:
            kept = np.flatnonzero(logits > -np.inf)
        kept = kept[np.argsort(-logits[kept])]
        reached = np.cumsum(weights[kept], dtype=np.float64)
        return kept[: int(np.searchsorted(reached, wanted)) + 1]

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
