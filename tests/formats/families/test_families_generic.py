"""Bare JSON: the generic form of families without a syntax for calls, and what demanded calls may look like."""

import json
from typing import Any

import pytest
from cases.parsing_cases import TOOLS, check_order, run, splits
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.families import builtin_families
from engine.formats.parsing import Parser
from engine.formats.template.generic import with_generic_tools
from engine.types.completion import Completion
from engine.types.events import ContentDelta, fold
from engine.types.tools import ToolName

FORMS: dict[str, Any] = {
    "a family without calls": "content-only",
    "the generic syntax": with_generic_tools(builtin_families().get("olmo-2").format),
}


def parsed(family: Any, output: str, prefix: str = "", **options: Any) -> Completion:
    """The completion, which is the same at any split, with nothing lost."""
    completions: list[Completion] = []
    for chunks in splits(output):
        parser = Parser(family, prefix, tools=TOOLS, trace=True, **options)
        events = run(parser, chunks)
        check_order(events)
        assert "".join(segment.text for segment in parser.trace) == output
        completions.append(fold(events))
    assert all(completion == completions[0] for completion in completions)
    return completions[0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(
    ("output", "content"),
    [
        ('{"response": "hi"}', "hi"),
        ('{"response":"a \\"b\\"\\nc é \\ud83c\\udf89 {x}"}', 'a "b"\nc é 🎉 {x}'),
        (' {\n  "response" : "hi"\n}\n', "hi"),
        ('{"response": {"a": [1, "x"]}}', '{"a": [1, "x"]}'),
        ('{"response": ""}', ""),
    ],
)
def test_a_wrapped_answer_is_the_answer(form: str, choice: Any, output: str, content: str) -> None:
    completion = parsed(FORMS[form], output, tool_choice=choice)
    assert completion.content.strip() == content
    assert not completion.tool_calls


@pytest.mark.parametrize("form", FORMS)
def test_a_wrapped_answer_streams(form: str) -> None:
    parser = Parser(FORMS[form], tools=TOOLS)
    parser.feed('{"response": "')
    for character in "An answer.":
        events = parser.feed(character)
        assert [event.text for event in events if isinstance(event, ContentDelta)] == [character]
    assert fold(parser.feed('"}') + parser.close()).content == ""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "output",
    [
        '{"tool_call": {"name": "ping", "arguments": {}}}',
        '{"tool_calls": [{"name": "ping", "arguments": {}}]}',
        '{"name": "ping", "arguments": {}}',
    ],
)
def test_bare_calls_of_the_generic_form(form: str, output: str) -> None:
    completion = parsed(FORMS[form], output)
    assert [(call.name, call.arguments) for call in completion.tool_calls] == [("ping", "{}")]
    assert not completion.content


@pytest.mark.parametrize("output", ['{"responses": "x"}', '{"response', '{"re": 1}', '{"answer": "x"}'])
@pytest.mark.parametrize("form", FORMS)
def test_other_objects_are_content(form: str, output: str) -> None:
    assert parsed(FORMS[form], output).content == output


def test_an_answer_that_was_to_be_json_stays_whole() -> None:
    output = '{"response": "hi"}'
    assert parsed("content-only", output, json=True).content == output
    assert parsed("content-only", output, tool_choice="none").content == output
    assert parsed("qwen3", output).content == output


def test_a_named_tools_arguments_are_no_answer() -> None:
    completion = parsed("content-only", '{"response": "hi"}', tool_choice=ToolName(name="ping"))
    assert [(call.name, json.loads(call.arguments)) for call in completion.tool_calls] == [("ping", {"response": "hi"})]


@pytest.mark.parametrize("channel", ["final", "commentary"])
def test_a_demanded_call_of_gpt_oss_may_stand_in_a_channel(channel: str) -> None:
    def message(body: str) -> str:
        reasoning = "<|channel|>analysis<|message|>Why.<|end|><|start|>assistant"
        return f"{reasoning}<|channel|>{channel}<|message|>{body}<|return|>"

    def calls(body: str, choice: Any) -> list[tuple[str, str]]:
        completion = parsed("gpt-oss", message(body), "<|start|>assistant", tool_choice=choice)
        assert completion.reasoning == "Why."
        assert completion.content == ("" if completion.tool_calls else body)
        return [(call.name, call.arguments) for call in completion.tool_calls]

    paris = '{"city": "Paris"}'
    call = f'{{"name": "get_weather", "arguments": {paris}}}'
    assert calls(call, "required") == [("get_weather", paris)]
    assert calls(f"[{call}, {call}]", "required") == [("get_weather", paris)] * 2
    assert calls(paris, ToolName(name="get_weather")) == [("get_weather", paris)]
    assert calls(call, "auto") == []
    assert calls("No call.", "required") == []


ATOMS = [
    *('{"response": "', "{'response': '", '{"response": {', '{"tool_call": {', '{"tool_calls": [', '{"name": "ping"'),
    *(', "arguments": {}', ', "parameters": {"city": "', "'arguments': {'city': '", "}", "]", "[", "{", '"', "'", "\\"),
    *("\\u00e9", "\\ud83d", "```json\n", "```", "\n", " ", "x", "é", ":", ",", ";", "<tool_call>\n", "\n</tool_call>"),
]
SALADS: dict[str, Any] = {**FORMS, "hermes": "hermes", "cogito-llama": "cogito-llama"}


@pytest.mark.parametrize("form", SALADS)
@pytest.mark.parametrize("choice", ["auto", "required", ToolName(name="ping")])
@settings(max_examples=60)
@given(parts=st.lists(st.sampled_from(ATOMS), max_size=16))
def test_any_mixture_is_read_alike_at_any_split(form: str, choice: Any, parts: list[str]) -> None:
    parsed(SALADS[form], "".join(parts), tool_choice=choice)
