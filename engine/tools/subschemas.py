"""Where the subschemas of a JSON Schema stand: all of them in order, or a copy with each of them changed."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, cast

Schema: TypeAlias = Mapping[str, Any]

_ONE = frozenset(
    ["items", "additionalProperties", "additionalItems", "unevaluatedItems", "unevaluatedProperties", "contains"]
).union(["not", "if", "then", "else", "propertyNames"])
_LISTS = frozenset(["anyOf", "oneOf", "allOf", "prefixItems", "items"])
NAMED = frozenset(["properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"])
"""Keywords that hold schemas by names."""


def subschemas(schema: Schema, place: str = "$") -> Iterator[tuple[str, Schema]]:
    """Yields the schema and all its subschemas, each with its JSON path."""
    yield place, schema
    for path, child in _children(schema, place):
        yield from subschemas(child, path)


def _children(schema: Schema, place: str) -> Iterator[tuple[str, Schema]]:
    found: list[tuple[str, Schema]] = []

    def note(path: str, child: Schema) -> Schema:
        found.append((path, child))
        return child

    mapped(schema, note, place)
    yield from found


def mapped(schema: Schema, change: Callable[[str, Schema], object], place: str) -> dict[str, Any]:
    """Returns a copy with `change(path, subschema)` applied to each direct subschema."""

    def changed(key: str, child: object) -> Any:
        return change(f"{place}.{key}", cast("Schema", child)) if isinstance(child, Mapping) else child

    copy: dict[str, Any] = dict(schema)
    for key, value in schema.items():
        child: object = value
        if key in _ONE and isinstance(child, Mapping):
            copy[key] = changed(key, value)
        elif key in _LISTS and isinstance(child, list):
            items = enumerate(cast("list[object]", child))
            copy[key] = [changed(f"{key}[{number}]", item) for number, item in items]
        elif key in NAMED and isinstance(child, Mapping):
            members = cast("Mapping[str, object]", child).items()
            copy[key] = {name: changed(f"{key}.{name}", item) for name, item in members}
    return copy


def form(schema: Schema) -> dict[str, Any]:
    """Returns what a metaschema looks at in one schema, without its subschemas: `{}` stands for all of them, and one
    value for all that are alike to it. Schemas with many parts have few forms."""
    copy = mapped(schema, lambda _path, _child: _PART, "")
    for key, value in copy.items():
        if key in NAMED and isinstance(value, dict) and key != "patternProperties":
            members = cast("dict[str, object]", value)
            copy[key] = {name if item is not _PART else "": item for name, item in members.items()}
        elif key in _LISTS and isinstance(value, list):
            items = cast("list[object]", value)
            copy[key] = [*([_PART] if _PART in items else []), *(item for item in items if item is not _PART)]
        else:
            copy[key] = _alike(key, cast("object", value))
    return copy


_PART: dict[str, Any] = {}


def _alike(key: str, value: object) -> Any:
    if key in ("default", "const"):
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return min(value, 1)
    if isinstance(value, str) and key in ("title", "description", "$comment", "$ref"):
        return "#"
    if isinstance(value, list) and key in ("enum", "examples", "required"):
        items = cast("list[object]", value)
        named = key == "required" and not (
            all(isinstance(item, str) for item in items) and len(set(items)) == len(items)
        )
        return items if named else [""] if items else []
    return cast("Any", value)
