"""What models write wrong, and what it is read as: markers left out, misspelt, doubled or never closed, values of
another type, arguments wrapped, quotes unescaped. One row a slip, at several chunkings."""

import re
from typing import Any, NamedTuple

import pytest
from cases.parsing_cases import check_order, run, splits

from engine.formats.parsing import Parser
from engine.types.completion import Completion
from engine.types.events import Event, fold
from engine.types.prompt import Piece

PROPERTIES = {"a": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}, "l": {"type": "array"}}
MORE = {"b": {"type": "boolean"}, "x": {"type": "number"}, "u": {"type": ["string", "integer"]}}
TOOL = {"name": "look", "parameters": {"type": "object", "properties": {**PROPERTIES, **MORE}}}
LIMIT = {"finish": "length"}
D = "｜DSML｜"
M = "]<]minimax[>["
CODER = (
    "<tool_call>\n<function=look>\n<parameter=a>\nx\ny\n</parameter>\n<parameter=n>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)
LONG = "x" * 161
"""One character longer than a name may be."""
K3 = '<|open|>message role="assistant"<|sep|>'
K3_ANSWER = "<|open|>response<|sep|>Fine.<|close|>response<|sep|>"
K3_THINKS, K3_ANSWERS = f"{K3}<|open|>think<|sep|>", f"{K3}<|open|>response<|sep|>"
K3_TOKENS = ("<|open|>", "<|close|>", "<|sep|>")
K2 = "<|tool_call"
K2_TOKENS = (f"{K2}s_section_begin|>", f"{K2}s_section_end|>", f"{K2}_begin|>", f"{K2}_end|>", f"{K2}_argument_begin|>")
OSS = "<|channel|>commentary to=functions.look <|constrain|>json<|message|>"
ATEM = (
    '<atem:function_calls>\n<atem:invoke name="look">\n<atem:parameter name="a">v</atem:parameter>\n</atem:invoke>\n'
    "</atem:function_calls>"
)


class Slip(NamedTuple):
    """An output and what it holds. Options: `prefix`, `finish`, `tokens` (texts that come as tokens of the vocabulary)
    and the parser's own."""

    family: str
    output: str
    reasoning: str = ""
    content: str = ""
    calls: tuple[tuple[str, str, str | None], ...] = ()
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed


TOOL_CALLS = ("[TOOL_CALLS]", "[ARGS]")


def look(arguments: str, error: str | None = None) -> tuple[tuple[str, str, str | None], ...]:
    return (("look", arguments, error),)


def dsml(*parameters: str, wrapper: str = "tool_calls") -> str:
    """A call of `look` in DeepSeek's markup; no wrapper for ""."""
    call = f'<{D}invoke name="look">\n' + "".join(parameters) + f"</{D}invoke>"
    return f"<{D}{wrapper}>\n{call}\n</{D}{wrapper}>" if wrapper else call


def dsml_value(name: str, value: str, text: str = "true", end: str = f"</{D}parameter>\n") -> str:
    return f'<{D}parameter name="{name}" string="{text}">{value}{end}'


V = dsml_value("a", "v")


def k3(tool: str, key: str, value: str = "v", kind: str = "string") -> str:
    argument = f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
    call = f'<|open|>call tool="{tool}" index="1"<|sep|>{argument}<|close|>call<|sep|>'
    return f"<|open|>tools<|sep|>{call}<|close|>tools<|sep|>"


def m3(inside: str) -> str:
    """A call of `look` in MiniMax M3's markup; `<` stands for its prefix and a bracket."""
    call = f'<invoke name="look">{inside}</invoke>'
    return f"{M}<tool_call>\n" + re.sub("<", f"{M}<", call) + f"\n{M}</tool_call>"


def glm(*pairs: str) -> str:
    return "<tool_call>look\n" + "".join(f"{pair}\n" for pair in pairs) + "</tool_call>"


def lfm2(*arguments: str) -> str:
    return f"<|tool_call_start|>[look({', '.join(arguments)})]<|tool_call_end|>"


SLIPS: dict[str, list[Slip]] = {
    "the wrapper around calls": [
        slip
        for family, own, other in (
            ("deepseek-v4", "tool_calls", "function_calls"),
            ("deepseek-v3.2", "function_calls", "tool_calls"),
        )
        for slip in (
            Slip(family, dsml(V, wrapper=""), calls=look('{"a": "v"}')),
            Slip(family, "Hi.\n\n" + dsml(V, wrapper=""), content="Hi.", calls=look('{"a": "v"}')),
            Slip(family, dsml(V, wrapper="") + "Bye.", content="Bye.", calls=look('{"a": "v"}')),
            Slip(family, dsml(V, wrapper="") + "\n" + dsml(V, wrapper=""), calls=look('{"a": "v"}') * 2),
            Slip(family, dsml(V, wrapper="") + f"\n</{D}{own}>", calls=look('{"a": "v"}')),
            Slip(family, dsml(V, wrapper=other), calls=look('{"a": "v"}')),
            Slip(family, dsml(V, wrapper="toolcall") + "Bye.", content="Bye.", calls=look('{"a": "v"}')),
            Slip(family, "hm\n\n" + dsml(V, wrapper="toolcall"), "hm", "", look('{"a": "v"}'), {"prefix": "<think>"}),
            Slip(family, f"A <{D}thing> as such", content=f"A <{D}thing> as such"),
            Slip(family, f"A <{D}thing> <{D}invoke name= no", content=f"A <{D}thing> <{D}invoke name= no"),
        )
    ]
    + [
        Slip("kimi-k3", k3("look", "a").split("<|sep|>", 1)[1], calls=look('{"a": "v"}')),
        Slip("qwen3", '{"name": "look", "arguments": {}}', calls=look("{}")),
        Slip(
            "qwen3",
            'Ok. \n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>',
            content="Ok. ",
            calls=look("{}"),
        ),
        Slip("qwen3", '{"name": "Ada", "born": 1815}', content='{"name": "Ada", "born": 1815}'),
        Slip("mistral-nemo", '[{"name": "look", "arguments": {}}]', calls=look("{}")),
        Slip("lfm2", "[look(n=1)]", calls=look('{"n": 1}')),
        Slip("apertus", '[{"look": {"n": 1}}]', calls=look('{"n": 1}')),
        Slip("apertus", '[{"looks": {"n": 1}}]', content='[{"looks": {"n": 1}}]'),
        Slip("muse-glimmer", ATEM, content=ATEM),
        Slip("muse-glimmer", f" to=user<|message|>So: {ATEM}<|eot|>", content=f"So: {ATEM}"),
        Slip("muse-glimmer", f" to=look<|message|>{ATEM}<|eot|>", calls=look('{"a": "v"}')),
        Slip(
            "muse-glimmer",
            f" to=self<|message|>hm<|start|>assistant to=user<|message|>So:<|start|>assistant to=look<|message|>{ATEM}",
            "hm",
            "So:",
            look('{"a": "v"}'),
        ),
        Slip(
            "qwen3-coder", '<tool_call>\n<function=look>\n{"n": 1}\n</function>\n</tool_call>', calls=look('{"n": 1}')
        ),
    ],
    "a parameter's own markers": [
        Slip(
            "deepseek-v4",
            dsml(dsml_value("a", "x ", end=""), dsml_value("n", "2", "false")),
            calls=look('{"a": "x ", "n": 2}'),
        ),
        Slip(
            "deepseek-v4",
            dsml(dsml_value("a", f'of <{D}parameter name="z" string="true">')),
            calls=look(f'{{"a": "of <{D}parameter name=\\"z\\" string=\\"true\\"></{D}parameter>\n', "malformed"),
        ),
        Slip(
            "qwen3-coder",
            "<tool_call>\n<function=look>\n<parameter=a>\nx\n<parameter=n>\n2\n</parameter>\n</function>\n</tool_call>",
            calls=look('{"a": "x", "n": 2}'),
        ),
        *(
            Slip(family, glm("<arg_key>a</arg_key>", "<arg_key>n</arg_key>", "<arg_value>3</arg_value>"), calls=call)
            for call in [look('{"n": 3}')]
            for family in ("glm-4.5", "glm-4.7", "laguna-s", "laguna-xs", "ling-3", "spark-2.5")
        ),
        Slip("glm-4.5", glm("<arg_key>a</arg_key>"), calls=look("{}")),
        Slip(
            "deepseek-v4",
            dsml(V, dsml_value("a", "w"), dsml_value("n", "1", "false")) + "Bye.",
            content="Bye.",
            calls=look(
                f'{{"a": "v"<{D}parameter name="a" string="true">w</{D}parameter>\n'
                f'<{D}parameter name="n" string="false">1</{D}parameter>\n',
                "malformed",
            ),
        ),
        Slip("minimax-m3", m3("<a>x<n>2</n>"), calls=look('{"a": "x", "n": 2}')),
        Slip("minimax-m3", m3("<n>2<a>x</a>"), calls=look('{"n": 2, "a": "x"}')),
        Slip("minimax-m3", m3("<a>of <z> and </z></a>"), calls=look(f'{{"a": "of {M}<z> and {M}</z>"}}')),
        Slip("gpt-oss", "<|channel|>commentary to=look <|message|>x = 1<|call|>", calls=look("x= 1", "malformed")),
        *(
            Slip(family, CODER.replace("\n", "\r\n"), calls=look('{"a": "x\\r\\ny", "n": 2}'))
            for family in ("qwen3-coder", "qwen3.5", "nemotron-3", "step-3.5")
        ),
    ],
    "reasoning": [
        Slip("gemma-4", "<|channel>because\n<channel|>Fine.", "because", "Fine."),
        Slip("gemma-4", "<|channel><|channel>thought\nw\n<channel|>Fine.", "w", "Fine."),
        Slip("gemma-4", "Fine.<channel|>", content="Fine."),
        Slip("gemma-4", "Fine.<tool_call|>", content="Fine."),
        Slip("kimi-k2", f"Fine.{K2_TOKENS[1]}", content="Fine."),
        Slip("qwen3", "<think>\nw\n</think>\n\nOne.</think>Two.", "w", "One.Two."),
        Slip("qwen3", "One. <think>w</think> Two.", content="One. <think>w</think> Two."),
        Slip("qwen3", "Write `</think>` there.", content="Write `</think>` there."),
        Slip("qwen3", "One.\n<think>\nw\n</think>\n\nTwo.", "w", "One.\nTwo."),
        Slip("seed-oss", "One.\n<seed:think>w</seed:think>\nTwo.", "w", "One.\nTwo."),
        Slip("qwen3", "One. <think>\nw\n</think>\n\nTwo.", "w", "One. Two.", (), {"tokens": ("<think>", "</think>")}),
        Slip("kimi-k3", K3_ANSWER, "", "Fine.", (), {"prefix": K3_THINKS}),
        Slip("kimi-k3", f"hm{k3('look', 'a')}{K3_ANSWER}", "hm", "Fine.", look('{"a": "v"}'), {"prefix": K3_THINKS}),
        Slip("kimi-k3", "hm<|close|>think<|open|>response<|sep|>Fine.", "hm", "Fine.", (), {"prefix": K3_THINKS}),
        Slip("solar-open", "hm<|content|>Fine.<|end|>", "hm", "Fine.", (), {"prefix": "<|begin|>assistant<|think|>"}),
        Slip("cohere2-moe", "hm<|START_TEXT|>Fine.", "hm", "Fine.", (), {"prefix": "<|START_THINKING|>"}),
    ],
    "a call's opening": [
        Slip("gemma-4", "<|tool_call>:look{n:3}<tool_call|>", calls=look('{"n": 3}')),
        Slip("gemma-4", "<|tool_call>look{n:3}<tool_call|>", calls=look('{"n": 3}')),
        Slip("gemma-4", "A <|tool_call> there", content="A <|tool_call> there"),
        Slip("mistral-small-3.2", "[TOOL_CALLS]look", calls=look("", "truncated")),
        Slip("mistral-small-3.2", "[TOOL_CALLS]look", "", "", look("", "truncated"), {"tokens": TOOL_CALLS}),
        Slip("mistral-small-3.2", "[TOOL_CALLS]nope", content="[TOOL_CALLS]nope"),
        Slip("functionary-3.1", f"<function={LONG}>{{}}</function>", content=f"<function={LONG}>{{}}</function>"),
        Slip(
            "kimi-k2",
            f'{K2_TOKENS[0]}{K2_TOKENS[2]}{K2_TOKENS[4]}{{"n": 1}}{K2_TOKENS[3]}{K2_TOKENS[1]}',
            calls=(("", '{"n": 1}', "malformed"),),
        ),
        Slip("mistral-nemo", '[TOOL_CALLS]{"n": 1}', calls=(("", '{"n": 1}', "malformed"),)),
        Slip("kimi-k2", f"{K2_TOKENS[0]}blah{K2_TOKENS[1]}", "", "blah", (), {"tokens": K2_TOKENS}),
        Slip("kimi-k2", f"Fine.{K2_TOKENS[4]} More.", "", "Fine. More.", (), {"tokens": K2_TOKENS}),
        Slip(
            "muse-glimmer",
            f" to=look.look<|message|>{ATEM.replace('look', 'look.look')}<|eom|>",
            calls=look('{"a": "v"}'),
        ),
        Slip("qwen3", '<tool_call>\n{"name": "functions.look", "arguments": {}}\n</tool_call>', calls=look("{}")),
        Slip("kimi-k3", k3("look", "x&amp;y"), calls=look('{"x&y": "v"}')),
        Slip("kimi-k3", k3("a&quot;b", "a"), calls=(('a"b', '{"a": "v"}', "unknown_tool"),)),
    ],
    "a call that is not closed": [
        Slip(
            "qwen3",
            '<tool_call>\n{"name": "look", "arguments": {"n": !}\n<tool_call>\n{"name": "look", "arguments": {}}\n'
            "</tool_call>",
            calls=(*look('{"n": !}\n', "malformed"), *look("{}")),
        ),
        Slip(
            "qwen3-coder",
            "<tool_call>\n<function=look>\nblah\n<tool_call>\n<function=look>\n</function>\n</tool_call>",
            calls=(*look("blah\n", "malformed"), *look("{}")),
        ),
        Slip(
            "gemma-4",
            "<|tool_call>call:look{n!<|tool_call>call:look{n:1}<tool_call|>",
            calls=(*look("{n!", "malformed"), *look('{"n": 1}')),
        ),
    ],
    "values of another type": [
        Slip("minimax-m3", m3("<n>007</n>"), calls=look('{"n": 7}')),
        Slip("deepseek-v4", dsml(dsml_value("n", "7")), calls=look('{"n": 7}')),
        Slip("deepseek-v4", dsml(dsml_value("o", '{"k": 1}')), calls=look('{"o": {"k": 1}}')),
        Slip("deepseek-v4", dsml(dsml_value("b", "True")), calls=look('{"b": true}')),
        Slip("deepseek-v4", dsml(dsml_value("a", "7")), calls=look('{"a": "7"}')),
        Slip("deepseek-v4", dsml(dsml_value("u", "7")), calls=look('{"u": "7"}')),
        Slip("deepseek-v4", dsml(dsml_value("n", "seven")), calls=look('{"n": "seven"}', "invalid_arguments")),
        Slip("deepseek-v4", dsml(dsml_value("a", "7", "false")), calls=look('{"a": 7}', "invalid_arguments")),
        Slip("kimi-k3", k3("look", "n", "7"), calls=look('{"n": 7}')),
        Slip("glm-4.5", glm("<arg_key>x</arg_key>", "<arg_value>+.50</arg_value>"), calls=look('{"x": 0.50}')),
        Slip("glm-4.5", glm("<arg_key>n</arg_key>", '<arg_value>"12"</arg_value>'), calls=look('{"n": 12}')),
        Slip("gemma-4", "<|tool_call>call:look{n:007}<tool_call|>", calls=look('{"n": "007"}', "invalid_arguments")),
        Slip(
            "qwen3",
            '<tool_call>\n{"name": "look", "arguments": {"n": "7"}}\n</tool_call>',
            calls=look('{"n": "7"}', "invalid_arguments"),
        ),
        Slip("minimax-m3", m3("<o><k>1</k><j>0</j><k>2</k></o>"), calls=look('{"o": {"k": [1, 2], "j": 0}}')),
        Slip("minimax-m3", m3("<l>x</l><l>y</l><n>1</n>"), calls=look('{"l": ["x", "y"], "n": 1}')),
        Slip("minimax-m3", m3("<l><item>x</item></l>"), calls=look('{"l": ["x"]}')),
    ],
    "arguments under one name": [
        Slip("deepseek-v4", dsml(dsml_value("arguments", '{"n": 7}', "false")), calls=look('{"n": 7}')),
        Slip("deepseek-v4", dsml(dsml_value("input", '{"n": 7}')), calls=look('{"n": 7}')),
        Slip(
            "deepseek-v3.2",
            dsml(dsml_value("input", '{"n": 7}'), wrapper="function_calls"),
            calls=look('{"n": 7}'),
        ),
        Slip(
            "minicpm-5",
            '<function name="look"><param name="properties">{"n": 7}</param></function>',
            calls=look('{"n": 7}'),
        ),
        Slip("minimax-m3", m3("<arguments><n>7</n></arguments>"), calls=look('{"n": 7}')),
        Slip(
            "deepseek-v4",
            dsml(dsml_value("input", '{"z": 7}', "false")),
            calls=look('{"input": {"z": 7}}'),
        ),
        Slip(
            "deepseek-v4",
            dsml(dsml_value("input", '{"n": 7}', "false"), dsml_value("a", "v")),
            calls=look('{"input": {"n": 7}, "a": "v"}'),
        ),
        Slip("deepseek-v4", dsml(dsml_value("o", '{"n": 7}', "false")), calls=look('{"o": {"n": 7}}')),
    ],
    "Python as models write it": [
        Slip("lfm2", lfm2("a='awk 'NR==2' f.txt'"), calls=look('{"a": "awk \'NR==2\' f.txt"}')),
        Slip("lfm2", lfm2("a='print('hi')'", "n=2"), calls=look('{"a": "print(\'hi\')", "n": 2}')),
        Slip("lfm2", lfm2("a='it's 'so', I say'"), calls=look('{"a": "it\'s \'so\', I say"}')),
        Slip("lfm2", lfm2("l=['a', 'b']", "o={'k': 'v'}"), calls=look('{"l": ["a", "b"], "o": {"k": "v"}}')),
        Slip("lfm2", lfm2("l={'x', 'y'}"), calls=look('{"l": ["x", "y"]}')),
        Slip(
            "qwen3-coder",
            "<tool_call>\n<function=look>\n<parameter=l>\n"
            "['\\d', '\\t', '\\777']\n</parameter>\n</function>\n</tool_call>",
            calls=look(r'{"l": ["\\d", "\t", "\\777"]}'),
        ),
        Slip("lfm2", lfm2("o={}", "l=()"), calls=look('{"o": {}, "l": []}')),
        Slip("lfm2", lfm2("n=03"), calls=look('{"n": 3}')),
        Slip("lfm2", lfm2("n=0x1F"), calls=look('{"n": 31}')),
    ],
    "a marker that the limit cut": [
        Slip("gemma-4", "<|channel>thou", options=LIMIT),
        Slip("gemma-4", "<|channel>thou", options={**LIMIT, "tokens": ("<|channel>", "<channel|>")}),
        Slip("deepseek-r1", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>fun", options=LIMIT),
        Slip("deepseek-v4", f"Ok<{D}tool_c", content="Ok", options=LIMIT),
        Slip("minimax-m2", "<minimax:tool_call>\n<invoke na", options=LIMIT),
        Slip("hermes", "Ok\n<tool_ca", content="Ok", options=LIMIT),
        Slip("hermes", "Ok\n<tool_ca", content="Ok\n<tool_ca"),
        Slip("llama-3", '{"name": "lo', options=LIMIT),
        Slip("llama-3", '{"name": "lo', content='{"name": "lo'),
        Slip("kimi-k3", "Fine.<|close|>respon", "", "Fine.", (), {"prefix": K3_ANSWERS}),
        Slip("kimi-k3", "hm<|close|>thi", "hm", "", (), {"prefix": K3_THINKS}),
        Slip("kimi-k3", "<|open|>response<|sep|>Fine.<|close|>respon", "", "Fine.", (), {"tokens": K3_TOKENS}),
        Slip("kimi-k3", "<|open|>think<|sep|>hm<|close|>thi", "hm", "", (), {"tokens": K3_TOKENS}),
        Slip("gpt-oss", f'{OSS}{{"n": 3}}<|', calls=look('{"n": 3}'), options=LIMIT),
        Slip("gpt-oss", f'{OSS}{{"a": "x<|ca', calls=look('{"a": "x', "truncated"), options=LIMIT),
    ],
    "a control token inside JSON": [
        Slip("gpt-oss", f'{OSS}{{"a": "x<|call|>', calls=look('{"a": "x', "malformed")),
        Slip(
            "gpt-oss",
            f'{OSS}{{"a": "x<|end|><|start|>assistant<|channel|>final<|message|>Hi',
            content="Hi",
            calls=look('{"a": "x', "malformed"),
        ),
        Slip("gpt-oss", f'{OSS}{{"a": "the <|call|> token"}}<|call|>', calls=look('{"a": "the <|call|> token"}')),
        Slip(
            "gpt-oss",
            f'{OSS}{{"a": "x<|call|>',
            calls=look('{"a": "x', "malformed"),
            options={"tokens": ("<|channel|>", "<|constrain|>", "<|message|>", "<|call|>")},
        ),
    ],
}


def parser_of(slip: Slip) -> Parser:
    own = {key: value for key, value in slip.options.items() if key not in ("prefix", "finish", "tokens")}
    tokens = slip.options.get("tokens")
    control = None if tokens is None else frozenset(tokens)
    return Parser(slip.family, slip.options.get("prefix", ""), tools=[TOOL], control_tokens=control, trace=True, **own)


def readings(slip: Slip) -> list[tuple[Parser, list[Event]]]:
    """The output read at several chunkings; tokens of the vocabulary come whole."""
    finish = slip.options.get("finish", "stop")
    tokens = slip.options.get("tokens")
    if tokens is None:
        return [(parser := parser_of(slip), run(parser, chunks, finish)) for chunks in splits(slip.output)]
    found: list[tuple[Parser, list[Event]]] = []
    cut = [part for part in re.split(f"({'|'.join(map(re.escape, tokens))})", slip.output) if part]
    for size in (1, 3, 1000):
        parser = parser_of(slip)
        pieces = [
            piece
            for part in cut
            for piece in (
                [Piece(part, True)]
                if part in tokens
                else [Piece(part[at : at + size]) for at in range(0, len(part), size)]
            )
        ]
        events = [event for piece in pieces for event in parser.feed(piece.text, piece.special)]
        found.append((parser, [*events, *parser.close(finish)]))
    return found


def read(completion: Completion) -> tuple[str, str, tuple[tuple[str, str, str | None], ...]]:
    calls = tuple((call.name, call.arguments, call.error) for call in completion.tool_calls)
    return completion.reasoning, completion.content, calls


@pytest.mark.parametrize("subject", SLIPS)
def test_slips(subject: str) -> None:
    for slip in SLIPS[subject]:
        for parser, events in readings(slip):
            check_order(events)
            assert read(fold(events)) == (slip.reasoning, slip.content, slip.calls), slip
            assert "".join(segment.text for segment in parser.trace) == slip.output, slip


def test_a_view_shows_what_the_model_wrote_and_not_the_prompt() -> None:
    output = "<|channel|>analysis<|message|>w<|end|><|start|>assistant<|channel|>final<|message|>Fine."
    for chunks in splits(output):
        parser = Parser("gpt-oss", "<|start|>assistant", reasoning_format="none")
        assert fold(run(parser, chunks)).content == "<|channel|>analysis<|message|>w<|end|>Fine."


def test_a_view_shows_no_header_but_that_of_reasoning() -> None:
    output = "<|channel|>commentary<|message|>Hm.<|end|><|start|>assistant<|channel|>analysis<|message|>w<|end|>"
    for chunks in splits(output):
        parser = Parser("gpt-oss", "<|start|>assistant", reasoning_format="none")
        assert fold(run(parser, chunks)).content == "Hm.<|channel|>analysis<|message|>w<|end|>"


def test_calls_that_nobody_asked_for_are_content_as_written() -> None:
    """Control tokens of calls too, where calls are not read."""
    parser = Parser(
        "gemma-4", tools=[], tool_choice="none", control_tokens={"<|tool_call>", "<tool_call|>"}, trace=True
    )
    pieces = [("<|tool_call>", True), ("call:look{n:3}", False), ("<tool_call|>", True)]
    events = [event for text, special in pieces for event in parser.feed(text, special)]
    assert fold([*events, *parser.close()]).content == "<|tool_call>call:look{n:3}<tool_call|>"


@pytest.mark.parametrize(
    ("family", "output"),
    [
        ("qwen3", '<tool_call>\n{"name": "look", "arguments": {"a": "x", "a": "y"}}\n</tool_call>'),
        ("qwen3", '<tool_call>\n{"name": "look", "arguments": {"o": {"k": 1, "k": 2}}}\n</tool_call>'),
        ("qwen3", '<tool_call>\n{"name": "look", "arguments": {"a": "x"}, "arguments": {"a": "y"}}\n</tool_call>'),
        ("qwen3", '<tool_call>\n{"name": "look", "name": "see", "arguments": {"a": "x"}}\n</tool_call>'),
        ("llama-3", '{"name": "look", "parameters": {"a": "x", "a": "y"}}'),
        ("mistral-small-3.2", '[TOOL_CALLS]look[ARGS]{"a": "x", "a": "y"}'),
        ("gpt-oss", f'{OSS}{{"a": "x", "a": "y"}}<|call|>'),
        ("lfm2", lfm2("a='x'", "a='y'")),
        ("lfm2", lfm2("o={'k': 1, 'k': 2}")),
        ("gemma-4", '<|tool_call>call:look{a:<|"|>x<|"|>,a:<|"|>y<|"|>}<tool_call|>'),
        ("deepseek-v4", dsml(dsml_value("o", '{"k": 1, "k": 2}', "false"))),
        (
            "qwen3-coder",
            "<tool_call>\n<function=look>\n" + "<parameter=n>\n1\n</parameter>\n" * 2 + "</function>\n</tool_call>",
        ),
    ],
)
def test_a_key_that_is_given_twice_makes_the_call_malformed(family: str, output: str) -> None:
    """Who checks the first value and runs the last would be deceived."""
    for chunks in splits(output):
        completion = fold(run(Parser(family, tools=[TOOL]), chunks))
        assert [call.error for call in completion.tool_calls] == ["malformed"], output
