"""Grammars of calls: they accept what models of each family write, and all they accept is read back as valid calls."""

import json
import random
from typing import Any

import pytest
from cases.parsing_cases import CASES, FAMILIES, TOOLS
from cases.walking import byte_compiler, grammar_of, overflows, read_back, unread, walk
from fakes.response_templates import SHAPES

from engine.formats.families import builtin_families
from engine.formats.families.response_template import format_of
from engine.formats.parsing import Parser
from engine.formats.template.generic import with_generic_tools
from engine.runtime.guidance.matcher import Matcher
from engine.tools import as_tools
from engine.tools.formats import FORMATS
from engine.types.events import fold
from engine.types.tools import Tool

PLAIN = ("one call", "no arguments", "two calls", "every JSON type")
ELSEWHERE = {
    "gemma-4: every JSON type": "its template writes arguments by name, sorted",
    "function-gemma: every JSON type": "as Gemma 4",
    "apriel-1.5": "its turns begin with reasoning",
    "muse-glimmer": "its calls have a heading, which is another rule of the grammar",
}


def _tool(name: str, required: list[str], **properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


SHORT = {"type": "string", "maxLength": 6}
BOUNDED = as_tools(
    [
        _tool("get_weather", ["city"], city=SHORT, days={"type": "integer", "minimum": 0, "maximum": 14}),
        _tool("ping", []),
        _tool(
            "every",
            ["s", "b"],
            s={"type": "string", "enum": ["a b", "c"]},
            f={"type": "number", "minimum": -1, "maximum": 1},
            b={"type": "boolean"},
            n={"type": ["null", "string"], "maxLength": 4},
            a={"type": "array", "items": SHORT, "maxItems": 3},
            o={
                "type": "object",
                "properties": {"k": SHORT, "l": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2}},
                "required": ["k"],
                "additionalProperties": False,
            },
            u={"anyOf": [{"type": "integer", "minimum": 0, "maximum": 99}, {"type": "null"}]},
            p={"type": "string", "pattern": "^[a-z]{1,3}-[0-9]$"},
        ),
    ]
)


FREE = tuple(tool.model_copy(update={"parameters": {"type": "object"}}) for tool in TOOLS)


@pytest.mark.parametrize("tools", [TOOLS, FREE], ids=["declared", "free"])
def test_what_models_write_is_accepted(tools: tuple[Tool, ...]) -> None:
    refused: list[str] = []
    matchers: dict[str, Matcher] = {}
    for case in CASES:
        format_ = builtin_families().get(case.family).format
        excused = any(f"{case.family}: {case.name}".startswith(place) for place in ELSEWHERE)
        if case.name not in PLAIN or format_.tools is None or excused:
            continue
        if case.family not in matchers:
            matchers[case.family] = byte_compiler().compiled(grammar_of(format_, tools, None))
        matcher = matchers[case.family].copy()
        written = list(case.output.lstrip().encode())
        taken = next((number for number, byte in enumerate(written) if not matcher.consume(byte)), len(written))
        if taken < len(written) or not matcher.accepts:
            refused.append(f"{case}: {bytes(written[:taken])!r} and not {bytes(written[taken : taken + 30])!r}")
    assert len(matchers) > 80
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize("part", range(4))
def test_what_the_grammar_accepts_is_read_as_valid_calls(part: int) -> None:
    rng = random.Random(part)
    found: list[str] = []
    walks = 0
    for family in FAMILIES[part::4]:
        format_ = with_generic_tools(builtin_families().get(family).format)
        grammar = grammar_of(format_, BOUNDED, 3)
        for _ in range(2):
            text = walk(grammar, rng)
            walks += text is not None
            if text is not None and (why := unread(family, BOUNDED, text)):
                found.append(f"{family}: {why}\n    {text!r}")
    assert walks > len(FAMILIES) // 4
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", SHAPES)
def test_calls_in_a_stated_format_are_constrained_alike(name: str) -> None:
    """A response template's format is a format: its grammar writes calls that its parser reads."""
    format_, rng = format_of(SHAPES[name].template), random.Random(name)
    found = list(filter(None, (walk(grammar_of(format_, BOUNDED, 3), rng) for _ in range(4))))
    assert found
    for text in found:
        parser = Parser(format_, tools=BOUNDED, tool_choice="required")
        read = fold([*parser.feed(text), *parser.close()])
        assert read.tool_calls
        assert not [call for call in read.tool_calls if call.error and not overflows(call.arguments)], text


def test_one_call_is_one_call() -> None:
    for family in FAMILIES:
        format_ = with_generic_tools(builtin_families().get(family).format)
        text = walk(grammar_of(format_, BOUNDED[1:2], 1), random.Random(family))
        assert text is not None
        assert [call.name for call in read_back(family, BOUNDED, text).tool_calls] == ["ping"], family


def arguments_of(family: str, tool: Tool, seed: int) -> str | None:
    """The arguments of one call that the grammar of a tool allows; None where it grew too long."""
    format_ = with_generic_tools(builtin_families().get(family).format)
    text = walk(grammar_of(format_, (tool,), 1), random.Random(seed))
    if text is None:
        return None
    (call,) = read_back(family, (tool,), text).tool_calls
    assert call.error is None or overflows(call.arguments), f"{family}: {text!r}"
    return call.arguments


ANY = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 99}}
INSIDE = {"type": "object", "properties": {"o": ANY}, "required": ["o"], "additionalProperties": False}


@pytest.mark.parametrize(("schema", "first"), [(ANY, 0), (INSIDE, 1)], ids=["parameters", "parameter"])
def test_an_object_of_any_members_may_have_members(schema: dict[str, Any], first: int) -> None:
    tool = BOUNDED[1].model_copy(update={"parameters": schema})
    families = [each for each in FAMILIES if each != "minimax-m3"]  # no grammar makes an end tag repeat any name
    for family in families[first::2]:
        drawn = filter(None, (arguments_of(family, tool, seed) for seed in range(20)))
        assert any(":" in arguments.removeprefix('{"o":') for arguments in drawn), family


@pytest.mark.parametrize("name", ["date", "time", "date-time", "uuid", "ipv4"])
def test_texts_outside_json_have_their_format(name: str) -> None:
    parameters = {"type": "object", "properties": {"o": {"type": "string", "format": name}}, "required": ["o"]}
    tool = BOUNDED[1].model_copy(update={"parameters": parameters})
    for family in FAMILIES:
        syntax = builtin_families().get(family).format.tools
        if syntax is None or syntax.shape not in ("tagged_args", "pythonic", "dictionary", "nested"):
            continue
        drawn = [arguments_of(family, tool, seed) for seed in range(3)]
        texts = [json.loads(arguments)["o"] for arguments in drawn if arguments is not None]
        assert texts, family
        assert all(map(FORMATS[name], texts)), f"{family}: {texts}"


def test_parameters_behind_a_reference_are_held() -> None:
    pair = {"type": "object", "properties": {"k": {"enum": [7]}}, "required": ["k"], "additionalProperties": False}
    tool = BOUNDED[1].model_copy(update={"parameters": {"$ref": "#/$defs/pair", "$defs": {"pair": pair}}})
    for family in FAMILIES:
        assert json.loads(arguments_of(family, tool, 1) or "") == {"k": 7}, family
