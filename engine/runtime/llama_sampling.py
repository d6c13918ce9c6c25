"""Drawing a token from a row of logits: sampling parameters as a chain of llama.cpp's samplers.

Knows: the chain's order and its options, biases and processors, seeds, who frees what. Does not know: contexts,
batches, sequences. A greedy sampler needs no chain, and a chain that begins with top-k needs only the tokens that can
be among the k: both cost a fraction of handing llama.cpp the whole vocabulary.
"""

import ctypes
import math
import secrets
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, get_args

from engine.errors import DecodeError, EngineError, RequestError
from engine.runtime.llama_lib import brief, library
from engine.runtime.llama_vocab import LlamaVocab
from engine.types import SamplerName, SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ORDER: tuple[SamplerName, ...] = get_args(SamplerName)
_ROOM = 1024  # candidates that the shortcut has room for
_GROUPS = 64  # the vocabulary is read as so many rows, whose columnwise maxima bound the k-th largest logit


class LlamaSampler:
    """One sequence's sampler, with its own random stream; owns its C handle. Implements `backend.Sampler`.

    Raises RequestError for a biased token that the vocabulary does not have.
    """

    def __init__(self, params: SamplingParams, vocab: LlamaVocab) -> None:
        self.params = params
        self.seed = secrets.randbits(32) if params.seed is None else params.seed
        self._processors = params.logits_processors
        self._tokens: list[int] = []
        self._bias = _bias(params, vocab)
        chain = _Chain(params, vocab, self.seed)
        self._chain = chain.handle
        self._free = weakref.finalize(self, _free, chain.handle)
        self._accept = brief("llama_sampler_accept")
        self._sample = brief("llama_sampler_sample")
        self._shortcut = _Shortcut(chain.leading_top_k) if _Shortcut.pays(chain.leading_top_k, vocab.size) else None

    @property
    def has_shortcut(self) -> bool:
        """Whether it looks at few candidates only; what it draws is the same."""
        return self._shortcut is not None

    def accept(self, token: int) -> None:
        """Tell it a token that became part of the sequence without being drawn here."""
        self._check_open()
        if self._processors:
            self._tokens.append(token)
        if self._chain is not None:
            self._accept(self._chain, token)

    def draw(self, context: int, row: int, logits: "NDArray[np.float32]") -> int:
        """Draw from a row's logits (of the context whose row this is) and accept the token. The logits are left as they
        were, unless a processor changed them. Raises DecodeError("nan") when they are not numbers."""
        self._check_open()
        for processor in self._processors:
            _process(processor, self._tokens, logits)
        if self._bias is None:
            return self._drawn(self._pick(context, row, logits))
        tokens, amounts = self._bias
        before = logits[tokens]
        logits[tokens] += amounts
        try:
            return self._drawn(self._pick(context, row, logits))
        finally:
            logits[tokens] = before

    def close(self) -> None:
        self._free()

    def _check_open(self) -> None:
        if not self._free.alive:
            raise EngineError("This sampler is closed; take a new one from the backend.")

    def _drawn(self, token: int) -> int:
        if self._processors:
            self._tokens.append(token)
        return token

    def _pick(self, context: int, row: int, logits: "NDArray[np.float32]") -> int:
        if self._shortcut is not None and self._chain is not None:
            token = self._shortcut.pick(self._chain, logits)
            if token >= 0:
                self._accept(self._chain, token)
                return token
        best = int(logits.argmax())
        _check_number(float(logits[best]))
        return best if self._chain is None else int(self._sample(self._chain, context, row))


def _check_number(largest: float) -> None:
    # A maximum is NaN when any number is, so this one tells for the whole row.
    if not math.isfinite(largest):
        raise DecodeError(
            "The model computed logits that are not numbers; its file may be damaged, or it needs a wider KV cache "
            '(type_k="f32", type_v="f32") or flash_attn="off".',
            "nan",
        )


