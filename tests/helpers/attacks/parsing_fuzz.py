"""Mutated outputs of every family against the parser's promises.

The outputs of tests/golden/*.toml are cut, duplicated, swapped, spliced with other families' and salted with
markers, brackets, escapes and controls, then fed at random chunkings under random options, as text and as control
tokens. Checked for each: nothing raises or hangs, the trace is the input, events keep their order, another chunking
gives the same, the trace agrees with the completion, a call without an error holds what its tool takes, and the calls
that were over before the first mutation stay.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast
from zlib import crc32

from cases.parsing_cases import CASES, FAMILIES, TOOLS, check_order, pieces

from engine.formats.families import builtin_families
from engine.formats.parsing import Parser
from engine.types.completion import Completion
from engine.types.events import Event, ToolCallEnd, fold
from engine.types.prompt import Piece
from engine.types.sampling import FinishReason
from engine.types.tools import Tool, ToolName

_FORMATS = ("deepseek", "deepseek", "none", "deepseek-legacy", "exclude")
_CHOICES = ("auto", "auto", "auto", "none", "required", "ping")
_ENDS: tuple[FinishReason, ...] = ("stop", "length", "stop", "cancelled")
_SALT = (
    *('"', "'", "\\", "{", "}", "[", "]", "(", ")", "<", ">", "=", ":", ",", "|", "`", "\n", " ", "\n\n", "\t", "\r\n"),
    *("\x00", "\x1f", "\x7f", "\u2028", "\xa0", "é", "日本", "😀", "\ud83d", "\udc00", "\ufffd", "\u200b", "e\u0301"),
    *('\\"', "\\u00e9", "\\ud83d\\ude00", "\\ud83d", "\\u12", "\\x41", "\\N", "```json\n", "```", "<![CDATA[", "]]>"),
    *("NaN", "-", "1e999", "9" * 30, "null", "true", "None", "{}", "[]", '""', "[{}]", "<think>", "</think>"),
    *('{"name": "ping", "arguments": {}}', '{"name": "ping"', '"arguments": {', '{"type": "function", "function": {'),
    *("ping", "get_weather", "ping()", "city", "<|end|>", "<tool_call>", "</tool_call>", "functions.ping:0"),
)
Feed = Sequence[Piece]


@dataclass(frozen=True)
class Input:
    """One mutated output and how it is parsed; `kept` characters at its front are a case's own. `control`: the control
    tokens that the vocabulary has; None: all is text. `tools`: some, none at all, or None if nobody knows. `salt`: of
    ids. `seed`: which control tokens come as plain text."""

    family: str
    before: str
    output: str
    kept: int
    control: Sequence[str] | None
    tools: bool | None
    choice: str
    form: str
    salt: str
    finish: FinishReason
    seed: int

    def data(self) -> bytes:
        return json.dumps(self.__dict__).encode()

    @classmethod
    def of(cls, data: bytes) -> "Input":
        return cls(**json.loads(data))

    @property
    def options(self) -> dict[str, Any]:
        tools = {True: TOOLS, False: (), None: None}[self.tools]
        choice = ToolName(name="ping") if self.choice == "ping" else self.choice
        options: dict[str, Any] = {"tools": tools, "tool_choice": choice, "reasoning_format": self.form}
        options["id_salt"] = self.salt
        if self.control is not None:
            options["control_tokens"] = frozenset(self.control)
        return options

    @property
    def fed(self) -> Feed:
        if self.control is None:
            return [Piece(self.output)]
        chance = random.Random(self.seed)
        return [
            Piece(text, special and text in self.control and chance.random() < 0.95)
            for text, special, _ in pieces(self.family, self.output)
        ]

    @property
    def prefix(self) -> str | Feed:
        if self.control is None:
            return self.before
        return [Piece(text, special and text in self.control) for text, special, _ in pieces(self.family, self.before)]

    def parser(self) -> Parser:
        return Parser(self.family, self.prefix, trace=True, **self.options)


@cache
def _markers(family: str) -> list[str]:
    """The markers of a family's format, whole and halved."""
    return _texts(builtin_families().get(family).format.model_dump())


