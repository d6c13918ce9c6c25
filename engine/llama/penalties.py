"""The penalties on repetition, where they come first: they change the logits of the last few tokens, so that a draw
need not pass the whole vocabulary to llama.cpp."""

from collections import Counter, deque
from typing import TYPE_CHECKING

from engine.types.sampling import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Penalties:
    """Counts the last tokens of one sequence; as llama.cpp's sampler "penalties"."""

    def __init__(self, params: SamplingParams) -> None:
        import numpy as np

        self._last: deque[int] = deque(maxlen=params.penalty_last_n)
        self._counts: Counter[int] = Counter()
        self._repeat = np.float32(1.0 if params.repeat_penalty is None else params.repeat_penalty)
        self._frequency = np.float32(params.frequency_penalty or 0.0)
        self._presence = np.float32(params.presence_penalty or 0.0)

    def accept(self, token: int) -> None:
        """Take a token that follows in the sequence."""
        if len(self._last) == self._last.maxlen:
            oldest = self._last[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._last.append(token)
        self._counts[token] += 1

    def tokens(self) -> "NDArray[np.intp]":
        """Returns the tokens with a penalty, each once."""
        import numpy as np

        return np.fromiter(self._counts, dtype=np.intp, count=len(self._counts))

    def apply(self, logits: "NDArray[np.float32]", tokens: "NDArray[np.intp]") -> None:
        """Change the logits of these tokens, which `tokens` returned."""
        import numpy as np

        found = logits[tokens]
        counts = np.fromiter(self._counts.values(), dtype=np.float32, count=len(self._counts))
        with np.errstate(all="ignore"):  # a penalty near 0 makes infinities, which the draw refuses
            # Dividing a negative logit would make its token more likely.
            found = np.where(found <= 0, found * self._repeat, found / self._repeat)
            logits[tokens] = found - (counts * self._frequency + self._presence)
