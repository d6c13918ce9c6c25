"""Values that markup writes without JSON's quotes: which of an enumeration's, whose key is a marker's word, which end
with the output."""

import json
import random
from typing import Any

import pytest
from cases.canonical import Call, Turn
from cases.parsing_cases import families_where, run, splits
from cases.writer import written

from engine.formats.families import Format, TaggedArgumentsSyntax, builtin_families
from engine.formats.parsing import Parser
from engine.types.events import fold
from engine.types.parts import ToolCall

ENUMERATED: tuple[Any, ...] = ("north", "1", 2, 2.5, None, "null ", True, "off", -3, "a b")
in_markup = families_where(lambda format_: format_.tools and format_.tools.shape in ("tagged_args", "nested"))


def _tool(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"name": "trip", "parameters": {"type": "object", "properties": properties}}


def _format(family: str) -> Format:
    return builtin_families().get(family).format


def _read(family: str, tool: dict[str, Any], chunks: list[str], finish: Any = "stop") -> ToolCall:
    (call,) = fold(run(Parser(family, tools=[tool]), chunks, finish)).tool_calls
    return call


def _call(family: str, arguments: dict[str, Any]) -> str:
    return written(Turn("", (Call("trip", json.dumps(arguments)),)), _format(family))


@in_markup
def test_an_enumerated_value_is_the_one_that_its_text_means(family: str) -> None:
    chance = random.Random(family)
    for _ in range(8):
        values = chance.sample(ENUMERATED, 4)
        tool = _tool(at={"enum": values}, n={"type": "integer"})
        for value in values:
            output = _call(family, {"at": value, "n": 1})
            for chunks in splits(output):
                call = _read(family, tool, chunks)
                assert (json.loads(call.arguments), call.error) == ({"at": value, "n": 1}, None), (output, values)


_DATE = ({"type": "string", "format": "date"}, "2024-02-29")
UNIONS: tuple[tuple[tuple[dict[str, Any], Any], ...], ...] = (
    (({"type": "integer"}, 5), _DATE),
    (({"type": "number"}, 1.5), ({"type": "string", "pattern": "^[a-z]+$"}, "abc")),
    (({"type": "boolean"}, True), ({"enum": ["on", "5x"]}, "5x")),
    (({"const": 5}, 5), ({"allOf": [{"type": "string"}, {"format": "date"}]}, "2024-02-29")),
    (({"type": "array", "items": {"type": "integer"}}, [1, 2]), _DATE),
    (({"type": "integer"}, 5), ({"anyOf": [_DATE[0], {"type": "boolean"}]}, True)),
    (({"type": "integer"}, "5"), ({"type": "string"}, "5 days")),  # any text may be meant
)


@in_markup
@pytest.mark.parametrize("union", ["anyOf", "oneOf"])
def test_a_value_is_read_as_a_type_that_takes_it(family: str, union: str) -> None:
    for kinds in UNIONS:
        orders = (kinds, kinds[::-1])
        for value in (value for _, value in kinds):
            tools = _format(family).tools
            if value == "5" and tools is not None and tools.shape != "nested":
                continue  # JSON comes first there
            output = _call(family, {"at": value, "n": 1})
            for tool in (_tool(at={union: [kind for kind, _ in order]}, n={"type": "integer"}) for order in orders):
                for chunks in ([output], list(output)):
                    call = _read(family, tool, chunks)
                    assert (json.loads(call.arguments), call.error) == ({"at": value, "n": 1}, None), (output, tool)


@pytest.mark.parametrize("word", ["tool_call", "invoke", "item", "think", "trip"])
@families_where(lambda format_: format_.tools and format_.tools.shape == "nested")
def test_a_key_may_be_the_word_of_a_marker(family: str, word: str) -> None:
    for arguments in ({word: "v"}, {"free": {word: "v"}}, {"free": {word: {"x": "v"}}}):
        tool = _tool(**{word: {"type": "string"}}, free={"type": "object", "additionalProperties": {}})
        if "item" in str(arguments.get("free")):
            continue  # elements of that name are how it writes arrays
        output = _call(family, arguments)
        for chunks in splits(output):
            call = _read(family, tool, chunks)
            assert (json.loads(call.arguments), call.error) == (arguments, None), output


@pytest.mark.parametrize("finish", ["stop", "length"])
@in_markup
def test_a_list_in_which_the_output_ends_keeps_its_words(family: str, finish: str) -> None:
    tool = _tool(l={"type": "array", "items": {"type": "string"}})
    output = _call(family, {"l": ["alpha", "beta", "gamma"]})
    for chunks in splits(output[: output.index("eta")]):
        call = _read(family, tool, chunks, finish)
        assert call.arguments.startswith('{"l": ["alpha", "b'), output
        assert call.error == "truncated"


@families_where(
    lambda format_: isinstance(format_.tools, TaggedArgumentsSyntax) and format_.tools.key_end.endswith("\n")
)
@pytest.mark.parametrize("indent", ["  ", "\t", "    "])
def test_an_indented_call_does_not_indent_its_values(family: str, indent: str) -> None:
    if (syntax := _format(family).tools) and getattr(syntax, "value_open", ""):
        pytest.skip("a value stands in a line with its mark")
    tool = _tool(to={"type": "string"}, n={"type": "integer"})
    for value in ("Rome", "def f():\n    return 1\n\nf()", "a\n  b\n c", "x\n"):
        output = _call(family, {"to": value, "n": 7})
        indented = "\n".join(f"{indent}{line}" if line else line for line in output.split("\n"))
        for chunks in splits(indented):
            call = _read(family, tool, chunks)
            assert (json.loads(call.arguments), call.error) == ({"to": value, "n": 7}, None), indented


@in_markup
def test_a_value_s_own_indent_stays(family: str) -> None:
    """In a call that is not indented, and in one that is, where the value's first line is not."""
    tool = _tool(to={"type": "string"})
    for value in ("  deep\n  er", "a\n  b"):
        output = _call(family, {"to": value})
        for text in (output, output.replace("\n<", "\n  <")):
            if text != output and value.startswith(" "):
                continue  # the indent of the call
            for chunks in splits(text):
                call = _read(family, tool, chunks)
                assert json.loads(call.arguments)["to"].rstrip() == value, text
