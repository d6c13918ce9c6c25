"""Roles, tools, calls and results as a template's own model reads them: jinja2 alone, given plain messages, renders the
same as we do, but for differences that are stated here.

The templates of llama.cpp's tree are read from the folder that `LLAMA_CPP_TEMPLATES` names; without it only our own.
"""

import json
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from cases.roundtrips import FIXED, SOURCES, trusted
from fakes import plain_jinja

from engine.formats.template.chat_template import ChatTemplate
from engine.support.errors import TemplateError
from engine.types.events import fold

OWN = sorted((Path(__file__).parents[3] / "templates").glob("*.jinja"))
PATHS = {path.stem: path for path in (*OWN, *SOURCES)}
each_template = pytest.mark.parametrize("name", PATHS)
Entry = dict[str, Any]

PARAMETERS: Entry = {
    "properties": {
        "zone": {"type": "string", "description": "The zone."},
        "city": {"type": "string"},
        "days": {"enum": [1, 2], "type": "integer"},
    },
    "required": ["zone"],
    "type": "object",
}
"""Keys in no order, and a parameter without a description."""
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS}}
SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "QUESTION"}
ARGUMENTS = {"zone": "Zü\n", "city": "Oslo", "days": 2}


@cache
def source(name: str) -> str:
    return PATHS[name].read_text(encoding="utf-8")


def template(name: str) -> ChatTemplate:
    return trusted(PATHS[name])


def calls(*arguments: Entry, content: str = "") -> Entry:
    listed = [
        {"id": f"abcdefgh{number}", "type": "function", "function": {"name": "look", "arguments": each}}
        for number, each in enumerate(arguments)
    ]
    return {"role": "assistant", "content": content, "tool_calls": listed}


def result(text: str, number: int = 0) -> Entry:
    return {"role": "tool", "tool_call_id": f"abcdefgh{number}", "name": "look", "content": text}


ONE = [ASKED, calls(ARGUMENTS), result("R1")]
CONVERSATIONS: dict[str, tuple[list[Entry], list[Entry] | None]] = {
    "question": ([ASKED], None),
    "system": ([SYSTEM, ASKED], None),
    "tool": ([ASKED], [TOOL]),
    "system and tool": ([SYSTEM, ASKED], [TOOL]),
    "call": (ONE, [TOOL]),
    "two calls": ([ASKED, calls(ARGUMENTS, {"zone": "y"}), result("R1"), result("R2", 1)], [TOOL]),
    "text and call": ([ASKED, calls(ARGUMENTS, content="One moment."), result("R1")], [TOOL]),
    "no arguments": ([ASKED, calls({}), result("R1")], [TOOL]),
    "answered": ([*ONE, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "More"}], [TOOL]),
}
WITH_CALLS = {"call", "two calls", "text and call", "no arguments", "answered"}
WITH_TOOLS = WITH_CALLS | {"tool", "system and tool"}
OTHERWISE: dict[str, set[str]] = {
    "GigaChat3-10B-A1.8B": {"two calls"},  # the template shows only the first call
    "GigaChat3.1-10B-A1.8B": {"two calls"},
    "gpt-oss": {"two calls", "text and call"},  # as above; and text beside a call is commentary, not reasoning
    "openai-gpt-oss-120b": {"two calls", "text and call"},
    "google-gemma-4-31B-it": {"text and call"},  # it asks for no turn after a result that follows text
    "moonshotai-Kimi-K2": WITH_CALLS,  # a result names the id that its model wrote, the template writes the caller's
    "LFM2-8B-A1B": WITH_CALLS,  # these show no earlier calls
    "LFM2.5-Instruct": WITH_CALLS,
    "ibm-granite-granite-3.3-2B-Instruct": WITH_CALLS,
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": WITH_TOOLS,  # these state no tools
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": WITH_TOOLS,
    "deepseek-ai-DeepSeek-V3.1": WITH_TOOLS,
    "HuggingFaceTB-SmolLM3-3B": WITH_TOOLS,  # in a variable of its own
    "chatml": WITH_TOOLS,
    "llama-cpp-rwkv-world": WITH_TOOLS,
    "microsoft-Phi-3.5-mini-instruct": WITH_TOOLS,
    "google-gemma-2-2b-it": WITH_TOOLS,
}
"""Conversations that we render otherwise than the template does from plain messages, and why."""


