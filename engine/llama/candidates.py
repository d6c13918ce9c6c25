"""Finds the few tokens that a first top-k, top-p or min-p keeps in a few passes over the array of logits, and passes
only these to llama.cpp's samplers, which first make a record of every token."""

import ctypes
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from engine.llama.lib import brief, library
from engine.runtime.loop.ranking import best_first, most_likely
from engine.support.errors import DecodeError
from engine.types.sampling import SamplerName, SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from engine.runtime.guidance.matcher import Mask

_DEPTHS = (5.0, 9.0, 13.0, 18.0)  # how far below the largest logit tokens are searched for, attempt by attempt
_MANY = 1024
"""Of more tokens, those beyond the nucleus are left out before the rest is sorted: that takes most of the time."""
_UNLIKELY = 6.0
"""In nats below the likeliest token: what the model would not write."""
_STEP, _STEPS = 1 / 16, 512  # logits are told apart in so many steps of this size below the largest


class Kept(NamedTuple):
    """The ids of the kept tokens, and whether they are sorted, best first."""

    tokens: "NDArray[np.intp]"
    ranked: bool


class Filter(Protocol):
    """A filter. Raises DecodeError("nan") if a logit is not a number, or all are -inf."""

    def __call__(self, logits: "NDArray[np.float32]") -> Kept: ...


def best(logits: "NDArray[np.float32]") -> int:
    """Returns the most likely token, the first of equals. Raises DecodeError("nan") like a filter."""
    token = int(logits.argmax())
    check_number(float(logits[token]))  # NaN if any number of the row is
    return token


def check_number(largest: float) -> None:
    """Raise DecodeError("nan") if a row's maximum is not finite: some logit is not a number, or all are -inf."""
    if not math.isfinite(largest):
        raise no_numbers()


def no_numbers() -> DecodeError:
    return DecodeError(
        "The model computed logits that are not numbers. Give adapters and control vectors smaller scales, if there "
        'are any; otherwise the file may be damaged, or it needs a wider KV cache (type_k="f32", type_v="f32") or '
        'flash_attn="off".',
        "nan",
    )


def first_filter(name: SamplerName, params: SamplingParams) -> Filter:
    """Returns the filter of this name with these parameters: top-k, min-p or top-p."""
    if name == "top_k":
        return TopK(params.top_k or 0)
    if name == "min_p":
        return MinP(params.min_p or 1.0)
    assert name == "top_p", f"{name} is left to llama.cpp"
    return TopP(1.0 if params.top_p is None else params.top_p)


def everything(logits: "NDArray[np.float32]") -> Kept:
    """The filter that keeps all tokens."""
    import numpy as np

    best(logits)
    return Kept(np.arange(logits.size), False)


def allowed_tokens(mask: "Mask", n_vocab: int) -> "NDArray[np.intp]":
    """Returns the tokens whose bits are set, ascending, in time linear in their number rather than the vocabulary's."""
    import numpy as np

    words = np.flatnonzero(mask)
    bits = np.unpackbits(mask[words].view(np.uint8), bitorder="little").reshape(-1, 32)
    rows, columns = bits.nonzero()
    tokens = words[rows] * 32 + columns
    return tokens[: np.searchsorted(tokens, n_vocab)]


class Gathered(NamedTuple):
    """What the allowed ones of some tokens get of the others: so much is added to the logits of these."""

    tokens: "NDArray[np.intp]"
    more: "np.float32"


def gathered(logits: "NDArray[np.float32]", mask: "Mask", tokens: "NDArray[np.intp]") -> Gathered | None:
    """Returns what gives the allowed ones of these tokens the probability of all; None if all or none are allowed."""
    import numpy as np

    bits = (mask[tokens >> 5] >> (tokens & 31)) & 1
    allowed = tokens[bits.nonzero()]
    if not 0 < allowed.size < tokens.size:
        return None
    every, some = logits[tokens], logits[allowed]
    top, best = every.max(), some.max()
    if not np.isfinite(top) or not np.isfinite(best):
        return None
    more = top - best + np.log(np.exp(every - top).sum()) - np.log(np.exp(some - best).sum())
    return Gathered(allowed, more)


def unlikely_instead(logits: "NDArray[np.float32]", mask: "Mask", token: int) -> bool:
    """Whether this token may be drawn, and the model would write none of those that may: which of these is the
    likeliest then says little, and is often the end of some other text."""
    if not mask[token >> 5] >> (token & 31) & 1 or logits[token] == -float("inf") or is_dense(mask):
        return False
    return bool(logits[allowed_tokens(mask, logits.size)].max() < logits.max() - _UNLIKELY)


