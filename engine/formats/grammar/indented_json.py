"""JSON that is spread over lines, as `json.dumps(value, indent=2)` writes it: the nodes of its grammar.

Only lists of numbers, texts and the like stay on one line.
"""

import json
from collections.abc import Mapping
from typing import cast

from engine.formats.grammar.nodes import JsonText, Node, Rules, Words, in_order, listed, one_of, separated
from engine.formats.grammar.object_schemas import items_of, resolved
from engine.tools.subschemas import Schema, subschemas

_INDENT = "  "
_MOST = 500
"""The most values of a schema that are laid out: its references are followed, and may multiply."""
_DEEPEST = 20
_DEEPEST_ANY = 3
"""How deep values that the schema leaves open are laid out; what is deeper stays on one line."""
_PLAIN: Schema = {"type": ["string", "number", "boolean", "null"]}
_OF_OBJECT = frozenset(["type", "properties", "required", "additionalProperties"])
_OF_LIST = frozenset(["type", "items", "minItems", "maxItems"])
_NOTES = frozenset(["title", "description", "default", "examples", "$defs", "definitions", "$schema", "$id"])
_OF_ROOT = frozenset(["$id", "$defs", "definitions"])
_DEFINED = ("#/$defs/", "#/definitions/")


class _UnfitError(Exception):
    """The schema has too many values, refers to itself, or has a part that no value fits."""


def indented(schema: Schema, rules: Rules) -> Node | None:
    """Returns the grammar of JSON under a schema, with one member a line. None where that is one line anyway, where the
    schema describes its value in ways that cannot be laid out, is very large, refers to itself, or forbids a part."""
    if not all(_is_known_by_name(place, node) for place, node in subschemas(schema)):
        return None
    try:
        node = _Layout(schema, rules).value(schema, 0)
    except _UnfitError:
        return None
    return None if isinstance(node, JsonText) else node


def _is_known_by_name(place: str, node: Schema) -> bool:
    """Whether a part of a schema means the same in a grammar of its own, beside the root's definitions."""
    reference = str(node.get("$ref", _DEFINED[0]))
    return reference.startswith(_DEFINED) and (place == "$" or node.keys().isdisjoint(_OF_ROOT))


class _Layout:
    """Lays out the values of one schema, each at its depth."""

    def __init__(self, root: Schema, rules: Rules) -> None:
        self._root = root
        self._rules = rules
        self._left = _MOST
        self._any: dict[int, Node] = {}

    def value(self, schema: object, depth: int) -> Node:
        """Returns the grammar of a value; `JsonText` where it stays on one line."""
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST or not isinstance(schema, Mapping | bool) or schema is False:
            raise _UnfitError  # a list is an older draft's, of items by their places
        if schema is True:
            return self._anything(depth)
        node = cast("Schema", schema)
        said = node.keys() - _NOTES
        if said == {"$ref"} and isinstance(target := resolved(self._root, str(node["$ref"])), Mapping | bool):
            return self.value(cast("object", target), depth)
        if not said:
            return self._anything(depth)
        if node.get("type") == "object" and said <= _OF_OBJECT:
            return self._object(node, depth)
        if node.get("type") == "array" and said <= _OF_LIST and "items" in node:
            return self._list(node, depth)
        branches = items_of(node.get("anyOf"))
        if branches and said == {"anyOf"}:
            values = [self.value(branch, depth) for branch in branches]
            if not all(isinstance(value, JsonText) for value in values):
                return one_of(*values)
        return JsonText(node, self._root)

    def _object(self, schema: Schema, depth: int) -> Node:
        declared = cast("Mapping[str, object]", schema.get("properties") or {})
        required = items_of(schema.get("required"))
        others = schema.get("additionalProperties", True)
        if not declared and not required and others is not False:
            return self._map(others, depth)
        if not declared or others is not False:
            return JsonText(schema, self._root)
        if not declared.keys() >= set(required):
            raise _UnfitError
        members = [
            (in_order(Words(f"{json.dumps(key, ensure_ascii=False)}: "), self.value(each, depth + 1)), key in required)
            for key, each in declared.items()
        ]
        written = separated(members, Words(_between(depth)), self._rules)
        return _spread("{", written, "}", depth, empty=not required)

    def _map(self, values: object, depth: int) -> Node:
        """Returns the grammar of an object of any members with such values."""
        if depth > _DEEPEST_ANY and not isinstance(values, Mapping):
            return JsonText({"type": "object"})
        member = in_order(JsonText({"type": "string"}), Words(": "), self.value(cast("object", values), depth + 1))
        return _spread("{", listed(member, 1, None, _between(depth)), "}", depth, empty=True)

    def _list(self, schema: Schema, depth: int) -> Node:
        item = self.value(schema["items"], depth + 1)
        least, most = int(schema.get("minItems", 0)), schema.get("maxItems")
        if most is not None and most < least:
            raise _UnfitError
        if isinstance(item, JsonText) or most == 0:
            return JsonText(schema, self._root)
        return _spread("[", listed(item, max(least, 1), most, _between(depth)), "]", depth, empty=not least)

    def _anything(self, depth: int) -> Node:
        """Returns the grammar of a value that the schema leaves open."""
        if depth > _DEEPEST_ANY:
            return JsonText({})
        if depth not in self._any:
            lines = _spread("[", listed(self._anything(depth + 1), 1, None, _between(depth)), "]", depth)
            plain = (JsonText(_PLAIN), JsonText({"type": "array", "items": _PLAIN}))
            self._any[depth] = self._rules.rule("any", one_of(*plain, lines, self._map(True, depth)))
        return self._any[depth]


def _spread(opening: str, inner: Node, closing: str, depth: int, *, empty: bool = False) -> Node:
    """Returns an object or a list over several lines; or, if it may be empty, its two brackets."""
    lines = in_order(Words(opening + _line(depth + 1)), inner, Words(_line(depth) + closing))
    return one_of(lines, Words(opening + closing)) if empty else lines


def _between(depth: int) -> str:
    """Returns what stands between the members of an object or a list at this depth."""
    return f",{_line(depth + 1)}"


def _line(depth: int) -> str:
    return "\n" + _INDENT * depth
