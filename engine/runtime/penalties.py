"""Repetition penalties over the last tokens, by llama.cpp's formula.

Knows: counts of tokens and the new logits they give. Does not know: samplers. Where penalties come first they are
applied here, to the few tokens concerned, and llama.cpp need not be given the whole vocabulary.
"""

from collections import Counter, deque
from typing import TYPE_CHECKING

from engine.types import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Penalties:
    """The penalties of one sequence, with the memory that they need."""

    def __init__(self, params: SamplingParams) -> None:
        self._repeat = 1.0 if params.repeat_penalty is None else params.repeat_penalty
        self._frequency = params.frequency_penalty or 0.0
        self._presence = params.presence_penalty or 0.0
        self._last: deque[int] = deque(maxlen=params.penalty_last_n)
        self._counts: Counter[int] = Counter()

    def accept(self, token: int) -> None:
        """Tell it a token that became part of the sequence."""
        if len(self._last) == self._last.maxlen:
            oldest = self._last[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._last.append(token)
        self._counts[token] += 1

    def change(self, logits: "NDArray[np.float32]") -> "tuple[NDArray[np.int64], NDArray[np.float32]]":
        """The tokens concerned, and the logits that they shall have."""
        import numpy as np

        count = len(self._counts)
        tokens = np.fromiter(self._counts.keys(), dtype=np.int64, count=count)
        counts = np.fromiter(self._counts.values(), dtype=np.float32, count=count)
        repeat, values = np.float32(self._repeat), logits[tokens]
        values = np.where(values <= 0, values * repeat, values / repeat)
        return tokens, values - counts * np.float32(self._frequency) - np.float32(self._presence)