def only(tokens: Sequence[int], words: int) -> "Mask":
    """Returns the mask of so many words that allows these tokens alone."""
    import numpy as np

    mask = np.zeros(words, dtype=np.uint32)
    for token in tokens:
        mask[token >> 5] |= np.uint32(1 << (token & 31))
    return mask.view(np.int32)


def all_allowed(mask: "Mask", tokens: "NDArray[np.intp]") -> bool:
    """Whether the bits of all these tokens are set."""
    return bool(((mask[tokens >> 5] >> (tokens & 31)) & 1).all())


def is_dense(mask: "Mask") -> bool:
    """Whether most bits are set, estimated from a few words."""
    import numpy as np

    some = mask[:: max(1, mask.size // 64)].copy()
    return int(np.unpackbits(some.view(np.uint8)).sum()) > 16 * some.size


class TopK:
    """Keeps the `count` most likely tokens; of equals, the lower id first."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __call__(self, logits: "NDArray[np.float32]") -> Kept:
        largest, tokens = most_likely(logits, self._count)
        check_number(largest)
        return Kept(tokens, True)


class MinP:
    """Keeps the tokens that are at least `share` times as likely as the likeliest, in the order of their ids."""

    def __init__(self, share: float) -> None:
        import numpy as np

        self._below = np.float32(math.log(share))

    def __call__(self, logits: "NDArray[np.float32]") -> Kept:
        return Kept((logits >= logits[best(logits)] + self._below).nonzero()[0], False)


class TopP:
    """Keeps the most likely tokens whose total probability first reaches `mass`; of equals, the lower id first."""

    def __init__(self, mass: float) -> None:
        self._mass = mass

    def __call__(self, logits: "NDArray[np.float32]") -> Kept:
        import numpy as np

        largest = logits[best(logits)]
        weights = logits - largest
        np.exp(weights, out=weights)
        wanted = self._mass * float(weights.sum())
        for depth in _DEPTHS:
            kept = np.flatnonzero(logits >= largest - np.float32(depth))
            if float(weights[kept].sum()) >= wanted:
                break
        else:
            kept = np.flatnonzero(logits > -np.inf)
        if kept.size > _MANY:
            kept = kept[_reaching(largest - logits[kept], weights[kept], wanted)]
        kept = kept[best_first(logits[kept])]
        reached = np.cumsum(weights[kept], dtype=np.float64)
        return Kept(kept[: int(np.searchsorted(reached, wanted)) + 1], True)


def _reaching(below: "NDArray[np.float32]", weights: "NDArray[np.float32]", wanted: float) -> "NDArray[np.bool_]":
    """Returns where the most likely tokens are whose weights reach `wanted`, and few more. `below`: how far each logit
    is below the largest."""
    import numpy as np

    steps = np.minimum(below * np.float32(1 / _STEP), _STEPS).astype(np.intp)
    reached = np.bincount(steps, weights).cumsum()
    return steps <= int(reached.searchsorted(wanted)) + 1  # one step more, for rounding


class Candidates:
    """Draws from the tokens that a filter keeps, with a chain of the remaining samplers."""

    def __init__(self, first: Filter) -> None:
        self._first = first
        self._apply = brief("llama_sampler_apply")
        self._array: Any = library().llama_token_data_array()
        self._pointer = ctypes.byref(self._array)
        self._room = 0
        self._make_room(512)

    def kept_if_allowed(self, logits: "NDArray[np.float32]", mask: "Mask") -> "NDArray[np.intp] | None":
        """Returns what the filter keeps if that is also what it keeps of the allowed tokens: for a top-k and a min-p,
        if all are allowed."""
        if isinstance(self._first, TopP):
            return None
        kept = self._first(logits).tokens
        return kept if all_allowed(mask, kept) else None

    def draw(self, chain: int, logits: "NDArray[np.float32]", tokens: "NDArray[np.intp] | None" = None) -> int:
        """Returns the token that the chain selects from these (None: all), without accepting it. Raises
        DecodeError("nan") if the logits are not numbers."""
        kept, ranked = self._first(logits if tokens is None else logits[tokens])
        if tokens is not None:
            kept = tokens[kept]
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
