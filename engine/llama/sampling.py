"""Draws tokens from rows of logits: plans the steps for sampling parameters, and builds chains of llama.cpp's samplers.

Greedy draws, and those from all tokens, need no chain: passing the whole vocabulary to llama.cpp costs many times as
much as a few passes over the array. The DRY sampler is made once for each setting and then copied, since searching all
tokens of a large vocabulary for a breaker takes tens of milliseconds.
"""

import ctypes
import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args, overload

from engine.llama.candidates import (
    Candidates,
    allowed_tokens,
    best,
    everything,
    first_filter,
    gathered,
    is_dense,
    only,
    unlikely_instead,
)
from engine.llama.forbidden import Forbidden
from engine.llama.lib import brief, library
from engine.llama.penalties import Penalties
from engine.llama.softmax import Softmax
from engine.llama.vocab import LlamaVocab
from engine.runtime.loop.backend import Ahead
from engine.support.errors import DecodeError, EngineError, RequestError
from engine.types.sampling import SamplerName, SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from engine.runtime.guidance.matcher import Mask

_ORDER: tuple[SamplerName, ...] = get_args(SamplerName)
_CHANGES_ORDER: tuple[SamplerName, ...] = ("penalties", "dry")  # the others never change the likeliest token
_ARRAYS_PAY = 16_000
"""The vocabulary size from which a first top-k, top-p or min-p is faster over the array of logits; measured inside
decode loops over 32,000 and 152,000 tokens."""
_LARGEST_K = 256
_ANY_SEED = 2**32 - 1  # which llama.cpp replaces by a random one

Last: TypeAlias = Literal["argmax", "greedy", "softmax", "dist"]


class Plan(NamedTuple):
    """The steps in order: penalties over the array, if `penalises`; a `first` filter over it; llama.cpp's `links`; and
    the sampler that draws, `last`.

    "argmax" and "softmax" need no chain: they have no first filter, and the only link is the temperature.
    """

    first: SamplerName | None
    links: tuple[SamplerName, ...]
    last: Last
    penalises: bool = False


def plan(params: SamplingParams, n_vocab: int) -> Plan:
    """Returns the plan for these parameters and a vocabulary of `n_vocab` tokens."""
    names: list[SamplerName] = _names(params)
    if params.temperature == 0:
        names = [name for name in names if name in _CHANGES_ORDER]
    penalises = names[:1] == ["penalties"]
    names = names[1:] if penalises else names
    if params.temperature == 0:
        return Plan(None, tuple(names), "greedy" if names else "argmax", penalises)
    if not names or (names == ["temperature"] and not _varies(params)):
        return Plan(None, tuple(names), "softmax", penalises)
    exact = not (penalises and names[0] == "top_p")  # where the sum reaches top_p, ours may round another way
    if exact and n_vocab >= _ARRAYS_PAY and _pays(names[0], params):
        return Plan(names[0], tuple(names[1:]), "dist", penalises)
    return Plan(None, tuple(names), "dist", penalises)


def _pays(first: SamplerName, params: SamplingParams) -> bool:
    """Whether this filter is faster over the array."""
    return first in ("top_p", "min_p") or (first == "top_k" and (params.top_k or 0) <= _LARGEST_K)


def _names(params: SamplingParams) -> list[SamplerName]:
    order = _ORDER if params.samplers is None else params.samplers
    return [name for name in order if _is_on(params, name)]


def _is_on(params: SamplingParams, name: SamplerName) -> bool:
    on: dict[SamplerName, bool] = {
        "penalties": params.penalises,
        "dry": bool(params.dry_multiplier),
        "top_n_sigma": params.top_n_sigma is not None,
        "top_k": bool(params.top_k),
        "typical_p": params.typical_p is not None and params.typical_p < 1,
        "top_p": params.top_p is not None and params.top_p < 1,
        "min_p": bool(params.min_p),
        "xtc": bool(params.xtc_probability),
        "temperature": params.temperature not in (None, 0, 1) or _varies(params),
    }
    return on[name]


def _varies(params: SamplingParams) -> bool:
    """Whether each token has a temperature of its own; it has none at temperature 0."""
    return bool(params.dynatemp_range) and params.temperature != 0


_KEPT = 16  # the most settings cached; more are hardly used at a time


class _Setting(NamedTuple):
    multiplier: float
    base: float
    allowed_length: int
    last_n: int
    breakers: tuple[str, ...]


