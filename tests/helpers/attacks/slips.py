"""Calls as small models slip, and as attackers write them: other envelopes, quotations, odd and broken names,
answers that only name a tool; in every family, as text and as control tokens, at every chunking.

`judged` says what is wrong with how one is read: a call would run that is not meant, text is gone and nothing says so,
or another cut gives another reading.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from cases import writer
from cases.canonical import Call, Turn
from cases.parsing_cases import markers, pieces

from engine.formats.families import Format, JsonSyntax, builtin_families
from engine.formats.parsing import Parser
from engine.tools import as_tools
from engine.types.completion import Completion
from engine.types.events import fold
from engine.types.prompt import Piece
from engine.types.sampling import FinishReason

WIDTHS = (1, 3, 7, 1000)
KEYS = ("arguments", "parameters", "args", "input", "params", "kwargs", "tool_input")
"""Under which models put a call's arguments; in other case too."""
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
_VALUES: tuple[Mapping[str, Any], ...] = ({"to": "Rome"}, {"n": 3}, {"to": "Oslo", "n": 12}, {"to": "a b\nc"})
_BESIDE: tuple[Mapping[str, Any], ...] = (
    {"thought": "it is far"},
    {"reason": "it is far"},
    {"function": {"name": "wipe", "arguments": {"to": "all"}}},
    {"options": {"to": "Bonn"}},
    {"to": "Bonn"},
)


_PROSE = ("zebra jumps", "Now: zebra jumps.", "so, (zebra = jumps)", "zebra\njumps")


@dataclass(frozen=True)
class Slip:
    """An output. `meant`: the calls that may run; `kept`: texts that must be found somewhere in the reading, unless a
    call says that it is malformed; `shown`: text that must be shown whole, whatever else."""

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


def drawn(family: str, chance: random.Random) -> Slip:
    """One slip of this family."""
    format_ = builtin_families().get(family).format
    made = chance.choice(KINDS)(family, format_, chance)
    return replace(made, tokens=chance.random() < 0.4)


def judged(slip: Slip) -> str:
    """What is wrong with the reading of a slip; "" if nothing."""
    whole, *others = (slip.read(width) for width in WIDTHS[::-1])
    if any(other != whole for other in others):
        return "another cut reads another"
    runs = [(call.name, json.loads(call.arguments)) for call in whole.tool_calls if call.error is None]
    if any(runs.count(run) > slip.meant.count(run) for run in runs):
        return "runs what is not meant"
    told = whole.text + whole.reasoning
    if slip.shown and slip.shown.strip() not in told:
        return "an answer is not shown"
    if any(call.error for call in whole.tool_calls):
        told += "".join(call.name + call.arguments for call in whole.tool_calls)
    told += "".join(json.dumps(arguments, ensure_ascii=False) + name for name, arguments in runs)
    return "text is lost" if any(text not in told for text in slip.kept) else ""


def _call(format_: Format, name: str, arguments: Mapping[str, Any]) -> str:
    return writer.written(Turn("", (Call(name, json.dumps(arguments)),)), format_)


def _envelope(family: str, format_: Format, chance: random.Random) -> Slip:
    """Arguments under another key, twice, beside the name or other text; spelt as text; in another envelope."""
    tools, values = format_.tools, chance.choice(_VALUES)
    if not isinstance(tools, JsonSyntax) or tools.name_is_key or not tools.section[0]:
        return _answer(family, format_, chance)
    name = {tools.name_fields[0]: "trip"}
    key = chance.choice((str, str, str.upper, str.capitalize))(chance.choice(KEYS))
    meant: tuple[tuple[str, Mapping[str, Any]], ...] = (("trip", values),)
    members: Mapping[str, Any]
    match chance.randrange(6):
        case 0:
            members = {**name, key: values}
        case 1:
            members = {key: values, **name}
        case 2:
            members, meant = {**name, key: values, chance.choice(("payload", "args2", "function")): {"to": "Bonn"}}, ()
        case 3:
            members, meant = {**name, **chance.choice(_BESIDE)}, ()
        case 4:
            members, meant = {**name, key: values, **chance.choice(_BESIDE)}, ()
        case _:
            members = {**name, key: json.dumps(values)}
    body = json.dumps(members)
    output = tools.section[0] + (f"[{body}]" if tools.several == "list" else body) + tools.section[1]
    texts = tuple(str(each) for each in values.values() if isinstance(each, str) and "\n" not in each)
    return Slip("envelope", family, output, meant, tuple(text for text in texts if text in body))


