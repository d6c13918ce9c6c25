"""Checks of arguments are bounded: whatever the model writes, and whatever schema the caller wrote, no check runs for
ever, recurses without end or raises; a schema is judged once."""

import gc
import json
import os
import time
import warnings
import weakref
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from cases.writer import stated
from pydantic import BaseModel, field_validator

from engine.formats.families import TaggedArgumentsSyntax, builtin_families
from engine.formats.parsing import Parser
from engine.formats.template.chat_template import ChatTemplate
from engine.support.errors import EngineWarning, RequestError
from engine.tools import DEEPEST, as_tool, as_tools, json_value, run
from engine.types.events import fold
from engine.types.messages import Message
from engine.types.parts import ToolCall

SECONDS = 5.0  # of processor time; what these tests forbid takes hours


def schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def checked(parameters: Any, arguments: Any) -> str | None:
    check = as_tool({"name": "look", "parameters": parameters}).check
    assert check is not None
    begun = time.process_time()
    verdict = check(arguments)
    assert time.process_time() - begun < SECONDS
    return verdict


LONG = "a" * 5000 + "!"
_NODE = {
    "anyOf": [
        {"type": "object", "properties": {"x": {"$ref": "#/$defs/node"}}, "required": [needed]} for needed in ("y", "z")
    ]
}


def nested(depth: int, key: str = "x") -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {key: value}
    return value


@pytest.mark.parametrize(
    ("parameters", "arguments", "fits"),
    [
        (schema(a={"type": "string", "pattern": "(a+)+$"}), {"a": LONG}, False),
        (schema(a={"type": "string", "pattern": "^(a|aa)*$"}), {"a": LONG}, False),
        (schema(a={"type": "string", "pattern": "^[A-Z]{2}$"}), {"a": "AB"}, True),
        (schema(a={"type": "string", "pattern": "^[A-Z]{2}$"}), {"a": "ab"}, False),
        ({"type": "object", "propertyNames": {"pattern": "(a+)+$"}}, {LONG: 1}, False),
        ({"type": "object", "patternProperties": {"(a+)+$": {}}, "additionalProperties": False}, {LONG: 1}, False),
        ({"type": "object", "patternProperties": {"^a$": {"type": "integer"}}}, {"a": 1, "b": "x"}, True),
        ({"type": "object", "patternProperties": {"^a$": {"type": "integer"}}}, {"a": "x"}, False),
        ({"type": "object", "patternProperties": {"^a$": {}}, "additionalProperties": False}, {"a": 1}, True),
        (
            {"type": "object", "patternProperties": {"^a$": {}}, "additionalProperties": {"type": "null"}},
            {"b": 1},
            False,
        ),
        ({"type": "object", "patternProperties": {"(a+)+$": {}}, "unevaluatedProperties": False}, {LONG: 1}, False),
        ({"type": "object", "properties": {"b": {}}, "unevaluatedProperties": False}, {"a": 1}, False),
        (schema(x={"$ref": "#/$defs/node"}) | {"$defs": {"node": _NODE}}, nested(60), False),
        (schema(x={"$ref": "#"}), nested(60), False),
        (schema(a={"type": "array", "uniqueItems": True}), {"a": [{"n": n} for n in range(20_000)]}, True),
        (schema(a={"type": "array", "uniqueItems": True}), {"a": [{"n": 1}, {"n": 1}]}, False),
        (schema(a={"multipleOf": 0.3}), {"a": 10**400}, False),
        (schema(a={"type": "array", "items": {"type": "integer"}}), {"a": list(range(50_000))}, True),
        ({**schema(a={"pattern": "(a+)+$"}), "$schema": "http://json-schema.org/draft-07/schema#"}, {"a": LONG}, False),
        ({**schema(a={"minimum": 2}), "$schema": "https://example.org/unknown"}, {"a": 1}, False),
        (schema(a={"$dynamicRef": "#nowhere"}), {"a": 1}, False),
    ],
)
def test_no_value_makes_a_check_cost_without_bound(parameters: Any, arguments: Any, fits: bool) -> None:
    assert (checked(parameters, arguments) is None) is fits


def test_a_pattern_that_cannot_be_bounded_is_named_and_not_checked() -> None:
    parameters = schema(a={"type": "string", "pattern": "^(?=.*b)(a+)+$"})
    with pytest.warns(EngineWarning, match=r"lookaround or backreferences.*check the value in the tool itself"):
        assert checked(parameters, {"a": LONG}) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checked(parameters, {"a": LONG}) is None, "said once"
    assert checked(parameters, {"a": 7}) is not None


def _cyclic() -> dict[str, Any]:
    parameters: dict[str, Any] = {"type": "object"}
    parameters["properties"] = {"x": parameters}
    return parameters


def _deep(levels: int) -> dict[str, Any]:
    parameters: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        parameters = schema(x=parameters)
    return parameters


