"""Drawing a token from a row of logits: sampling parameters as a chain of llama.cpp's samplers.

Knows: the order of the chain, seeds, who frees what. Does not know: contexts, batches, sequences. A greedy sampler
has no chain: an argmax over the logits costs a fraction of building a candidate list.
"""

import secrets
import weakref
from typing import Any

from engine.errors import EngineError
from engine.runtime.llama_lib import library
from engine.types import SamplingParams


class LlamaSampler:
    """One sequence's sampler; owns its C handle. Implements `engine.runtime.backend.Sampler`."""

    __slots__ = ("__weakref__", "_accept", "_chain", "_free", "seed")

    def __init__(self, params: SamplingParams) -> None:
        temperature = 1.0 if params.temperature is None else params.temperature
        self.seed = secrets.randbits(32) if params.seed is None else params.seed
        self._chain: int | None = None if temperature == 0 else _chain(params, temperature, self.seed)
        self._accept = library().llama_sampler_accept
        self._free = weakref.finalize(self, _free, self._chain)

    @property
    def is_greedy(self) -> bool:
        return self._chain is None

    @property
    def chain(self) -> int:
        """The llama_sampler pointer. Raises EngineError when closed or greedy."""
        if self._chain is None or not self._free.alive:
            raise EngineError("This sampler is closed; take a new one from the backend.")
        return self._chain

    def accept(self, token: int) -> None:
        """Tell it a token that became part of the sequence without being drawn here."""
        if self._chain is not None:
            self._accept(self.chain, token)

    def close(self) -> None:
        self._free()


def _free(chain: int | None) -> None:
    if chain is not None:
        library().llama_sampler_free(chain)


def _chain(params: SamplingParams, temperature: float, seed: int) -> int:
    lib = library()
    parameters = lib.llama_sampler_chain_default_params()
    chain: Any = lib.llama_sampler_chain_init(parameters)
    if params.top_k:
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_k(params.top_k))
    if params.top_p is not None and params.top_p < 1:
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_top_p(params.top_p, 1))
    if params.min_p:
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_min_p(params.min_p, 1))
    if temperature != 1:
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_temp(temperature))
    lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_dist(seed))
    return chain