class DrySamplers:
    """Makes DRY samplers for one vocabulary; owns the originals from which they are copied."""

    def __init__(self, vocab: LlamaVocab) -> None:
        self._vocab = vocab
        self._originals: dict[_Setting, Any] = {}
        self._free_dry = weakref.finalize(self, _free_dry, self._originals)
        self._free_dry.atexit = False  # see `LlamaSampler`

    def make(self, params: SamplingParams) -> Any:
        """Returns a sampler that has seen no token; the caller frees it."""
        setting = _Setting(
            params.dry_multiplier or 0.0,
            params.dry_base,
            params.dry_allowed_length,
            params.dry_last_n,
            params.dry_breakers,
        )
        original = self._originals.get(setting)
        if original is None:
            if len(self._originals) >= _KEPT:
                _free_dry(self._originals)
            original = self._originals[setting] = self._original(setting)
        return library().llama_sampler_clone(original)

    def close(self) -> None:
        """Free the originals, but not the copies."""
        self._free_dry()

    def _original(self, setting: _Setting) -> Any:
        texts = [text.encode() for text in setting.breakers]
        breakers = (ctypes.c_char_p * len(texts))(*texts)
        return library().llama_sampler_init_dry(
            self._vocab.handle,
            setting.multiplier,
            setting.base,
            setting.allowed_length,
            setting.last_n,
            ctypes.cast(breakers, ctypes.POINTER(ctypes.c_char_p)),
            len(texts),
        )


def _free_dry(originals: dict[_Setting, Any]) -> None:
    for original in originals.values():
        library().llama_sampler_free(original)
    originals.clear()


