"""What the parser does where formats, models and servers disagree: one row a decision, at several chunkings."""

import json
from typing import Any

import pytest
from cases.parsing_cases import TOOLS, run, splits

from engine.formats.parsing import Parser
from engine.support.errors import RequestError
from engine.types.events import fold
from engine.types.prompt import Piece
from engine.types.tools import ToolName

JSON = {"json": True}
DEMANDED = {"tool_choice": "required"}
NAMED = {"tool_choice": ToolName(name="get_weather")}
PING = ("ping", "{}", None)
PINGS = [PING, PING]
R1 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
OSS = {"prefix": "<|start|>assistant"}

# family, output, options, reasoning, content, calls
ROWS: list[tuple[str, str, dict[str, Any], str, str, list[tuple[str, str, str | None]]]] = [
    # An answer under a schema loses the fence around it, and nothing else.
    ("qwen3", '```json\n{"a":1}\n```', JSON, "", '{"a":1}', []),
    ("qwen3", '```json\n{"a":1}\n```', {}, "", '```json\n{"a":1}\n```', []),
    ("qwen3", 'Here:\n```json\n{"a":1}\n```', JSON, "", 'Here:\n```json\n{"a":1}\n```', []),
    ("qwen3", "```python\nx\n```", JSON, "", "```python\nx\n```", []),
    ("gpt-oss", '<|channel|>final<|message|>```json\n{"a":1}\n```<|return|>', {**JSON, **OSS}, "", '{"a":1}', []),
    # It begins with the value, unless the caller has begun it.
    ("qwen3", '<think>x</think>\n\n\n {"a": " b"}', JSON, "x", '{"a": " b"}', []),
    ("gemma-4", '\n \n[" a"]', JSON, "", '[" a"]', []),
    ("gpt-oss", '<|channel|>final<|message|>\n {"a":1}<|return|>', {**JSON, **OSS}, "", '{"a":1}', []),
    ("qwen3", "\n 1}", {**JSON, "prefix": '<think>\n\n</think>\n\n{"a":'}, "", "\n 1}", []),
    ("qwen3", " \n", JSON, "", "", []),
    ("gpt-oss", "<|channel|>final<|message|>a ``` b<|return|>", {**JSON, **OSS}, "", "a ``` b", []),
    # Calls without markers: a declared tool's name makes one; a demanded call may come in more forms.
    ("content-only", '{"tool_call":{"name":"ping","arguments":{}}}', {}, "", "", [PING]),
    ("content-only", '{"tool_calls":[{"name":"ping","arguments":{}}, {"name":"ping","args":{}}]}', {}, "", "", PINGS),
    ("content-only", '{"tool_calls": 1}', {}, "", '{"tool_calls": 1}', []),
    ("hermes", '[{"name":"ping","arguments":{}},{"name":"ping","arguments":{}}]', DEMANDED, "", "", [PING, PING]),
    ("hermes", '[{"name":"ping","arguments":{}}]', {}, "", '[{"name":"ping","arguments":{}}]', []),
    ("hermes", '```json\n[{"name":"ping","arguments":{}}]\n```', DEMANDED, "", "", [PING]),
    ("hermes", '{"city":"Paris"}', NAMED, "", "", [("get_weather", '{"city":"Paris"}', None)]),
    ("hermes", '{"name": "ping", "arguments": {}}', NAMED, "", "", [PING]),
    ("hermes", '{"city": nope', NAMED, "", "", [("get_weather", '{"city": nope', "truncated")]),
    ("hermes", "{'city': 1}", NAMED, "", "", [("get_weather", "{'city': 1}", "malformed")]),
    ("gpt-oss", '{"name":"ping","arguments":{}}', DEMANDED, "", "", [PING]),
    ("llama-3", '{"name": "ping", "parameters": {}}; {"name": "ping", "parameters": {}}', {}, "", "", [PING, PING]),
    ("llama-3", '{"type": "function", "function": {"name": "ping", "parameters": {}}}', {}, "", "", [PING]),
    ("llama-3", '{"name": "nope", "parameters": {}}', {}, "", '{"name": "nope", "parameters": {}}', []),
    ("llama-3", '{"a": 1}', {}, "", '{"a": 1}', []),
    ("llama-3", '{"name"', {}, "", '{"name"', []),
    ("llama-4", "[ping()]", {}, "", "", [PING]),
    ("llama-4", "[ping(x)](http://x) is a link", {}, "", "[ping(x)](http://x) is a link", []),
    ("llama-4", "[pin", {}, "", "[pin", []),
    # Either syntax between the same markers.
    ("llama-4", '<|python_start|>{"name": "ping", "parameters": {}}<|python_end|>', {}, "", "", [PING]),
    ("llama-3", '<|python_tag|>get_weather.call(city="P")', {}, "", "", [("get_weather", '{"city": "P"}', None)]),
    ("llama-3", "<|python_tag|>x = 2", {}, "", "", [("python", '{"code": "x = 2"}', "unknown_tool")]),
    ("functionary-3.1", "<|python_tag|>x = 2", {}, "", "", [("python", '{"code": "x = 2"}', "unknown_tool")]),
    ("functionary-3.2", "python\nx = 2", {"prefix": ">>>"}, "", "", [("python", '{"code": "x = 2"}', "unknown_tool")]),
    ("functionary-3.2", "all\n>>> is a prompt", {"prefix": ">>>"}, "", ">>> is a prompt", []),
    ("qwen3-coder", '<tool_call>\n{"name":"ping","arguments":{}}\n</tool_call>done', {}, "", "done", [PING]),
    (
        "gpt-oss",
        "<|channel|>commentary to=python<|message|>x = 2<|call|>",
        OSS,
        "",
        "",
        [("python", '{"code": "x = 2"}', "unknown_tool")],
    ),
    # Prose about markers stays prose.
    ("qwen3", "a <tool_call> is the tag", {}, "", "a <tool_call> is the tag", []),
    ("qwen3", "The `<think>` tag and <tool_call>.", {}, "", "The `<think>` tag and <tool_call>.", []),
    ("qwen3-coder", "x <tool_call> y", {}, "", "x <tool_call> y", []),
    (
        "glm-4.5",
        "I <tool_call> quoted, then " + "prose " * 40,
        {},
        "",
        "I <tool_call> quoted, then " + "prose " * 40,
        [],
    ),
    (
        "gpt-oss",
        "<|channel|>final without a mark\nand so on",
        OSS,
        "",
        "<|channel|>final without a mark\nand so on",
        [],
    ),
    ("gpt-oss", "<|channel|>commentary<|channel|>analysis<|message|>hm<|end|>", OSS, "hm", "", []),
    ("qwen3", "done<|im_end|>", {}, "", "done", []),
    ("qwen3", "a <|im_end|> b", {}, "", "a <|im_end|> b", []),
    # Arguments: null is none, NaN is no JSON, wrapped and reordered ones are read, slips of braces survived.
    ("qwen3", '<tool_call>\n{"name": "ping", "arguments": null}\n</tool_call>', {}, "", "", [PING]),
    ("qwen3", '<tool_call>\n{"name": "ping"}\n</tool_call>', {}, "", "", [PING]),
    (
        "qwen3",
        '<tool_call>\n{"name": "ping", "arguments": 5}\n</tool_call>',
        {},
        "",
        "",
        [("ping", "5", "invalid_arguments")],
    ),
    (
        "qwen3",
        '<tool_call>\n{"name":"ping","arguments":{"x":NaN}}\n</tool_call>',
        {},
        "",
        "",
        [("ping", '{"x":NaN}', "malformed")],
    ),
    (
        "qwen3",
        '<tool_call>\n{"arguments": {"city": "a"}, "name": "get_weather"}\n</tool_call>',
        {},
        "",
        "",
        [("get_weather", '{"city": "a"}', None)],
    ),
    (
        "qwen3",
        '<tool_call>\n{"name": "get_weather", "arguments": "{\\"city\\": \\"\\u00e9 \\ud83d\\ude00\\"}"}\n</tool_call>',
        {},
        "",
        "",
        [("get_weather", '{"city": "é 😀"}', None)],
    ),
    (
        "qwen3",
        '<tool_call>\n{"name": "get_weather", "arguments": "{\\"city\\": \\"\\uDBFF\\uDFFF\\"}"}\n</tool_call>',
        {},
        "",
        "",
        [("get_weather", '{"city": "\U0010ffff"}', None)],
    ),
    (
        "qwen3",
        '<tool_call>\n{"name":"ping","arguments":{"x":1}\n</tool_call>ok',
        {},
        "",
        "ok",
        [("ping", '{"x":1}', None)],
    ),
    ("qwen3", '<tool_call>\n{"name":"ping","arguments":{}}}\n</tool_call>ok', {}, "", "ok", [PING]),
    (
        "qwen3",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "x\ny"}}\n</tool_call>',
        {},
        "",
        "",
        [("get_weather", '{"city": "x\\ny"}', None)],
    ),
    (
        "qwen3",
        (
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "x\n</tool_call>\n'
            '<tool_call>\n{"name": "ping"}\n</tool_call>'
        ),
        {},
        "",
        "",
        [("get_weather", '{"city": "x\\n', "malformed"), PING],
    ),
    ("qwen3", '<tool_call>\n{"na', {}, "", "", [("", '{"na', "malformed")]),
    ("qwen3", '<tool_call>\n{"name":"\\ud83d"}</tool_call>', {}, "", "", [("\ufffd", "{}", "unknown_tool")]),
    ("deepseek-r1", R1 + "ping\n<｜tool▁call▁end｜><｜tool▁calls▁end｜>", {}, "", "", [PING]),
    (
        "deepseek-r1",
        R1 + 'ping\n{"x": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        {},
        "",
        "",
        [("ping", '{"x": 1}', None)],
    ),
    ("devstral", "[TOOL_CALLS]ping[ARGS]{} and more", {}, "", " and more", [PING]),
    ("devstral", '[TOOL_CALLS][{"name": "ping", "arguments": {}}]', {}, "", "", [PING]),
    ("minicpm-5", '<function name="ping"/>', {}, "", "", [PING]),
    (
        "minicpm-5",
        '<function name="get_weather"><param name="city"><![CDATA[a<b]]></param></function>',
        {},
        "",
        "",
        [("get_weather", '{"city": "a<b"}', None)],
    ),
    (
        "seed-oss",
        (
            "<seed:tool_call>\n<function=everything>\n<parameter=o>{'k': [1, True]}</parameter>\n</function>\n"
            "</seed:tool_call>"
        ),
        {},
        "",
        "",
        [("everything", '{"o": {"k": [1, true]}}', "invalid_arguments")],
    ),
    ("qwen3-coder", '<tool_call>\n<function="ping">\n</function>\n</tool_call>', {}, "", "", [PING]),
    (
        "qwen3-coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nP\n</function>\n</tool_call>",
        {},
        "",
        "",
        [("get_weather", '{"city": "P"}', None)],
    ),
    (
        "lfm2",
        '<|tool_call_start|>[get_weather("P", days=0x10)]<|tool_call_end|>',
        {},
        "",
        "",
        [("get_weather", '{"city": "P", "days": 16}', None)],
    ),
    ("lfm2", '<|tool_call_start|>[get_weather(city="P"', {}, "", "", [("get_weather", '{"city": "P"}', None)]),
    (
        "lfm2",
        """<|tool_call_start|>[get_weather(city='''a'b\\n\\u00e9\\x41''')]<|tool_call_end|>""",
        {},
        "",
        "",
        [("get_weather", '{"city": "a\'b\\n\\u00e9A"}', None)],
    ),
    (
        "lfm2",
        '<|tool_call_start|>[everything(s="x", a=(1, None,), o={"k": \'v\', 2: []})]<|tool_call_end|>',
        {},
        "",
        "",
        [("everything", '{"s": "x", "a": [1, null], "o": {"k": "v", "2": []}}', None)],
    ),
    (
        "lfm2",
        '<|tool_call_start|>[everything(s="x" "y")]<|tool_call_end|>',
        {},
        "",
        "",
        [("everything", '{"s": "x""y")]', "malformed")],
    ),
    (
        "gemma-4",
        '<|tool_call>call:everything{s:<|"|>x<|"|>,<|"|>i<|"|>:1,a:[NaN]}<tool_call|>',
        {},
        "",
        "",
        [("everything", '{"s": "x", "i": 1, "a": ["NaN"]}', None)],
    ),
    # Reasoning that the prompt closed, opened again by the model: some families drop the mark alone.
    ("nemotron-3", "<think>b", {"prefix": "<|im_start|>assistant\n<think></think>"}, "", "b", []),
    ("qwen3", "<think>b", {"prefix": "<|im_start|>assistant\n<think>\n\n</think>\n\n"}, "b", "", []),
]


