"""JSON answers that would be cut: what is open is closed in the last tokens, and no object gets a key twice."""

import json
import re
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from engine import ChatTemplate, Completion, Engine, JsonSchema, Regex
from engine.runtime.guidance import ending
from engine.runtime.guidance.json_text import JsonPlace
from engine.runtime.guidance.matcher import Compiler, Matcher
from engine.testing import ByteVocab, ScriptedBackend, ScriptedEngine, call
from engine.tools.check import schema_check

VOCAB = ByteVocab(["<|im_start|>", "<|im_end|>"])


def answer(wishes: str, schema: Any, most: int, **options: Any) -> Completion[Any]:
    """What a model answers that wants to write these characters, over and over, and else what is allowed."""
    backend = ScriptedBackend([wishes * (most // len(wishes) + 1)], rewrite=True, vocab=VOCAB)
    with Engine.over(backend, ChatTemplate(None, family="qwen3")) as llm:
        return llm.chat("Hi", response_format=schema, reasoning=False, max_tokens=most, **options)


def objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects of one to three members, the first one to three of them required."""
    names = st.lists(st.sampled_from(["a", "bc", "name", "n"]), min_size=1, max_size=3, unique=True)

    def made(names: list[str]) -> st.SearchStrategy[Any]:
        members = st.fixed_dictionaries(dict.fromkeys(names, values))
        return st.tuples(members, st.integers(1, len(names))).map(
            lambda drawn: {"type": "object", "properties": drawn[0], "required": names[: drawn[1]]}
        )

    return names.flatmap(made)


LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "minLength": 3},
        {"type": "string", "pattern": "^[A-Z]{2}[0-9]$"},
        {"enum": ["red", "green"]},
        {"type": "integer"},
        {"type": "number", "minimum": 3},
        {"type": "boolean"},
        {"type": ["string", "null"]},
        {"const": "x"},
    ]
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        objects(inner),
        inner.map(lambda items: {"type": "array", "items": items}),
        inner.map(lambda items: {"type": "array", "items": items, "minItems": 2}),
        inner.map(lambda values: {"type": "object", "additionalProperties": values}),
    ),
    max_leaves=5,
)


@settings(max_examples=15, deadline=None)
@given(objects(SCHEMAS), st.text('{}[]",:ab 1-.e\\n', min_size=1, max_size=12), st.integers(200, 400))
def test_every_answer_is_complete_whatever_a_model_repeats(schema: Any, wishes: str, most: int) -> None:
    whole = answer(wishes, JsonSchema(schema), most)
    assert whole.parsed is not None, (whole.content, whole.parse_error)
    assert schema_check("the schema", schema)(json.loads(whole.content)) is None
    assert (whole.finish_reason == "length") == (whole.parse_error is not None)
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= most


@pytest.mark.parametrize(
    "pattern", ["^[a-z.]+@[a-z.]+$", "^[a-z]*-[0-9]+/[a-z]*x$", r"^(?:[a-z][0-9])*#\w{3}$", r"^[^:]+: \[\d+\]$"]
)
@pytest.mark.parametrize("wishes", ["a", "a1", ".-0", "é "])
def test_a_text_with_a_pattern_is_completed_from_anywhere(pattern: str, wishes: str) -> None:
    """Also where the sign that leads to its end was never written."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    for most in (30, 41, 90):
        whole = answer('{"a":"' + wishes * 60, JsonSchema(schema), most)
        assert whole.parsed is not None, whole.content
        assert re.search(pattern, whole.parsed["a"]), whole.content


def test_what_the_model_reaches_by_itself_is_left_alone() -> None:
    schema = JsonSchema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    text = '{"a":"four words of text"}'
    for most in (len(text), len(text) + 1, 200):
        whole = answer(text, schema, most)
        assert (whole.content, whole.finish_reason, whole.parse_error) == (text, "stop", None)
    short = answer(text, schema, len(text) - 1)
    assert (short.content, short.finish_reason) == ('{"a":"four words of tex"}', "length")
    assert short.parsed == {"a": "four words of tex"}
    assert "raise max_tokens" in (short.parse_error or "").lower()


def test_members_behind_a_long_text_are_the_models_own() -> None:
    schema = {"a": {"type": "string"}, "n": {"type": "integer"}}
    wishes = '{"a":"' + "long " * 100
    whole = answer(wishes, JsonSchema({"type": "object", "properties": schema, "required": ["a", "n"]}), 120)
    assert whole.finish_reason == "length"
    assert whole.parsed is not None
    assert len(whole.parsed["a"]) > 60


def test_an_answer_is_complete_also_when_no_time_is_left_for_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "_MOST_SECONDS", 0.0)
    schema = JsonSchema({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})
    whole = answer('{"a":"' + "long " * 40, schema, 60)
    assert whole.parsed is not None, whole.content
    assert whole.finish_reason == "length"


def test_where_bytes_lead_is_asked_only_for_long_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Mock(side_effect=ending.masks)
    monkeypatch.setattr(ending, "masks", asked)
    item = {"type": "object", "properties": {"a": {"type": "string", "minLength": 3}}, "required": ["a"]}
    assert answer("[{}", JsonSchema({"type": "array", "items": item, "minItems": 3}), 90).parsed is not None
    assert not asked.called


def test_it_can_be_left_out() -> None:
    schema = JsonSchema({"type": "array", "items": {"type": "string"}})
    whole = answer('["' + "a" * 60, schema, 40, close_at_limit=False)
    assert (whole.finish_reason, whole.parsed) == ("length", None)
    assert whole.content == '["' + "a" * 38


class Weather(BaseModel):
    name: str
    n: int


def get_weather(city: str, n: int) -> str:
    """Get the weather in a city."""
    return f"{n} times sunny in {city}"


@pytest.mark.parametrize("most", [40, 60, 90])
@pytest.mark.parametrize("family", ["qwen3", "qwen3-coder", "deepseek-r1", "mistral-nemo"])
def test_beside_tools_an_answer_is_completed_and_a_call_is_not(family: str, most: int) -> None:
    """Nothing of a call is made up: it would be run."""
    options: dict[str, Any] = {"tools": [get_weather], "response_format": Weather, "max_tokens": most}
    long = "a very long name that goes on and on without any end in sight, as some do"
    with ScriptedEngine([f'{{"name": "{long}", "n": 3}}'], family=family, rewrite=True) as llm:
        whole: Completion[Any] = llm.chat("Hi", reasoning=False, **options)
    assert whole.parsed is not None, whole.content
    assert long.startswith(whole.parsed.name[:20])
    assert (whole.finish_reason, whole.tool_calls) == ("length", ())
    arguments = {"city": long, "n": 3}
    with ScriptedEngine([call("get_weather", **arguments)], family=family, rewrite=True) as llm:
        cut: Completion[Any] = llm.chat("Hi", reasoning=False, **options)
    assert all(each.error or each.parsed() == arguments for each in cut.tool_calls), cut.tool_calls
    assert not cut.usage.closed_characters


def test_only_json_is_completed() -> None:
    whole = answer("abab", Regex("(ab)+c"), 21)
    assert (whole.finish_reason, whole.parsed) == ("length", None)


@settings(max_examples=15, deadline=None)
@given(st.text('{}",:ab1 \\', min_size=1, max_size=10))
@example('{"k":{"m":{"a":1,"a":2},"m":{}}}')
def test_no_object_gets_a_key_twice(wishes: str) -> None:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs), pairs
        return dict(pairs)

    kinds = {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": {"type": "integer"}}}
    whole = answer(wishes, JsonSchema({"type": "object", "additionalProperties": kinds, "minProperties": 0}), 150)
    json.loads(whole.content, object_pairs_hook=unique)


def test_where_no_other_key_is_possible_a_doubled_one_is_better_than_none() -> None:
    schema = {"type": "object", "patternProperties": {"^[ab]$": {"type": "integer"}}, "additionalProperties": False}
    whole = answer('{"a":1,"a":1,"a":1,"a":1}', JsonSchema(schema), 60)
    assert whole.parsed is not None


@pytest.mark.parametrize("text", ['{"a":{"b":1,"c":[{"b":2}],"d', '[{"a":"}",', '{"x\\"y":1,"', '"tex'])
def test_a_place_is_the_same_however_the_text_is_cut(text: str) -> None:
    whole = JsonPlace()
    whole.feed(text.encode())
    for cut in range(len(text) + 1):
        place = JsonPlace()
        place.feed(text[:cut].encode())
        place = place.copy()
        place.feed(text[cut:].encode())
        assert place == whole


def test_no_member_is_begun_that_could_not_be_completed() -> None:
    """Behind one comma this schema demands four objects."""
    rooms: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    for _ in range(2):
        rooms = {"type": "array", "items": rooms, "minItems": 2}
    members = {"a": {"type": "array", "items": {"type": "string"}}, "bc": rooms}
    for most in range(120, 280, 20):
        whole = answer("1", JsonSchema({"type": "object", "properties": members, "required": ["a"]}), most)
        assert whole.parsed is not None, (most, whole.content)


@pytest.mark.parametrize(
    ("wishes", "most", "made_up"),
    [
        ('{"mood": "very gl', 40, ("stars", "rooms")),
        ('{"mood": "glad", "stars": 4, "rooms": [{"name": "kit', 70, ("rooms.0.size",)),
        ('{"mood": "glad", "stars": 4, "rooms": []}', 60, ()),
    ],
)
def test_values_that_the_engine_wrote_are_named(wishes: str, most: int, made_up: tuple[str, ...]) -> None:
    room: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}, "size": {"type": "integer"}}}
    members = {"mood": {"type": "string"}, "stars": {"type": "integer"}}
    schema: dict[str, Any] = {"type": "object", "properties": {**members, "rooms": {"type": "array", "items": room}}}
    schema["required"], room["required"] = ["mood", "stars", "rooms"], ["name", "size"]
    whole = answer(wishes + "z" * 60 if made_up else wishes, JsonSchema(schema), most)
    assert whole.made_up == made_up, whole.content
    assert all(name in (whole.parse_error or "") for name in made_up)
    assert whole.finish_reason == ("length" if made_up else "stop")
    assert bool(whole.usage.closed_characters) == bool(made_up)
    assert Completion(parts=whole.parts, usage=whole.usage).made_up == made_up