class LlamaSampler:
    """One sequence's sampler, with its own random stream; owns its C handle. Implements `backend.Sampler`.

    `tokens` precede its first draw. Penalties and DRY apply to them, as in llama.cpp's server, which accepts the whole
    prompt (tools/server/server-context.cpp, `init_sampler`); they get only as many as they look back. Raises
    RequestError for a biased token that the vocabulary does not have.
    """

    def __init__(self, params: SamplingParams, vocab: LlamaVocab, dry: DrySamplers, tokens: Sequence[int] = ()) -> None:
        self.params = params
        self.seed = secrets.randbelow(_ANY_SEED) if params.seed is None else min(params.seed, _ANY_SEED - 1)
        self._processors = params.logits_processors
        self._tokens = list(tokens) if self._processors else []
        self._seen = _Tokens(self._tokens)
        self._bias = _bias(params, vocab)
        self._forbidden = Forbidden(params, vocab) if params.min_tokens or params.bad_words else None
        self._size = vocab.size
        steps = plan(params, vocab.size)
        self._candidates = Candidates(first_filter(steps.first, params)) if steps.first is not None else None
        self._masked = self._candidates or Candidates(everything)
        self._penalties = Penalties(params) if steps.penalises else None
        self._softmax = self._chain = None
        if steps.last == "softmax":
            self._softmax = Softmax(params.temperature or 1.0 if steps.links else 1.0, self.seed)
        elif steps.last != "argmax":
            self._chain = _Links(params, vocab, dry, self.seed).chain(steps.links, steps.last)
        self._free = weakref.finalize(self, _free, self._chain)
        # At interpreter exit its context closes it, once the thread that draws with it has ended; as finalizers run
        # newest first, this one would run too early.
        self._free.atexit = False
        self._closed = False
        self._accept = brief("llama_sampler_accept")
        self._sample = brief("llama_sampler_sample")
        if params.looks_back:
            for token in tokens[-max(params.penalty_last_n, params.dry_last_n) :]:
                self._look(token)

    def accept(self, token: int) -> None:
        """Accept a token that became part of the sequence without being drawn by this sampler."""
        self._check_open()
        self._note(token)
        if self._chain is not None:
            self._accept(self._chain, token)

    def _look(self, token: int) -> None:
        """Take a token of the prompt."""
        if self._penalties is not None:
            self._penalties.accept(token)
        if self._chain is not None:
            self._accept(self._chain, token)

    def _note(self, token: int) -> None:
        if self._penalties is not None:
            self._penalties.accept(token)
        if self._processors:
            self._tokens.append(token)
        if self._forbidden is not None:
            self._forbidden.accept(token)

    def draw(
        self,
        context: int,
        row: int,
        logits: "NDArray[np.float32]",
        mask: "Mask | None" = None,
        ends: "NDArray[np.intp] | None" = None,
        opening: int | None = None,
        ahead: Ahead | None = None,
    ) -> int:
        """Draw from a row's logits and accept the token. The logits are unchanged afterwards. `mask`: only tokens whose
        bits are set may be drawn, as if the others had no probability before any filter. `ends`: of these tokens the
        allowed ones have the probability of all, so that a value ends where the model would end it, whatever the mask
        allows behind its end. `opening`: the token that is drawn where the model would write none of the allowed ones.
        `ahead`: only these may be drawn, and their logits get so much more.

        Raises DecodeError("nan") if the model's logits are not numbers, RequestError if no token may be drawn, and if
        they are no numbers only behind what the request does to them."""
        try:
            if ahead is not None:
                mask = only(ahead.tokens, (self._size + 31) // 32)
            return self._draw(context, row, logits, mask, ends, opening, ahead)
        except DecodeError as error:
            if self._bias is None and not self._processors and self._forbidden is None:
                raise
            best(logits)  # they are again as the model computed them
            raise RequestError(
                "A logits processor, logit_bias or bad_words left no token to draw: no number, or -inf for each. Leave "
                "at least one token a number."
            ) from error

    def _draw(
        self,
        context: int,
        row: int,
        logits: "NDArray[np.float32]",
        mask: "Mask | None",
        ends: "NDArray[np.intp] | None",
        opening: int | None,
        ahead: Ahead | None,
    ) -> int:
        self._check_open()
        undo: list[tuple[Any, Any]] = []
        if self._processors:
            undo.append((slice(None), logits.copy()))
        try:
            if self._bias is not None:
                tokens, amounts = self._bias
                undo.append((tokens, logits[tokens]))
                logits[tokens] += amounts
            for processor in self._processors:
                _process(processor, self._seen, logits)
            if self._forbidden is not None:
                tokens = self._forbidden.tokens(ends=mask is None)
                undo.append((tokens, logits[tokens]))
                logits[tokens] = -float("inf")
            if self._penalties is not None:
                tokens = self._penalties.tokens()
                undo.append((tokens, logits[tokens]))
                self._penalties.apply(logits, tokens)
            if ahead is not None:
                tokens = list(ahead.tokens)
                undo.append((tokens, logits[tokens]))
                logits[tokens] += ahead.more
            if mask is None:
                token = self._pick(context, row, logits)
            else:
                if ends is not None and (given := gathered(logits, mask, ends)) is not None:
                    undo.append((given.tokens, logits[given.tokens]))
                    logits[given.tokens] += given.more
                if opening is not None and unlikely_instead(logits, mask, opening):
                    mask = only([opening], mask.size)
                token = self._pick_allowed(context, row, logits, mask, undo)
        finally:
            for tokens, before in reversed(undo):
                logits[tokens] = before
        self._note(token)
        return token

    def close(self) -> None:
        self._closed = True
        self._free()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("This sampler is closed; take a new one from the backend.")

    def _pick(self, context: int, row: int, logits: "NDArray[np.float32]") -> int:
        if self._candidates is not None and self._chain is not None:
            token = self._candidates.draw(self._chain, logits)
            self._accept(self._chain, token)
            return token
        if self._softmax is not None:
            return self._softmax.draw(logits)
        likeliest = best(logits)  # always computed, as llama.cpp does not notice NaN
        return likeliest if self._chain is None else int(self._sample(self._chain, context, row))

    def _pick_allowed(
        self, context: int, row: int, logits: "NDArray[np.float32]", mask: "Mask", undo: list[tuple[Any, Any]]
    ) -> int:
        """Draw an allowed token: if few are allowed, the chain gets only these; if few are forbidden, their logits are
        -inf meanwhile."""
        likeliest = best(logits)
        greedy = self._chain is None and self._softmax is None
        if greedy and mask[likeliest >> 5] >> (likeliest & 31) & 1:
            return likeliest
        if self._candidates is not None and self._chain is not None:
            kept = self._candidates.kept_if_allowed(logits, mask)
            if kept is not None:
                token = self._candidates.draw(self._chain, logits, kept)
                self._accept(self._chain, token)
                return token
        if is_dense(mask):
            forbidden = allowed_tokens(~mask, self._size)
            undo.append((forbidden, logits[forbidden]))
            logits[forbidden] = -float("inf")
            try:
                return self._pick(context, row, logits)
            except DecodeError as error:  # they were numbers before masking
                raise _nothing_allowed() from error
        allowed = allowed_tokens(mask, self._size)
        if not allowed.size or logits[allowed].max() == -float("inf"):
            raise _nothing_allowed()
        if self._softmax is not None:
            return int(allowed[self._softmax.draw(logits[allowed])])
        if self._chain is None:
            return int(allowed[logits[allowed].argmax()])
        token = self._masked.draw(self._chain, logits, allowed)
        self._accept(self._chain, token)
        return token


def _nothing_allowed() -> RequestError:
    return RequestError(
        "A logit_bias, bad_words or a logits processor forbids every token that the constraint allows; leave one of "
        "them out."
    )


class _Tokens(Sequence[int]):
    """A read-only view of a growing list: a copy for each draw would cost more with every token."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._tokens)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return self._tokens[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._tokens)


def _process(processor: Callable[[Sequence[int], Any], None], tokens: Sequence[int], logits: Any) -> None:
    try:
        processor(tokens, logits)
    except Exception as error:
        raise RequestError(
            f"The logits processor {processor!r} failed ({error!r}); correct it, or leave it out."
        ) from error


def _free(chain: int | None) -> None:
    if chain is not None:
        library().llama_sampler_free(chain)


def _bias(params: SamplingParams, vocab: LlamaVocab) -> tuple[Any, Any] | None:
    """Returns token ids and the amounts to add to their logits, as arrays; a token given twice gets the sum."""
    if not params.logit_bias:
        return None
    import numpy as np

    sums: dict[int, float] = {}
    for token, amount in params.logit_bias:
        if not 0 <= token < vocab.size:
            raise RequestError(f"logit_bias names token {token}; this model has the tokens 0 to {vocab.size - 1}.")
        sums[token] = sums.get(token, 0.0) + amount
    return np.array(list(sums), dtype=np.int64), np.array(list(sums.values()), dtype=np.float32)


class _Links:
    """Builds chains of llama.cpp's samplers: one for each name of a plan, and one that draws."""

    def __init__(self, params: SamplingParams, vocab: LlamaVocab, dry: DrySamplers, seed: int) -> None:
        self._params = params
        self._vocab = vocab
        self._dry = dry
        self._seed = seed
        self._lib = library()

    def chain(self, names: Sequence[SamplerName], last: Last) -> int:
        """Returns a chain, which owns its samplers."""
        params, lib = self._params, self._lib
        make: dict[SamplerName, Callable[[], Any]] = {
            "penalties": self._penalties,
            "dry": lambda: self._dry.make(params),
            "top_n_sigma": lambda: lib.llama_sampler_init_top_n_sigma(params.top_n_sigma),
            "top_k": lambda: lib.llama_sampler_init_top_k(params.top_k),
            "typical_p": lambda: lib.llama_sampler_init_typical(params.typical_p, 1),
            "top_p": lambda: lib.llama_sampler_init_top_p(params.top_p, 1),
            "min_p": lambda: lib.llama_sampler_init_min_p(params.min_p, 1),
            "xtc": lambda: lib.llama_sampler_init_xtc(params.xtc_probability, params.xtc_threshold, 1, self._seed),
            "temperature": self._temperature,
        }
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for link in (*(make[name]() for name in names), self._last(last)):
            lib.llama_sampler_chain_add(chain, link)
        return chain

    def _temperature(self) -> Any:
        params = self._params
        temperature = 1.0 if params.temperature is None else params.temperature
        if not _varies(params):
            return self._lib.llama_sampler_init_temp(temperature)
        return self._lib.llama_sampler_init_temp_ext(temperature, params.dynatemp_range, params.dynatemp_exponent)

    def _last(self, last: Last) -> Any:
        if last == "greedy":
            return self._lib.llama_sampler_init_greedy()
        return self._lib.llama_sampler_init_dist(self._seed)

    def _penalties(self) -> Any:
        params = self._params
        repeat = 1.0 if params.repeat_penalty is None else params.repeat_penalty
        frequency, presence = params.frequency_penalty or 0.0, params.presence_penalty or 0.0
        return self._lib.llama_sampler_init_penalties(
            self._vocab.size, params.penalty_last_n, repeat, frequency, presence
        )