def _process(processor: Callable[[Sequence[int], Any], None], tokens: list[int], logits: Any) -> None:
    try:
        processor(tuple(tokens), logits)
    except Exception as error:
        raise RequestError(
            f"The logits processor {processor!r} failed ({error!r}); correct it, or leave it out."
        ) from error


def _free(chain: int | None) -> None:
    if chain is not None:
        library().llama_sampler_free(chain)


def _bias(params: SamplingParams, vocab: LlamaVocab) -> tuple[Any, Any] | None:
    """Token numbers and what is added to their logits, as arrays; a token given twice gets both."""
    if not params.logit_bias:
        return None
    import numpy as np

    sums: dict[int, float] = {}
    for token, amount in params.logit_bias:
        if not 0 <= token < vocab.size:
            raise RequestError(f"logit_bias names token {token}; this model has the tokens 0 to {vocab.size - 1}.")
        sums[token] = sums.get(token, 0.0) + amount
    return np.array(list(sums), dtype=np.int64), np.array(list(sums.values()), dtype=np.float32)


class _Chain:
    """Builds the chain. `handle` is None where an argmax does. `leading_top_k` is the k when top-k comes first, else
    0."""

    def __init__(self, params: SamplingParams, vocab: LlamaVocab, seed: int) -> None:
        self._params = params
        self._vocab = vocab
        self._seed = seed
        self._lib = library()
        temperature = 1.0 if params.temperature is None else params.temperature
        build: dict[str, Callable[[], Any]] = {
            "penalties": self._penalties,
            "dry": self._dry,
            "top_n_sigma": self._top_n_sigma,
            "top_k": self._top_k,
            "typical_p": self._typical_p,
            "top_p": self._top_p,
            "min_p": self._min_p,
            "xtc": self._xtc,
            "temperature": self._temperature,
        }
        # Greedily drawn, filters keep the best token; only what changes the order of the logits matters.
        names = [name for name in self._names() if temperature != 0 or name in ("penalties", "dry")]
        links = [(name, link) for name in names if (link := build[name]()) is not None]
        if temperature == 0:
            last: Any = self._lib.llama_sampler_init_greedy() if links else None
        else:
            last = self._mirostat() if params.mirostat else self._lib.llama_sampler_init_dist(seed)
        self.leading_top_k = params.top_k or 0 if links and links[0][0] == "top_k" else 0
        self.handle = self._assemble([link for _, link in links], last) if last is not None else None

    def _names(self) -> tuple[str, ...]:
        if self._params.mirostat:
            return ("penalties", "dry", "temperature")
        return self._params.samplers if self._params.samplers is not None else _ORDER

    def _assemble(self, links: Sequence[Any], last: Any) -> int:
        chain = self._lib.llama_sampler_chain_init(self._lib.llama_sampler_chain_default_params())
        for link in (*links, last):
            self._lib.llama_sampler_chain_add(chain, link)
        return chain

    def _mirostat(self) -> Any:
        params, lib = self._params, self._lib
        if params.mirostat == 1:
            # 100 is the number of tokens that the paper's estimate of the exponent looks at.
            return lib.llama_sampler_init_mirostat(
                self._vocab.size, self._seed, params.mirostat_tau, params.mirostat_eta, 100
            )
        return lib.llama_sampler_init_mirostat_v2(self._seed, params.mirostat_tau, params.mirostat_eta)

    # Each gives its sampler, or None where it is off.

    def _penalties(self) -> Any:
        params = self._params
        repeat = 1.0 if params.repeat_penalty is None else params.repeat_penalty
        frequency, presence = params.frequency_penalty or 0.0, params.presence_penalty or 0.0
        if repeat == 1 and not frequency and not presence:
            return None
        return self._lib.llama_sampler_init_penalties(
            self._vocab.size, params.penalty_last_n, repeat, frequency, presence
        )

    def _dry(self) -> Any:
        params = self._params
        if not params.dry_multiplier:
            return None
        texts = [text.encode() for text in params.dry_breakers]
        breakers = (ctypes.c_char_p * len(texts))(*texts)
        return self._lib.llama_sampler_init_dry(
            self._vocab.handle,
            params.dry_multiplier,
            params.dry_base,
            params.dry_allowed_length,
            params.dry_last_n,
            ctypes.cast(breakers, ctypes.POINTER(ctypes.c_char_p)),
            len(texts),
        )

    def _top_n_sigma(self) -> Any:
        n = self._params.top_n_sigma
        return None if n is None else self._lib.llama_sampler_init_top_n_sigma(n)

    def _top_k(self) -> Any:
        return self._lib.llama_sampler_init_top_k(self._params.top_k) if self._params.top_k else None

    def _typical_p(self) -> Any:
        p = self._params.typical_p
        return None if p is None or p == 1 else self._lib.llama_sampler_init_typical(p, 1)

    def _top_p(self) -> Any:
        p = self._params.top_p
        return None if p is None or p == 1 else self._lib.llama_sampler_init_top_p(p, 1)

    def _min_p(self) -> Any:
        return self._lib.llama_sampler_init_min_p(self._params.min_p, 1) if self._params.min_p else None

    def _xtc(self) -> Any:
        params = self._params
        if not params.xtc_probability:
            return None
        return self._lib.llama_sampler_init_xtc(params.xtc_probability, params.xtc_threshold, 1, self._seed)

    def _temperature(self) -> Any:
        t = self._params.temperature
        return None if t is None or t == 1 else self._lib.llama_sampler_init_temp(t)


