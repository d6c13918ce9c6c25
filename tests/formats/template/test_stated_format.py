"""Where a response template stands among the sources of the output's format, and what it is checked against."""

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
from fakes.response_templates import ATTRIBUTE, BARE_KEYS, CODER, HARMONY, HERMES, PAIRS, PYTHON, stated

from engine.formats.check.roundtrip import lost
from engine.formats.families import Families, Format, ResponseTemplate, builtin_families
from engine.formats.template.chat_template import ChatTemplate
from engine.support.errors import EngineWarning, FamilyError, RequestError

FOLDER = os.environ.get("LLAMA_CPP_TEMPLATES", "")
UNKNOWN = """\
{%- for tool in tools %}{{ tool | tojson ~ '\n' }}{% endfor -%}
{%- for m in messages -%}
{{- '<turn:' ~ m.role ~ '>\n' -}}
{%- if m.reasoning_content %}{{ '<why>\n' ~ m.reasoning_content ~ '\n</why>\n\n' }}{% endif -%}
{{- m.content or '' -}}
{%- for c in m.tool_calls or [] -%}
{{- '<fn name="' ~ c.function.name ~ '">' ~ c.function.arguments | tojson ~ '</fn>' -}}
{%- endfor -%}
{{- '<end>\n' -}}
{%- endfor -%}
{{- '<turn:assistant>\n' if add_generation_prompt else '' -}}
"""
FITTING = stated(
    "<turn:assistant>\n",
    "<end>",
    reasoning_content={"open": "<why>", "close": "</why>"},
    tool_calls={**ATTRIBUTE["fields"]["tool_calls"], "open_pattern": '<fn name="(?P<name>[^"]+)">', "close": "</fn>"},
)
OTHER = stated("<turn:assistant>\n", "<end>", reasoning_content={"open": "<mind>", "close": "</mind>"})


def published(spec: Any) -> ResponseTemplate:
    return ResponseTemplate(spec, "the response template of own/repo")


def official(name: str) -> str:
    if not FOLDER:
        pytest.skip("LLAMA_CPP_TEMPLATES names no folder")
    return (Path(FOLDER) / f"{name}.jinja").read_text(encoding="utf-8")


@pytest.mark.parametrize("spec", [FITTING, published(FITTING)], ids=["given", "published"])
def test_it_comes_before_derivation(spec: Any) -> None:
    """For a template of no known family; what it does not say is what the renders show."""
    made = ChatTemplate(UNKNOWN, "<s>", "</s>", response_template=spec)
    assert made.family.name == "response-template"
    assert made.detection.reason.endswith("states it")
    assert made.detection.response_template == "it is used, and reads the chat template's own turns"
    assert lost(made) == {}
    reasoning = made.format.reasoning
    assert reasoning is not None
    assert (reasoning.open.strip(), reasoning.fields) == ("<why>", ("reasoning_content",))


def test_one_that_does_not_fit_the_chat_template() -> None:
    """A published one gives way to what is derived; the caller's is used, with a warning."""
    made = ChatTemplate(UNKNOWN, "<s>", "</s>", response_template=published(OTHER))
    assert made.family.name == "derived"
    assert "own/repo is not used, since it does not read" in made.detection.response_template
    assert "reasoning and an answer is read as content '<why>" in made.detection.response_template
    assert lost(made) == {}
    with pytest.warns(EngineWarning, match="is used, but differs from this chat template's own turns: reasoning and"):
        made = ChatTemplate(UNKNOWN, "<s>", "</s>", response_template=OTHER)
    assert made.family.name == "response-template"
    assert made.format.reasoning is not None
    assert made.format.reasoning.open.strip() == "<mind>"


def test_one_that_cannot_be_expressed() -> None:
    """A published one is told; the caller's is an error."""
    made = ChatTemplate(UNKNOWN, "<s>", "</s>", response_template=published({"fields": {"mood": {}}}))
    assert made.family.name == "derived"
    assert (
        "own/repo is not used. The response template, start_anchor: it is missing" in made.detection.response_template
    )
    with pytest.raises(FamilyError, match="start_anchor: it is missing"):
        ChatTemplate(UNKNOWN, "<s>", "</s>", response_template={"fields": {"mood": {}}})


OFFICIAL = {
    "Qwen-Qwen3-0.6B": HERMES,
    "Qwen3.5-4B": CODER,
    "Qwen3-Coder": CODER,
    "openai-gpt-oss-120b": HARMONY,
    "google-gemma-4-31B-it": BARE_KEYS,
    "GLM-4.6": PAIRS,
    "LFM2-8B-A1B": PYTHON,
}


@pytest.mark.parametrize("name", OFFICIAL)
def test_a_row_and_a_response_template_that_agree(name: str) -> None:
    """Of families with rows: converted, it reads the official template's turns as the row does."""
    source = official(name)
    row = ChatTemplate(source, "<s>", "</s>")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = ChatTemplate(source, "<s>", "</s>", response_template=OFFICIAL[name])
        kept = ChatTemplate(source, "<s>", "</s>", response_template=published(OFFICIAL[name]))
    assert made.family.name == kept.family.name == row.family.name
    assert made.detection.response_template == "it is used, and reads the chat template's own turns"
    assert kept.detection.response_template.endswith("own/repo reads the same; the family's row is used")
    assert kept.format == row.format
    assert lost(made, continues=False) == lost(row, continues=False)


def test_a_row_and_a_response_template_that_differ() -> None:
    """The row, which was checked, wins over a published one; the caller's wins over the row."""
    source = official("Qwen-Qwen3-0.6B")
    other = {**OTHER, "start_anchor": "<|im_start|>assistant\n"}
    kept = ChatTemplate(source, "<s>", "</s>", response_template=published(other))
    assert kept.format == builtin_families().get("qwen3").format
    told = kept.detection.response_template
    assert "own/repo reads otherwise: an answer is read as content '<think>" in told
    assert told.endswith("the family's row is used")
    assert "; and 6 more;" in told
    with pytest.warns(EngineWarning, match="differs from the family 'qwen3': an answer is read as content '<think>"):
        made = ChatTemplate(source, "<s>", "</s>", response_template=other)
    assert (made.family.name, made.format.tools) == ("qwen3", None)
    theirs, ours = made.format.reasoning, kept.format.reasoning
    assert theirs is not None
    assert ours is not None
    assert (theirs.open.strip(), theirs.gate, theirs.history) == ("<mind>", ours.gate, ours.history)


def test_the_callers_family_comes_first() -> None:
    for family in ("qwen3", builtin_families().get("qwen3"), Format()):
        with pytest.raises(RequestError, match="leave one out"):
            ChatTemplate.for_model(UNKNOWN, "<s>", "</s>", family, response_template=FITTING)
        made = ChatTemplate.for_model(UNKNOWN, "<s>", "</s>", family, response_template=published(FITTING))
        assert made.detection.response_template == ""
    for among in (None, Families([])):
        made = ChatTemplate.for_model(UNKNOWN, "<s>", "</s>", among, response_template=FITTING)
        assert made.family.name == "response-template"
