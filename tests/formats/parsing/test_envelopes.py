"""Calls in JSON as small models spell them: arguments under another key, twice, beside other text, or not at all."""

import json
from typing import Any

import pytest
from cases.parsing_cases import FAMILIES, families_where, run, splits

from engine.formats.families import JsonSyntax, builtin_families
from engine.formats.parsing import Parser
from engine.types.completion import Completion
from engine.types.events import fold

_PROPERTIES: dict[str, Any] = {"to": {"type": "string"}, "n": {"type": "integer"}}
TRIP: dict[str, Any] = {"name": "trip", "parameters": {"type": "object", "properties": _PROPERTIES}}
WIPE: dict[str, Any] = {"name": "wipe", "parameters": {"type": "object", "properties": {}}}
KEYS = ("arguments", "parameters", "args", "input", "params", "kwargs", "tool_input", "Arguments", "ARGS")
OTHERS: tuple[dict[str, Any], ...] = (
    {"args": {"n": 1}, "params": {"n": 2}},
    {"arguments": {"n": 1}, "parameters": {"n": 2}},
    {"arguments": {"n": 1}, "function": {"n": 2}},
    {"arguments": {"n": 1}, "reason": "n is small"},
    {"thought": "n is small", "arguments": {"n": 1}},
    {"to": "Rome"},
    {"options": {"to": "Rome"}},
    {"description": "Goes there.", **TRIP["parameters"]},
)
each_json = families_where(lambda format_: isinstance(format_.tools, JsonSyntax) and not format_.tools.name_is_key)
wrapped = families_where(
    lambda format_: isinstance(format_.tools, JsonSyntax) and not format_.tools.name_is_key and format_.tools.section[0]
)


def _read(family: str, output: str, chunks: list[str], **options: Any) -> Completion:
    return fold(run(Parser(family, tools=[TRIP, WIPE], **options), chunks))


def _call(family: str, members: dict[str, Any]) -> tuple[str, str]:
    """A call of `trip` with these members, in the family's markers and without."""
    syntax = builtin_families().get(family).format.tools
    assert isinstance(syntax, JsonSyntax)
    body = json.dumps({syntax.name_fields[0]: "trip", **members})
    listed = f"[{body}]" if syntax.several == "list" else body
    return syntax.section[0] + listed + syntax.section[1], body


@each_json
@pytest.mark.parametrize("key", KEYS)
def test_arguments_under_a_key_that_models_use(family: str, key: str) -> None:
    output, _ = _call(family, {key: {"to": "Rome", "n": 2}})
    for chunks in splits(output):
        (call,) = _read(family, output, chunks).tool_calls
        assert (call.name, json.loads(call.arguments), call.error) == ("trip", {"to": "Rome", "n": 2}, None), output


@wrapped
@pytest.mark.parametrize("members", OTHERS, ids=lambda members: " and ".join(members))
def test_other_text_in_a_call_makes_it_malformed_and_is_kept(family: str, members: dict[str, Any]) -> None:
    output, _ = _call(family, members)
    for chunks in splits(output):
        (call,) = _read(family, output, chunks).tool_calls
        assert (call.name, call.error) in (("trip", "malformed"), ("", "malformed")), output
        for key, value in members.items():
            known = key == "arguments" and call.arguments.startswith(json.dumps(value))
            assert known or json.dumps({key: value})[1:-1] in call.arguments or key == "args", output


@wrapped
def test_members_that_say_nothing_are_no_harm(family: str) -> None:
    members = {"type": "function", "reason": None, "params": {}, "arguments": {"n": 1}, "index": 0, "notes": ""}
    output, _ = _call(family, {key: value for key, value in members.items() if key != "params"})
    for chunks in splits(output):
        (call,) = _read(family, output, chunks).tool_calls
        assert (json.loads(call.arguments), call.error) == ({"n": 1}, None)


ANSWERS = (
    '{"name": "wipe", "risk": "high"}',
    '{"name": "wipe"}',
    '{"name": "wipe", "description": "All.", "parameters": {"type": "object", "properties": {}}}',
    '[{"name": "wipe", "risk": "high"}, {"name": "trip", "arguments": {"n": 1}}]',
    '[{"name": "wipe", "risk": "high"},\n {"name": "trip", "arguments": {"n": 1}}\n]',
    '{"name": "wipe", "reason": "x", "arguments": {}}',
    '{"tools": [{"name": "wipe", "arguments": {}}]}',
    'Never send {"name": "wipe", "parameters": {}} again!',
)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"json": True}, {"tool_choice": "none"}], ids=["auto", "json", "none"])
def test_an_answer_that_only_names_a_tool_is_no_call(family: str, options: dict[str, Any]) -> None:
    for answer in ANSWERS:
        for chunks in splits(answer):
            completion = _read(family, answer, chunks, **options)
            assert (completion.text or completion.reasoning, completion.tool_calls) == (answer, ()), answer
            assert not completion.usage.dropped_calls


def _is_its_own(family: str) -> bool:
    """Whether the family itself writes calls as JSON without markers."""
    tools = builtin_families().get(family).format.tools
    return isinstance(tools, JsonSyntax) and (tools.bare or not tools.section[0])


@pytest.mark.parametrize("family", [family for family in FAMILIES if not _is_its_own(family)])
def test_an_answer_s_format_has_no_call_without_markers(family: str) -> None:
    answer = '{"name": "trip", "arguments": {"n": 1}}'
    for chunks in splits(answer):
        completion = _read(family, answer, chunks, json=True)
        assert (completion.text or completion.reasoning, completion.tool_calls) == (answer, ())


@pytest.mark.parametrize("family", [family for family in FAMILIES if not _is_its_own(family)])
def test_a_call_without_markers_is_whole_and_fits(family: str) -> None:
    for answer in (
        '{"name": "trip", "arguments": {"n": "x"}}',
        '{"name": "trip", "arguments": {"n": 1}} is what I would write',
        '{"name": "trip", "arguments": {"n": 1}',
        '{"name": "trip", "arguments": {"n": 1}, "id": {"n": 2}}',
    ):
        for chunks in splits(answer):
            completion = _read(family, answer, chunks)
            assert (completion.text or completion.reasoning, completion.tool_calls) == (answer, ())


def test_a_call_without_markers_that_has_begun_ends_malformed() -> None:
    for output, text in (
        ('{"name": "trip", "parameters": {"n": 1}, "reason": "x"}', '{"n": 1}, "reason": "x"}'),
        ('{"name": "trip", "parameters": {"n": 1}} is what I must not send', '{"n": 1} is what I must not send'),
    ):
        for chunks in splits(output):
            (call,) = _read("llama-3", output, chunks).tool_calls
            assert (call.name, call.arguments, call.error) == ("trip", text, "malformed")


def test_a_tool_s_definition_is_no_call_of_it() -> None:
    definition = json.dumps({"name": "wipe", "parameters": WIPE["parameters"]})
    (call,) = _read("qwen3", definition, [f"<tool_call>\n{definition}\n</tool_call>"]).tool_calls
    assert call.error == "invalid_arguments"
