"""Variables that change how a template writes calls: the calls are read all the same, or the variables are refused."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases.template_calls import SOURCES, template_of, writes

from engine.formats.check.roundtrip import LOOK, ONE, turn
from engine.formats.parsing import Parser
from engine.formats.template.chat_template import ChatTemplate
from engine.formats.template.env import Template
from engine.support.errors import RequestError, TemplateError
from engine.types.events import fold
from engine.types.messages import Message

OURS = {"messages", "tools", "documents", "builtin_tools", "add_generation_prompt", "bos_token", "eos_token"}
FORMS = {
    "typed": "<tool_call>{{ c.name }}{% for k, v in c.arguments.items() %}<arg_key>{{ k }}</arg_key>"
    "<arg_type>string</arg_type><arg_value>{{ v }}</arg_value>{% endfor %}</tool_call>",
    "json": '<call>{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}</call>',
    "dense": '<tool_call>\n{"name": "{{ c.name }}", "arguments": {{ c.arguments | tojson }}}\n</tool_call>',
}
"""Forms in which a template could write calls; Qwen 3's reader reads the last one only."""


def _switched(form: str) -> ChatTemplate:
    """Qwen 3's template with a variable that changes how calls are written."""
    source = (Path(__file__).parents[3] / "templates" / "qwen3.jinja").read_text(encoding="utf-8")
    other = (
        "{% if call_form == 'other' %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for t in m.tool_calls or [] %}{% set c = t.function %}" + FORMS[form] + "{% endfor %}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{% else %}"
    )
    return ChatTemplate(other + source + "{% endif %}", family="qwen3", trust_template=True)


@pytest.mark.parametrize("form", FORMS)
def test_a_variable_that_changes_the_form_of_calls_is_refused_where_there_are_tools(form: str) -> None:
    template, other = _switched(form), {"call_form": "other"}
    assert template.render("Look.", template_kwargs=other).text
    assert template.render("Look.", [LOOK], template_kwargs={"call_form": "usual", "another": 1}).text
    if form == "dense":
        assert template.render("Look.", [LOOK], template_kwargs=other).text
        return
    for _ in range(2):
        with pytest.raises(RequestError, match=r"template_kwargs for call_form, .* Leave call_form out"):
            template.render("Look.", [LOOK], template_kwargs=other)


def _values(source: str, name: str) -> Iterator[Any]:
    """What a template compares a variable with, and values of other kinds."""
    yield from (True, False, 2, "x")
    yield from re.findall(rf"\b{name}\s*(?:==|!=|in)\s*[\"']([^\"']+)[\"']", source)
    for listed in re.findall(rf"\b{name}\s+(?:not )?in\s*[\[(]([^\])]*)", source):
        yield from re.findall(r"[\"']([^\"']+)[\"']", listed)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_calls_are_read_under_every_variable_that_is_not_refused(path: Path) -> None:
    """Each variable of a template, with each value that the template asks about."""
    if not writes(path):
        pytest.skip("it writes no calls of its own")
    template = template_of(path)
    conversation = [Message(role="user", content="Weather?"), turn("", ONE)]
    conversation += [Message(role="tool", tool_call_id=ONE.id, content="RESULT")]
    for name in sorted(set(Template(template.source).variables) - OURS):
        for value in dict.fromkeys(_values(template.source, name)):
            try:
                text = template.render(
                    conversation, [LOOK], template_kwargs={name: value}, add_generation_prompt=False
                ).text
            except (RequestError, TemplateError):
                continue
            written = text.partition("Weather?")[2].partition("RESULT")[0]
            if ONE.name in written:
                read = fold([*(parser := Parser(template.format, tools=[LOOK])).feed(written), *parser.close()])
                assert [(call.name, call.error) for call in read.tool_calls] == [("look", None)], (name, value, text)
