"""Names of other programs and libraries, and what to write here instead, as foreign.toml lists them."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

_EVENTS = ("ReasoningDelta", "ContentDelta", "ToolCallStart", "ToolCallDelta", "ToolCallEnd", "ToolResult", "Finished")
_LIKE = {**dict.fromkeys(_EVENTS, "Event"), "RunStream": "Stream"}
"""Classes that take the names of another, too."""


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("foreign.toml").read_text(encoding="utf-8"))


@cache
def foreign(kind: str) -> Mapping[str, str]:
    """Returns what to write instead of each name: of "options", "commands" or "flags"."""
    return MappingProxyType(_by_name(_tables()[kind]))


@cache
def values() -> Mapping[str, str]:
    """Returns what to write where the value of an option is not valid, by the option."""
    return MappingProxyType(_tables()["values"])


@cache
def attributes() -> Mapping[str, Mapping[str, str]]:
    """Returns what to write instead of each missing attribute, by the name of the object's class."""
    found = {kind: _by_name(hints) for kind, hints in _tables()["attributes"].items()}
    event = found.pop("Event")
    for kind, like in _LIKE.items():
        found[kind] = (event if like == "Event" else found[like]) | found.get(kind, {})
    return MappingProxyType(found)


def _by_name(hints: Mapping[str, str]) -> dict[str, str]:
    return {name: hint for hint, names in hints.items() for name in names.split()}
