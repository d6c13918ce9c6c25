"""A schema that becomes a part of another keeps its meaning: its references, the names of its properties, its data."""

import json
from typing import Any

import pytest
from cases.canonical import Call, Turn
from cases.parsing_cases import run
from cases.writer import written

from engine.formats.families import builtin_families
from engine.formats.grammar.nodes import relocated
from engine.formats.parsing import Parser
from engine.tools import as_tools
from engine.types.events import fold

DATA = {"$ref": "#/$defs/d", "$id": "x"}


@pytest.mark.parametrize("keyword", ["enum", "const", "default", "examples"])
def test_data_and_names_stay_as_they_are(keyword: str) -> None:
    schema: dict[str, Any] = {
        "$id": "https://example.org/s",
        "properties": {"$id": {"$ref": "#/$defs/d"}, keyword: {keyword: [DATA]}, "$ref": {"type": "string"}},
        "$defs": {"d": {"type": "integer"}},
    }
    assert relocated(schema, "#/$defs/at") == {
        "properties": {"$id": {"$ref": "#/$defs/at/$defs/d"}, keyword: {keyword: [DATA]}, "$ref": {"type": "string"}},
        "$defs": {"d": {"type": "integer"}},
    }


@pytest.mark.parametrize("family", ["llama-4", "lfm2", "gemma-4", "minimax-m3", "qwen3-coder"])
def test_a_required_parameter_that_is_not_declared_is_one(family: str) -> None:
    """Its name need not look like one."""
    parameters = {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["max items"]}
    tools = as_tools([{"name": "trip", "parameters": parameters}])
    output = written(Turn("", (Call("trip", '{"to": "Rome", "max items": 7}'),)), builtin_families().get(family).format)
    (call,) = fold(run(Parser(family, tools=tools), [output])).tool_calls
    assert (json.loads(call.arguments), call.error) == ({"to": "Rome", "max items": 7}, None), output
