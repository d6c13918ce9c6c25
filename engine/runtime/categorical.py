"""Drawing from all tokens, with no filter: a random number against the summed probabilities.

Knows: the softmax at a temperature. Does not know: samplers. For 150,000 tokens llama.cpp takes a millisecond or more
to make and go through its records; sums over the array take a tenth of that.
"""

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ROWS = 64  # the vocabulary is summed in so many rows; one of them is then searched


class Categorical:
    """Draws tokens by their probabilities, with a random stream of its own."""

    def __init__(self, temperature: float, seed: int) -> None:
        self._scale = 1.0 / temperature
        self._random = random.Random(seed)

    def draw(self, logits: "NDArray[np.float32]", largest: float) -> int:
        """A token. `largest` is the largest logit, and finite; tokens of minus infinity are never drawn."""
        import numpy as np

        weights = np.exp((logits - np.float32(largest)) * np.float32(self._scale))
        width = -(-weights.size // _ROWS)
        whole = weights.size // width
        sums = weights[: whole * width].reshape(whole, width).sum(axis=1, dtype=np.float64)
        sums = np.append(sums, weights[whole * width :].sum(dtype=np.float64))
        reached = np.cumsum(sums)
        target = self._random.random() * float(reached[-1])
        row = int(np.searchsorted(reached, target, side="right"))
        start = row * width
        part = weights[start : start + width]
        within = target - (float(reached[row - 1]) if row else 0.0)
        place = int(np.searchsorted(np.cumsum(part, dtype=np.float64), within, side="right"))
        if place >= part.size or part[place] == 0:
            place = int(part.argmax())  # rounding led past the end of the row
        return start + place