def quoted_call(family: str, format_: Format, chance: random.Random) -> Slip:
    """A call that a text quotes, in reasoning and in content."""
    call = _call(format_, "wipe", {"to": "all"})
    quotes = (
        "The form would be `{}`, but I must not.",
        "- never write `{}` here\n- or there",
        "| `{}` | no |\n",
        "So:\n\n````text\n{}\n````\nbut I must not.",
    )
    close = format_.reasoning.close.strip() if format_.reasoning else ""
    closes = close != "" and close in call  # then only one line quotes it: a fence may be left open
    text = chance.choice(quotes[3:] if "`" in call else quotes[: 3 if closes else 4]).replace("{}", call)
    kept = tuple(re.findall("I must not|never write| no |or there", text))
    if format_.reasoning is None or chance.random() < 0.5:
        turn = Turn("", (text.replace(close, "").replace("`\n", "`") if closes else text,))
        output, prefix = writer.written(turn, format_), writer.prefix(turn, format_)
        return Slip("quoted in content", family, output, (), kept, prefix=prefix)
    opened: Literal["", "open"] = "" if format_.reasoning.implicit else chance.choice(("", "open"))
    turn = Turn("", ("So be it.",), text, opened)
    output, prefix = writer.written(turn, format_), writer.prefix(turn, format_)
    return Slip("quoted in reasoning", family, output, (), (*kept, "So be it."), prefix=prefix)


FENCES = (
    "So the form is:\n\n```text\n{}\n```\nbut I must not.",
    "So the form is:\n\n````\n{}\n````\nbut I must not.",
    "```text\n{}\n```\nbut I must not.",
    "- so:\n  ```\n{}\n  ```\n- but I must not.",
    "So:\n\n```text\nUse:\n```sh\nls\n```\n{}\n```\nbut I must not.",
)
INLINE = ("It is `{}` but I must not.", "It is ``x {}``, but I must not.")


def shown_turn(family: str, format_: Format, chance: random.Random) -> Slip:
    """A turn that a text shows in code: in reasoning from its closing mark on, in an answer all of it."""
    if format_.reasoning is None or not (format_.tools or format_.channels):
        return _answer(family, format_, chance)
    call, close = Call("wipe", '{"to": "all"}'), format_.reasoning.close.strip()
    late = chance.random() < 0.1  # then the mark acts, and only the call is shown
    parts = chance.choice(((call,), (call,), ("Fine.", call))) if not late else (("Fine. " * 60).strip(), call)
    if not late and chance.random() < 0.3:
        shown = writer.written(Turn("", parts, "I go."), format_).strip()
        text = chance.choice(FENCES[:2]).replace("{}", shown)
        turn = Turn("", (text,))
        output, prefix = writer.written(turn, format_), writer.prefix(turn, format_)
        return Slip("turn shown in content", family, output, (), ("I must not", shown), prefix=prefix)
    rest = writer.written(Turn("", parts), format_).strip()
    shown = close + chance.choice(("\n", "\n\n", "")) + rest
    text = chance.choice(FENCES[:-1] if late else FENCES).replace("{}", shown)
    if not late and "\n\n" not in shown and "`" not in shown and chance.random() < 0.3:
        mention = f"I close with `{close}` and then `{rest}`, but I must not."
        several = format_.channels is not None or close == format_.content[1].strip()
        text = chance.choice((*INLINE, INLINE[0] if several else mention)).replace("{}", shown)
    opened: Literal["", "open"] = "" if format_.reasoning.implicit else chance.choice(("", "open"))
    turn = Turn("", ("So be it.",), text, opened)
    output, prefix = writer.written(turn, format_), writer.prefix(turn, format_)
    if not late and chance.random() < 0.2:
        end = output.index(rest) + len(rest)
        cut = output[: chance.randrange(end, output.index("I must not"))]
        return Slip("turn shown, cut", family, cut, (), ("all",), prefix=prefix, finish="length")
    if late:
        return Slip("turn shown late", family, output, (), ("I must not", "So be it.", "all"), prefix=prefix)
    kept = ("I must not", "So be it.", *(part for part in (shown, close, rest) if part in text))
    return Slip("turn shown in reasoning", family, output, (), kept, prefix=prefix)


LEFT_OPEN = ("So:\n\n```py\nx = 1\n", "```\nx = 1", "I use `x", "So:\n\n```sh\nls\n```\n\n```py\nx = 1\n\nDone.")
_ANSWERS = ("", "Fine.", "Fine:\n\n```py\nx = 2\n```\nSo.", "Fine:\n\n```\nx\n```\nSo.", "Fine. " * 60)


