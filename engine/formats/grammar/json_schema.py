"""Prepares JSON Schemas for a grammar: what it enforces, what is checked afterwards, what is refused.

Source: json-schema.org, "JSON Schema: A Media Type for Describing JSON Documents" and "Validation"; llguidance's
docs/json_schema.md.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TypeAlias, cast

from engine.formats.grammar.object_schemas import items_of, resolved
from engine.support.errors import RequestError, shown
from engine.tools.check import plain_schema
from engine.tools.formats import FORMATS, PATTERNS
from engine.tools.subschemas import Schema, mapped, subschemas

Refusal: TypeAlias = Callable[[Sequence[Schema]], list[str | None]]
"""Returns for each schema why no grammar can be made of it; None if one can."""

_MOST_SUSPECTS = 100
_CHECKED = frozenset(
    ["not", "if", "then", "else", "uniqueItems", "contains", "minContains", "maxContains", "propertyNames"]
).union(["dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties"])
_HELD = frozenset(["email", "hostname", "uri", *PATTERNS])
"""Formats that a grammar holds: by a pattern of ours, or as llguidance knows them."""
_APPLICATORS = frozenset(["anyOf", "oneOf", "allOf", "$ref", "if", "then", "else", "dependentSchemas"])
_SAYS = frozenset(["additionalProperties", "unevaluatedProperties", "patternProperties"])
_OF_OBJECTS = frozenset(["properties", "required", "patternProperties", "additionalProperties"])


def prepared(schema: object, refusal: Refusal, what: str, *, close: bool) -> tuple[Schema, tuple[str, ...]]:
    """Returns a caller's schema as one that a grammar can be made of, and the JSON paths of the keywords that the
    grammar does not enforce: the answer is validated against them afterwards. `what` names the schema in errors.

    close: objects that declare properties but do not mention additional ones allow none, since a model would invent
    some; if not, the schema is taken exactly as it stands. Raises RequestError, with the JSON path, for what is not a
    JSON Schema and for what no grammar can enforce.
    """
    schema = {} if schema is True else schema
    if not isinstance(schema, Mapping):
        raise RequestError(f"{what} is not a JSON Schema but {shown(schema)}; give a dictionary.")
    plain: Schema = plain_schema(what, cast("object", schema))
    _refuse_long_integers(plain, what)
    named = _enumerated(plain, plain)
    strict = _ending(closed(named) if close else named)
    if refusal([strict]) == [None]:
        return strict, ()
    checked: list[str] = []
    loose = _relaxed(strict, "$", _unheld(strict, refusal), checked)
    for attempt, notes in ((loose, ()), (_without_counts(loose), ("minProperties, maxProperties",))):
        whole = {**attempt, "x-guidance": {"coerce_one_of": True}}
        if refusal([whole]) == [None]:
            unions = [f"{place}.oneOf" for place, node in subschemas(strict) if "oneOf" in node]
            return attempt, (*checked, *unions, *notes)
    place, why = _culprit(loose, refusal)
    raise RequestError(
        f"{what} cannot be held at {place}: {why}. Change the schema there, or leave the constraint out."
    )


def _enumerated(schema: Schema, root: Schema, place: str = "$") -> Schema:
    """Returns a copy in which an object whose keys are enumerated has them as optional members, and no others."""
    copy = mapped(schema, lambda path, child: _enumerated(child, root, path), place)
    keys = _keys(root, copy.get("propertyNames"))
    if keys is None or "patternProperties" in copy:
        return copy
    declared, others = copy.get("properties", {}), copy.get("additionalProperties", {})
    allowed = keys if others is not False else [key for key in keys if key in declared]
    rest = {key: item for key, item in copy.items() if key != "propertyNames"}
    return {**rest, "properties": {key: declared.get(key, others) for key in allowed}, "additionalProperties": False}


def _keys(root: Schema, names: object) -> list[str] | None:
    """Returns the keys that `propertyNames` enumerates; None if it does not. An integer, as Python's enumerations have,
    is its digits."""
    if isinstance(names, Mapping) and isinstance(reference := cast("Schema", names).get("$ref"), str):
        names = resolved(root, reference)
    if not isinstance(names, Mapping) or not (stated := cast("Schema", names)).keys() <= _NAMING:
        return None
    values = [stated["const"]] if "const" in stated else items_of(stated.get("enum"))
    digits = stated.get("type") == "integer"
    keys = [value if isinstance(value, str) else str(value) for value in values if isinstance(value, str) or digits]
    return keys if {"const", "enum"} & stated.keys() else None


_NAMING = frozenset(["enum", "const", "type", "title", "description", "default"])


def _ending(schema: Schema, place: str = "$") -> Schema:
    """Returns a copy in which formats are patterns, whose numbers end."""
    copy = mapped(schema, lambda path, child: _ending(child, path), place)
    pattern = PATTERNS.get(str(copy.get("format")))
    if pattern is not None and "pattern" not in copy:
        del copy["format"]
        copy["pattern"] = f"^(?:{pattern})$"
    return copy


def _refuse_long_integers(schema: Schema, what: str) -> None:
    """Raise RequestError for a constant that llguidance would round."""
    for place, node in subschemas(schema):
        for keyword in node.keys() & {"const", "enum"}:
            if _has_long_integer(node[keyword]):
                raise RequestError(
                    f"{what} cannot be held at {place}.{keyword}: it has an integer of more than 64 bits. Write it as "
                    "a string, or leave the constraint out."
                )


def _has_long_integer(value: object) -> bool:
    if isinstance(value, int):
        return not -(2**63) <= value < 2**64
    if isinstance(value, Mapping):
        value = list(cast("Mapping[str, object]", value).values())
    return isinstance(value, list) and any(map(_has_long_integer, cast("list[object]", value)))


def closed(schema: Schema) -> Schema:
    """Returns a copy in which each object that declares properties allows no others, unless the schema says so itself,
    or names others (`_names_others`). Objects that several schemas describe together (`allOf`, keywords beside `anyOf`
    or `$ref`) are unchanged."""
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

        copy = mapped(node, inner, place)
        if may_close and "properties" in node and not node.keys() & (_APPLICATORS | _SAYS):
            declared: Schema = copy["properties"]
            copy["properties"] = {**declared, **{name: {} for name in node.get("required", ()) if name not in declared}}
            copy["additionalProperties"] = _names_others(node)
        return copy

    return visit("$", schema, may_close="#" not in open_targets)


def _names_others(node: Schema) -> bool:
    """Whether an object must have, or may need, members that it does not declare."""
    declared: Mapping[str, object] = node["properties"]
    dependent = {**node.get("dependentRequired", {}), **node.get("dependencies", {})}
    named = [*node.get("required", ()), *dependent, *(name for each in dependent.values() for name in items_of(each))]
    return not declared.keys() >= set(named) or node.get("minProperties", 0) > len(declared)


def _unheld(schema: Schema, refusal: Refusal) -> frozenset[tuple[str, object]]:
    """Returns the patterns and the multiples that no grammar can enforce, each with its keyword."""
    kinds = (("pattern", str, "string"), ("multipleOf", int | float, "number"))
    nodes = [node for _, node in subschemas(schema)]
    every = {(key, node[key]): name for node in nodes for key, kind, name in kinds if isinstance(node.get(key), kind)}
    whys = refusal([{"type": name, key: value} for (key, value), name in every.items()])
    return frozenset(each for each, why in zip(every, whys, strict=True) if why is not None)


def _relaxed(schema: Schema, place: str, values: frozenset[tuple[str, object]], checked: list[str]) -> Schema:
    """Returns a copy without the keywords that no grammar can enforce, among them those with these values; their JSON
    paths are added to `checked`."""
    copy = mapped(schema, lambda path, child: _relaxed(child, path, values, checked), place)
    unheld = [key for key in copy if key in _CHECKED]
    if "format" in copy and str(copy["format"]) not in _HELD:
        unheld.append("format")
    stated = [(key, copy[key]) for key in ("pattern", "multipleOf") if isinstance(copy.get(key), str | int | float)]
    unheld += [key for key, value in stated if (key, value) in values]
    for key in unheld:
        del copy[key]
        if key != "format" or str(schema[key]) in FORMATS:  # others say nothing about a value
            checked.append(f"{place}.{key}")
    return copy


def _without_counts(schema: Schema) -> Schema:
    copy = mapped(schema, lambda _, child: _without_counts(child), "$")
    return {key: item for key, item in copy.items() if key not in ("minProperties", "maxProperties")}


def _culprit(schema: Schema, refusal: Refusal) -> tuple[str, str]:
    """Returns the JSON path of the innermost subschema that is refused by itself, and the reason."""
    defined = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    nodes = list(islice(subschemas(schema), _MOST_SUSPECTS))
    whys = refusal([{**defined, **node} if "$ref" in str(node) else node for _, node in nodes])
    place, found = "$", whys[0] or "it is refused"
    for (path, _), why in zip(nodes, whys, strict=True):
        if why is not None and path.removeprefix(place)[:1] in (".", "["):
            place, found = path, why
    return place, found