def _odd_schemas() -> Iterator[Any]:
    yield from (_cyclic(), _deep(100), _deep(5000), {"type": "object", 1: 2}, schema() | {"properties": {1: {}}})
    yield from (schema(a={"maximum": 10**5000}), schema(a={"maximum": float("inf")}), schema(a={"default": {1, 2}}))
    yield from (schema(a={"default": object()}), schema(a=b"x"), [schema()], "object", {"type": ["object"]}, 5)
    for keyword in (
        "$schema",
        "$id",
        "$ref",
        "$anchor",
        "$defs",
        "$vocabulary",
        "$dynamicRef",
        "pattern",
        "enum",
        "anyOf",
    ):
        for value in (5, None, [], {}, "http://[x", "\ud800", "#/a%", "(", [1], {"a": 5}):
            yield {**schema(), keyword: value}
            yield schema(a={keyword: value})


def test_odd_schemas_are_named_errors_or_checks() -> None:
    odd = list(_odd_schemas())
    assert len(odd) > 200
    refused = [str(error) for parameters in odd if isinstance(error := _judged(parameters), RequestError)]
    assert len(refused) > 50
    assert all("The parameters of tool 'look'" in error for error in refused)


def test_keys_that_are_no_text_are_refused_by_name() -> None:
    odd: list[Any] = [{"type": "object", 1: 2}, schema() | {"properties": {1: {}}}]
    for parameters in odd:
        assert "the key 1 is not text" in str(_judged(parameters))


def _judged(parameters: Any) -> RequestError | None:
    """The error for a schema, or the check tried on some arguments."""
    try:
        (tool,) = as_tools([{"name": "look", "parameters": parameters}])
    except RequestError as error:
        return error
    assert tool.check is not None
    for arguments in ({}, {"a": 1}, {"a": "x"}, {"a": {"b": [None]}}):
        assert isinstance(tool.check(arguments), str | None)
    return None


def test_a_schema_is_judged_once() -> None:
    """However often a request brings it: the check is the same object, and making it again costs next to nothing."""
    tools = [
        {"name": f"t{n}", "parameters": schema(**{f"p{m}": {"type": "string"} for m in range(6)})} for n in range(8)
    ]
    first = [tool.check for tool in as_tools(tools)]
    assert [tool.check for tool in as_tools(tools)] == first
    parser = Parser("qwen3", tools=tools)
    parser.close()
    begun = time.process_time()
    for _ in range(20):
        Parser("qwen3", tools=tools)
    assert (time.process_time() - begun) / 20 < 0.005


class Picky(BaseModel):
    """A model whose own validator fails in its own way."""

    a: str

    @field_validator("a")
    @classmethod
    def _fails(cls, value: str) -> str:
        raise KeyError(value)


def test_a_validator_that_raises_is_said_to_the_model() -> None:
    tool = as_tool(Picky)
    assert tool.check is not None
    assert tool.check({"a": "x"}) == "checking them failed: KeyError: 'x'."
    assert run(tool, '{"a": "x"}').content == ("Error: the arguments do not fit: checking them failed: KeyError: 'x'.")


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_that_cannot_be_written_is_named() -> None:
    def fails() -> None:
        """Fails."""
        raise Silent

    assert run(as_tool(fails), "{}").content == "Error: Silent"


@pytest.mark.parametrize("depth", [DEEPEST + 1, 500, 2000, 100_000])
def test_arguments_nested_without_end_are_malformed_everywhere(depth: int) -> None:
    """In the parser, when the tool is run, and when the call is history."""
    text = '{"a": ' + "[" * depth + "]" * depth + "}"
    with pytest.raises(ValueError, match=f"deeper than {DEEPEST}"):
        json_value(text)
    tool = as_tool({"name": "look", "parameters": schema()})
    output = f'<tool_call>\n{{"name": "look", "arguments": {text}}}\n</tool_call>'
    for tools in ([tool], None):
        parser = Parser("qwen3", tools=tools)
        (call,) = fold([*parser.feed(output), *parser.close()]).tool_calls
        assert call.error == "malformed"
    wrapped = Parser("qwen3", tools=[tool])
    quoted = text.replace('"', '\\"')
    output = f'<tool_call>\n{{"name": "look", "arguments": "{quoted}"}}\n</tool_call>'
    assert fold([*wrapped.feed(output), *wrapped.close()]).tool_calls[0].error == "malformed"

    def take(a: Any) -> str:
        """Takes anything."""
        return str(a)

    assert run(as_tool(take), text).content.startswith("Error: the arguments do not fit: they are not JSON: it nests")
    asked = [
        Message(role="user", content="Q"),
        Message(role="assistant", tool_calls=(ToolCall(name="f", arguments=text),)),
    ]
    for family in ("qwen3", "llama-3", "mistral-nemo", "gpt-oss", "deepseek-r1", "qwen3-coder"):
        assert ChatTemplate(None, family=family).render([*asked, Message(role="tool", content="R")]).text


FAMILIES = {name: builtin_families().get(name).format.tools for name in builtin_families().names()}
SHAPES = {tools.shape: name for name, tools in FAMILIES.items() if tools} | {"none": "gpt-oss"}
"""A family that writes each shape of calls, and one that writes messages."""


