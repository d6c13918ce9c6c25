"""JSON values that models and callers write, with limits on depth and length, so that later code can recurse into
them.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from engine.types import whole_characters

DEEPEST = 64
"""The deepest nesting of arguments and schemas: far more than any in use has, far less than Python can recurse."""
_LONGEST_NUMBER = 4300  # digits; Python refuses to read or write longer integers


def json_value(text: str, *, strict: bool = True) -> Any:
    """Parse JSON text. `strict=False` accepts raw control characters inside strings.

    Raises ValueError for text that is not JSON (NaN and Infinity are not), for values nested deeper than `DEEPEST`,
    for integers too long for Python, and for numbers that a float cannot hold (1e309 would become infinity).
    """
    try:
        value = json.loads(text, strict=strict, parse_constant=_no_constant, parse_float=_finite)
    except RecursionError:
        raise _too_deep() from None
    if text.count("[") + text.count("{") > DEEPEST and depth(value) > DEEPEST:
        raise _too_deep()
    return value


def depth(value: object) -> int:
    """Returns how deep lists and objects nest, counted up to `DEEPEST` + 1."""
    level = 0
    nodes: list[object] = [value]
    while level <= DEEPEST and any(isinstance(node, list | tuple | Mapping) for node in nodes):
        level += 1
        nodes = [child for node in nodes for child in _children(node)]
    return level


def size(value: object) -> int:
    """Returns the number of values in a JSON value, itself included."""
    count = 0
    nodes: list[object] = [value]
    while nodes:
        count += len(nodes)
        nodes = [child for node in nodes for child in _children(node)]
    return count


def _children(node: object) -> list[object]:
    if isinstance(node, Mapping):
        return list(cast("Mapping[object, object]", node).values())
    return list(cast("list[object]", node)) if isinstance(node, list | tuple) else []


def plain_json(value: object, level: int = 0) -> Any:
    """Copy a caller's value as plain JSON: dictionaries, lists, text without lone surrogates, numbers, booleans and
    None.

    Raises ValueError for what is not JSON: keys that are not text, other types, NaN, integers that are too long, values
    nested deeper than `DEEPEST` (or inside themselves).
    """
    if level > DEEPEST:
        raise _too_deep()
    if isinstance(value, str):
        return whole_characters(str(value))
    if isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value)
        if (odd := next((key for key in members if not isinstance(key, str)), "")) != "":
            raise ValueError(f"the key {odd!r} is not text")
        return {whole_characters(str(key)): plain_json(item, level + 1) for key, item in members.items()}
    if isinstance(value, list | tuple):
        return [plain_json(item, level + 1) for item in cast("list[object]", value)]
    return plain_scalar(value)


def plain_scalar(value: object) -> Any:
    """Returns a number, a boolean or None as it is.

    Raises ValueError for NaN, infinity, integers that are too long, and other types.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not JSON")
    if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER * 3:
        raise ValueError("an integer is too long")
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ValueError(f"a {type(value).__name__} is not JSON")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _too_deep() -> ValueError:
    return ValueError(f"it nests deeper than {DEEPEST} levels")
