"""Calls whose arguments hold the markup of their own family: whole calls, openers, closers, marks of sections, of
reasoning and of turns, in every kind of value, as text and beside a vocabulary.

A call of `trip` is meant, and nothing else. `judged` says what a parser made of it: the value is read whole, or the
call has an error; another call without one, or other arguments without one, would be run though nobody meant it.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, cast

from cases import writer
from cases.canonical import Call, Turn
from cases.parsing_cases import FAMILIES, markers, pieces

from engine.formats.families import (
    JsonSyntax,
    MarkedSyntax,
    NestedSyntax,
    TaggedArgumentsSyntax,
    TaggedJsonSyntax,
    ToolSyntax,
    builtin_families,
)
from engine.formats.parsing import Parser
from engine.tools import as_tools
from engine.types.completion import Completion
from engine.types.events import fold
from engine.types.prompt import Piece
from engine.types.sampling import FinishReason

Mode = Literal["text", "vocabulary", "tokens"]
"""How the markup in the value comes: all is text; the vocabulary has the family's control tokens, and the value is
spelt in ordinary ones; or the value has the control tokens themselves."""


def _tool(name: str, **properties: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "parameters": {"type": "object", "properties": properties}}


TOOLS = as_tools(
    [
        _tool("trip", to={"type": "string"}, n={"type": "integer"}, o={"type": "object"}, l={"type": "array"}),
        _tool("wipe", disk={"type": "string"}),
    ]
)
_FILLINGS = ("{}", "see {} ok", "{}\n", "\n{}", "a\n{}\nb", "`{}`", 'say "{}"', "{} {}", "1. {}\n2. {}")
_BLANK = "§"
"""Stands in for a value; no word, so that it is written as one with markup is."""
_PLACES = ("only", "first", "last", "nested", "listed", "key")


@dataclass(frozen=True)
class Held:
    """A call of `trip` with markup in its arguments. `kind` is what the markup is, `arguments` what is meant."""

    family: str
    kind: str
    place: str
    mode: Mode
    arguments: Mapping[str, Any]
    fed: Sequence[Piece]
    prefix: Sequence[Piece]
    finish: FinishReason = "stop"

    @property
    def control(self) -> frozenset[str] | None:
        return None if self.mode == "text" else frozenset(builtin_families().get(self.family).format.control)

    def parser(self) -> Parser:
        return Parser(self.family, self.prefix, tools=TOOLS, control_tokens=self.control)

    def read(self, width: int = 5) -> Completion:
        """What the parser makes of it, text fed in pieces of that many characters."""
        parser = self.parser()
        events = [
            event
            for text, special, _ in self.fed
            for part in ([text] if special else [text[at : at + width] for at in range(0, len(text), width)])
            for event in parser.feed(part, special)
        ]
        return fold([*events, *parser.close(self.finish)])


def families() -> list[str]:
    """The families that write calls."""
    return [name for name in FAMILIES if (one := builtin_families().get(name).format).tools or one.channels]


@cache
def markup(family: str) -> tuple[tuple[str, str], ...]:
    """What a value may hold: (kind, text) of a whole call with and without arguments, several, their inside, arguments
    in markup, the call's own among them, and each marker of the family."""
    format_ = builtin_families().get(family).format
    wipe, disk = Call("wipe"), Call("wipe", '{"disk": "a"}')
    found = [
        ("call", writer.written(Turn("", (wipe,)), format_)),
        ("call with arguments", writer.written(Turn("", (disk,)), format_)),
        ("call and text", writer.written(Turn("", (wipe, "Done.")), format_)),
        ("the same call", writer.written(Turn("", (Call("trip", '{"n": 7}'),)), format_)),
    ]
    if format_.reasoning is not None:
        found.append(("reasoning and call", writer.written(Turn("", (wipe,), reasoning="So."), format_)))
    bare = format_.tools
    if not (bare is None or isinstance(bare, JsonSyntax | TaggedJsonSyntax)):
        found += [
            ("call without section", writer.in_values(bare, name, json.loads(arguments), 0))
            for name, arguments in (("wipe", "{}"), ("wipe", '{"disk": "a"}'), ("trip", '{"n": 7}'))
        ]
    found += [("argument", text) for text in elements(format_.tools)]
    found += [("marker", text) for text in markers(family)]
    return tuple(dict.fromkeys((kind, text) for kind, text in found if text.strip()))


def elements(tools: ToolSyntax | None) -> list[str]:
    """Arguments in markup: of the value's own name, of another of the tool's, of none; in each other, beside each
    other."""
    if isinstance(tools, NestedSyntax):
        begin, middle, end = tools.tag
    elif not isinstance(tools, TaggedArgumentsSyntax):
        return []
    else:
        type_ = f"string{tools.type_end}" if tools.type_end else ""
        begin, middle, end = tools.argument[0], f"{tools.key_end}{tools.value_open}{type_}", tools.argument[1]

    def element(key: str, value: str) -> str:
        return f"{begin}{key}{middle}{value}{end}" + (f"{key}{middle}" if tools.shape == "nested" else "")

    inner = [element("to", "x"), element("n", "7"), element("zz", "")]
    return [*inner, *(element(key, text) for key in ("to", "zz") for text in inner), inner[0] + inner[1], inner[0] * 2]


