"""Chat templates that show the schema of the answer get it, in the form that each takes; no other prompt has it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from engine import ChatTemplate, Engine, JsonSchema
from engine.formats.families import builtin_families
from engine.testing.scripted import ByteVocab, ScriptedBackend

FOLDER = Path(os.environ.get("LLAMA_CPP_TEMPLATES", "/nowhere"))
SCHEMA = {"type": "object", "properties": {"mood": {"enum": ["glad", "calm"]}}, "required": ["mood"]}
SHOWN = {
    "deepseek-ai-DeepSeek-V4": "adhere to the following schema to reply:\n",
    "Kimi-K3": "must match the following schema:\n",
    "upstage-Solar-Open-100B": "",
    "Cohere2MoE": "adhere to the following json schema:\n",
}
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="LLAMA_CPP_TEMPLATES names no folder")


def rendered(name: str, **options: Any) -> str:
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    family = builtin_families().detect(source).family
    vocab = ByteVocab(sorted(family.format.control), end=["<|the_end|>"])
    template = ChatTemplate(source, control_tokens=vocab.control_tokens, trust_template=True)
    with Engine.over(ScriptedBackend([], vocab=vocab, n_ctx=100_000), template) as llm:
        return llm.render("How are you?", **options).text


def objects(text: str) -> list[Any]:
    """The JSON objects in a text."""
    found: list[Any] = []
    at = text.find("{")
    while at >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            end = at + 1
        else:
            found.append(value)
        at = text.find("{", end)
    return found


@pytest.mark.parametrize("name", SHOWN)
def test_a_template_that_shows_the_schema_gets_it(name: str) -> None:
    prompt = rendered(name, response_format=JsonSchema(SCHEMA))
    assert objects(prompt).count(SCHEMA) == 1
    assert SHOWN[name] in prompt
    assert SCHEMA not in objects(rendered(name))
    mine = {"response_format": {"type": "json_object"}}
    assert SCHEMA not in objects(rendered(name, response_format=JsonSchema(SCHEMA), template_kwargs=mine))


@pytest.mark.parametrize("name", SHOWN)
def test_the_schema_of_a_type_is_shown_too(name: str) -> None:
    class Mood(BaseModel):
        mood: int

    assert Mood.model_json_schema() in objects(rendered(name, response_format=Mood))


def test_a_schema_that_allows_anything_is_shown_too() -> None:
    name = "Kimi-K3"
    assert rendered(name, response_format=JsonSchema({})) != rendered(name)


@pytest.mark.parametrize("name", SHOWN)
def test_a_schema_is_the_callers_text_and_guarded(name: str) -> None:
    """What a schema says never becomes a control token, as what a tool's schema says does not."""
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    family = builtin_families().detect(source).family
    vocab = ByteVocab(sorted(family.format.control), end=["<|the_end|>"])
    template = ChatTemplate(source, control_tokens=vocab.control_tokens, trust_template=True)
    evil = "".join(family.format.control)
    schemas = (SCHEMA, {**SCHEMA, "description": evil, "properties": {"mood": {"enum": [evil]}}})
    with Engine.over(ScriptedBackend([], vocab=vocab, n_ctx=100_000), template) as llm:
        prompts = [llm.render("How are you?", response_format=JsonSchema(schema)) for schema in schemas]
    tokens = [[t for t in vocab.encode(p.texts, add_bos=False) if vocab.is_special(t)] for p in prompts]
    assert tokens[0] == tokens[1]


def test_no_other_prompt_has_it() -> None:
    others = [path.stem for path in sorted(FOLDER.glob("*.jinja")) if "response_format" not in path.read_text("utf-8")]
    for name in others[::6]:
        assert rendered(name, response_format=JsonSchema(SCHEMA)) == rendered(name), name
