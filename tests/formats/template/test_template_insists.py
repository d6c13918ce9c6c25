"""A template that insists on something can do all that it can do without insisting: no probe of it fails for another
reason than the one that it asks about."""

from dataclasses import replace
from pathlib import Path

import pytest
from cases.template_calls import SOURCES

from engine.formats.template.capabilities import probe
from engine.formats.template.chat_template import ChatTemplate
from engine.formats.template.env import Template

FIXED = {"bos_token": "<s>", "eos_token": "</s>"}
REASONING = """{%- for m in messages if m.role == 'assistant' -%}
{%- if m.reasoning_content is not defined and m.reasoning is not defined and m.thinking is not defined -%}
{{- raise_exception('An answer lacks its reasoning.') -}}{%- endif -%}{%- endfor -%}"""
TOOLS = """{%- for m in messages if m.tool_calls and not tools -%}
{{- raise_exception('A call of a tool that is not stated.') -}}{%- endfor -%}"""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_what_a_template_insists_on_takes_nothing_away(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    free = probe(Template(source), FIXED)
    # Firefunction's template has another name for tools, which it gets unless it reads the usual one.
    insists = (
        TOOLS if "tools" in Template(source).variables else TOOLS.replace("not tools", "(functions or '[]') == '[]'")
    )
    assert probe(Template(insists + source), FIXED) == free
    if free.reasoning_fields:
        assert probe(Template(REASONING + source), FIXED) == replace(free, needs_reasoning=True)


def test_its_calls_and_results_are_written_as_its_own() -> None:
    source = (Path(__file__).parents[3] / "templates" / "qwen3.jinja").read_text(encoding="utf-8")
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}
    conversation = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "A hill."},
    ]
    free, insists = (
        ChatTemplate(text, trust_template=True).render(conversation) for text in (source, REASONING + source)
    )
    assert free.text == insists.text
