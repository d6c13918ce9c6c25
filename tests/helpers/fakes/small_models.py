"""Outputs as small models spoil them, made from every family's calls, and the rules that judge how they are
read: nothing is executable that was not meant, nothing is lost, no markup is shown beside a right call."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from cases.parsing_cases import CASES, TOOLS, Case
from cases.writer import stated

from engine.formats.families import Format, builtin_families
from engine.formats.parsing import Parser
from engine.types.completion import Completion
from engine.types.events import fold
from engine.types.sampling import FinishReason

ANSWER = "So be it."
KINDS = ("executable", "lost", "shown")


@dataclass(frozen=True)
class Mutant:
    """A spoiled output. `meant`: the calls that may run, as (name, arguments). `answer`: text that must be content.
    `silent`: it may hold neither a call nor an answer."""

    kind: str
    family: str
    output: str
    prefix: str = ""
    meant: tuple[tuple[str, str], ...] = ()
    answer: str = ""
    silent: bool = False
    finish: FinishReason = "stop"


def mutants(family: str, *, cuts: int = 7) -> Iterator[Mutant]:
    """Every mutant of a family; its calls are cut, and drafts end, at every `cuts`-th place."""
    format_ = builtin_families().get(family).format
    if format_.tools is None:
        return
    for case in CASES:
        if case.family == family and case.name in ("one call", "two calls", "no arguments"):
            yield from _spoiled(case, format_, cuts)
            yield from _in_reasoning(case, format_, cuts)


def _meant(case: Case) -> tuple[tuple[str, str], ...]:
    return tuple((call["name"], call["arguments"]) for call in case.calls)


def _ends(format_: Format) -> tuple[list[str], list[str]]:
    """The marks that open a section or a call, and those that close one."""
    tools = format_.tools
    assert tools is not None
    pairs = [pair for pair in (tools.section, tools.call_marks) if pair[0].strip()]
    return [pair[0].strip() for pair in pairs], [pair[1].strip() for pair in pairs if pair[1].strip()]


def _spoiled(case: Case, format_: Format, cuts: int) -> Iterator[Mutant]:
    openers, closers = _ends(format_)
    text, meant = case.output, _meant(case)

    def mutant(kind: str, output: str, *, silent: bool = False, finish: FinishReason = "stop") -> Mutant:
        return Mutant(kind, case.family, output, case.prefix, meant, silent=silent, finish=finish)

    for closer in closers:
        at = text.rfind(closer)
        if at >= 0:
            yield mutant("closer missing", text[:at] + text[at + len(closer) :])
            yield mutant("closer doubled", text[:at] + closer + text[at:])
    if openers and (at := text.find(openers[0])) >= 0:
        yield mutant("opener doubled", text[:at] + openers[0] + "\n" + text[at:])
        if closers:
            yield mutant("closer before", text[:at] + closers[0] + "\n" + text[at:])
    brace = text.rfind("}")
    if brace >= 0:
        yield mutant("brace doubled", text[:brace] + "}" + text[brace:])
        yield mutant("brace missing", text[:brace] + text[brace + 1 :])
    yield mutant("in a fence", f"```json\n{text}\n```")
    yield mutant("another case", text.replace("get_weather", "Get_Weather").replace("ping", "Ping"))
    for at in range(len(text) % cuts, len(text), cuts):
        yield mutant("cut", text[:at], silent=True, finish="length")
    if "Paris" in text:
        for quote in ('"', "'", '"}}', "')"):
            yield Mutant(
                "quotes", case.family, text.replace("Paris", f"Paris{quote} x"), case.prefix, _quoted(case, quote)
            )


def _quoted(case: Case, quote: str) -> tuple[tuple[str, str], ...]:
    """The calls with the quote as a part of the value: the whole text, or none."""
    return tuple(
        (name, arguments.replace("Paris", json.dumps(f"Paris{quote} x")[1:-1])) for name, arguments in _meant(case)
    )


def _in_reasoning(case: Case, format_: Format, cuts: int) -> Iterator[Mutant]:
    reasoning = format_.reasoning
    if reasoning is None or format_.tools is None or stated(format_.tools, "heading", ("", ""))[0]:
        return
    openers, _ = _ends(format_)
    at = case.output.find(openers[0]) if openers else -1
    if at < 0 or case.content or case.reasoning:
        return
    call, family, meant = case.output[at:], case.family, _meant(case)
    prefix = case.prefix.split(reasoning.open.strip())[0] + reasoning.open
    closed = reasoning.close + format_.content[0] + ANSWER + format_.content[1]
    wrapped = meant if reasoning.ends_on_call else ()
    yield Mutant("call in reasoning", family, f"Say {call} No.{closed}", prefix, wrapped, ANSWER)
    yield Mutant("mention", family, f"Say {openers[0]} or not.{closed}", prefix, (), ANSWER)
    for end in range(len(openers[0]), len(call), cuts):
        yield Mutant("draft", family, f"Say {call[:end]} no.{closed}", prefix, wrapped, ANSWER)
    if len(openers) == 2 and call.count(openers[0]) == 1 and (inner := call.find(openers[1])) >= 0:
        yield Mutant("call without its wrapper", family, f"Say {call[inner:]} No.{closed}", prefix, (), ANSWER)
    yield Mutant("call at the end of reasoning", family, f"I do it.\n{call}", prefix, meant)


def judge(mutant: Mutant) -> tuple[str, ...]:
    """Which of `KINDS` the reading of a mutant is guilty of."""
    parser = Parser(mutant.family, mutant.prefix, tools=TOOLS, trace=True)
    events = [*parser.feed(mutant.output), *parser.close(mutant.finish)]
    read = fold(events)
    runs = [(call.name, json.loads(call.arguments)) for call in read.tool_calls if call.error is None]
    meant = [(name, json.loads(arguments)) for name, arguments in mutant.meant]
    found: list[str] = []
    if any(runs.count(call) > meant.count(call) for call in runs):
        found.append("executable")
    if "".join(segment.text for segment in parser.trace) != mutant.output or _is_lost(mutant, read):
        found.append("lost")
    if runs and not any(call.error for call in read.tool_calls) and _shows(mutant.family, read.content):
        found.append("shown")
    return tuple(found)


def _is_lost(mutant: Mutant, read: Completion) -> bool:
    if mutant.answer:
        return mutant.answer not in read.content
    return not (mutant.silent or read.tool_calls or read.content)


def _shows(family: str, content: str) -> bool:
    tools = builtin_families().get(family).format.tools
    assert tools is not None
    return any(text.strip() and text.strip() in content for text in (*tools.section, *tools.call_marks))
