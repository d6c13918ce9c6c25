"""The JSON types of a tool's parameters, as their schema says them."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from engine.formats.grammar.object_schemas import items_of, kinds, resolved

_ANY: Mapping[str, Any] = {"any": True}  # no schema; `None` would mean the root's
TEXT = frozenset(["string"])
_COMBINED = frozenset(["allOf", "anyOf", "oneOf", "$ref", "patternProperties"])
_DESCRIBES_TEXT = frozenset(["format", "pattern", "enum", "const"])
_LIKE_A_NAME = re.compile(r"[^\s<>\"'(){}\[\],;=]+")
_TYPE_NAMES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (str, "string"),
    (int, "integer"),
    (float, "number"),
    (list, "array"),
    (dict, "object"),
)


class Schemas:
    """A view of a schema, with the types of its parts: a tool's parameters, or one of these. An unknown tool or
    parameter has no schema, so any type is allowed."""

    __slots__ = ("_node", "_properties", "_root")

    def __init__(self, parameters: Mapping[str, Any] | None, node: object = None) -> None:
        self._root: Mapping[str, Any] = parameters or {}
        self._node = self._followed(self._root if node is None else node)
        self._properties: dict[str, Any] = {}
        for kind in kinds(self._root, self._node) or [self._node]:
            properties: object = kind.get("properties")
            if isinstance(properties, Mapping):
                self._add(cast("Mapping[str, Any]", properties))
            for name in map(str, items_of(kind.get("required"))):
                self._properties.setdefault(name, {})

    def _add(self, properties: Mapping[str, Any]) -> None:
        """Add the properties of one kind of object. What they are in either kind may be meant."""
        for name, schema in properties.items():
            known = self._properties.setdefault(name, schema)
            if known != schema:
                self._properties[name] = {"anyOf": [known, schema]}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the properties; empty if they are not known."""
        return tuple(self._properties)

    def takes(self, name: str) -> bool:
        """Whether what a model wrote in a key's place can be one: it is declared, or looks like a name, or the schema
        allows members of any name. If not, it is prose."""
        if name in self._properties or _LIKE_A_NAME.fullmatch(name):
            return True
        described = kinds(self._root, self._node) or [self._node]
        unsaid = ("properties" not in kind or not kind.keys().isdisjoint(_COMBINED) for kind in described)
        return any(
            kind.get("additionalProperties", default) is not False
            for kind, default in zip(described, unsaid, strict=True)
        )

    def types(self, name: str) -> frozenset[str] | None:
        """Returns the JSON types that a parameter takes; None if the schema does not say."""
        return self._types(self._properties.get(name), depth=0)

    def values(self) -> tuple[object, ...]:
        """Returns the values that this schema enumerates; empty if it does not."""
        return (self._node["const"],) if "const" in self._node else tuple(items_of(self._node.get("enum")))

    @property
    def is_literal(self) -> bool:
        """Whether a value in markup is taken literally: if the schema allows a string, the value is one, unless there
        are other types, and the string must be one of some, or have a format or a pattern."""
        types = self.own()
        return types is not None and "string" in types and (types == TEXT or self._takes_prose(self._node, depth=0))

    def own(self) -> frozenset[str] | None:
        """Returns the JSON types of this schema itself; None if it does not say."""
        return self._types(self._node, depth=0)

    def child(self, name: str) -> "Schemas":
        """Returns the schema of a property."""
        return Schemas(self._root, self._properties.get(name, _ANY))

    def items(self) -> "Schemas":
        """Returns the schema of an array's items."""
        return Schemas(self._root, self._node.get("items", _ANY))

    def at(self, position: int) -> str | None:
        """Returns the name of the parameter in that position."""
        names = list(self._properties)
        return names[position] if position < len(names) else None

    def only(self) -> str | None:
        """Returns the name of the parameter if there is only one."""
        return self.at(0) if len(self._properties) == 1 else None

    def _takes_prose(self, schema: object, depth: int) -> bool:
        """Whether a schema allows strings that it does not describe further."""
        if not isinstance(schema, Mapping) or depth > 8:
            return True
        node = cast("Mapping[str, Any]", schema)
        if isinstance(reference := node.get("$ref"), str):
            return self._takes_prose(resolved(self._root, reference), depth + 1)
        types = self._types(node, depth)
        if (types is not None and "string" not in types) or not node.keys().isdisjoint(_DESCRIBES_TEXT):
            return False
        branches = [branch for union in ("anyOf", "oneOf") for branch in items_of(node.get(union))]
        free = any(self._takes_prose(branch, depth + 1) for branch in branches) if branches else True
        return free and all(self._takes_prose(branch, depth + 1) for branch in items_of(node.get("allOf")))

    def _followed(self, node: object) -> Mapping[str, Any]:
        for _ in range(8):
            reference = cast("Mapping[str, Any]", node).get("$ref") if isinstance(node, Mapping) else None
            if not isinstance(reference, str):
                break
            node = resolved(self._root, reference)
        return cast("Mapping[str, Any]", node) if isinstance(node, Mapping) else {}

    def _types(self, schema: object, depth: int) -> frozenset[str] | None:
        if not isinstance(schema, Mapping) or depth > 8:
            return None
        node = cast("Mapping[str, Any]", schema)
        if isinstance(reference := node.get("$ref"), str):
            return self._types(resolved(self._root, reference), depth + 1)
        if "type" in node:
            stated = node["type"]
            listed = [stated] if isinstance(stated, str) else items_of(stated)
            return frozenset(name for name in listed if isinstance(name, str))
        if "const" in node:
            return frozenset([type_name(node["const"])])
        if "enum" in node:
            return frozenset(type_name(value) for value in items_of(node["enum"]))
        for union in ("anyOf", "oneOf"):
            if union in node:
                return _union(self._types(branch, depth + 1) for branch in items_of(node[union]))
        if "allOf" in node:
            branches = (self._types(branch, depth + 1) for branch in items_of(node["allOf"]))
            known = [types for types in branches if types is not None]
            return known[0].intersection(*known[1:]) if known else None
        return None


def _union(branches: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    types: set[str] = set()
    for branch in branches:
        if branch is None:
            return None
        types |= branch
    return frozenset(types)


def type_name(value: object) -> str:
    """Returns the JSON type of a Python value."""
    return next((name for kind, name in _TYPE_NAMES if isinstance(value, kind)), "null")