@pytest.mark.parametrize("family", FAMILIES if os.environ.get("EVERY_PLACE") else SHAPES.values())
def test_no_family_s_calls_raise(family: str) -> None:
    """Depth, and numbers longer than Python reads, in every place of every shape's own syntax."""
    syntax = builtin_families().get(family).format.tools
    opened = syntax.section[0] + syntax.call_marks[0] if syntax else ""
    begun = opened + ("ping" + stated(syntax, "name_end", "") if syntax else "")
    tagged = isinstance(syntax, TaggedArgumentsSyntax)
    key = syntax.argument[0] + "a" + syntax.key_end + syntax.value_open if tagged else "a" if syntax else ""
    for inside in (
        '{"a": ' * 3000,
        "[" * 3000,
        "{a:" * 3000,
        "(" * 3000,
        "<a>" * 3000,
        "1" * 5000,
        f'{{"a": {"1" * 5000}}}',
    ):
        texts = [begun + inside, begun + key + inside, inside]
        for quote, place in product("\"'", ("arguments", "name", "id", "other")):
            fields = {"name": f"{quote}ping{quote}", "arguments": "{}"} | {place: inside}
            written = ", ".join(f"{quote}{name}{quote}: {value}" for name, value in fields.items())
            texts += [f"{opened}{{{written}}}", f"{opened}[{{{written}}}]"]
        for text in texts:
            parser = Parser(family, tools=[{"name": "ping", "parameters": schema()}])
            completion = fold([*parser.feed(text), *parser.close()])
            for call in completion.tool_calls:
                assert call.error is not None or isinstance(json.loads(call.arguments), dict), text[:80]


def test_half_characters_in_names_and_ids_are_replaced() -> None:
    half = "\ud83d"
    call = {"id": f"c{half}", "name": f"look{half}", "arguments": "{}"}
    messages: list[Any] = [
        {"role": "user", "content": "Q", "name": f"Ann{half}"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{half}", "content": "R"},
    ]
    tools = [{"name": "look", "description": f"D{half}", "parameters": schema(**{f"k{half}": {"default": half}})}]
    for family in ("qwen3", "llama-3", "mistral-nemo", "gpt-oss", "deepseek-r1", "qwen3-coder"):
        text = ChatTemplate(None, family=family).render(messages, tools).text
        assert "\ufffd" in text
        text.encode()


def test_a_function_is_read_once_and_let_go() -> None:
    """The memory of what was made of it does not keep it alive."""

    def look(city: str) -> str:
        """Looks."""
        return city

    first, again = as_tool(look), as_tool(look)
    assert first.check is again.check
    assert first.function is look
    gone = weakref.ref(look)
    del look, first, again
    gc.collect()
    assert gone() is None


def test_many_references_to_an_anchor() -> None:
    """Each would be looked for in the whole schema: half a minute for these, and again in every check."""
    parameters: dict[str, Any] = {"type": "object", "allOf": [{"$ref": f"#x{index}"} for index in range(1_000)]}
    parameters["$defs"] = {f"d{index}": {"$anchor": f"x{index}", "required": ["a"]} for index in range(1_000)}
    begun = time.process_time()
    assert checked(parameters, {"a": 1}) is None
    assert "'a' is a required property" in str(checked(parameters, {"b": 1}))
    assert time.process_time() - begun < 2 * SECONDS


@pytest.mark.parametrize(
    "reference", [{"allOf": [{"$ref": "#"}]}, {"$dynamicAnchor": "m", "allOf": [{"$dynamicRef": "#m"}]}]
)
def test_a_schema_that_refers_to_itself_is_no_error_at_any_depth_of_the_caller(reference: dict[str, Any]) -> None:
    """jsonschema 4.21 ends in a panic of its library of maps, which no `except Exception` catches."""
    check = as_tool({"name": "look", "parameters": {"type": "object", **reference}}).check
    assert check is not None

    def from_depth(frames: int) -> str | None:
        return from_depth(frames - 1) if frames else check({"a": 1})

    verdicts = {from_depth(frames) for frames in range(48)}
    assert verdicts <= {"they nest too deep.", "checking them takes too many steps: write less, or nest it less."}


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        (r"^\p{L}+$", "Żółć", "a1"),
        (r"^\p{Lu}\P{L}*\z", "A1", "a1"),
        (r"^[[:alpha:]]+$", "ab", "a1"),
        (r"^\d+$", "12", "a"),
    ],
)
def test_a_pattern_is_what_the_engine_that_checks_it_reads(pattern: str, fits: str, fails: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Python's own engine says things of patterns that it need not read
        for parameters in (schema(a={"pattern": pattern}), schema(a={"patternProperties": {pattern: {"const": 1}}})):
            inside = "patternProperties" in parameters["properties"]["a"]
            assert checked(parameters, {"a": {fits: 1} if inside else fits}) is None
            assert checked(parameters, {"a": {fits: 2} if inside else fails}) is not None
    with pytest.raises(RequestError, match="regex"):
        as_tool({"name": "f", "parameters": schema(a={"pattern": r"\p{L}("})})
