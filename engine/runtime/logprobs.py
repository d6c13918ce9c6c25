"""Log-probabilities of tokens, from one row of logits.

Knows: the softmax over the whole vocabulary, before any filter, bias or temperature. Does not know: where the row
came from.
"""

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Logprob(NamedTuple):
    """A token and the natural logarithm of its probability."""

    token: int
    logprob: float


class TokenLogprobs(NamedTuple):
    """The token that was drawn, and the most likely ones, best first (the drawn one may be among them)."""

    drawn: Logprob
    top: tuple[Logprob, ...]


def token_logprobs(logits: "NDArray[np.float32]", token: int, top: int) -> TokenLogprobs:
    """`logits` has the vocabulary's size and is not changed; masked tokens (minus infinity) have that for a logprob."""
    import numpy as np

    largest = float(logits.max())
    normaliser = largest + float(np.log(np.exp(logits - largest, dtype=np.float32).sum(dtype=np.float64)))
    best = np.argpartition(logits, -top)[-top:] if top else np.empty(0, dtype=np.int64)
    ranked = sorted(best.tolist(), key=lambda index: (-float(logits[index]), index))
    return TokenLogprobs(
        Logprob(token, float(logits[token]) - normaliser),
        tuple(Logprob(index, float(logits[index]) - normaliser) for index in ranked),
    )