@pytest.mark.parametrize(("family", "output", "options", "reasoning", "content", "calls"), ROWS)
def test_decision(
    family: str,
    output: str,
    options: dict[str, Any],
    reasoning: str,
    content: str,
    calls: list[tuple[str, str, str | None]],
) -> None:
    for chunks in splits(output):
        parser = Parser(family, options.get("prefix", ""), tools=TOOLS, trace=True, **_without_prefix(options))
        completion = fold(run(parser, chunks))
        assert completion.reasoning == reasoning
        assert completion.content == content
        assert [(call.name, call.arguments, call.error) for call in completion.tool_calls] == calls
        assert "".join(segment.text for segment in parser.trace) == output


def _without_prefix(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != "prefix"}


def test_markup_is_content_without_tools_where_no_call_is_wanted() -> None:
    text = '<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>'
    assert fold(run(Parser("qwen3", tools=[], tool_choice="none"), [text])).content == text
    text = "<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{}<|call|>"
    assert fold(run(Parser("gpt-oss", "<|start|>assistant", tools=[], tool_choice="none"), [text])).content == text


@pytest.mark.parametrize(
    ("family", "output"),
    [
        ("lfm2", "<|tool_call_start|>[ping(a=" + "[" * 5000),
        ("lfm2", "<|tool_call_start|>[ping(a=" + "-" * 5000 + "1)]"),
        ("gemma-4", "<|tool_call>call:ping{a:" + "{a:" * 5000),
        ("qwen3", "<tool_call>\n" + '{"function":' * 5000),
        ("minimax-m3", "]<]minimax[>[<tool_call>\n" + ']<]minimax[>[<invoke name="ping">' + "]<]minimax[>[<o>" * 5000),
    ],
)
def test_bottomless_output_ends_as_a_malformed_call(family: str, output: str) -> None:
    completion = fold(run(Parser(family, tools=TOOLS), [output]))
    assert [call.error for call in completion.tool_calls] == ["malformed"]


