"""Objects take no keys that nobody declared, unless the schema implies or the caller says so: in answers, in calls of
every shape, and through the client."""

import json
from enum import Enum
from typing import Any, Literal

import pytest
from cases.held import SHAPES, answers, calls, held, takes, unwritable
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import BadRequestError

from engine import JsonSchema, as_tool
from engine.formats.grammar.response import response_of
from engine.openai import OpenAI
from engine.runtime.guidance import matcher
from engine.testing import ScriptedEngine

A = {"a": {"type": "integer"}}
IMPLIED: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
    ({"properties": A, "required": ["a", "b"]}, [{"a": 1, "b": 2}, {"a": 1, "b": "x", "c": 3}]),
    ({"properties": A, "minProperties": 2}, [{"a": 1, "b": 2}]),
    ({"properties": A, "dependentRequired": {"a": ["z"]}}, [{"a": 1, "z": 2}, {"y": 1}]),
    ({"properties": A, "dependencies": {"q": ["a"]}}, [{"a": 1, "q": 2}]),
    ({"properties": A, "anyOf": [{"required": ["a"]}, {"required": ["c"]}]}, [{"a": 1}, {"c": 1}]),
    ({"properties": A, "allOf": [{"properties": {"b": {}}}]}, [{"b": 2, "a": 1}]),
    ({"properties": A, "patternProperties": {"^x": {"type": "integer"}}}, [{"a": 1, "x1": 2}]),
    ({"properties": A, "additionalProperties": {"type": "integer"}}, [{"a": 1, "b": 2}]),
]
CLOSED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"properties": A}, {"a": 1, "b": 2}),
    ({"properties": {"o": {"type": "object", "properties": A}}}, {"o": {"a": 1, "b": 2}}),
    ({"properties": A, "required": ["a"]}, {"a": 1, "b": 2}),
]


def allowed(schema: dict[str, Any], value: object, **more: bool) -> bool:
    response = response_of(JsonSchema({"type": "object", **schema}, **more), matcher)
    assert response is not None
    return takes(answers(response), json.dumps(value)) and response.read(json.dumps(value)) == value


@pytest.mark.parametrize(("schema", "values"), IMPLIED)
def test_a_schema_that_names_other_keys_stays_open(schema: dict[str, Any], values: list[dict[str, Any]]) -> None:
    assert [value for value in values if not allowed(schema, value)] == []


@pytest.mark.parametrize(("schema", "value"), CLOSED)
def test_others_are_closed_unless_the_caller_says_otherwise(schema: dict[str, Any], value: dict[str, Any]) -> None:
    assert not allowed(schema, value)
    assert allowed(schema, value, closed=False)
    stated = {"type": "object", **schema}
    forms: list[Any] = [
        {"type": "json_schema", "json_schema": {"name": "x", "schema": stated, "closed": False}},
        {"type": "json_schema", "name": "x", "schema": stated, "closed": False},
        {"type": "json_object", "schema": stated, "closed": False},
    ]
    for form in forms:
        response = response_of(form, matcher)
        assert response is not None
        assert takes(answers(response), json.dumps(value))


KEYED: list[Any] = [
    dict[Literal["a", "b c"], int],
    dict[Enum("Letter", {"A": "a", "B": "b c"}), int],
    JsonSchema(
        {"propertyNames": {"enum": ["a", "b c"]}, "additionalProperties": {"type": "integer"}, "type": "object"}
    ),
]


@pytest.mark.parametrize("kind", KEYED)
def test_enumerated_keys(kind: Any) -> None:
    """None twice, no others, in an answer and as an argument of a call of every shape."""
    response = response_of(kind, matcher)
    assert response is not None
    held_answer = answers(response)
    good = [{}, {"a": 1}, {"b c": 2}, {"a": 1, "b c": 2}]
    wrong = ['{"c":1}', '{"a":1,"a":2}', '{"":1}', '{"a":1,"c":2}', '{"b":1}', '{"a":"x"}']
    assert [value for value in good if not takes(held_answer, json.dumps(value))] == []
    assert [text for text in wrong if takes(held_answer, text)] == []
    parameters = {"type": "object", "properties": {"value": response.schema}, "required": ["value"]}
    tool = held(
        as_tool({"name": "note", "parameters": {**parameters, "$defs": (response.schema or {}).get("$defs", {})}})
    )
    for shape, family in SHAPES.items():
        start = calls(family, tool)
        for text in wrong if not shape.startswith(("dictionary", "nested")) else ():
            value = json.loads(text)
            assert len(value) < text.count(":") or unwritable(family, start, tool, {"value": value}), f"{shape}: {text}"


MESSAGES = [{"role": "user", "content": "Go"}]
NAMES = st.sampled_from("abcd")


@settings(max_examples=40)
@given(st.sets(NAMES, min_size=1), st.sets(NAMES), st.sets(NAMES))
def test_a_valid_object_may_be_written_if_its_schema_names_its_keys(
    declared: set[str], required: set[str], others: set[str]
) -> None:
    """Of every schema with these properties and requirements, in an answer and in a call of every shape."""
    schema = {"properties": {name: {"type": "integer"} for name in sorted(declared)}, "required": sorted(required)}
    names = [*sorted(declared), *sorted(required - declared)]
    value = dict.fromkeys(names, 1)
    assert allowed(schema, value)
    tool = as_tool({"name": "note", "parameters": {"type": "object", **schema}})
    family = SHAPES[sorted(SHAPES)[len(others) % len(SHAPES)]]
    if family != SHAPES["dictionary"]:  # its templates sort
        assert unwritable(family, calls(family, held(tool)), tool, value) is None
    further = {**value, **dict.fromkeys(sorted(others - value.keys()), 1)}
    assert allowed(schema, further) == (further == value or not required <= declared)
    assert allowed(schema, further, closed=False)


def test_the_client_takes_a_schema_as_it_stands() -> None:
    schema = {"type": "object", "properties": A, "required": ["a"]}
    said = '{"a": 1, "b": 2}'
    for closed, kept in ((False, {"a", "b"}), (True, {"a"})):
        with ScriptedEngine([said, said], rewrite=True) as llm:
            client: Any = OpenAI(llm)
            form = {"name": "x", "schema": schema, "closed": closed}
            answer = client.chat.completions.create(
                model="m",
                messages=MESSAGES,
                response_format={"type": "json_schema", "json_schema": form},
            )
            assert kept <= json.loads(answer.choices[0].message.content).keys()
            response = client.responses.create(model="m", input="Go", text={"format": {"type": "json_schema", **form}})
            assert kept <= json.loads(response.output_text).keys()
            wrong = {"type": "json_schema", "json_schema": {**form, "closed": "no"}}
            with pytest.raises(BadRequestError, match="true or false"):
                client.chat.completions.create(model="m", messages=MESSAGES, response_format=wrong)
            shown = "\n".join(str(llm.explain("Go", response_format=JsonSchema(schema, closed=closed))).splitlines())
            assert f"objects that take {'no other keys' if closed else 'other keys too'}: $" in shown