def ends_of(matcher: Matcher) -> bytes:
    """The first bytes of the tokens that end the value at hand."""
    ends = matcher.ends
    tokens: list[int] = [] if ends is None else ends.tolist()
    return bytes(sorted(matcher.table.bytes[token][0] for token in tokens))


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("", b""),
        ('{"', b'"'),
        ('{"a"', b""),
        ('{"a":', b""),
        ('{"a":"', b'"'),
        ('{"a":"x\\', b""),
        ('{"a":"x\\"', b'"'),
        ('{"a":"7', b'"'),
        ('{"a":"7"', b""),
        ('{"b":-', b""),
        ('{"b":-7', b",]} \t\r\n"),
        ('{"b":7.', b""),
        ('{"b":7.5', b",]} \t\r\n"),
        ('{"b":7,', b""),
    ],
)
def test_what_ends_a_value_at_each_place(text: str, ends: bytes) -> None:
    values = {"a": {"type": "string"}, "b": {"type": "number"}}
    matcher = Compiler(VOCAB).compiled(json.dumps({"grammars": [{"json_schema": {"properties": values}}]}))
    assert ends_of(matcher) == b"", "a call's arguments, or a text"
    matcher.json = JsonPlace()
    assert matcher.consume_text(text)
    assert ends_of(matcher) == bytes(sorted(ends))


