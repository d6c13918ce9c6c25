"""Log-probabilities of tokens, computed from one row of logits, and the record of them that callers get."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from engine.runtime.loop.ranking import best_first, most_likely
from engine.types.sampling import TokenLogprob

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Logprob(NamedTuple):
    """A token, the natural logarithm of its probability, and its bytes."""

    token: int
    logprob: float
    data: bytes


class TokenLogprobs(NamedTuple):
    """The token that was drawn, and the most likely tokens, best first (the drawn one may be among them)."""

    drawn: Logprob
    top: tuple[Logprob, ...]


def token_logprobs(
    logits: "NDArray[np.float32]", token: int, top: int | tuple[int, ...], token_bytes: Callable[[int], bytes]
) -> TokenLogprobs:
    """Returns the log-probabilities of `token` and of the `top` most likely tokens (of all, if there are fewer), or of
    the tokens that `top` names.

    `logits` has the vocabulary's size and is not changed. The logprob of a masked token is minus infinity.
    """
    import numpy as np

    if isinstance(top, tuple):
        largest, beside = float(logits.max()), top
    else:
        largest, ranked = most_likely(logits, max(top, 1))
        if ranked.size < min(top, logits.size):  # most are -inf
            ranked = best_first(logits)
        beside = tuple(ranked[:top].tolist())
    weights = logits - np.float32(largest)
    # numpy adds float32 numbers in pairs of pairs: the sum of 152,000 is exact to one in a million.
    normaliser = largest + float(np.log(np.exp(weights, out=weights).sum()))

    def found(index: int) -> Logprob:
        return Logprob(index, float(logits[index]) - normaliser, token_bytes(index))

    return TokenLogprobs(found(token), tuple(map(found, beside)))


def likeliest(logits: "NDArray[np.float32]") -> tuple[int, float]:
    """Returns the most likely token, and its probability; 0 if the logits are not numbers."""
    import numpy as np

    token = int(logits.argmax())
    total = float(np.exp(logits - logits[token], dtype=np.float32).sum(dtype=np.float64))
    return token, 1 / total if total >= 1 else 0.0


def described(entry: TokenLogprobs) -> TokenLogprob:
    """Returns the record that callers get."""
    return _described(entry.drawn, tuple(map(_described, entry.top)))


def _described(found: Logprob, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    token, logprob, data = found
    text = data.decode("utf-8", "replace")
    return TokenLogprob(token=token, text=text, bytes=tuple(data), logprob=logprob, top=top)
