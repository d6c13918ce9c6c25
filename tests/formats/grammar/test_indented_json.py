"""A JSON answer on one line or on several: as the model begins it, or as the caller says."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from engine import ChatTemplate, Completion, Engine, JsonSchema
from engine.testing import ByteVocab, ScriptedBackend

WISH = [""]
ENGINE = Engine.over(
    ScriptedBackend(lambda _: WISH[0], rewrite=True, vocab=ByteVocab(["<|im_start|>", "<|im_end|>"])),
    ChatTemplate(None, family="qwen3"),
)


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    ENGINE.close()


def answer(wish: str, schema: Any, **options: Any) -> Completion[Any]:
    """What a model answers that wants to write this text, and where it may not, what is allowed."""
    WISH[0] = wish
    form: dict[str, Any] = {"response_format": JsonSchema(schema), "reasoning": False, "max_tokens": 1000, **options}
    return ENGINE.chat("Hi", **form)


def laid_out(value: Any, depth: int = 0, deepest: int = 99) -> str:
    """The value with one member a line; lists of numbers, texts and the like on one, and what is deeper."""
    if depth > deepest:
        return json.dumps(value)
    outer, inner = "\n" + "  " * depth, "\n" + "  " * (depth + 1)
    if isinstance(value, dict) and value:
        members = [f"{json.dumps(key)}: {laid_out(each, depth + 1, deepest)}" for key, each in value.items()]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return f"{{{inner}{f',{inner}'.join(members)}{outer}}}"
    if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):  # pyright: ignore[reportUnknownVariableType]
        return f"[{inner}{f',{inner}'.join(laid_out(each, depth + 1, deepest) for each in value)}{outer}]"  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return json.dumps(value)


TEXTS = st.text("abc ,{}[]:\n", max_size=4)
LEAVES: st.SearchStrategy[tuple[dict[str, Any], Any]] = st.one_of(
    TEXTS.map(lambda text: ({"type": "string"}, text)),
    st.integers(-99, 99).map(lambda number: ({"type": "integer"}, number)),
    st.sampled_from(["red", "green"]).map(lambda name: ({"enum": ["red", "green"]}, name)),
    st.sampled_from([None, True]).map(lambda value: ({"type": ["boolean", "null"]}, value)),
    st.lists(st.integers(0, 9), max_size=3).map(lambda items: ({"type": "array", "items": {"type": "integer"}}, items)),
)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[tuple[dict[str, Any], Any]]) -> tuple[dict[str, Any], Any]:
    """An object, some of whose optional members are left out."""
    members = draw(st.dictionaries(st.sampled_from(["a", "b c", 'q"', "name"]), inner, min_size=1, max_size=4))
    required = draw(st.lists(st.sampled_from([*members]), unique=True))
    there = [name for name in members if name in required or draw(st.booleans())]
    schema = {"type": "object", "properties": {name: each[0] for name, each in members.items()}, "required": required}
    return schema, {name: members[name][1] for name in there}


def nested(inner: st.SearchStrategy[tuple[dict[str, Any], Any]]) -> st.SearchStrategy[tuple[dict[str, Any], Any]]:
    """Objects, lists of objects, maps, unions and references around what is inside."""
    made = objects(inner)
    return st.one_of(
        made,
        st.tuples(made, st.integers(0, 3)).map(
            lambda drawn: ({"type": "array", "items": drawn[0][0]}, [drawn[0][1]] * drawn[1])
        ),
        inner.map(lambda pair: ({"type": "object", "additionalProperties": pair[0]}, {"k": pair[1], "m": pair[1]})),
        made.map(lambda pair: ({"anyOf": [pair[0], {"type": "null"}]}, pair[1])),
    )


PAIRS = objects(st.recursive(LEAVES, nested, max_leaves=4)).filter(lambda pair: len(laid_out(pair[1])) < 900)


@settings(max_examples=40)
@given(PAIRS)
def test_both_layouts_can_be_written(pair: tuple[dict[str, Any], Any]) -> None:
    schema, value = pair
    for text in (laid_out(value), json.dumps(value)):
        assert answer(text, schema).content == text


@settings(max_examples=40)
@given(PAIRS)
def test_a_layout_that_the_caller_names_holds(pair: tuple[dict[str, Any], Any]) -> None:
    schema, value = pair
    one_line, lines = json.dumps(value), laid_out(value)
    assert answer(one_line, schema, json_layout="compact").content == one_line
    assert answer(lines, schema, json_layout="indented").content == lines
    if value:
        assert "\n" not in answer(lines, schema, json_layout="compact").content
        written = answer(one_line, schema, json_layout="indented").content
        assert written == "{}" or written.startswith("{\n")


@given(
    st.recursive(
        st.integers(0, 9) | TEXTS | st.none(),
        lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text("ab", max_size=2), each, max_size=3),
        max_leaves=8,
    )
)
def test_values_that_the_schema_leaves_open(value: Any) -> None:
    for text in (laid_out({"k": value}, deepest=3), json.dumps({"k": value})):
        assert json.loads(answer(text, {"type": "object"}).content) == {"k": value}


RECURSIVE: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["name", "next"],
}
DOUBLING: dict[str, Any] = {
    "$ref": "#/$defs/d0",
    "$defs": {
        f"d{n}": {
            "type": "object",
            "properties": {key: {"$ref": f"#/$defs/d{n + 1}"} for key in "ab"},
            "required": ["a"],
        }
        for n in range(18)
    }
    | {"d18": {"type": "integer"}},
}


@pytest.mark.parametrize("schema", [RECURSIVE, DOUBLING, {"type": "array", "items": {"type": "integer"}}])
def test_what_cannot_be_laid_out_stays_on_one_line(schema: dict[str, Any]) -> None:
    assert "\n" not in answer("{\n  ", schema, json_layout="indented", max_tokens=200).content


ROME: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}}
AWKWARD: list[tuple[dict[str, Any], list[Any]]] = [
    ({"a": {"type": "integer"}, "b": False}, [{"a": 1}, {"a": 1, "b": 2}]),
    ({"a": {"type": "array", "items": False}}, [{"a": []}, {"a": [1]}]),
    ({"a": {"anyOf": [False, ROME]}}, [{"a": {"x": 1}}, {"a": 1}]),
    ({"a": ROME, "b": {"type": "array", "items": ROME, "minItems": 3, "maxItems": 2}}, [{"a": {"x": 1}}]),
    (
        {"a": {"type": "string"}, "b": {"type": "array", "items": {"$ref": "#/properties/a"}}},
        [{"a": "x", "b": ["y", "z"]}, {"b": [1]}],
    ),
    (
        {"a": ROME, "b": {"type": ["object", "null"], "properties": {"c": {"$ref": "#"}}}},
        [{"a": {}, "b": {"c": {"a": {"x": 1}}}}, {"a": {}, "b": {"c": {"c": None}}}],
    ),
    (
        {"a": {"$defs": {"t": {"type": "string"}}, "type": "object", "properties": {"x": {"enum": ["s"]}}}},
        [{"a": {"x": "s"}}],
    ),
    (
        {"a": {"type": "object", "properties": {"x": {}}, "required": ["y"], "additionalProperties": False}},
        [{}, {"a": {"x": 1}}],
    ),
]
"""Properties with parts that no value fits, or whose references mean another place than a definition; and what a model
may want to write."""


@pytest.mark.parametrize(("properties", "wishes"), AWKWARD)
@pytest.mark.parametrize("layout", [None, "compact", "indented"])
def test_a_layout_allows_what_the_schema_allows(properties: dict[str, Any], wishes: list[Any], layout: Any) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    validator = Draft202012Validator(schema)

    def fits(value: Any) -> bool:
        return validator.is_valid(value)  # pyright: ignore[reportUnknownMemberType]

    for value in wishes:
        for text in (laid_out(value), json.dumps(value)):
            assert fits(json.loads(answer(text, schema, json_layout=layout).content)), text
        one_line = json.dumps(value)
        assert (answer(one_line, schema).content == one_line) == fits(value)


def test_an_older_draft_lists_the_items_by_their_places() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": {"type": "array", "items": [ROME, {"type": "string"}]}},
    }
    for text in ('{"a": [{"x": 1}, "s"]}', laid_out({"a": ["s", {"x": 1}]})):
        a = json.loads(answer(text, schema).content).get("a", [])
        assert all(isinstance(each, kind) for each, kind in zip(a, (dict, str), strict=False)), text


def test_an_answer_that_is_cut_is_closed_in_its_layout() -> None:
    schema = {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": {"type": "integer"}}}
    cut = answer('{\n  "a": {\n    "b": 1,\n    "c": 2,\n    "d": 3,\n    "e": 4', schema, max_tokens=40)
    assert cut.finish_reason == "length"
    assert cut.parsed == {"a": {"b": 1, "c": 2}}
    assert cut.content == '{\n  "a": {\n    "b": 1,\n    "c": 2\n  }\n}'


def test_an_answer_that_ends_before_what_is_forced_was_cut() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
    whole = '{\n  "a": 1\n}'
    for most in range(1, len(whole) + 1):
        cut = answer(whole, schema, json_layout="indented", max_tokens=most)
        assert (cut.content, cut.finish_reason) == (whole[:most], "length" if most < len(whole) else "stop")


@pytest.mark.parametrize("layout", ["compact", "indented"])
def test_a_raw_prompt_takes_a_layout_too(layout: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    texts = {"compact": '{"a": 1}', "indented": '{\n  "a": 1\n}'}
    WISH[0] = texts["indented" if layout == "compact" else "compact"]
    whole = ENGINE.complete("JSON:", response_format=JsonSchema(schema), json_layout=layout, max_tokens=40)
    assert ("\n" in whole.content) == (layout == "indented")
