"""Drawing a token from a row of logits: sampling parameters as a chain of llama.cpp's samplers.

Knows: the order of the chain and its options, biases, penalties and processors, seeds, who frees what. Does not know:
contexts, batches, sequences. A greedy sampler needs no chain: an argmax costs a fraction of handing llama.cpp the whole
vocabulary.
"""

import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from engine.errors import EngineError, RequestError
from engine.runtime.categorical import Categorical
from engine.runtime.filters import best, first_filter, no_numbers
from engine.runtime.llama_dry import DrySamplers
from engine.runtime.llama_lib import brief, library
from engine.runtime.llama_shortlist import Shortlist
from engine.runtime.llama_vocab import LlamaVocab
from engine.runtime.penalties import Penalties
from engine.runtime.sampling_plan import Last, device_links, plan
from engine.types import SamplerName, SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class LlamaSampler:
    """One sequence's sampler, with its own random stream; owns its C handle. Implements `backend.Sampler`.

    `tokens` are those before its first draw. Penalties and DRY look at them, as in llama.cpp's server, which accepts
    the whole prompt (tools/server/server-context.cpp, `init_sampler`); only as many as they can see are told to them.
    Raises RequestError for a biased token that the vocabulary does not have.
    """

    def __init__(self, params: SamplingParams, vocab: LlamaVocab, dry: DrySamplers, tokens: Sequence[int] = ()) -> None:
        self.params = params
        self.seed = secrets.randbits(32) if params.seed is None else params.seed
        self._processors = params.logits_processors
        self._tokens = list(tokens) if self._processors else []
        self._seen = _Tokens(self._tokens)
        self._bias = _bias(params, vocab)
        self._size = vocab.size
        steps = plan(params, vocab.size)
        self._penalties = Penalties(params) if steps.penalties else None
        self._shortlist = Shortlist(first_filter(steps.first, params)) if steps.first is not None else None
        self._categorical = Categorical(steps.temperature, self.seed) if steps.last == "categorical" else None
        chained = steps.last not in ("argmax", "categorical")
        self._links = _Links(params, vocab, dry, self.seed)
        self._chain = self._links.chain(steps.links, steps.last) if chained else None
        self._lent: list[Any] = []  # the chain that draws on the device, once there was one
        self._on_device = False
        self._free = weakref.finalize(self, _free, self._chain, self._lent)
        self._closed = False
        self._accept = brief("llama_sampler_accept")
        self._sample = brief("llama_sampler_sample")
        if params.looks_back:
            for token in tokens[-max(params.penalty_last_n, params.dry_last_n) :]:
                self._look_back(token)

    def accept(self, token: int) -> None:
        """Tell it a token that became part of the sequence without being drawn here."""
        self._check_open()
        self._remember(token)
        if self._chain is not None:
            self._accept(self._chain, token)

    def _look_back(self, token: int) -> None:
        if self._penalties is not None:
            self._penalties.accept(token)
        if self._chain is not None:
            self._accept(self._chain, token)

    def draw(self, context: int, row: int, logits: "NDArray[np.float32]") -> int:
        """Draw from a row's logits (of the context whose row this is) and accept the token. The logits are left as they
        were. Raises DecodeError("nan") when they are not numbers."""
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
            if self._penalties is not None:
                tokens, changed = self._penalties.change(logits)
                undo.append((tokens, logits[tokens]))
                logits[tokens] = changed
            token = self._pick(context, row, logits)
        finally:
            for tokens, before in reversed(undo):
                logits[tokens] = before
        self._remember(token)
        return token

    def lend(self) -> Any:
        """A chain for `llama_set_sampler`, that goes on from what was drawn so far; None where these parameters cannot
        be followed on a device. It stays this sampler's: take it back from the context before `close`."""
        self._check_open()
        wanted = device_links(self.params)
        if wanted is None:
            return None
        lib = library()
        if self._lent:  # a chain serves one context at one time
            self._lent.append(lib.llama_sampler_clone(self._lent[0]))
            lib.llama_sampler_free(self._lent.pop(0))
        else:
            self._lent.append(self._links.chain(*wanted))
        return self._lent[0]

    @property
    def on_device(self) -> bool:
        """Whether the context draws: there may be no logits then."""
        return self._on_device

    @on_device.setter
    def on_device(self, value: bool) -> None:
        self._on_device = value

    def fetch(self, context: int, row: int) -> int:
        """The token that the context drew for this row, accepted. Raises DecodeError("nan") when that is none."""
        self._check_open()
        token = int(self._sample(self._lent[0], context, row))
        if not 0 <= token < self._size:  # nobody looked at the row
            raise no_numbers()
        return token

    def close(self) -> None:
        self._closed = True
        self._free()

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("This sampler is closed; take a new one from the backend.")

    def _remember(self, token: int) -> None:
        if self._processors:
            self._tokens.append(token)
        if self._penalties is not None:
            self._penalties.accept(token)

    def _pick(self, context: int, row: int, logits: "NDArray[np.float32]") -> int:
        if self._shortlist is not None and self._chain is not None:
            token = self._shortlist.draw(self._chain, logits)
            self._accept(self._chain, token)
            return token
        likeliest = best(logits)
        if self._categorical is not None:
            return self._categorical.draw(logits, float(logits[likeliest]))
        return likeliest if self._chain is None else int(self._sample(self._chain, context, row))


class _Tokens(Sequence[int]):
    """A list that grows elsewhere, to read only: a copy for each draw would cost more with every token."""

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


def _free(chain: int | None, lent: list[Any]) -> None:
    for owned in (chain, *lent):
        if owned is not None:
            library().llama_sampler_free(owned)


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


class _Links:
    """Makes llama.cpp's samplers, one for each name of a plan, and one that draws."""

    def __init__(self, params: SamplingParams, vocab: LlamaVocab, dry: DrySamplers, seed: int) -> None:
        self._params = params
        self._vocab = vocab
        self._dry = dry
        self._seed = seed
        self._lib = library()

    def chain(self, names: Sequence[SamplerName], last: Last) -> int:
        """The chain, which owns its links."""
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
            "temperature": lambda: lib.llama_sampler_init_temp(params.temperature),
        }
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for link in (*(make[name]() for name in names), self._last(last)):
            lib.llama_sampler_chain_add(chain, link)
        return chain

    def _last(self, last: Last) -> Any:
        params, lib = self._params, self._lib
        if last == "greedy":
            return lib.llama_sampler_init_greedy()
        if last == "dist":
            return lib.llama_sampler_init_dist(self._seed)
        tau, eta = params.mirostat_tau, params.mirostat_eta
        if params.mirostat == 1:
            # 100 is the number of tokens that the paper's estimate of the exponent looks at.
            return lib.llama_sampler_init_mirostat(self._vocab.size, self._seed, tau, eta, 100)
        return lib.llama_sampler_init_mirostat_v2(self._seed, tau, eta)

    def _penalties(self) -> Any:
        params = self._params
        repeat = 1.0 if params.repeat_penalty is None else params.repeat_penalty
        frequency, presence = params.frequency_penalty or 0.0, params.presence_penalty or 0.0
        return self._lib.llama_sampler_init_penalties(
            self._vocab.size, params.penalty_last_n, repeat, frequency, presence
        )
