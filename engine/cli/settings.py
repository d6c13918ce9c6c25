"""The options that `/set` changes in a chat: those of sampling, the length of an answer, and reasoning."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, cast

from engine.support.errors import RequestError
from engine.support.hints import unknown_option
from engine.turns.options import SamplingOptions, TurnOptions, checked, sampling_params
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