OUTPUTS = [case.output for case in CASES]


def seeds() -> Iterator[bytes]:
    """The cases as they are, one in ten."""
    for number, case in enumerate(CASES[::10]):
        chance = random.Random(number)
        yield _drawn(case.family, case.prefix, case.output, len(case.output), chance).data()


def changed(data: bytes, chance: random.Random, pool: Sequence[bytes]) -> bytes:
    """An output like this one or like one of the golden ones, for another family now and then."""
    if chance.random() < 0.3:
        case = chance.choice(CASES)
        family, prefix, output, kept = case.family, case.prefix, case.output, len(case.output)
    else:
        made = Input.of(data)
        family, prefix, output, kept = made.family, made.before, made.output, made.kept
        if chance.random() < 0.1:
            family, prefix, kept = chance.choice(FAMILIES), "", 0
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        output, at = _changed(output, family, chance)
        kept = min(kept, at)
    return _drawn(family, prefix, output, kept, chance).data()


def attempt(data: bytes) -> None:
    """Raises where a promise is broken."""
    check(Input.of(data), random.Random(crc32(data)))


def _drawn(family: str, before: str, output: str, kept: int, chance: random.Random) -> Input:
    """An output to be parsed with random options."""
    control: Sequence[str] | None = None
    if chance.random() < 0.5:
        control = [text for text in builtin_families().get(family).format.control if chance.random() < 0.9]
    return Input(
        family,
        before,
        output,
        kept,
        control,
        chance.choice((True, True, None, False)),
        chance.choice(_CHOICES),
        chance.choice(_FORMATS),
        chance.choice(("", "x")),
        chance.choice(_ENDS),
        chance.randrange(1 << 16),
    )


def _changed(text: str, family: str, chance: random.Random) -> tuple[str, int]:
    """The text changed once, and how much of its front is as it was."""
    a, b = sorted(chance.randrange(len(text) + 1) for _ in range(2))
    near = min(b, a + chance.choice((1, 2, 5, 20, 100)))
    salt = "".join(chance.choice(_markers(family) or _SALT) for _ in range(chance.choice((1, 1, 2, 4))))
    if chance.random() < 0.5:
        salt = "".join(chance.choice(_SALT) for _ in range(chance.choice((1, 1, 2, 6))))
    if chance.random() < 0.2:
        salt = salt[: chance.randrange(len(salt) + 1)]
    other = chance.choice(OUTPUTS)
    c, d = sorted(chance.randrange(len(other) + 1) for _ in range(2))
    match chance.randrange(9):
        case 0:
            return text[:a] + text[near:], a
        case 1:
            return text[:near] + text[a:], near
        case 2:
            swapped = text[:a] + text[near:b] + text[a:near] + text[b:]
            return swapped, a
        case 3:
            return text[:a] + other[c:d] + text[a:], a
        case 4:
            return text[:a] + other[c:], a
        case 5:
            return text[:a], a
        case 6:
            return text[:a] + salt * chance.choice((1, 1, 3, 40)) + text[a:], a
        case 7:
            return text[:a] + salt + text[near:], a
        case _:
            return text + chance.choice(("", "\n")) + chance.choice(OUTPUTS), len(text)