def test_an_answer_without_an_ending_in_reach_is_not_looked_at_for_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects in objects without end: no answer is complete."""
    node = {"type": "object", "properties": {"x": {"type": "integer"}, "a": {"$ref": "#/$defs/node"}}}
    node = {**node, "required": ["x", "a"]}
    looks: list[int] = []
    ask = ending.ending

    def noted(matcher: Matcher) -> list[int] | None:
        looks.append(0)
        return ask(matcher)

    monkeypatch.setattr(ending, "ending", noted)
    whole = answer('{"x":1,"a":', JsonSchema({"$defs": {"node": node}, "$ref": "#/$defs/node"}), 90)
    assert (whole.finish_reason, whole.parsed) == ("length", None)
    assert 0 < len(looks) < 20


def test_a_way_that_is_too_ambiguous_to_look_along_costs_the_answer_nothing() -> None:
    nest = {"type": "array", "minItems": 2, "items": {"$ref": "#/$defs/nest"}}
    members = {"s": {"type": "string"}, "a": {"$ref": "#/$defs/nest"}}
    schema = {"$defs": {"nest": nest}, "type": "object", "properties": members, "required": ["s", "a"]}
    text = '{"s":"' + "text " * 20
    whole = answer(text, JsonSchema(schema), 60)
    assert (whole.content, whole.finish_reason, whole.parsed) == (text[:60], "length", None)