def test_a_callers_mistakes_raise() -> None:
    with pytest.raises(RequestError, match="keeps no trace"):
        _ = Parser("qwen3").trace
    with pytest.raises(RequestError, match="must be one of"):
        Parser("qwen3", reasoning_format="loud")  # pyright: ignore[reportArgumentType]
    closed = Parser("qwen3")
    closed.close()
    assert closed.close() == []
    with pytest.raises(RequestError, match="is closed"):
        closed.feed("x")


def test_ids_are_the_salts() -> None:
    text = '<tool_call>\n{"name": "ping"}\n</tool_call>'
    ids = {fold(run(Parser("qwen3", id_salt=salt), [text])).tool_calls[0].id for salt in ("a", "b", "a")}
    assert len(ids) == 2


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_names_that_python_could_not_have_stand_behind_a_string(step: int) -> None:
    """A quote ends a string where a keyword of the tool follows, however that is spelt."""
    properties = {"who": {"type": "string"}, "zip code": {"type": "string"}, "größe (cm)": {"type": "integer"}}
    tool = {"type": "function", "function": {"name": "put", "parameters": {"type": "object", "properties": properties}}}
    parser = Parser("lfm2", tools=[tool])
    output = '<|tool_call_start|>[put(who="a, b", zip code="0\\"1", größe (cm)=3)]<|tool_call_end|>'
    events = [event for at in range(0, len(output), step) for event in parser.feed(output[at : at + step])]
    (call,) = fold([*events, *parser.close()]).tool_calls
    assert json.loads(call.arguments) == {"who": "a, b", "zip code": '0"1', "größe (cm)": 3}
    assert call.error is None


def test_white_space_behind_a_marker_that_means_nothing_is_accounted_for() -> None:
    control = frozenset({"<|role_sep|>", "<|message_sep|>"})
    prefix = [Piece("assistant"), Piece("<|role_sep|>", special=True), Piece("\n")]
    parser = Parser("gigachat-3", prefix, control_tokens=control, trace=True)
    fed = [*parser.feed("<|message_sep|>", special=True), *parser.feed("\n\nSo it is."), *parser.close()]
    assert "".join(segment.text for segment in parser.trace) == "<|message_sep|>\n\nSo it is."
    assert fold(fed).content == "\n\nSo it is."


def test_calls_one_after_the_other_inside_reasoning_all_count() -> None:
    def call(city: str) -> str:
        return f'\n<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'

    for chunks in splits("<think>\nI need both." + call("Paris") + call("Rome")):
        completion = fold(run(Parser("trinity", tools=TOOLS), chunks))
        assert completion.reasoning == "I need both."
        assert [call.arguments for call in completion.tool_calls] == ['{"city": "Paris"}', '{"city": "Rome"}']
        assert not completion.content
