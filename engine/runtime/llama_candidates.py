"""The few tokens that a first filter leaves, found without handing llama.cpp the whole vocabulary.

Knows: top-k, top-p and min-p over an array of logits, and how candidates are given to a chain. Does not know: what
the chain does with them. llama.cpp makes a record of every token and sorts them: up to 8 ms for 150,000, where a few
passes over the array take some tens of microseconds. What is drawn is the same.
"""

import ctypes
import math
from typing import TYPE_CHECKING, Any

from engine.errors import DecodeError
from engine.runtime.llama_lib import brief, library
from engine.runtime.sampling_plan import Filter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_GROUPS = 64  # the vocabulary is read as so many rows; the columns' maxima bound the k-th largest logit
_DEPTHS = (5.0, 9.0, 13.0, 18.0)  # how far below the largest logit top-p's tokens are looked for, try by try


def check_number(largest: float) -> None:
    """Raises DecodeError("nan") when a row's maximum is not a number: then some logit is not, or none is possible."""
    if not math.isfinite(largest):
        raise DecodeError(
            "The model computed logits that are not numbers; its file may be damaged, or it needs a wider KV cache "
            '(type_k="f32", type_v="f32") or flash_attn="off".',
            "nan",
        )


class Candidates:
    """Applies the first filter, then runs the chain on what is left.

    The chain may hold a top-k or min-p again, which changes nothing, but not the top-p: it would be of the rest's mass.
    """

    def __init__(self, first: Filter) -> None:
        import numpy as np

        lib = library()
        self._np = np
        self._first = first
        self._apply = brief("llama_sampler_apply")
        self._array: Any = lib.llama_token_data_array()
        self._pointer = ctypes.byref(self._array)
        self._room = 0
        self._make_room(512)

    def draw(self, chain: int, logits: "NDArray[np.float32]") -> int:
        """The token that the chain selects; the chain is not told to accept it. Raises DecodeError("nan")."""
        np = self._np
        if self._first.name == "top_k":
            kept = self._largest(logits, int(self._first.value))
        else:
            largest = float(logits.max())
            check_number(largest)
            if self._first.name == "top_p":
                kept = self._nucleus(logits, largest)
            else:
                kept = np.flatnonzero(logits >= np.float32(largest + math.log(self._first.value)))
        return self._select(chain, kept, logits)

    def _largest(self, logits: Any, count: int) -> Any:
        """All tokens that can be among the `count` largest: the count-th largest of the columns' maxima is at most the
        count-th largest logit. Under a mask that may be minus infinity; masked tokens are never among them."""
        np = self._np
        width = logits.size // _GROUPS
        maxima = logits[: width * _GROUPS].reshape(_GROUPS, width).max(axis=0)
        check_number(float(np.maximum(maxima.max(), logits[width * _GROUPS :].max(initial=-np.inf))))
        bound = np.partition(maxima, width - count)[width - count]
        return np.flatnonzero(logits >= bound if bound > -np.inf else logits > bound)

    def _nucleus(self, logits: Any, largest: float) -> Any:
        """The most likely tokens whose probabilities first reach top-p, best first."""
        np = self._np
        weights = np.exp(logits - np.float32(largest))
        wanted = self._first.value * float(weights.sum())
        for depth in _DEPTHS:
            kept = np.flatnonzero(logits >= np.float32(largest - depth))
            if float(weights[kept].sum()) >= wanted:
                break
        else:
            kept = np.flatnonzero(logits > -np.inf)
        kept = kept[np.argsort(-logits[kept])]
        reached = np.cumsum(weights[kept], dtype=np.float64)
        return kept[: int(np.searchsorted(reached, wanted)) + 1]

    def _select(self, chain: int, kept: Any, logits: Any) -> int:
        count = int(kept.size)
        if count > self._room:
            self._make_room(2 * count)
        self._ids[:count] = kept
        self._logits[:count] = logits[kept]
        array = self._array
        array.data, array.size, array.selected = self._start, count, -1
        array.sorted = self._first.name == "top_p"
        self._apply(chain, self._pointer)
        chosen: Any = array.data[array.selected]  # the chain may have put other data there
        return int(chosen.id)

    def _make_room(self, count: int) -> None:
        lib, np, pointer_to = library(), self._np, ctypes.POINTER
        make: Any = pointer_to
        self._buffer: Any = (lib.llama_token_data * count)()
        self._start: Any = ctypes.cast(self._buffer, make(lib.llama_token_data))
        layout = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        records: Any = np.frombuffer(self._buffer, dtype=layout)
        self._ids, self._logits = records["id"], records["logit"]
        self._room = count
