"""A format found by comparing renders: right for every syntax of calls it knows, and nothing where it cannot be
sure."""

import json
import time
from pathlib import Path

import pytest
from attacks.hostile_templates import ATTACKS
from cases.roundtrips import SOURCES, row

from engine.formats.families import JsonSyntax, TaggedArgumentsSyntax
from engine.formats.template.capabilities import probe
from engine.formats.template.chat_template import ChatTemplate
from engine.formats.template.derive.derivation import derivation
from engine.formats.template.env import Template
from engine.support.errors import EngineWarning, TemplateError
from engine.types.events import fold
from engine.types.messages import Message
from engine.types.parts import ToolCall
from engine.types.tools import Tool

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
    "tagged arguments in a section": "{{ '<do>' if loop.first else '' }}" + TAGGED_ARGS + END_OF_SECTION,
    "typed arguments": TAGGED_ARGS.replace("k ~ '>'", "k ~ ':' ~ ('text' if v is string else 'other') ~ '>'"),
    "numbered calls": TAGGED_ARGS.replace("f.name ~ '>\n'", "f.name ~ '\" n=\"' ~ loop.index ~ '\"><in>'"),
    "nested arguments": TAGGED_ARGS.replace("'<arg ' ~", "'<+' ~").replace("'</arg>\n'", "'</+' ~ k ~ '>'"),
    "python": "{{ '<do>[' if loop.first else ', ' }}{{ f.name ~ '(' }}{% for k, v in f.arguments.items() %}"
    "{{ (', ' if not loop.first else '') ~ k ~ '=' ~ v | tojson }}{% endfor %}"
    "{{ ')' ~ (']</do>' if loop.last else '') }}",
    "a mapping": "{{ '<do>' ~ f.name ~ '{' }}{% for k, v in f.arguments.items() %}{{ ',' if not loop.first else '' }}"
    "{{ k ~ ':' ~ ('<q>' ~ v ~ '<q>' if v is string else v | tojson) }}{% endfor %}{{ '}</do>' }}",
    "a name that ends in JSON": "{{ '>>>' ~ f.name ~ '\n' ~ f.arguments | tojson }}",
}
SHAPES = {
    **dict.fromkeys(("json", "json in a list", "name as key"), "json"),
    **dict.fromkeys(("tagged json", "tagged json with ids", "a name that ends in JSON"), "tagged_json"),
    "nested arguments": "nested",
    "python": "pythonic",
    "a mapping": "dictionary",
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
    assert template.format.tools is not None
    assert template.format.tools.shape == SHAPES.get(name, "tagged_args")
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


@pytest.mark.parametrize("name", ["json", "tagged json", "tagged arguments", "nested arguments", "python", "a mapping"])
def test_calls_may_end_reasoning(name: str) -> None:
    """The template closes reasoning before an answer only."""
    open_ended = source(CALLS[name]).replace("~ '\n</why>\n\n' }}", "~ ('' if m.tool_calls else '\n</why>\n\n') }}")
    syntax = ChatTemplate(open_ended, "<s>", "</s>").format.reasoning
    assert syntax is not None
    assert syntax.ends_on_call
    closed = ChatTemplate(source(CALLS[name]), "<s>", "</s>").format.reasoning
    assert closed is not None
    assert not closed.ends_on_call


CHANNELS = """\
{%- for tool in tools %}{{ tool | tojson ~ '\n' }}{% endfor -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- if m.reasoning_content %}{{ '<|go|>bot<|way|>musing<|body|>' ~ m.reasoning_content ~ '<|over|>' }}{% endif -%}
{%- for c in m.tool_calls or [] -%}
{{ '<|go|>bot' ~ CALL ~ '<|body|>' ~ c.function.arguments | tojson ~ '<|run|>' }}
{%- endfor -%}
{%- if m.content %}{{ '<|go|>bot<|way|>answer<|body|>' ~ m.content ~ '<|bye|>' }}{% endif -%}
{%- else %}{{ '<|go|>' ~ m.role ~ '<|body|>' ~ m.content ~ '<|over|>' }}{% endif -%}
{%- endfor -%}
{{- '<|go|>bot' if add_generation_prompt else '' -}}
"""


@pytest.mark.parametrize(
    "call", ["' to=tools.' ~ c.function.name ~ '<|way|>work json'", "'<|way|>work to=tools.' ~ c.function.name"]
)
def test_channels_are_derived(call: str) -> None:
    """Whether the header names the tool in its role or in its channel."""
    template = ChatTemplate(CHANNELS.replace("CALL", call), "<s>", "</s>")
    assert "calls in channels" in template.detection.reason
    assert template.format.channels is not None
    assert template.format.stops == ("<|bye|>", "<|run|>")
    prompt = template.render([ASKED], [LOOK])
    for message in TURNS[:3]:
        whole = template.render([ASKED, message], [LOOK], add_generation_prompt=False).text
        parser = template.parser(prompt, [LOOK])
        completion = fold([*parser.feed(whole.removeprefix(prompt.text)), *parser.close()])
        assert (completion.reasoning, completion.content) == (message.reasoning or "", message.content)
        assert [(call.name, call.parsed()) for call in completion.tool_calls] == [
            (call.name, call.parsed()) for call in message.tool_calls
        ]


LETTERS = """\
{%- for tool in tools %}{{ tool | tojson ~ '\\n' }}{% endfor -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
{%- if m.reasoning_content %}{{ '<|go|>bot for=me<|body|>' ~ m.reasoning_content ~ '<|next|>' }}{% endif -%}
{%- if m.content -%}
{{ '<|go|>bot for=you<|body|>' ~ m.content ~ ('<|next|>' if m.tool_calls else '<|bye|>') }}
{%- endif -%}
{%- for c in m.tool_calls or [] -%}
{%- set f = c.function -%}
{{ '<|go|>bot for=' ~ f.name ~ '<|body|>' }}CALL{{ '<|bye|>' if loop.last else '<|next|>' }}
{%- endfor -%}
{%- else %}{{ '<|go|>' ~ m.role ~ '<|body|>' ~ m.content ~ '<|bye|>' }}{% endif -%}
{%- endfor -%}
{{- '<|go|>bot' if add_generation_prompt else '' -}}
"""


def test_a_turn_of_several_messages_is_derived() -> None:
    """Each ends as reasoning does; a call is one only in a message to its tool."""
    template = ChatTemplate(LETTERS.replace("CALL", TAGGED_ARGS), "<s>", "</s>")
    tools = template.format.tools
    assert isinstance(tools, TaggedArgumentsSyntax)
    assert (template.format.content[1], tools.heading) == ("<|next|>", (" for=", "<|body|>"))
    prompt = template.render([ASKED], [LOOK])
    call = "<fn look>\n<arg city>Rome</arg>\n</fn>"
    for output, reasoning, content, cities in (
        (f" for=me<|body|>Why.<|next|><|go|>bot for=look<|body|>{call}<|bye|>", "Why.", "", ["Rome"]),
        (f" for=you<|body|>So.<|next|><|go|>bot for=look<|body|>{call}<|bye|>", "", "So.", ["Rome"]),
        (f" for=look<|body|>{call}<|next|><|go|>bot for=look<|body|>{call}<|bye|>", "", "", ["Rome", "Rome"]),
        (f" for=you<|body|>Write {call} so.<|bye|>", "", f"Write {call} so.", []),
    ):
        parser = template.parser(prompt, [LOOK])
        completion = fold([*parser.feed(output.removesuffix("<|bye|>")), *parser.close()])
        assert (completion.reasoning, completion.content) == (reasoning, content)
        assert [call.parsed()["city"] for call in completion.tool_calls] == cities


DESCRIBED = {
    "in tags": (
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>',
        "</tool_call>",
    ),
    "a list": ('<calls>[{"name": "fn", "parameters": {...}}, ...]</calls>', "</calls>"),
    "a list behind one marker": ('<|tool_call|>[{"name": "fn", "arguments": {}}]', ""),
    "a sentence": ("When a tool is needed, write only <|tool_call|> followed by a JSON list of tools.", ""),
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_calls_that_are_described_but_never_written(name: str) -> None:
    """A template that drops calls from history, and tells the model how to write them."""
    example, closing = DESCRIBED[name]
    mute = "{%- if tools %}{{ 'Call a function so: " + example + "' }}{% endif -%}" + source("")
    template = ChatTemplate(mute, "<s>", "</s>")
    tools = template.format.tools
    assert isinstance(tools, JsonSyntax)
    assert (tools.shape, tools.section[1].strip()) == ("json", closing)
    one = json.dumps({"name": "look", tools.arguments_fields[0]: {"city": "Rome"}})
    parser = template.parser(template.render([ASKED], [LOOK]), [LOOK])
    output = tools.section[0] + (f"[{one}]" if tools.several == "list" else one) + tools.section[1]
    completion = fold([*parser.feed(f"I look.{output}"), *parser.close()])
    assert [call.parsed() for call in completion.tool_calls] == [{"city": "Rome"}]
    assert completion.content == "I look."


def test_a_description_without_an_example_is_no_syntax() -> None:
    mute = "{%- if tools %}{{ 'Write <x> before {\"name\": 1}.' }}{% endif -%}" + source("")
    with pytest.warns(EngineWarning, match="will arrive as content"):
        assert ChatTemplate(mute, "<s>", "</s>").format.tools is None


BESIDE_NOTHING = ("{{- m.content or '' -}}", "{{- m.content if not m.tool_calls else '' -}}")
ON_LINES = "{{ '<do>\\n' ~ {'name': f.name, 'arguments': f.arguments} | tojson ~ '\\n</do>' }}"
PAIRS = "{{ '<do>' ~ f.name }}{% for k, v in f.arguments.items() %}{{ '<k>' ~ k ~ '</k><v>' ~ v ~ '</v>' }}{% endfor %}"
SPACES = {
    "between a key and its value": (
        source(PAIRS + "{{ '</do>' }}"),
        "<do>look\n<k>city</k>\n<v>Rome</v>\n</do>",
        "",
    ),
    "before a call that the template never writes beside text": (
        source(ON_LINES).replace(*BESIDE_NOTHING),
        'I look.\n<do>\n{"name": "look", "arguments": {"city": "Rome"}}\n</do>',
        "I look.",
    ),
    "behind the last call": (
        FRAME.replace("CALL", ON_LINES).replace("AFTER", "{{ '\n\n' if m.tool_calls }}"),
        '<do>\n{"name": "look", "arguments": {"city": "Rome"}}\n</do>\n\nDone.',
        "Done.",
    ),
}


@pytest.mark.parametrize("place", SPACES)
def test_white_space_of_the_template_s_own_is_no_text(place: str) -> None:
    written, output, content = SPACES[place]
    template = ChatTemplate(written, "<s>", "</s>")
    for cut in ([output], list(output)):
        parser = template.parser(template.render([ASKED], [LOOK]), [LOOK])
        completion = fold([*(event for text in cut for event in parser.feed(text)), *parser.close()])
        assert [call.parsed() for call in completion.tool_calls] == [{"city": "Rome"}]
        assert completion.content == content


def test_an_id_that_only_calls_with_a_result_show_is_read() -> None:
    call = "{% set id = {'id': c.id} if m != messages[-1] else {} %}"
    call += "{{ '<do>[' ~ dict({'name': f.name, 'arguments': f.arguments}, **id) | tojson ~ ']</do>' }}"
    template = ChatTemplate(source(call), "<s>", "</s>")
    parser = template.parser(template.render([ASKED], [LOOK]), [LOOK])
    output = '<do>[{"name": "look", "arguments": {}, "id": "x1"}]</do>'
    assert [call.id for call in fold([*parser.feed(output), *parser.close()]).tool_calls] == ["x1"]


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


ANSWER = "{{- m.content or '' -}}"
MARKED = "{{- '<say>' ~ m.content ~ '</say>' if m.content else '' -}}"


def test_marks_around_an_answer_are_none_of_it() -> None:
    template = ChatTemplate(source(JSON_CALL).replace(ANSWER, MARKED), "<s>", "</s>")
    assert template.format.content == ("<say>", "</say>")
    parser = template.parser(template.render([ASKED], [LOOK]), [LOOK])
    completion = fold(
        [*parser.feed('<why>\nW\n</why>\n\n<say>S</say><do>{"tool": "look", "input": {}}</do>'), *parser.close()]
    )
    assert (completion.reasoning, completion.content) == ("W", "S")
    assert [call.name for call in completion.tool_calls] == ["look"]


GATED = (
    "{{- '<turn:assistant>\n' ~ ('<why>\n' if thinking else '<why>\n\n</why>\n\n') if add_generation_prompt else '' -}}"
)


def test_a_block_that_the_prompt_leaves_empty_shows_the_lines_of_reasoning() -> None:
    empty = "{{- '<turn:assistant>\n' ~ ('' if thinking else '<why>\n\n</why>\n') if add_generation_prompt else '' -}}"
    plain = source(JSON_CALL).replace("if m.reasoning_content", "if false")
    syntax = ChatTemplate(plain.rpartition("{{-")[0] + empty, "<s>", "</s>").format.reasoning
    assert syntax is not None
    assert (syntax.open, syntax.close) == ("<why>\n", "\n</why>\n")


def test_the_switch_of_reasoning_is_found() -> None:
    asks = source(JSON_CALL).rpartition("{{-")[0] + GATED
    template = ChatTemplate(asks, "<s>", "</s>")
    syntax = template.format.reasoning
    assert syntax is not None
    assert syntax.gate is not None
    assert (syntax.gate.kwarg, syntax.gate.default, syntax.off) == ("thinking", "off", "gate")
    assert template.render("Hi", reasoning=True).in_reasoning
    assert not template.render("Hi", reasoning=False).in_reasoning


KEPT = {
    "all": "true",
    "last_user": "loop.index0 > last.user",
    "last_answer": "loop.index0 > last.answer",
    "none": "loop.last",
}
LAST = (
    "{%- set last = namespace(user=-1, answer=-1) -%}{%- for m in messages -%}"
    "{%- if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif -%}"
    "{%- if m.role == 'assistant' and not (m.tool_calls or loop.last) %}{% set last.answer = loop.index0 %}{% endif -%}"
    "{%- endfor -%}"
)


@pytest.mark.parametrize("rule", ["all", "last_user", "last_answer"])
def test_the_rule_for_earlier_reasoning_is_found(rule: str) -> None:
    ruled = LAST + source(JSON_CALL).replace("if m.reasoning_content", f"if m.reasoning_content and {KEPT[rule]}")
    syntax = ChatTemplate(ruled, "<s>", "</s>").format.reasoning
    assert syntax is not None
    assert (syntax.open, syntax.close, syntax.history) == ("<why>\n", "\n</why>\n\n", rule)


def test_ends_of_turns_with_and_without_calls() -> None:
    ends = source(JSON_CALL).replace("'<end>\n'", "('<call>' if m.tool_calls else '<end>') ~ '\n'")
    assert ChatTemplate(ends, "<s>", "</s>").format.stops == ("<end>", "<call>")


def test_tags_of_a_model_whose_template_knows_no_reasoning_are_separated() -> None:
    plain = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
    template = ChatTemplate(plain + "{% if add_generation_prompt %}<assistant>{% endif %}")
    prompt = template.render("Hi", reasoning=False)
    assert prompt.text.endswith("<assistant>"), "a model that is not known to reason is not told to stop"
    parser = template.parser(prompt)
    completion = fold([*parser.feed("<think>\nWhy.\n</think>\n\nSo."), *parser.close()])
    assert (completion.reasoning, completion.content) == ("Why.", "So.")


def test_what_stopped_a_derivation_is_said() -> None:
    lossy = Template(
        source("{{ '<do>' ~ {'name': f.name, 'arguments': f.arguments} | tojson | replace('é', 'e') ~ '</do>' }}")
    )
    assert derivation(lossy, {}, probe(lossy, {})).missing == ("no guess reads its calls back",)
    mute = Template("{% for m in messages %}{{ m.role }}{% endfor %}")
    assert derivation(mute, {}, probe(mute, {})).missing == ("it does not show an answer",)


UNLIKE = {
    "unsloth-Apriel-1.5": "its models reason without a marker, which no render shows",
    "CohereForAI-c4ai-command-r-plus-tool_use": "its calls end a line, which the row leaves to the text behind them",
}
"""Templates whose derived format round-trips, calls included, and reads some render otherwise than the row does."""


LOST = {
    "NVIDIA-Nemotron-Nano-v2": "its answers stand in reasoning that its prompt opens",
    "GigaChat3-10B-A1.8B": "the marker that ends a turn also opens calls",
}
"""Templates whose derived format does not read all renders back."""
CALLLESS = {
    "HuggingFaceTB-SmolLM3-3B": "renders no earlier calls",
    "LFM2-8B-A1B": "renders no earlier calls",
    "LFM2.5-Instruct": "renders no earlier calls",
    "google-gemma-2-2b-it": "has no tools",
    "microsoft-Phi-3.5-mini-instruct": "has no tools",
    "llama-cpp-rwkv-world": "has no tools",
}
"""Templates from which no calls are derived."""


@pytest.mark.skipif(not SOURCES, reason="set LLAMA_CPP_TEMPLATES to llama.cpp's models/templates")
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_templates_of_the_tree(path: Path) -> None:
    """With every family switched off: the derived format round-trips, calls included, and reads like the declared."""
    measured = row(path)
    assert measured.derived.format is not None
    assert bool(measured.back) == (path.stem in LOST), measured.back
    assert measured.has_calls == (path.stem not in CALLLESS)
    if measured.has_calls and not measured.back:
        assert bool(measured.unlike) == (path.stem in UNLIKE), measured.unlike


def test_what_a_template_writes_around_a_few_words_is_no_burden() -> None:
    """However much it is, and whatever it looks like."""
    for name in [name for name in ATTACKS if name.startswith("reader/") and "slow" not in name][::3]:
        began, source = time.process_time(), ATTACKS[name]
        try:
            template = Template(source, trusted=True)
            derivation(template, {}, probe(template, {}))
        except TemplateError:
            continue
        assert time.process_time() - began < 5, name