def _texts(node: object) -> list[str]:
    """The markers of a format, whole and halved."""
    match node:
        case str() if len(node) > 1 and not node.isalnum():
            return [node, node.strip(), node[: len(node) // 2], node[len(node) // 2 :]]
        case dict():
            return [text for value in cast("dict[str, object]", node).values() for text in _texts(value)]
        case list() | tuple():
            return [text for value in cast("Sequence[object]", node) for text in _texts(value)]
        case _:
            return []


def check(made: Input, source: random.Random) -> None:
    """All promises, for one input. Raises what it finds."""
    parser = made.parser()
    events = _run(parser, made.fed, made.finish)
    trace = parser.trace
    assert "".join(segment.text for segment in trace) == _expected(made), "the trace is not the input"
    if made.options["reasoning_format"] != "deepseek-legacy":  # where the two copies of reasoning alternate
        check_order(events)
    completion = fold(events)
    again = made.parser()
    front, rest = _parted(made.fed, made.kept)
    before = [event for piece in _chunked(front, source) for event in again.feed(piece.text, piece.special)]
    after = _run(again, _chunked(rest, source), made.finish)
    assert fold([*before, *after]) == completion, "another split gives another"
    assert again.trace == trace, "another split gives another trace"
    for event in before:
        if isinstance(event, ToolCallEnd):
            call = completion.tool_calls[event.index]
            assert (call.arguments, call.error) == (event.arguments, event.error), "an earlier call changed"
    _check_calls(made, completion)
    if made.options["reasoning_format"] in ("deepseek", "exclude"):
        content = "".join(segment.text for segment in trace if segment.kind == "content")
        # A line that a dropped marker joined to the one before it is parted from that, which is no input.
        assert completion.content.replace("\n", "") == content.replace("\n", ""), "content and trace differ"
    if made.options["reasoning_format"] == "deepseek":
        reasoning = "".join(segment.text for segment in trace if segment.kind == "reasoning")
        parts = "".join(part.text for part in completion.parts if part.type == "reasoning")
        assert parts == reasoning, "reasoning and trace differ"
        assert all(part.text.strip() for part in completion.parts if part.type == "reasoning"), "blank reasoning"
    if made.options["tool_choice"] == "none":
        assert not completion.tool_calls, "calls where none were asked for"


def _expected(made: Input) -> str:
    """The input as the parser must account for it: lone surrogates are no text."""
    return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in made.output)


def _parted(fed: Feed, count: int) -> tuple[list[Piece], list[Piece]]:
    """The pieces that lie within the first characters, and the others; text is cut there, a control token is not."""
    front: list[Piece] = []
    for at, (text, special, _) in enumerate(fed):
        if count < len(text):
            if special:
                return front, list(fed[at:])
            return [*front, Piece(text[:count])], [Piece(text[count:]), *fed[at + 1 :]]
        front.append(Piece(text, special))
        count -= len(text)
    return front, []


def _check_calls(made: Input, completion: Completion) -> None:
    tools: Sequence[Tool] | None = made.options["tools"]
    named = None if tools is None else {tool.name: tool for tool in tools}
    calls = completion.tool_calls
    for call in calls:
        if call.error is None:
            value = json.loads(call.arguments)
            assert isinstance(value, dict), "arguments without an error are no object"
            if named is not None:
                assert call.name in named, "an unknown tool without an error"
                check_ = named[call.name].check
                assert check_ is None or check_(value) is None, "arguments that do not fit, without an error"
        elif call.error == "truncated":
            assert call is calls[-1], "a truncated call that is not the last"
        elif call.error == "unknown_tool":
            assert named is not None, "names judged without tools"
            assert call.name not in named, "a declared tool called unknown"
    written = made.finish == "stop"
    assert completion.finish_reason == ("tool_calls" if written and calls else made.finish), "finish reason"


def _run(parser: Parser, fed: Feed, finish: FinishReason) -> list[Event]:
    events = [event for piece in fed for event in parser.feed(piece.text, piece.special)]
    return [*events, *parser.close(finish)]


def _chunked(fed: Feed, source: random.Random) -> list[Piece]:
    """The same input, its text cut at random."""
    widths = source.choice(((1,), (1, 2, 3), (4,), (1, 40), (7,)))
    cut: list[Piece] = []
    for text, special, _ in fed:
        at = 0
        while at < len(text) and not special:
            width = source.choice(widths)
            cut.append(Piece(text[at : at + width]))
            at += width
        if special:
            cut.append(Piece(text, special=True))
    return cut
