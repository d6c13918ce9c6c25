"""Mutated outputs of every family against the parser's promises, bounded and seeded: `fuzz_parsing.py 1000000`.

The outputs of tests/golden/*.toml are cut, duplicated, swapped, spliced with other families' and salted with
markers, brackets, escapes and controls, then fed at random chunkings under random options, as text and as control
tokens. Checked for each: nothing raises or hangs, the trace is the input, events keep their order, another chunking
gives the same, the trace agrees with the completion, a call without an error holds what its tool takes, and the calls
that were over before the first mutation stay. Failures are printed with all that is needed to repeat them.

`--small-models` instead judges every golden call as small models spoil it, and prints a table of the classes.
"""

import argparse
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, cast

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "support"), str(TESTS.parent)]

from parsing_cases import FAMILIES, TOOLS, Case, check_order, load, pieces  # noqa: E402
from small_models import KINDS, judge, mutants  # noqa: E402

from engine.events import Event, ToolCallEnd, fold  # noqa: E402
from engine.families import builtin_families  # noqa: E402
from engine.parsing import Parser, Piece  # noqa: E402
from engine.types import Completion, FinishReason, Tool, ToolName  # noqa: E402

_FORMATS = ("deepseek", "deepseek", "none", "deepseek-legacy", "exclude")
_CHOICES = ("auto", "auto", "auto", "none", "required", ToolName(name="ping"))
_TOOLS: tuple[Sequence[Tool] | None, ...] = (TOOLS, TOOLS, None, [])
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
    """One mutated output and how it is parsed; `kept` characters at its front are the case's own."""

    case: Case
    output: str
    kept: int
    fed: Feed
    options: dict[str, Any]
    prefix: str | Feed
    finish: FinishReason

    def parser(self) -> Parser:
        return Parser(self.case.family, self.prefix, trace=True, **self.options)


class HangError(Exception):
    """An input took longer than a parser may."""


