"""Which steps draw a token, decided from the parameters before anything is built.

Knows: which filters are on and in what order, and which work is faster over the array of logits than in llama.cpp's
chain. Does not know: how any step is done.
"""

from typing import Literal, NamedTuple, TypeAlias, get_args

from engine.types import SamplerName, SamplingParams

_ORDER: tuple[SamplerName, ...] = get_args(SamplerName)
_CHANGES_ORDER: tuple[SamplerName, ...] = ("penalties", "dry")  # the others keep the most likely token
_MIROSTAT: tuple[SamplerName, ...] = ("penalties", "dry", "temperature")
# Tokens of a vocabulary from which on arrays are faster, measured inside decode loops over 32,000 and 152,000 tokens.
_DRAWS_PAY = 16_000
_PENALTIES_PAY = 64_000
# As far as was measured: top-k and min-p over 152,000 tokens, top-k of 20, 40 and 200.
_TOP_K_PAYS = _MIN_P_PAYS = 64_000
_LARGEST_K = 256

_ON_DEVICE: frozenset[SamplerName] = frozenset({"top_k", "top_p", "min_p", "temperature"})

Last: TypeAlias = Literal["argmax", "categorical", "greedy", "dist", "mirostat"]


class Plan(NamedTuple):
    """The steps in order: penalties, a `first` filter, llama.cpp's `links`, and what draws at the end.

    `last`: "argmax" and "categorical" (at `temperature`) need no chain, and have no links and no filter before them.
    """

    penalties: bool
    first: SamplerName | None
    links: tuple[SamplerName, ...]
    last: Last
    temperature: float


class Links(NamedTuple):
    """A whole chain of llama.cpp's."""

    links: tuple[SamplerName, ...]
    last: Last


def device_links(params: SamplingParams) -> Links | None:
    """The chain that draws where the model computes; None where these parameters need the logits themselves, or
    samplers that llama.cpp has for the processor only."""
    if params.logits_processors or params.logit_bias or params.logprobs is not None or params.mirostat:
        return None
    names = _names(params)
    if params.temperature == 0:
        return None if set(names) & set(_CHANGES_ORDER) else Links((), "greedy")
    return Links(tuple(names), "dist") if _ON_DEVICE.issuperset(names) else None


def plan(params: SamplingParams, n_vocab: int) -> Plan:
    """The plan for these parameters over a vocabulary of so many tokens."""
    temperature = 1.0 if params.temperature is None else params.temperature
    names: list[SamplerName] = _names(params)
    if temperature == 0:
        names = [name for name in names if name in _CHANGES_ORDER]
    penalties = names[:1] == ["penalties"] and n_vocab >= _PENALTIES_PAY
    names = names[penalties:]
    if temperature == 0:
        return Plan(penalties, None, tuple(names), "greedy" if names else "argmax", 0.0)
    if params.mirostat:
        return Plan(penalties, None, tuple(names), "mirostat", temperature)
    if n_vocab >= _DRAWS_PAY and not set(names) - {"temperature"}:
        return Plan(penalties, None, (), "categorical", temperature if names else 1.0)
    if names and _pays(names[0], params, n_vocab):
        return Plan(penalties, names[0], tuple(names[1:]), "dist", temperature)
    return Plan(penalties, None, tuple(names), "dist", temperature)


def _pays(first: SamplerName, params: SamplingParams, n_vocab: int) -> bool:
    """Whether this filter is faster over the array."""
    if first == "top_k":
        return n_vocab >= _TOP_K_PAYS and (params.top_k or 0) <= _LARGEST_K
    return (first == "top_p" and n_vocab >= _DRAWS_PAY) or (first == "min_p" and n_vocab >= _MIN_P_PAYS)


def _names(params: SamplingParams) -> list[SamplerName]:
    order = _MIROSTAT if params.mirostat else _ORDER if params.samplers is None else params.samplers
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
        "temperature": params.temperature is not None and params.temperature not in (0, 1),
    }
    return on[name]
