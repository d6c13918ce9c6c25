"""A format found by comparing renders: right for every syntax of calls it knows, and nothing where it cannot be
sure."""

import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.chat_template import ChatTemplate
from engine.errors import EngineWarning
from engine.events import fold
from engine.families import Format, builtin_families
from engine.parsing import Parser
from engine.template.capabilities import probe
from engine.template.derive import derive
from engine.template.env import Template
from engine.types import Message, Tool, ToolCall

FOLDER = os.environ.get("LLAMA_CPP_TEMPLATES", "")
SOURCES = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []
FIXED = {"bos_token": "<s>", "eos_token": "</s>"}

FRAME = """\
{%- for tool in tools %}{{ tool | tojson ~ '\n' }}{% endfor -%}
{%- for m in messages -%}
{{- '<turn:' ~ m.role ~ '>\n' -}}
{%- if m.reasoning_content %}{{ '<why>\n' ~ m.reasoning_content ~ '\n</why>\n\n' }}{% endif -%}
{{- m.content or '' -}}
{%- for c in m.tool_calls or [] -%}
{%- set f = c.function -%}
CALL
{%- endfor -%}
AFTER
{{- '<end>\n' -}}
{%- endfor -%}
{{- '<turn:assistant>\n' if add_generation_prompt else '' -}}
"""
JSON_CALL = "{{ '<do>' ~ {'tool': f.name, 'input': f.arguments} | tojson ~ '</do>' }}"
LIST_OPEN = "{{ '<do>[' if loop.first else ', ' }}{{ {'name': f.name, 'arguments': f.arguments, 'id': c.id} | tojson }}"
LIST_CLOSE = "{{ ']</do>' if loop.last else '' }}"
TAGGED_JSON = "{{ '<do>' if loop.first else '' }}{{ '<fn>' ~ f.name ~ '<in>' ~ f.arguments | tojson ~ '</fn>' }}"
END_OF_SECTION = "{{ '</do>' if loop.last else '' }}"
ARGUMENT = "{{ '<arg ' ~ k ~ '>' ~ (v if v is string else v | tojson) ~ '</arg>\n' }}"
TAGGED_ARGS = (
    "{{ '<fn ' ~ f.name ~ '>\n' }}{% for k, v in f.arguments.items() %}" + ARGUMENT + "{% endfor %}{{ '</fn>' }}"
)
CALLS = {
    "json": JSON_CALL,
    "json in a list": LIST_OPEN + LIST_CLOSE,
    "name as key": "{{ '<do>' ~ {f.name: f.arguments} | tojson ~ '</do>' }}",
    "tagged json": TAGGED_JSON + END_OF_SECTION,
    "tagged json with ids": "{{ '<fn>' ~ f.name ~ '<id>' ~ c.id ~ '<in>' ~ f.arguments | tojson ~ '</fn>' }}",
    "tagged arguments": TAGGED_ARGS,
}
LOOK = Tool(
    name="look",
    parameters={"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
)
ASKED = Message(role="user", content="Weather?")
CALL = ToolCall(id="call_1", name="look", arguments='{"city": "Łódź \\"q\\"", "days": 3}')
TURNS = (
    Message(role="assistant", content="It is cold."),
    Message(role="assistant", content="It is cold.", reasoning="Because."),
    Message(role="assistant", content="", tool_calls=(CALL,)),
    Message(
        role="assistant", content="", reasoning="Because.", tool_calls=(CALL, CALL.model_copy(update={"id": "call_2"}))
    ),
)


def source(call: str) -> str:
    return FRAME.replace("CALL", call).replace("AFTER", "")


@pytest.mark.parametrize("name", CALLS)
def test_a_derived_template_works_like_a_known_one(name: str) -> None:
    """Text, reasoning and calls of a template nobody has listed, rendered and parsed back."""
    template = ChatTemplate(source(CALLS[name]), "<s>", "</s>")
    assert template.family.name == "derived"
    assert "reasoning between '<why>' and '</why>'" in template.detection.reason
    prompt = template.render([ASKED], [LOOK])
    for message in TURNS:
        whole = template.render([ASKED, message], [LOOK], add_generation_prompt=False).text
        assert whole.startswith(prompt.text)
        parser = template.parser(prompt, [LOOK])
        completion = fold([*parser.feed(whole[len(prompt.text) :].partition("<end>")[0]), *parser.close()])
        assert (completion.reasoning, completion.content) == (message.reasoning or "", message.content)
        assert [(call.name, json.loads(call.arguments)) for call in completion.tool_calls] == [
            (call.name, json.loads(call.arguments)) for call in message.tool_calls
        ]
    assert prompt.stop == ("<end>",)


def test_calls_that_cannot_be_derived_are_said() -> None:
    odd = source("{{ f.name ~ ' takes ' ~ f.arguments | length ~ ' of ' ~ f.arguments.values() | join }}")
    with pytest.warns(EngineWarning, match="will arrive as content"):
        template = ChatTemplate(odd)
    assert template.format.tools is None
    assert template.format.reasoning is not None


def test_a_template_that_changes_arguments_is_not_believed() -> None:
    lossy = source("{{ '<do>' ~ {'name': f.name, 'arguments': f.arguments} | tojson | replace('é', 'e') ~ '</do>' }}")
    with pytest.warns(EngineWarning, match="could not be derived"):
        assert ChatTemplate(lossy).format.tools is None


def test_tags_that_the_template_cuts_at_are_reasoning() -> None:
    cuts = "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] }}<end>{% endfor %}"
    template = ChatTemplate(cuts + "{% if add_generation_prompt %}<assistant>{% endif %}")
    parser = template.parser(template.render("Hi"))
    completion = fold([*parser.feed("<think>\nWhy.\n</think>\n\nSo."), *parser.close()])
    assert (completion.reasoning, completion.content) == ("Why.", "So.")


def test_a_named_family_is_not_second_guessed() -> None:
    assert ChatTemplate(source(JSON_CALL), family="content-only").format.tools is None


def read(format_: Format, turn: str) -> object:
    for stop in format_.stops:
        turn = turn.partition(stop)[0]
    parser = Parser(format_, tools=[LOOK])
    completion = fold([*parser.feed(turn), *parser.close()])
    return (
        completion.reasoning,
        completion.content.strip(),
        [(c.name, c.arguments, c.error) for c in completion.tool_calls],
    )


@pytest.mark.skipif(not SOURCES, reason="set LLAMA_CPP_TEMPLATES to llama.cpp's models/templates")
def test_templates_of_the_tree(record_testsuite_property: Callable[[str, object], None]) -> None:
    """With every family switched off: how many formats round-trip, and how many of these read like the declared one."""
    with_calls: list[str] = []
    reasoning: list[str] = []
    unlike: list[str] = []
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        template = Template(text)
        derived = derive(template, FIXED, probe(template, FIXED))
        if derived is None:
            continue
        if derived.tools is None:
            reasoning.append(path.stem)
            continue
        with_calls.append(path.stem)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            declared = ChatTemplate(text, "<s>", "</s>")
        for message in TURNS:
            asked = declared.render([ASKED], [LOOK], add_generation_prompt=False).text
            whole = declared.render([ASKED, message], [LOOK], add_generation_prompt=False).text
            if read(derived, whole.removeprefix(asked)) != read(declared.format, whole.removeprefix(asked)):
                unlike.append(path.stem)
                break
    known = sum(
        builtin_families().detect(path.read_text(encoding="utf-8")).family.name != "content-only" for path in SOURCES
    )
    record_testsuite_property("derived", f"{len(with_calls)} calls, {len(reasoning)} reasoning only, of {len(SOURCES)}")
    record_testsuite_property("declared", f"{known}; derived unlike declared: {unlike}")
    assert len(with_calls) >= 44
    assert len(unlike) <= len(with_calls) // 4
