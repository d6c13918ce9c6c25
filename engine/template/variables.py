"""The variables that every chat template is rendered with.

Knows: the names that templates read beside the messages, those of a few older templates included. Does not know: how
messages are adapted, what is rendered.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from engine.template.conversation import as_mapping
from engine.template.env import Template


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
    function["parameters"] = _described(function["parameters"])
    return {**tool, "function": function}


def _described(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = as_mapping(schema.get("properties")) or {}
    parts = {name: as_mapping(part) for name, part in properties.items()}
    filled = {
        name: properties[name] if part is None else {"description": "", **_described(part)}
        for name, part in parts.items()
    }
    return {**schema, **({"properties": filled} if filled else {})}
