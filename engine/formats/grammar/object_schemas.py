"""What a JSON Schema says of an object: its references followed, and the schemas merged that describe it together."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, TypeAlias, cast

Schema: TypeAlias = Mapping[str, Any]

MOST = 32
"""The most kinds of object that one schema may allow."""
_MOST_PARTS = 500
_DEEPEST = 8
_TOGETHER = frozenset(["allOf", "anyOf", "oneOf", "$ref"])
_NOTES = frozenset(["title", "description", "default", "examples"])


def resolved(root: Schema, reference: str) -> object:
    """Returns the target of a reference inside a schema ("#/$defs/x"); None if there is none."""
    if not reference.startswith("#"):
        return None
    node: object = root
    for step in reference.removeprefix("#").split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping):
            node = cast("Mapping[str, object]", node).get(name)
        elif isinstance(node, list) and name.isdigit() and int(name) < len(cast("list[object]", node)):
            node = cast("list[object]", node)[int(name)]
        else:
            return None
    return node


def items_of(value: object) -> list[object]:
    """Returns a keyword's list; empty if its value is not a list, since a reference may lead to anything."""
    return cast("list[object]", value) if isinstance(value, list) else []


def kinds(root: Schema, schema: Schema) -> list[Schema] | None:
    """Returns the kinds of object that a schema allows, each as one schema without `allOf`, `anyOf`, `oneOf` and
    `$ref`; none if no object fits it. None if it cannot be said, or if there are too many. `oneOf` is taken for
    `anyOf`."""
    return [schema] if schema.keys().isdisjoint(_TOGETHER) else _Kinds(root).of(schema)


class _Kinds:
    """Looks at one schema; at so many parts of it at most."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._left = _MOST_PARTS

    def of(self, node: object, depth: int = 0) -> list[Schema] | None:
        """See `kinds`."""
        self._left -= 1
        if node is True:
            return [{}]
        if not isinstance(node, Mapping) or depth > _DEEPEST or self._left < 0:
            return None
        schema = cast("Schema", node)
        parts = [self._united([each], depth) for each in items_of(schema.get("allOf"))]
        if isinstance(reference := schema.get("$ref"), str):
            parts.append(self._united([resolved(self._root, reference)], depth))
        parts += [self._united(items_of(schema[name]), depth) for name in ("anyOf", "oneOf") if name in schema]
        own = {key: value for key, value in schema.items() if key not in _TOGETHER}
        known = [part for part in parts if part is not None]
        count = 1
        for part in known:
            count *= len(part)
        if len(known) < len(parts) or count > MOST:
            return None
        return [merged for chosen in product([own], *known) if (merged := _merged(chosen)) is not None]

    def _united(self, branches: Iterable[object], depth: int) -> list[Schema] | None:
        found: list[Schema] = []
        for branch in branches:
            if (more := self.of(branch, depth + 1)) is None:
                return None
            found += more
        return found


def _merged(parts: Sequence[Schema]) -> Schema | None:
    """Returns the schema of what fits all of these; None if no object does."""
    parts = [part for part in parts if part]
    merged: dict[str, Any] = {key: value for part in parts for key, value in part.items()}
    properties: dict[str, Any] = {}
    for part in parts:
        if "object" not in (items_of(part.get("type")) or [part.get("type", "object")]):
            return None
        for name, schema in _properties(part).items():
            properties[name] = _both(properties[name], schema) if name in properties else schema
    required = dict.fromkeys(str(name) for part in parts for name in items_of(part.get("required")))
    properties.update((name, {}) for name in required if name not in properties)
    for part in parts:
        if part.get("additionalProperties") is False:
            properties = {name: properties[name] for name in properties if name in _properties(part)}
            merged["additionalProperties"] = False
    if not properties.keys() >= required.keys():
        return None
    return {**merged, "properties": properties, "required": list(required)} if properties else merged


def _properties(schema: Schema) -> Schema:
    found = schema.get("properties")
    return cast("Schema", found) if isinstance(found, Mapping) else {}


def _both(one: object, other: object) -> object:
    """Returns the schema of a value that fits both."""
    if one is True or other is False:
        return other
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return cast("object", one)
    first, second = cast("Schema", one), cast("Schema", other)
    if all(first[key] == second[key] for key in (first.keys() & second.keys()) - _NOTES):
        return {**first, **second}
    return {"allOf": [first, second]}