def left_open(family: str, format_: Format, chance: random.Random) -> Slip:
    """Reasoning that leaves code open, and then is over: a call behind it is meant, backticks in its arguments too."""
    tools: Any = format_.tools
    marks = [getattr(tools, name, None) for name in ("call", "section")] if tools else []
    closes = not tools or any(mark and mark[1] for mark in marks)  # else nothing tells them from the end of the code
    to = chance.choice(("all", "a `b` c", "# T\n```\nls\n```\nend")) if closes else "all"
    call = Call("wipe", json.dumps({"to": to}))
    answer = chance.choice(_ANSWERS).strip()
    parts = tuple(part for part in (answer, chance.choice((call, None))) if part)
    turn = Turn("", parts or (call,), chance.choice(LEFT_OPEN))
    if format_.reasoning is None or not writer.applies(turn, format_):
        return _answer(family, format_, chance)
    calls = call in turn.parts
    kept = ("x = 1" if "x = 1" in turn.reasoning else "I use", answer, *((f"{call.arguments}wipe",) if calls else ()))
    meant = ((call.name, {"to": to}),) if calls else ()
    return Slip("code left open", family, writer.written(turn, format_), meant, kept, answer)


def _name(family: str, format_: Format, chance: random.Random) -> Slip:
    """A call cut in its name, which is another tool's then, and tools with odd names."""
    if chance.random() < 0.5:
        output, name = _call(format_, "wipe_cache", {"to": "all"}), "wipe_cache"
        at = output.index(name)
        return Slip("name cut", family, output[: chance.randrange(at, at + len(name) + 1)])
    return odd_name(family, chance.choice(ODD_NAMES), chance.choice(_VALUES[:3]))


def odd_name(family: str, name: str, values: Mapping[str, Any]) -> Slip:
    """A call of a tool with a name that formats use for other things, or with letters that are seldom in names."""
    output = _call(builtin_families().get(family).format, name, values)
    return Slip("odd name", family, output, ((name, values),), (name,))


def _answer(family: str, format_: Format, chance: random.Random) -> Slip:
    """An answer that only names a tool, alone or in a list, under an answer's format, or where no call is wanted."""
    named: tuple[dict[str, Any], ...] = (
        {"name": "wipe", "risk": "high"},
        {"name": "wipe"},
        {"name": "wipe", "description": "All.", "parameters": {"type": "object", "properties": {}}},
        {"name": "trip", "to": "Rome"},
        {"tool": "wipe", "why": "asked"},
    )
    one = chance.choice(named)
    forms: tuple[Any, ...] = (one, [one, one], {"tools": [one]})
    answer = json.dumps(chance.choice(forms), indent=chance.choice((None, 1)))
    options = chance.choice(({}, {"json": True}, {"tool_choice": "none"}))
    return Slip("answer", family, answer, (), (), answer, options=options)


def prose_in_a_gap(family: str, format_: Format, chance: random.Random) -> Slip:
    """Prose between two marks of a call; where values are bare, not beside one, which it would be a part of."""
    values = chance.choice(_VALUES[:3])
    output, prose = _call(format_, "trip", values), chance.choice(_PROSE)
    literals = "|".join(map(re.escape, markers(family)))
    edges = {0, *(at for found in re.finditer(rf"{literals}|[{{}}()\[\]:,=]", output) for at in found.span())}
    headed = output.find(format_.channels.message if format_.channels else format_.header[1] or output[:1])
    edges -= {*range(headed + 1), len(output)}  # other words in a header are left out
    if format_.tools is not None and format_.tools.shape in ("tagged_args", "dictionary", "nested"):
        for value in map(str, values.values()):
            at = output.index(value)
            end = at + len(value)
            edges -= {edge for edge in edges if not output[min(edge, end) : max(edge, at)].strip()}
    if not edges:
        return _answer(family, format_, chance)
    at = chance.choice(sorted(edges))
    whole = chance.choice(("{}", " {} ", "\n{}\n")).replace("{}", prose)
    kept = (*map(str, values.values()), "zebra", "jumps")
    return Slip("prose in a gap", family, output[:at] + whole + output[at:], (("trip", values),), kept)


KINDS: Sequence[Callable[[str, Format, random.Random], Slip]] = (
    _envelope,
    quoted_call,
    shown_turn,
    left_open,
    _name,
    _answer,
    prose_in_a_gap,
)
