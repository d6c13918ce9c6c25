"""Options by their names in Python: those that `/set` changes in a chat, and those of `--set`."""

import json
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

from engine.runtime.cache.state_store import StateStore
from engine.runtime.loop.config import LlamaOptions
from engine.support.errors import RequestError
from engine.support.hints import unknown_option
from engine.turns.options import LoadArguments, LoadOptions, SamplingOptions, TurnOptions, checked, sampling_params
from engine.types.sampling import Reasoning

REASONING: Mapping[str, Reasoning] = MappingProxyType(
    {"on": True, "off": False, "low": "low", "medium": "medium", "high": "high"}
)
"""The words for how much a model reasons."""
DEFAULT = "default"
_OF_PROGRAMS = ("logits_processors", "logit_bias")
NAMES = (
    *(name for name in SamplingOptions.__annotations__ if name not in _OF_PROGRAMS),
    "reasoning",
    "reasoning_budget",
    "json_layout",
)


def changed(turn: TurnOptions, name: str, text: str) -> TurnOptions:
    """Returns the options with one set to a value, written as JSON or as plain text; `default` takes it back. Raises
    RequestError for an unknown name and a value that is not valid."""
    if name not in NAMES:
        raise RequestError(unknown_option(name, NAMES))
    kept = {key: value for key, value in turn.items() if key != name}
    if text != DEFAULT:
        kept[name] = value = _value(name, text)
        one = cast("TurnOptions", {name: value})
        sampling_params(checked(one, TurnOptions))
    return cast("TurnOptions", kept)


def _value(name: str, text: str) -> Any:
    if name == "reasoning":
        if text not in REASONING:
            raise RequestError(f"reasoning is one of {', '.join(REASONING)}, not {text!r}.")
        return REASONING[text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def described(turn: TurnOptions) -> str:
    """Returns the options that are set, in one line; "" if none is."""
    words = {position: word for word, position in REASONING.items()}
    shown: list[str] = []
    for name, value in turn.items():
        if value is not None and name in NAMES:
            text = words[cast("Reasoning", value)] if name == "reasoning" else json.dumps(value, ensure_ascii=False)
            shown.append(f"{name} {text}")
    return ", ".join(shown)


_OF_LLAMA = frozenset(LlamaOptions.__dataclass_fields__)
_OF_LOADING = (
    LoadArguments.__annotations__.keys() | LoadOptions.__annotations__.keys() | {"n_ctx", "n_gpu_layers", "draft"}
) - {"llama", "media_urls", "progress"}
_STATES = 4 << 30


def loading_settings(given: Iterable[str], *, turns: bool) -> dict[str, Any]:
    """Returns the options of loading among those given as NAME=VALUE. `turns`: the command has turns, whose options may
    be among them too. Raises RequestError for a name that is no option."""
    loading: dict[str, Any] = {}
    details: dict[str, Any] = {}
    for name, text in _pairs(given):
        if name in _OF_LLAMA:
            details[name] = _value(name, text)
        elif name == "states":
            loading[name] = StateStore(path=text, disk=_STATES)
        elif name in _OF_LOADING:
            loading[name] = _value(name, text)
        elif not turns or name not in NAMES:
            raise RequestError(unknown_option(name, [*_OF_LOADING, *_OF_LLAMA, *(NAMES if turns else ())]))
    return {**loading, "llama": LlamaOptions(**details)} if details else loading


def turn_settings(given: Iterable[str]) -> TurnOptions:
    """Returns the options of a turn among them; `seed` is one of loading. Raises RequestError for a value that is not
    valid."""
    turn: TurnOptions = {}
    for name, text in _pairs(given):
        if name in NAMES and name not in _OF_LOADING:
            turn = changed(turn, name, text)
    return turn


def _pairs(given: Iterable[str]) -> Iterator[tuple[str, str]]:
    for each in given:
        name, found, text = each.partition("=")
        if not found:
            raise RequestError(f"--set {each} has no value; write --set NAME=VALUE.")
        yield name, text
