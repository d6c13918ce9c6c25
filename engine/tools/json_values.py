"""JSON values that models and callers write, with limits on depth and length, so that later code can recurse into
them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from engine.types.parts import whole_characters

DEEPEST = 64
"""The deepest nesting of arguments and schemas: far more than any in use has, far less than Python can recurse."""
MOST_PARTS = 50_000
"""The most parts of a caller's value: a small one that holds itself many times is as large as its copy."""
_LONGEST_NUMBER = 4300  # digits; Python refuses to read or write longer integers


def json_value(text: str, *, strict: bool = True, unique: bool = False) -> Any:
    """Parse JSON text. `strict=False` accepts raw control characters inside strings; `unique` refuses objects that have
    a key twice, of which readers take different values.

    Raises ValueError for text that is not JSON (NaN and Infinity are not), for values nested deeper than `DEEPEST`,
    for integers too long for Python, and for numbers that a float cannot hold (1e309 would become infinity).
    """
    try:
        pairs = _unique if unique else None
        value = json.loads(
            text, strict=strict, parse_constant=refuse_constant, parse_float=_finite, object_pairs_hook=pairs
        )
    except RecursionError:
        raise _too_deep() from None
    if text.count("[") + text.count("{") > DEEPEST and depth(value) > DEEPEST:
        raise _too_deep()
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


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


def plain_json(value: object) -> Any:
    """Copy a caller's value as plain JSON: dictionaries, lists, text without lone surrogates, numbers, booleans and
    None.

    Raises ValueError, with the JSON path, for what is not JSON: keys that are not text, other types, NaN, integers that
    are too long, values nested deeper than `DEEPEST` (or inside themselves), more than `MOST_PARTS` parts.
    """
    return _copied(value, "$", 0, [MOST_PARTS])


def _copied(value: object, place: str, level: int, room: list[int]) -> Any:
    room[0] -= 1
    if level > DEEPEST:
        raise _too_deep(place[:200])
    if room[0] < 0:
        raise ValueError(f"it has more than {MOST_PARTS:,} parts")
    if isinstance(value, str):
        return whole_characters(str(value))
    if isinstance(value, Mapping):
        members = cast("Mapping[object, object]", value)
        if (odd := next((key for key in members if not isinstance(key, str)), "")) != "":
            raise ValueError(f"the key {odd!r} is not text, at {place}")
        items = ((whole_characters(str(key)), item) for key, item in members.items())
        return {key: _copied(item, f"{place}.{key}", level + 1, room) for key, item in items}
    if isinstance(value, list | tuple):
        parts = enumerate(cast("Sequence[object]", value))
        return [_copied(item, f"{place}[{number}]", level + 1, room) for number, item in parts]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not JSON, at {place}")
    if isinstance(value, int) and value.bit_length() > _LONGEST_NUMBER * 3:
        raise ValueError(f"an integer is too long, at {place}")
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ValueError(f"a {type(value).__name__} is not JSON, at {place}")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def refuse_constant(name: str) -> object:
    """Raise ValueError for NaN and the infinities, which Python's `json` reads."""
    raise ValueError(f"{name} is not a number in JSON")


def _too_deep(place: str = "it") -> ValueError:
    return ValueError(f"{place} nests deeper than {DEEPEST} levels")