def directly(name: str, messages: list[Entry], tools: list[Entry] | None) -> set[str]:
    """The renders of the conversation with arguments as objects and as text, and empty content as a text and null."""
    found: set[str | None] = set()
    for as_text, as_null in product((False, True), repeat=2):
        given: list[Entry] = json.loads(json.dumps(messages))
        for message in (each for each in given if "tool_calls" in each):
            message["content"] = None if as_null and not message["content"] else message["content"]
            for call in message["tool_calls"] if as_text else ():
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        found.add(plain_jinja.render(source(name), given, tools, **FIXED))
    return {text for text in found if text is not None}


@each_template
def test_history_is_the_templates_own(name: str) -> None:
    for label, (messages, tools) in CONVERSATIONS.items():
        expected = directly(name, messages, tools)
        text = template(name).render(messages, tools).text
        if expected:
            assert (text in expected) == (label not in OTHERWISE.get(name, ())), label


@each_template
def test_developer_is_system_unless_the_template_knows_it(name: str) -> None:
    """Nowhere is the role's name printed as if it were one of the model's."""
    for messages in (
        [None, ASKED],
        [ASKED, {"role": "assistant", "content": "Yes."}, None, ASKED],
        [SYSTEM, None, ASKED],
    ):
        texts = {
            role: template(name).render([each or {"role": role, "content": "INSTRUCTION"} for each in messages]).text
            for role in ("system", "developer")
        }
        assert "INSTRUCTION" in texts["developer"]
        assert (texts["system"] == texts["developer"]) == (name not in KNOW_DEVELOPERS)


KNOW_DEVELOPERS = {"deepseek-ai-DeepSeek-V4", "deepseek-ai-DeepSeek-V4-Flash-0731"}
"""They write its messages like a user's. Others that know it take it for system, as we do."""