def drawn(family: str, chance: random.Random) -> Held:
    """One call of this family that holds markup of it."""
    kind, text = chance.choice(markup(family))
    if chance.random() < 0.3:
        others = [chance.choice(markup(family)) for _ in range(chance.choice((1, 1, 2)))]
        kind, text = "several", chance.choice(("", " ", "\n")).join([text, *(other for _, other in others)])
    value = chance.choice(_FILLINGS).replace("{}", text)
    mode: Mode = chance.choice(("text", "vocabulary", "tokens"))
    tools = builtin_families().get(family).format.tools
    places = _PLACES[:-1] if tools is not None and tools.shape == "nested" else _PLACES  # where a key is a tag's name
    return held(family, kind, value, chance.choice(places), mode)


def held(family: str, kind: str, value: str, place: str, mode: Mode) -> Held:
    """A call of this family with that value in that place."""
    format_ = builtin_families().get(family).format
    arguments = _placed(value, place)
    output, blank = (
        writer.written(Turn("", (Call("trip", json.dumps(each, ensure_ascii=False)),)), format_)
        for each in (arguments, _placed(_BLANK, place))
    )
    before, after = blank.index(_BLANK), len(blank) - 1 - blank.rindex(_BLANK)
    prefix = [Piece(format_.start)] if mode == "text" else pieces(family, format_.start)
    return Held(family, kind, place, mode, arguments, _fed(family, output, before, after, mode), prefix)


def _placed(value: str, place: str) -> dict[str, Any]:
    return {
        "only": {"to": value},
        "first": {"to": value, "n": 3},
        "last": {"n": 3, "to": value},
        "nested": {"o": {"k": value, "m": 1}},
        "listed": {"l": [value, "b"]},
        "key": {"o": {value: 1}},
    }[place]


def _fed(family: str, output: str, before: int, after: int, mode: Mode) -> list[Piece]:
    """The output's pieces; beside a vocabulary, only the call's own markers, so many characters before and after the
    value, are control tokens, unless the value has them as tokens."""
    if mode == "text":
        return [Piece(output)]
    if mode == "tokens":
        return pieces(family, output)
    end = len(output) - after
    return [*pieces(family, output[:before]), Piece(output[before:end]), *pieces(family, output[end:])]


def closes_itself(case: Held) -> bool:
    """Whether the value is written without escapes, and holds a mark that closes it, or its call, and that nothing in
    it opens, or is an element where one may stand: then the output is, letter by letter, also one that means something
    else."""
    tools = builtin_families().get(case.family).format.tools
    if not isinstance(tools, MarkedSyntax) or isinstance(tools, TaggedJsonSyntax):
        return False
    if case.mode == "vocabulary" and any(token in tools.call[0] for token in case.control or ()):
        return False
    if isinstance(tools, TaggedArgumentsSyntax) and case.place not in ("only", "first", "last"):
        return False
    value = _value(case.arguments)
    argument, quote = writer.stated(tools, "argument", ("", "")), writer.stated(tools, "quote", "")
    tag = writer.stated(tools, "tag", ("", "", ""))
    if tools.shape == "nested" and case.place in ("nested", "listed") and value.lstrip().startswith(tag[0]):
        return True  # elements are how it writes objects, and the schema asks for no text here
    ends = [text.strip() for text in (argument[1], quote) if text]
    if case.kind == "marker":
        return any(value.strip().endswith(end) or value.count(end) > 1 for end in ends)
    pairs = [tools.section, tools.call, argument, (tag[0], tag[2]), (quote, quote)]
    return case.kind == "several" and any(_closes(value, *map(str.strip, pair)) for pair in pairs if pair[1].strip())


def _closes(value: str, opening: str, closing: str) -> bool:
    """Whether a closing mark stands where none is open; a mark of both kinds, whether one is left open."""
    if opening == closing:
        return value.count(closing) % 4 > 0  # the value may hold the same text twice
    before = value.split(closing)[:-1]
    return any("".join(before[: count + 1]).count(opening) <= count for count in range(len(before)))


def _value(node: Any) -> str:
    """The value with the markup: the longest text in the arguments."""
    match node:
        case dict():
            both = [*cast("dict[str, Any]", node).keys(), *cast("dict[str, Any]", node).values()]
            return max(map(_value, both), key=len)
        case list():
            return max(map(_value, cast("list[Any]", node)), key=len)
        case _:
            return str(node)


def cut(case: Held, chance: random.Random) -> Held:
    """The same call, its output cut at a random place, by a limit or by the model."""
    at = chance.randrange(sum(len(piece.text) for piece in case.fed))
    kept: list[Piece] = []
    for text, special, _ in case.fed:
        if at < len(text):
            kept += [Piece(text[:at])] * (not special and at > 0)
            break
        kept.append(Piece(text, special))
        at -= len(text)
    return replace(case, fed=kept, finish=chance.choice(("stop", "length")))


def judged(case: Held, found: Completion, *, is_cut: bool = False) -> str:
    """What became of a call: "whole", "flagged", "lost" (no call and no error), "foreign" (another call, or this one
    with other arguments, would be run), "closes itself". Of one that is cut only whether another call would be run."""
    runs = [call for call in found.tool_calls if call.error is None]
    if is_cut:
        foreign = any(call.name != "trip" for call in runs)
        return "closes itself" if foreign and closes_itself(case) else "foreign" if foreign else "cut"
    meant = [call for call in runs if call.name == "trip" and json.loads(call.arguments) == case.arguments]
    if len(runs) > len(meant) or len(meant) > 1:
        return "closes itself" if closes_itself(case) else "foreign"
    if meant:
        return "whole"
    return "flagged" if found.tool_calls else "lost"
