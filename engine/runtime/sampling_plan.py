"""Which steps draw a token, decided from the parameters before anything is built.

Knows: which filters are on and in what order, and which work is cheaper over the array of logits than in llama.cpp's
chain. Does not know: how any step is done.
"""

from typing import Literal, NamedTuple, TypeAlias, get_args

from engine.types import SamplerName, SamplingParams

_ORDER: tuple[SamplerName, ...] = get_args(SamplerName)
_CHANGES_ORDER: tuple[SamplerName, ...] = ("penalties", "dry")  # the others keep the most likely token
_MIROSTAT: tuple[SamplerName, ...] = ("penalties", "dry", "temperature")
_SMALL = 4096  # tokens; a smaller vocabulary is not worth a search for candidates
_LARGEST_SHARE = 128  # top-k is searched for up to this fraction of the vocabulary

FilterName: TypeAlias = Literal["top_k", "top_p", "min_p"]
Last: TypeAlias = Literal["argmax", "categorical", "greedy", "dist", "mirostat"]


class Filter(NamedTuple):
    """The filter that comes first, and is applied to the array of logits."""

    name: FilterName
    value: float


class Plan(NamedTuple):
    """The steps in order: penalties, the first filter, llama.cpp's `links`, and what draws at the end.

    `last`: "argmax" and "categorical" (at `temperature`) need no chain, and have no links and no filter before them.
    """

    penalties: bool
    first: Filter | None
    links: tuple[SamplerName, ...]
    last: Last
    temperature: float


def plan(params: SamplingParams, n_vocab: int) -> Plan:
    """The plan for these parameters over a vocabulary of so many tokens."""
    temperature = 1.0 if params.temperature is None else params.temperature
    order = _MIROSTAT if params.mirostat else _ORDER if params.samplers is None else params.samplers
    names: list[SamplerName] = [name for name in order if _is_on(params, name)]
    if temperature == 0:
        names = [name for name in names if name in _CHANGES_ORDER]
    penalties = names[:1] == ["penalties"]
    names = names[penalties:]
    if temperature == 0:
        return Plan(penalties, None, tuple(names), "greedy" if names else "argmax", 0.0)
    if params.mirostat:
        return Plan(penalties, None, tuple(names), "mirostat", temperature)
    if not set(names) - {"temperature"}:
        return Plan(penalties, None, (), "categorical", temperature if names else 1.0)
    first = _filter(params, names[0], n_vocab)
    # A top-k or min-p again changes nothing; a top-p would be of what is left.
    links = names[1:] if first is not None and first.name == "top_p" else names
    return Plan(penalties, first, tuple(links), "dist", temperature)


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


def _filter(params: SamplingParams, name: SamplerName, n_vocab: int) -> Filter | None:
    if n_vocab < _SMALL:
        return None
    if name == "top_k" and params.top_k and params.top_k * _LARGEST_SHARE <= n_vocab:
        return Filter("top_k", params.top_k)
    if name == "top_p" and params.top_p:
        return Filter("top_p", params.top_p)
    return Filter("min_p", params.min_p) if name == "min_p" and params.min_p else None
