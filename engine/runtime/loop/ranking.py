"""Finds the most likely tokens of a row of logits in a few passes over it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ROWS = 32  # rows of a table of the vocabulary: the best maxima of its columns bound the best tokens' logits from below

_FEW = 512


def most_likely(logits: "NDArray[np.float32]", count: int) -> "tuple[float, NDArray[np.intp]]":
    """Returns the largest logit, NaN if any is, and the `count` most likely tokens, best first; of equals, the lower id
    first. There are fewer tokens if the row has fewer, and may be where most are -inf."""
    import numpy as np

    width = logits.size // _ROWS
    if width < count:
        return float(logits.max()), best_first(logits)[:count]
    table, rest = logits[: width * _ROWS].reshape(_ROWS, width), logits[width * _ROWS :]
    maxima = table.max(axis=0)
    largest = float(np.maximum(maxima.max(), rest.max(initial=-np.inf)))
    # `count` columns each have a token of at least this logit, so no lower one is among the best.
    maxima.partition(width - count)
    least = maxima[width - count]
    # A mask may allow fewer tokens than `count`; ranking all forbidden ones would be slow.
    tokens = (logits >= least if least > -np.inf else logits > least).nonzero()[0]
    return largest, tokens[best_first(logits[tokens])[:count]]


def best_first(logits: "NDArray[np.float32]") -> "NDArray[np.intp]":
    """Returns the places of logits, best first; of equals, the lower place first."""
    import numpy as np

    below = np.float32(0) - logits  # 0, not -0, for 0
    if below.size < _FEW:
        return below.argsort(kind="stable")
    # Whole numbers, each a logit above its place, are sorted in half the time of a stable sort.
    bits = below.view(np.int32).astype(np.int64)
    bits ^= (bits >> 63) & 0x7FFFFFFF  # the larger the bits of a negative float, the smaller it is
    ordered = bits << 32 | np.arange(bits.size)
    ordered.sort()
    return ordered & 0xFFFFFFFF
