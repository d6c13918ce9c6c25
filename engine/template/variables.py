"""The variables that every chat template is rendered with.

Knows: the names that templates read beside the messages, those of a few older templates included. Does not know: how
messages are adapted, what is rendered.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from engine.template.conversation import as_mapping
from engine.template.env import Template

# Keywords of JSON Schema that hold schemas by name, and those that hold one or a list of them.
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_SCHEMAS = ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf")


def values(
    template: Template,
    fixed: Mapping[str, str],
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    *,
    generates: bool,
    documents: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """What `template` is rendered with. `tools` None says that there are none; some templates want `[]` instead.

    Firefunction's template reads `functions` (JSON text) and `datetime` in place of `tools` (source: its model card).
    """
    given: dict[str, Any] = {
        **fixed,
        "messages": messages,
        "tools": tools,
        "documents": documents or None,
        "add_generation_prompt": generates,
    }
    if "functions" in template.variables and "tools" not in template.variables:
        given["functions"] = json.dumps([tool["function"] for tool in tools or ()], ensure_ascii=False, indent=4)
    if "datetime" in template.variables:
        given["datetime"] = template.now().strftime("%Y-%m-%d %H:%M:%S")
    return given


def described(tool: Mapping[str, Any]) -> dict[str, Any]:
    """The tool with an empty description wherever it or a parameter has none, for templates that insist on one."""
    function: dict[str, Any] = {"description": "", **tool["function"]}
    return with_parameters({**tool, "function": function}, _described)


def with_parameters(tool: Mapping[str, Any], change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """The tool with its parameters' schema changed."""
    function = tool["function"]
    return {**tool, "function": {**function, "parameters": change(function["parameters"])}}


def _described(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = as_mapping(schema.get("properties")) or {}
    parts = {name: as_mapping(part) for name, part in properties.items()}
    filled = {
        name: properties[name] if part is None else {"description": "", **_described(part)}
        for name, part in parts.items()
    }
    return {**schema, **({"properties": filled} if filled else {})}


def without_null(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with the type "null" taken out wherever it stands, for templates that know no such type."""
    found = _mapped(schema, without_null)
    kinds = found.get("type")
    if kinds == "null":
        del found["type"]
    elif isinstance(kinds, list) and "null" in kinds:
        kept = [kind for kind in cast("list[Any]", kinds) if kind != "null"]
        found["type"] = kept[0] if len(kept) == 1 else kept
    return found


def closed(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with every object in it saying what JSON Schema means by silence: further properties are allowed."""

    def said(part: Mapping[str, Any]) -> dict[str, Any]:
        found = closed(part)
        return {"additionalProperties": {}, **found} if found.get("type") == "object" else found

    return _mapped(schema, said)


def _mapped(schema: Mapping[str, Any], change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """A copy of the schema with the schemas in it changed."""
    found = dict(schema)
    for key, value in schema.items():
        if key in _NAMED and (named := as_mapping(value)) is not None:
            found[key] = {name: _changed(part, change) for name, part in named.items()}
        elif key in _SCHEMAS:
            found[key] = _changed(value, change)
    return found


def _changed(part: Any, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Any:
    if isinstance(part, list):
        return [_changed(item, change) for item in cast("list[Any]", part)]
    schema = as_mapping(part)
    return part if schema is None else change(schema)
