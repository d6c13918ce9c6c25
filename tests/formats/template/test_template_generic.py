"""Calls written as text are what the family's own parser reads back; statements hold what a model needs."""

import json

import pytest
from cases.writer import is_bare

from engine.formats.families import builtin_families
from engine.formats.parsing import Parser
from engine.formats.template import generic
from engine.types.events import fold
from engine.types.messages import Message
from engine.types.parts import ToolCall
from engine.types.tools import Tool

TOOL = Tool(
    name="look",
    description="Looks.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "deep": {"type": "object"}},
    },
)
CALLS = (
    ToolCall(id="look:0", name="look", arguments='{"city": "Łódź \\"q\\"", "days": 3, "deep": {"a": [true, null]}}'),
    ToolCall(id="look:1", name="look", arguments='{"city": "02134"}'),
)
FAMILIES = builtin_families()
WITH_CALLS = [name for name in FAMILIES.names() if FAMILIES.get(name).format.tools]


@pytest.mark.parametrize("name", WITH_CALLS)
@pytest.mark.parametrize("count", [1, 2])
def test_what_is_written_is_read_back(name: str, count: int) -> None:
    syntax = FAMILIES.get(name).format.tools
    assert syntax is not None
    if count > 1 and (not syntax.parallel or is_bare(syntax)):
        pytest.skip("one call a turn")
    text = generic.written(CALLS[:count], generic.writable(syntax))
    format_ = FAMILIES.get(name).format.model_copy(update={"tools": generic.writable(syntax)})
    parser = Parser(format_, tools=[TOOL])
    completion = fold([*parser.feed(text), *parser.close()])
    assert [(call.name, json.loads(call.arguments), call.error) for call in completion.tool_calls] == [
        (call.name, json.loads(call.arguments), None) for call in CALLS[:count]
    ]
    assert not completion.content.strip()


def test_most_syntaxes_are_written_as_their_own() -> None:
    syntaxes = [syntax for name in WITH_CALLS if (syntax := FAMILIES.get(name).format.tools)]
    own = [syntax for syntax in syntaxes if generic.writable(syntax) is syntax]
    assert len(own) > 3 / 4 * len(syntaxes)


def test_broken_arguments_stay_visible() -> None:
    syntax = FAMILIES.get("qwen3-coder").format.tools
    assert syntax is not None
    assert '{"ci' in generic.written([ToolCall(name="look", arguments='{"ci')], syntax)


def test_a_statement_holds_every_tool_and_the_form_of_a_call() -> None:
    text = generic.statement([TOOL.openai()["function"]], generic.GENERIC)
    assert json.dumps(TOOL.openai()["function"]) in text
    assert '<tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}\n</tool_call>' in text


def test_results_in_a_row_are_one_user_message() -> None:
    results = [Message(role="tool", name="look", content=text) for text in ("cold", "warm")]
    messages = [Message(role="user", content="Go"), *results, Message(role="user", content="So?"), *results[:1]]
    contents = [message.content for message in generic.without_results(messages)]
    assert contents == ["Go", "Result of look:\ncold\n\nResult of look:\nwarm", "So?", "Result of look:\ncold"]
    said = ["Go", "cold", "warm", "", "So?", "cold"]  # an answer without text stands before the next question
    assert [message.content for message in generic.alternating(messages)] == said
    assert len(generic.alternating(generic.without_results(messages))) == 1
