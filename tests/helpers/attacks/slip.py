"""One output of a model that slips, and what is right about its reading."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cases.parsing_cases import pieces

from engine.formats.families import builtin_families
from engine.formats.parsing import Parser
from engine.tools import as_tools
from engine.types.completion import Completion
from engine.types.events import fold
from engine.types.prompt import Piece
from engine.types.sampling import FinishReason

WIDTHS = (1, 3, 7, 1000)
_PROPERTIES: Mapping[str, Any] = {"to": {"type": "string"}, "n": {"type": "integer"}}
ODD_NAMES = (
    "name",
    "arguments",
    "function",
    "tool_call",
    "parameters",
    "null",
    "true",
    "end",
    "x" * 104,
    "ns/trip",
    "/a.b-c/2",
    "run.call",
    "größe",
    "-7",
)
TOOLS = as_tools(
    [
        {"name": name, "parameters": {"type": "object", "properties": dict(_PROPERTIES)}}
        for name in ("trip", "wipe", "wipe_cache", *ODD_NAMES)
    ]
)


@dataclass(frozen=True)
class Slip:
    """An output. `meant`: the calls that may run; `kept`: texts that must be found somewhere in the reading, unless a
    call says that it is malformed; `shown`: text that must be shown whole, whatever else; `runs`: all of `meant` must
    run; `answer`: text that must be shown as the answer; `leaks`: text that must not be shown."""

    kind: str
    family: str
    output: str
    meant: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    kept: tuple[str, ...] = ()
    shown: str = ""
    prefix: str = ""
    tokens: bool = False
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    finish: FinishReason = "stop"
    runs: bool = False
    answer: str = ""
    leaks: str = ""

    def read(self, width: int) -> Completion:
        """The reading, text fed in pieces of that many characters."""
        control = frozenset(builtin_families().get(self.family).format.control) if self.tokens else None
        prefix = pieces(self.family, self.prefix) if self.tokens else self.prefix
        parser = Parser(self.family, prefix, tools=TOOLS, control_tokens=control, **self.options)
        fed = pieces(self.family, self.output) if self.tokens else [Piece(self.output)]
        events = [
            event
            for text, special, _ in fed
            for part in ([text] if special else [text[at : at + width] for at in range(0, len(text), width)])
            for event in parser.feed(part, special)
        ]
        return fold([*events, *parser.close(self.finish)])


def judged(slip: Slip) -> str:
    """What is wrong with the reading of a slip; "" if nothing."""
    whole, *others = (slip.read(width) for width in WIDTHS[::-1])
    if any(other != whole for other in others):
        return "another cut reads another"
    runs = [(call.name, json.loads(call.arguments)) for call in whole.tool_calls if call.error is None]
    if any(runs.count(run) > slip.meant.count(run) for run in runs):
        return "runs what is not meant"
    if slip.runs and any(runs.count(call) < slip.meant.count(call) for call in slip.meant):
        return "does not run what is meant"
    told = whole.text + whole.reasoning
    if slip.shown and slip.shown.strip() not in told:
        return "an answer is not shown"
    if slip.answer.strip() not in whole.text:
        return "the answer is reasoning"
    if slip.leaks and slip.leaks in told:
        return "a mark is shown"
    if any(call.error for call in whole.tool_calls):
        told += "".join(call.name + call.arguments for call in whole.tool_calls)
    told += "".join(json.dumps(arguments, ensure_ascii=False) + name for name, arguments in runs)
    return "text is lost" if any(text not in told for text in slip.kept) else ""


def no_call(family: str) -> Slip:
    """In place of a slip that a family cannot write."""
    return Slip("nothing", family, "Fine.", (), ("Fine",))
