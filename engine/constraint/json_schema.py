"""Prepares JSON Schemas for a grammar: what it enforces, what is checked afterwards, what is refused.

Knows: the keywords of JSON Schema (draft 2020-12 and the older spellings), which of them llguidance cannot enforce, and
where subschemas occur. Does not know: llguidance (callers pass a function that tests a schema), tools, answers. Source:
json-schema.org, "JSON Schema: A Media Type for Describing JSON Documents" and "Validation"; llguidance's
docs/json_schema.md.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from engine.errors import RequestError, shown
from engine.tools import plain_scalar

Schema: TypeAlias = Mapping[str, Any]
Refusal: TypeAlias = Callable[[Schema], str | None]
"""Returns why no grammar can be made of a schema; None if one can."""

DEEPEST = 64
MOST_PARTS = 50_000
_ONE = ("items", "additionalProperties", "additionalItems", "unevaluatedItems", "unevaluatedProperties", "contains")
_ONE_MORE = ("not", "if", "then", "else", "propertyNames")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_CHECKED = frozenset(
    ["not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains", "propertyNames"]
).union(["dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties"])
_FORMATS = frozenset(["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"])
_APPLICATORS = frozenset(["anyOf", "oneOf", "allOf", "$ref", "if", "then", "else", "dependentSchemas"])
_OF_OBJECTS = frozenset(["properties", "required", "patternProperties", "additionalProperties"])


@dataclass(frozen=True, slots=True)
class Prepared:
    """A schema that a grammar can be made of.

    `checked`: the JSON paths of the keywords that the grammar does not enforce; the answer is validated against them
    afterwards. `loose_unions`: `oneOf` is enforced as `anyOf`.
    """

    schema: Schema
    checked: tuple[str, ...] = ()
    loose_unions: bool = False


def prepared(schema: object, refusal: Refusal, what: str, *, close: bool) -> Prepared:
    """Prepare a caller's schema. `what` names it in errors.

    close: objects that declare properties but do not mention additional ones allow none, since a model would invent
    some. Raises RequestError, with the JSON path, for what is not a JSON Schema and for what no grammar can enforce.
    """
    given = plain_schema(schema, what)
    strict = closed(given) if close else given
    if refusal(strict) is None:
        return Prepared(strict)
    checked: list[str] = []
    loose = _relaxed(strict, "$", refusal, checked)
    for attempt, notes in ((loose, ()), (_without_counts(loose), ("minProperties, maxProperties",))):
        whole = {**attempt, "x-guidance": {"coerce_one_of": True}}
        if refusal(whole) is None:
            unions = [f"{place}.oneOf" for place, node in subschemas(strict) if "oneOf" in node]
            return Prepared(attempt, (*checked, *unions, *notes), loose_unions=bool(unions))
    place, why = _culprit(loose, refusal)
    raise RequestError(
        f"{what} cannot be held at {place}: {why}. Change the schema there, or leave the constraint out."
    )


def plain_schema(schema: object, what: str) -> Schema:
    """Copy the schema as plain JSON values of bounded size. Raises RequestError with the JSON path of what is wrong."""
    if schema is True:
        return {}
    if not isinstance(schema, Mapping):
        raise RequestError(f"{what} is not a JSON Schema but {shown(schema)}; give a dictionary.")
    copy: dict[str, Any] = _copied(cast("object", schema), "$", 0, [MOST_PARTS], what)
    return copy


def _copied(node: object, place: str, depth: int, room: list[int], what: str) -> Any:
    room[0] -= 1
    if depth > DEEPEST:
        raise RequestError(
            f"{what} nests more than {DEEPEST} deep at {place[:200]}; make it flatter, with $defs and $ref."
        )
    if room[0] < 0:
        raise RequestError(f"{what} has more than {MOST_PARTS:,} parts; give a smaller one.")
    if isinstance(node, Mapping):
        copy: dict[str, Any] = {}
        for key, item in cast("Mapping[object, object]", node).items():
            if not isinstance(key, str):
                raise RequestError(f"{what} has the key {key!r} at {place}; the keys of a JSON Schema are texts.")
            copy[key] = _copied(item, f"{place}.{key}", depth + 1, room, what)
        return copy
    if isinstance(node, list | tuple):
        items = enumerate(cast("Sequence[object]", node))
        return [_copied(item, f"{place}[{number}]", depth + 1, room, what) for number, item in items]
    if isinstance(node, str):
        return node
    try:
        return plain_scalar(node)
    except ValueError as error:
        raise RequestError(f"{what} is not JSON at {place}: {error}; give JSON values only.") from error


def subschemas(schema: Schema, place: str = "$") -> Iterator[tuple[str, Schema]]:
    """Yields the schema and all its subschemas, each with its JSON path."""
    yield place, schema
    for key, child in _children(schema):
        yield from subschemas(child, f"{place}.{key}")


def _children(schema: Schema) -> Iterator[tuple[str, Schema]]:
    for key in (*_ONE, *_ONE_MORE):
        if isinstance(child := schema.get(key), Mapping):
            yield key, cast("Schema", child)
    for key in _LISTS:
        if isinstance(children := schema.get(key), list):
            for number, child in enumerate(cast("list[object]", children)):
                if isinstance(child, Mapping):
                    yield f"{key}[{number}]", cast("Schema", child)
    for key in _NAMED:
        if isinstance(named := schema.get(key), Mapping):
            for name, child in cast("Mapping[str, object]", named).items():
                if isinstance(child, Mapping):
                    yield f"{key}.{name}", cast("Schema", child)


def _mapped(schema: Schema, change: Callable[[str, Schema], Schema], place: str) -> dict[str, Any]:
    """Returns a copy with `change` applied to each direct subschema."""

    def changed(key: str, child: object) -> Any:
        return change(f"{place}.{key}", cast("Schema", child)) if isinstance(child, Mapping) else child

    copy: dict[str, Any] = dict(schema)
    for key, value in schema.items():
        child: object = value
        if key in (*_ONE, *_ONE_MORE) and isinstance(child, Mapping):
            copy[key] = changed(key, value)
        elif key in _LISTS and isinstance(child, list):
            items = enumerate(cast("list[object]", child))
            copy[key] = [changed(f"{key}[{number}]", item) for number, item in items]
        elif key in _NAMED and isinstance(child, Mapping):
            members = cast("Mapping[str, object]", child).items()
            copy[key] = {name: changed(f"{key}.{name}", item) for name, item in members}
    return copy


def closed(schema: Schema) -> Schema:
    """Returns a copy in which each object that declares properties allows no others, unless the schema says so itself.
    Objects that several schemas describe together (`allOf`, keywords beside `anyOf` or `$ref`) are unchanged."""
    open_targets: set[str] = set()
    for _, node in subschemas(schema):
        mixed = bool(node.keys() & _OF_OBJECTS)
        together = [*node.get("allOf", ()), *([node, *node.get("anyOf", ()), *node.get("oneOf", ())] if mixed else ())]
        branches = [cast("Schema", branch) for branch in together if isinstance(branch, Mapping)]
        open_targets |= {branch["$ref"] for branch in branches if isinstance(branch.get("$ref"), str)}

    def visit(place: str, node: Schema, *, may_close: bool) -> Schema:
        mixed = bool(node.keys() & _OF_OBJECTS)

        def inner(path: str, child: Schema) -> Schema:
            step = path[len(place) + 1 :]
            union = step.startswith(("anyOf[", "oneOf["))
            together = step.startswith("allOf[") or step in ("if", "then", "else", "not") or (union and mixed)
            below = may_close if union and not mixed else not together
            if step.startswith(("$defs.", "definitions.")):
                below = f"#/{step.replace('.', '/', 1)}" not in open_targets
            return visit(path, child, may_close=below)

        copy = _mapped(node, inner, place)
        says = {"additionalProperties", "unevaluatedProperties", "patternProperties"}
        if may_close and "properties" in node and not node.keys() & (_APPLICATORS | says):
            copy["additionalProperties"] = False
        return copy

    return visit("$", schema, may_close="#" not in open_targets)


def _relaxed(schema: Schema, place: str, refusal: Refusal, checked: list[str]) -> Schema:
    """Returns a copy without the keywords that no grammar can enforce; their JSON paths are added to `checked`."""
    copy = _mapped(schema, lambda path, child: _relaxed(child, path, refusal, checked), place)
    unheld = [key for key in copy if key in _CHECKED]
    if "format" in copy and copy["format"] not in _FORMATS:
        unheld.append("format")
    if "pattern" in copy and refusal({"type": "string", "pattern": copy["pattern"]}) is not None:
        unheld.append("pattern")
    for key in unheld:
        del copy[key]
        checked.append(f"{place}.{key}")
    return copy


def _without_counts(schema: Schema) -> Schema:
    copy = _mapped(schema, lambda _, child: _without_counts(child), "$")
    return {key: item for key, item in copy.items() if key not in ("minProperties", "maxProperties")}


def _culprit(schema: Schema, refusal: Refusal, tries: int = 100) -> tuple[str, str]:
    """Returns the JSON path of the innermost subschema that is refused by itself, and the reason."""
    defined = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    found = ("$", refusal(schema) or "it is refused")
    for number, (place, node) in enumerate(subschemas(schema)):
        if number == tries:
            break
        if place.removeprefix(found[0])[:1] in (".", "[") and (why := refusal({**defined, **node})) is not None:
            found = (place, why)
    return found
