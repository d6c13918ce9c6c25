"""Bare JSON calls as small models write them: in a fence, behind prose, in another case, in OpenAI's envelope."""

import json
from typing import Any

import pytest
from cases.parsing_cases import families_where, run, splits
from cases.writer import stated

from engine.formats.families import builtin_families
from engine.formats.parsing import Parser
from engine.types.completion import Completion
from engine.types.events import fold

NO_CALLS: tuple[dict[str, Any], ...] = ({"tools": None}, {"tools": ()}, {"tool_choice": "none"})
_PROPERTIES: dict[str, Any] = {"to": {"type": "string"}, "n": {"type": "integer"}}
TOOLS: list[dict[str, Any]] = [
    {"name": "trip", "parameters": {"type": "object", "properties": _PROPERTIES}},
    {"name": "wipe", "parameters": {"type": "object", "properties": {}}},
]
ARGUMENTS = {"to": 'Rome `{"}` ```', "n": 2}
BARE = json.dumps({"name": "trip", "parameters": ARGUMENTS})
OTHER = json.dumps({"name": "trip", "arguments": ARGUMENTS}, indent=2)
FUNCTION = {"name": "trip", "arguments": json.dumps(ARGUMENTS)}
ENVELOPE = json.dumps({"id": "call_1", "type": "function", "function": FUNCTION})
WRITTEN = (BARE, OTHER, BARE.replace("trip", "Trip"), BARE.replace("trip", "functions.trip"), ENVELOPE, f"[{BARE}]")
AROUND = (
    ("{}", ""),
    ("```json\n{}\n```", ""),
    ("```\n{}\n```", ""),
    ("I look: {}", "I look: "),
    ("I look:\n\n```json\n{}\n```\n", "I look:\n\n"),
    ("I look:\n{}\nand so on.", "I look:\n\nand so on."),
)
each_whole = families_where(lambda format_: stated(format_.tools, "whole_objects", default=False))


def read(family: str, output: str, chunks: list[str], **options: Any) -> Completion:
    parser = Parser(family, tools=options.pop("tools", TOOLS), trace=True, **options)
    completion = fold(run(parser, chunks))
    assert "".join(segment.text for segment in parser.trace) == output
    return completion


@each_whole
def test_a_whole_object_that_names_a_tool_and_fits_is_a_call(family: str) -> None:
    for around, content in AROUND:
        for written in (*WRITTEN, json.dumps({"tool_calls": [json.loads(ENVELOPE)]})):
            output = around.replace("{}", written)
            for chunks in splits(output):
                completion = read(family, output, chunks)
                (call,) = completion.tool_calls
                assert (call.name, json.loads(call.arguments), call.error) == ("trip", ARGUMENTS, None), output
                assert completion.content == content, output


@each_whole
def test_several_in_one_fence(family: str) -> None:
    output = f"Both:\n```json\n{BARE}\n{OTHER}\n```\nDone."
    for chunks in splits(output):
        completion = read(family, output, chunks)
        assert [call.name for call in completion.tool_calls] == ["trip", "trip"]
        assert completion.content == "Both:\n\nDone."


TEXTS = (
    '{"name": "Ada", "born": 1815}',
    '{"name": "trip", "color": "red"}',
    'I look: {"name": "trip", "parameters": {"to": 7}}',
    'I look: {"name": "trip"}',
    'I look: {"name": "trips", "parameters": {}}',
    'I look: {"name": "trip", "parameters": {}, "more": 1}',
    f"Write `{BARE}` for it.",
    f"f({BARE})",
    f"```python\ncall = {BARE}\n```",
    f"```json\n{BARE}\n{{}}\n```",
    f"See {BARE[:-3]}",
    '[{"name": "Ada"}, {"name": "Bob"}]',
    f"Never send {BARE} again!",
    f'[{{"name": "wipe", "risk": "high"}}, {BARE}]',
    f'[\n{{"name": "wipe", "risk": "high"}},\n{BARE}\n]',
    f'{{"answer": {BARE}}}',
    "Use {braces} and [brackets], and ```fences```.",
)


@each_whole
@pytest.mark.parametrize("text", TEXTS)
def test_other_text_stays_text(family: str, text: str) -> None:
    for chunks in splits(text):
        completion = read(family, text, chunks)
        assert (completion.content, completion.tool_calls) == (text, ()), text


@each_whole
def test_without_tools_and_where_none_is_wanted_text_stays_text(family: str) -> None:
    for around, _ in AROUND[1:]:
        output = around.replace("{}", BARE)
        for options in NO_CALLS:
            completion = read(family, output, [output], **options)
            assert (completion.content, completion.tool_calls) == (output, ())


def test_llama_3_and_functionary_3_2_are_such_families() -> None:
    for name in ("llama-3", "functionary-3.2"):
        tools = builtin_families().get(name).format.tools
        assert stated(tools, "whole_objects", default=False)