def main() -> None:
    """Run, print figures, and exit with 1 where a promise was broken."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("count", type=int, nargs="?", default=10_000, help="how many inputs")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--family", action="append", help="only this family (may be repeated)")
    arguments.add_argument("--seconds", type=float, default=5.0, help="the bound for one input")
    arguments.add_argument("--show", type=int, default=3, help="failures shown of each kind and family")
    arguments.add_argument("--small-models", action="store_true", help="the table of what small models spoil")
    given = arguments.parse_args()
    if given.small_models:
        sys.exit(_table(given.family or FAMILIES))
    signal.signal(signal.SIGPROF, _hang)
    failed, slowest, characters = Counter[tuple[str, str]](), 0.0, 0
    begun = time.perf_counter()
    inputs = Mutations(random.Random(given.seed), given.family)
    for _ in range(given.count):
        made = inputs.draw()
        started = time.perf_counter()
        signal.setitimer(signal.ITIMER_PROF, given.seconds)
        try:
            check(made, inputs.source)
        except Exception as error:  # noqa: BLE001 - every failure is a finding
            kind = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:80]
            failed[made.case.family, kind] += 1
            if failed[made.case.family, kind] <= given.show:
                _report(made, kind)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        slowest = max(slowest, time.perf_counter() - started)
        characters += len(made.output)
    seconds = time.perf_counter() - begun
    print(
        f"{given.count} inputs, {characters} characters, seed {given.seed}: {sum(failed.values())} failures; "
        f"{seconds:.0f} s, slowest input {slowest * 1000:.0f} ms"
    )
    for (family, kind), count in sorted(failed.items()):
        print(f"{count:7} {family}: {kind}")
    sys.exit(bool(failed))


def _table(families: Sequence[str]) -> bool:
    """Print what was read wrongly, by class. Returns whether anything was executable or lost."""
    counts, guilty = Counter[str](), Counter[tuple[str, str]]()
    for mutant in (mutant for family in families for mutant in mutants(family)):
        counts[mutant.kind] += 1
        guilty.update((mutant.kind, kind) for kind in judge(mutant))
    print(f"| class | outputs | {' | '.join(KINDS)} |\n|---|---|---|---|---|")
    for kind, count in counts.items():
        print(f"| {kind} | {count} | {' | '.join(str(guilty[kind, of]) for of in KINDS)} |")
    return any(of != "shown" for _, of in guilty)


def _hang(signum: int, frame: FrameType | None) -> None:
    raise HangError("an input took too long")


def _report(made: Input, kind: str) -> None:
    options = {key: value for key, value in made.options.items() if key != "tools"}
    tools = made.options["tools"]
    options["tools"] = tools if not tools else "TOOLS"
    print(f"--- {made.case.family} ({made.case.name}): {kind}\n{options} {made.finish}\nprefix {made.prefix!r}")
    print(f"output {made.output!r}\nfed {[tuple(piece) for piece in made.fed if piece.special]}")


class Mutations:
    """Draws inputs: a block of them for each family in turn, so that its compiled patterns stay in use."""

    def __init__(self, source: random.Random, families: Sequence[str] | None) -> None:
        self.source = source
        self._cases: dict[str, list[Case]] = {}
        for case in load():
            self._cases.setdefault(case.family, []).append(case)
        self._outputs = [case.output for cases in self._cases.values() for case in cases]
        self._families = [name for name in self._cases if families is None or name in families]
        self._markers = {name: _texts(builtin_families().get(name).format.model_dump()) for name in self._families}
        self._drawn = 0

    def draw(self) -> Input:
        """The next input."""
        source = self.source
        family = self._families[self._drawn // 100 % len(self._families)]
        self._drawn += 1
        case = source.choice(self._cases[family])
        output, kept = case.output, len(case.output)
        for _ in range(source.choice((1, 1, 1, 2, 3, 8))):
            output, at = self._mutated(output, family)
            kept = min(kept, at)
        options: dict[str, Any] = {
            "tools": source.choice(_TOOLS),
            "tool_choice": source.choice(_CHOICES),
            "reasoning_format": source.choice(_FORMATS),
            "id_salt": source.choice(("", "x")),
        }
        fed: Feed = [Piece(output)]
        prefix: str | Feed = case.prefix
        if source.random() < 0.5:
            control = builtin_families().get(family).format.control
            known = [text for text in control if source.random() < 0.9]
            options["control_tokens"] = frozenset(known)
            fed = [
                Piece(text, special and text in known and source.random() < 0.95)
                for text, special in pieces(family, output)
            ]
            prefix = [Piece(text, special and text in known) for text, special in pieces(family, case.prefix)]
        return Input(case, output, kept, fed, options, prefix, source.choice(_ENDS))

    def _mutated(self, text: str, family: str) -> tuple[str, int]:
        """The text changed once, and how much of its front is as it was."""
        source = self.source
        a, b = sorted(source.randrange(len(text) + 1) for _ in range(2))
        near = min(b, a + source.choice((1, 2, 5, 20, 100)))
        salt = "".join(source.choice(self._markers[family] or _SALT) for _ in range(source.choice((1, 1, 2, 4))))
        if source.random() < 0.5:
            salt = "".join(source.choice(_SALT) for _ in range(source.choice((1, 1, 2, 6))))
        if source.random() < 0.2:
            salt = salt[: source.randrange(len(salt) + 1)]
        other = source.choice(self._outputs)
        c, d = sorted(source.randrange(len(other) + 1) for _ in range(2))
        match source.randrange(9):
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
                return text[:a] + salt * source.choice((1, 1, 3, 40)) + text[a:], a
            case 7:
                return text[:a] + salt + text[near:], a
            case _:
                return text + source.choice(("", "\n")) + source.choice(self._outputs), len(text)


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
    before = [event for piece in _chunked(front, source) for event in again.feed(*piece)]
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
        assert completion.content == content, "content and trace differ"
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
    for at, (text, special) in enumerate(fed):
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
    events = [event for piece in fed for event in parser.feed(*piece)]
    return [*events, *parser.close(finish)]


def _chunked(fed: Feed, source: random.Random) -> list[Piece]:
    """The same input, its text cut at random."""
    widths = source.choice(((1,), (1, 2, 3), (4,), (1, 40), (7,)))
    cut: list[Piece] = []
    for text, special in fed:
        at = 0
        while at < len(text) and not special:
            width = source.choice(widths)
            cut.append(Piece(text[at : at + width]))
            at += width
        if special:
            cut.append(Piece(text, special=True))
    return cut


if __name__ == "__main__":
    main()
