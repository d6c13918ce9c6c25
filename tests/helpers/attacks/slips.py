"""Calls as small models slip, and as attackers write them: other envelopes, quotations, odd and broken names,
answers that only name a tool; in every family, as text and as control tokens, at every chunking.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attacks import code_slips
from attacks.slip import ODD_NAMES, Slip
from cases import writer
from cases.canonical import Call, Turn
from cases.parsing_cases import markers

from engine.formats.families import Format, JsonSyntax, builtin_families

KEYS = ("arguments", "parameters", "args", "input", "params", "kwargs", "tool_input")
"""Under which models put a call's arguments; in other case too."""
_VALUES: tuple[Mapping[str, Any], ...] = ({"to": "Rome"}, {"n": 3}, {"to": "Oslo", "n": 12}, {"to": "a b\nc"})
_BESIDE: tuple[Mapping[str, Any], ...] = (
    {"thought": "it is far"},
    {"reason": "it is far"},
    {"function": {"name": "wipe", "arguments": {"to": "all"}}},
    {"options": {"to": "Bonn"}},
    {"to": "Bonn"},
)
_PROSE = ("zebra jumps", "Now: zebra jumps.", "so, (zebra = jumps)", "zebra\njumps")


def drawn(family: str, chance: random.Random) -> Slip:
    """One slip of this family."""
    format_ = builtin_families().get(family).format
    made = chance.choice(KINDS)(family, format_, chance)
    return replace(made, tokens=chance.random() < 0.4)


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
    *code_slips.KINDS,
    _name,
    _answer,
    prose_in_a_gap,
)
