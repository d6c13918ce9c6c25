"""Templates of unknown formats that hold the very words by which a family is detected: none is taken for that family,
and their turns are read as they write them."""

import json

import pytest

from engine.formats.families import builtin_families
from engine.formats.parsing import Parser
from engine.formats.template.chat_template import ChatTemplate
from engine.types.events import fold

TOOL = {"name": "look_up", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}}}
ARGUMENTS = {"word": "sea"}
ALIEN = """{%- if tools -%}[tools] {{ tools | tojson }} {% raw %}HINT{% endraw %}
{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
<|q|>bot
{% if m.reasoning_content %}<ponder>{{ m.reasoning_content }}</ponder>{% endif %}{{ m.content or '' }}
{%- for c in m.tool_calls or [] %}<use fn="{{ c.function.name }}">
{{- c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}</use>{% endfor %}<|/q|>
{% else -%}
<|q|>{{ m.role }}
{{ m.content }}<|/q|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|q|>bot
{% endif -%}"""
INSISTS = ALIEN.replace(
    "{% if m.reasoning_content %}<ponder>{{ m.reasoning_content }}</ponder>{% endif %}",
    "{% if m.reasoning_content is not string %}{{ raise_exception('no reasoning') }}{% endif %}"
    "<ponder>{{ m.reasoning_content }}</ponder>",
)
"""It refuses an answer without a field for its reasoning, which may be empty."""
ROWS = [name for name in builtin_families().names() if builtin_families().get(name).detect.template]


def lookalike(name: str, source: str = ALIEN) -> str:
    return source.replace("HINT", "\n".join(builtin_families().get(name).detect.template))


@pytest.mark.parametrize("source", [ALIEN, INSISTS], ids=["plain", "insists"])
@pytest.mark.parametrize("name", ROWS)
def test_a_family_s_words_do_not_make_a_template_its_own(name: str, source: str) -> None:
    template = ChatTemplate(lookalike(name, source), trust_template=True)
    assert template.detection.family.name == "derived", template.detection.reason
    turn = f'<ponder>Hm.</ponder>So:<use fn="look_up">{json.dumps(ARGUMENTS)}</use><|/q|>'
    parser = Parser(template.format, tools=[TOOL])
    completion = fold([*parser.feed(turn), *parser.close()])
    assert (completion.reasoning, completion.content.strip()) == ("Hm.", "So:")
    (call,) = completion.tool_calls
    assert (call.name, json.loads(call.arguments), call.error) == ("look_up", ARGUMENTS, None)


def test_a_template_that_insists_on_reasoning_gets_an_empty_one() -> None:
    template = ChatTemplate(INSISTS, trust_template=True)
    assert template.capabilities.needs_reasoning
    conversation = [("user", "Hello"), ("assistant", "Hi."), ("user", "And?")]
    prompt = template.render([{"role": role, "content": text} for role, text in conversation])
    assert "<ponder></ponder>Hi." in prompt.text
    assert not ChatTemplate(ALIEN, trust_template=True).capabilities.needs_reasoning


def test_the_words_are_those_of_many_families() -> None:
    assert len(ROWS) > 90
    for name in ROWS:
        names = [each.family.name for each in builtin_families().candidates(lookalike(name))]
        assert len(names) > 1, name


LONGCAT = """{%- for m in messages -%}
{%- if m.role == 'user' -%}{{ '<longcat_user>' ~ m.content }}
{%- elif m.role == 'assistant' -%}<longcat_assistant>
{%- if m.reasoning_content %}{{ '\\n<longcat_think>\\n' ~ m.reasoning_content ~ '\\n</longcat_think>\\n' }}{% endif -%}
{{- m.content or '' -}}
{%- for c in m.tool_calls or [] -%}CALL{%- endfor -%}{{- '</longcat_s>' -}}
{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}<longcat_assistant>{% endif -%}"""
IN_JSON = """{{- '\\n<longcat_tool_call>\\n' ~ c.function | tojson ~ '\\n</longcat_tool_call>' -}}"""
IN_TAGS = """{{- '<longcat_tool_call>' ~ c.function.name ~ '\\n' -}}
{%- for k, v in c.function.arguments.items() -%}
{{- '<longcat_arg_key>' ~ k ~ '</longcat_arg_key>\\n<longcat_arg_value>' ~ v ~ '</longcat_arg_value>\\n' -}}
{%- endfor -%}{{- '</longcat_tool_call>\\n' -}}"""


@pytest.mark.parametrize(("call", "family"), [(IN_JSON, "longcat-flash"), (IN_TAGS, "longcat-2")])
def test_two_generations_of_a_maker_are_told_apart_by_their_calls(call: str, family: str) -> None:
    template = ChatTemplate(LONGCAT.replace("CALL", call), trust_template=True)
    assert template.detection.family.name == family
    assert template.render([{"role": "user", "content": "Hi"}]).text.endswith("<longcat_assistant>")


def test_a_template_that_sets_thinking_off_is_no_qwen() -> None:
    words = "{%- set enable_thinking = false -%} <|im_start|> <function= <parameter= <think> <|image_pad|>"
    detect = builtin_families().detect
    assert detect(words).family.name == "minicpm-v-4.6"
    assert detect(words.replace("set enable", "if enable")).family.name == "qwen3.5"
