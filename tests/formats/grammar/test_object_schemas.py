"""Tools whose parameters are described by several schemas together (`anyOf`, `oneOf`, `allOf`, `$ref` at their root): a
forced call fits them, whatever its shape."""

import json
from collections.abc import Iterator, Mapping
from itertools import product
from random import Random
from time import process_time
from typing import Any

import pytest
from cases.constrained import Turn, engine_of
from cases.parsing_cases import FAMILIES
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from engine.formats.families import builtin_families
from engine.formats.grammar.object_schemas import MOST, kinds
from engine.formats.grammar.schemas import Schemas

SHAPES = {form.shape: name for name in FAMILIES if (form := builtin_families().get(name).format.tools)}
POOL: dict[str, Any] = {
    "text": {"type": "string", "pattern": "^[0-9]{1,4}$"},
    "count": {"type": "integer", "minimum": 0, "maximum": 99},
    "flag": {"type": "boolean"},
    "kind": {"enum": ["x", "y"]},
    "also": {"type": ["string", "null"], "maxLength": 3},
}
VALUES = {"text": "1", "count": 1, "flag": True, "kind": "x", "also": None}


def record(random: Random, *, closed: bool | None = None) -> dict[str, Any]:
    names = random.sample(sorted(POOL), random.randint(1, 3))
    made = {"properties": {name: POOL[name] for name in names}, "required": names[: random.randint(0, 2)]}
    return {
        **made,
        **({"type": "object"} if random.random() < 0.5 else {}),
        **({"additionalProperties": False} if closed else {}),
    }


def schemas(random: Random) -> Iterator[dict[str, Any]]:
    """Schemas of each way in which several describe an object. The alternatives of `oneOf` exclude one another."""
    one, two, three = (record(random) for _ in range(3))
    names = sorted({*one["properties"], *two["properties"]})
    both = {"properties": {name: POOL[name] for name in names}}
    yield {"anyOf": [record(random, closed=True), record(random, closed=True)]}
    yield {**both, "anyOf": [{"required": [names[0]]}, {"required": [names[-1]]}]}
    yield {**both, "anyOf": [record(random, closed=True), record(random, closed=True)]}
    yield {**one, "anyOf": [two, {"type": "null"}, three]}
    yield {"allOf": [one, two]}
    yield {**one, "allOf": [two, {"anyOf": [three, {"required": [min(one["properties"])]}]}]}
    yield {"$defs": {"one": one, "two": {"allOf": [{"$ref": "#/$defs/one"}, two]}}, "$ref": "#/$defs/two"}
    said = [
        {"properties": {**each["properties"], "kind": {"const": kind}}, "required": ["kind"]}
        for kind, each in zip("xy", (one, two), strict=True)
    ]
    yield {"properties": {"kind": {"type": "string"}}, "oneOf": said}


@pytest.mark.parametrize(("shape", "number"), list(product(SHAPES, range(2))))
def test_a_forced_call_fits(shape: str, number: int) -> None:
    for parameters in schemas(Random(number)):
        parameters["type"] = "object"
        tool = {"type": "function", "function": {"name": "do", "parameters": parameters}}
        with engine_of(Turn(SHAPES[shape], "default", "required")) as llm:
            answer = llm.chat("Hi", [tool], tool_choice="required", seed=number, max_tokens=3000)
        assert [call.error for call in answer.tool_calls] == [None], (parameters, answer.tool_calls)


def fits(schema: Mapping[str, Any], value: object) -> bool:
    checker: Any = Draft202012Validator(schema)
    return checker.is_valid(value)


@given(st.integers(0, 10**6))
def test_what_fits_a_kind_fits_the_schema(seed: int) -> None:
    random = Random(seed)
    for stated in schemas(random):
        schema = json.loads(json.dumps(stated).replace("oneOf", "anyOf"))
        found = kinds(schema, schema)
        assert found
        for kind in found:
            optional = [name for name in kind["properties"] if random.random() < 0.5]
            value = {name: VALUES[name] for name in {*kind["required"], *optional}}
            if fits(kind, value):
                assert fits(schema, value), (schema, kind, value)


def test_schemas_that_go_on_and_on_are_not_followed() -> None:
    wide = {str(level): {"anyOf": [{"$ref": f"#/$defs/{level + 1}"}] * 60} for level in range(3)}
    odd: dict[str, Any] = {
        "allOf": 1,
        "anyOf": {},
        "required": True,
        "properties": 2,
        "type": 3,
        "additionalProperties": False,
    }
    data: dict[str, Any] = {"examples": [odd], "allOf": [{"$ref": "#/examples/0"}, {"$ref": "#/examples/0/anyOf"}]}
    assert not Schemas(data).names
    loops: list[Any] = [
        {"anyOf": [{"$ref": "#"}] * 40},
        {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}] * 9}}},
        {"anyOf": [{"required": [str(number)]} for number in range(MOST + 1)]},
        {"$ref": "#/$defs/0", "$defs": {**wide, "3": {"type": "null"}}},
    ]
    for schema in loops:
        began = process_time()
        assert kinds(schema, schema) is None
        assert Schemas(schema).names == ()
        assert process_time() - began < 5