class _Shortcut:
    """Runs a chain that begins with top-k on the few tokens that can be among the k.

    The vocabulary is read as groups; the k-th largest of the groups' maxima is at most the k-th largest logit, so what
    lies below it can be left out, and the chain draws exactly what it would have drawn.
    """

    @staticmethod
    def pays(top_k: int, n_vocab: int) -> bool:
        """Whether there is such a top-k, small beside the room and the number of groups' maxima."""
        return 0 < 2 * top_k <= min(_ROOM, n_vocab // _GROUPS)

    def __init__(self, top_k: int) -> None:
        import numpy as np

        lib = library()
        self._np = np
        self._top_k = top_k
        self._buffer: Any = (lib.llama_token_data * _ROOM)()
        pointer: Any = ctypes.POINTER(lib.llama_token_data)
        self._start: Any = ctypes.cast(self._buffer, pointer)
        layout = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        candidates: Any = np.frombuffer(self._buffer, dtype=layout)
        self._ids, self._logits = candidates["id"], candidates["logit"]
        self._array: Any = lib.llama_token_data_array()
        self._pointer = ctypes.byref(self._array)
        self._apply = brief("llama_sampler_apply")

    def pick(self, chain: int, logits: "NDArray[np.float32]") -> int:
        """The token drawn; -1 when ties leave too many candidates."""
        np, k = self._np, self._top_k
        width = logits.size // _GROUPS
        maxima = logits[: width * _GROUPS].reshape(_GROUPS, width).max(axis=0)
        rest = logits[width * _GROUPS :]
        _check_number(float(np.maximum(maxima.max(), rest.max(initial=-np.inf))))
        bound = np.partition(maxima, width - k)[width - k]
        # Under a mask that leaves few tokens the bound may be minus infinity; what is masked need not be looked at.
        chosen = np.flatnonzero(logits >= bound if bound > -np.inf else logits > bound)
        count = chosen.size
        if count > _ROOM:
            return -1
        self._ids[:count] = chosen
        self._logits[:count] = logits[chosen]
        array = self._array
        array.data, array.size, array.selected, array.sorted = self._start, count, -1, False
        self._apply(chain, self._pointer)
        chosen_at: Any = array.data[array.selected]  # the chain may have put other data there
        return int(chosen_at.id)