TEXT = {"type": "string"}
SCHEMAS: dict[str, Any] = {
    "anything": {},
    "true": True,
    "free": {"type": "object"},
    "free, said": {"type": "object", "additionalProperties": True},
    "closed": {"type": "object", "additionalProperties": False, "properties": {"a": TEXT}},
    "of texts": {"type": "object", "additionalProperties": TEXT},
    "of anything": {"type": "object", "additionalProperties": {}},
    "of free": {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": True}},
    "list": {"type": "array"},
    "list of anything": {"type": "array", "items": True},
    "list of free": {"type": "array", "items": {"type": "object"}},
    "nullable": {"type": ["string", "null"]},
    "nullable object": {"type": ["object", "null"], "properties": {"a": TEXT}},
    "null": {"type": "null"},
    "either": {"anyOf": [TEXT, {"type": "null"}], "default": None},
    "constant": {"const": 5},
    "choice": {"enum": ["a", 1, None]},
    "names like keywords": {"type": "object", "properties": {"type": TEXT, "items": TEXT, "required": TEXT}},
}


@each_template
def test_every_schema_is_shown(name: str) -> None:
    """With a description or without, in turn; in a tool that has parameters, and in one that has none."""
    if not template(name).capabilities.tools:
        pytest.skip("it states no tools")
    for number, schema in enumerate(SCHEMAS.values(), [*PATHS].index(name)):
        parameters = {"type": "object", "properties": {"part": schema}, "required": ["part"]}
        function = {"name": "look", **({"description": "Looks."} if number % 2 else {}), "parameters": parameters}
        text = template(name).render([ASKED], [{"type": "function", "function": function}]).text
        direct = plain_jinja.render(source(name), [ASKED], [{"type": "function", "function": function}], **FIXED)
        assert "look" in text
        assert direct in (text, None), "what the template takes, it gets unchanged"
    for parameters in ({"type": "object"}, {"type": "object", "additionalProperties": True}):
        assert "look" in template(name).render([ASKED], [{"name": "look", "parameters": parameters}]).text


PICKY = (
    "{%- for t in tools %}{{ t.function.name }}: {% for k, p in t.function.parameters.properties.items() %}{{ k }}: "
    "{%- if p.additionalProperties is defined %}{% for a, b in p.additionalProperties.items() %}{{ a ~ b }}{% endfor %}"
    "{% endif %}{% if p.format == 'uri' %}{{ raise_exception('no links') }}{% endif %}{% endfor %}{% endfor %}"
    "{%- for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
)


@pytest.mark.filterwarnings("ignore:No family in models.toml:engine.support.errors.EngineWarning")
def test_a_tool_that_cannot_be_shown_is_named() -> None:
    picky = ChatTemplate(PICKY, trust_template=True)
    free = {"type": "object", "additionalProperties": True}
    good, bad = (
        {"name": name, "parameters": {"type": "object", "properties": {"part": part}}}
        for name, part in (("good", free), ("bad", {"type": "string", "format": "uri"}))
    )
    assert picky.render("Hi", [good]).text == "good: part:<user>Hi"
    for guard in (True, False):
        with pytest.raises(TemplateError, match=r"cannot show the tool 'bad'.*no links"):
            picky.render("Hi", [good, bad], guard=guard)
    fussy = ChatTemplate("{{ raise_exception('never') if messages | length > 1 }}" + PICKY, trust_template=True)
    with pytest.raises(TemplateError, match="rejects these messages: never"):
        fussy.render([ASKED, {"role": "assistant", "content": "A"}, ASKED], [good])


@pytest.mark.filterwarnings("ignore:No family in models.toml:engine.support.errors.EngineWarning")
def test_a_tool_is_changed_as_little_as_the_template_insists_on() -> None:
    shows = "{% for t in tools %}{{ 'About ' + t.function.description }}{{ t.function | tojson }}{% endfor %}"
    told = ChatTemplate(shows + "{% for m in messages %}{{ m.content }}{% endfor %}", trust_template=True)
    bare = {"name": "look", "parameters": {"type": "object", "properties": {"any": {"type": ["string", "null"]}}}}
    expected = {"name": "look", "description": "", "parameters": bare["parameters"]}
    assert told.render("Hi", [bare]).text == f"About {json.dumps(expected)}Hi"


FUNCTOOLS = """\
<|system|>
{%- for tool in tools or [] %}
Write calls as functools[{"name": [function name], "arguments": [function arguments as JSON]}, ...]
{{ tool | tojson(indent=4) }}
{%- endfor %}<|end|>
{%- for m in messages %}<|{{ m.role }}|>
{%- if m.content %}{{ m.content }}{% else %}
{%- for c in m.tool_calls or [] %}{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments }}}{% endfor %}
{%- endif %}<|end|>
{%- endfor %}<|assistant|>"""
"""Phi-4-mini's, as vLLM writes it: text displaces the calls beside it."""


def test_phi_4_mini_in_another_template() -> None:
    phi = ChatTemplate(FUNCTOOLS, trust_template=True)
    assert phi.family.name == "phi-4-mini-functools"
    text = phi.render([ASKED, calls({"city": "Oslo"}, content="One moment."), result("R1")], [TOOL]).text
    shown = '<|assistant|>One moment.<|end|><|assistant|>{"name": "look", "arguments": {"city": "Oslo"}}<|end|>'
    assert shown in text
    parser = phi.parser(phi.render([ASKED], [TOOL]), [TOOL])
    output = 'functools[{"name": "look", "arguments": {"city": "A"}}, {"name": "look", "arguments": {}}]'
    read = fold([*parser.feed(output), *parser.close()])
    assert ([call.arguments for call in read.tool_calls], read.content) == (['{"city": "A"}', "{}"], "")
