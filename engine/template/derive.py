"""A `Format` for a template that no family knows, found by comparing renders, and believed only if it round-trips.

Knows: how a turn's parts stand out when one render differs from another in one known text. Does not know: families,
what any marker means. Three syntaxes of calls are recognised: JSON between markers, a name in markup with JSON
arguments, name and arguments in markup; what is found is handed to the parser with the renders it was found in, and
kept only if it reads them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import TemplateError
from engine.events import fold
from engine.families import Format, ReasoningSyntax, ToolSyntax
from engine.parsing import Parser
from engine.template.capabilities import Capabilities
from engine.template.conversation import as_mapping
from engine.template.env import Template
from engine.template.prompt import common
from engine.template.variables import values
from engine.types import Tool

_NAME, _SAID, _WHY = "zq_first", "SAIDQTEXT", "WHYQTEXT"
_KEYS = ("kq_one", "kq_two")
_VALUES = ("VALQONE", "VALQTWO")
_LONGEST = 200
"""Characters of the longest marker believed: a longer one is text that happens to stand there."""
_HARD = 'a "q" é\n<x> {y} [z]'
_IDS = ("a1b2c3d4e", "f5g6h7i8j")
_NUMBER = "kq_number"
_PROPERTIES = {
    **{key: {"type": "string", "description": "A text."} for key in _KEYS},
    _NUMBER: {"type": "integer", "description": "A number."},
}
_TOOL = Tool(name=_NAME, description="Probes.", parameters={"type": "object", "properties": _PROPERTIES})
_TAG_AT_END = re.compile(r"(<[^<>\s]+>|\[[^\[\]\s]+\])\s*$")
_TAG = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]|<\|?\w")


def derive(template: Template, fixed: Mapping[str, str], can: Capabilities) -> Format | None:
    """The template's format, or None where nothing is found that reads its own renders back.

    Where the calls do not come out, reasoning alone may: then the format has no tools.
    """
    renders = _Renders(template, fixed, can)
    turn = renders.turn({"role": "assistant", "content": _SAID})
    if turn is None or _SAID not in turn:
        return None
    before, _, after = turn.partition(_SAID)
    stop = after.strip() or fixed.get("eos_token", "")
    reasoning = _reasoning(renders, before)
    start = _start(renders, before, reasoning)
    plain = Format(start=start, stops=(stop,) if stop else (), reasoning=reasoning)
    tools = _tools(renders, plain)
    if tools is not None and any(len(mark) > _LONGEST for mark in (*tools.section, *tools.call, tools.name_end)):
        tools = None
    candidates = [plain.model_copy(update={"tools": tools})] if tools else []
    if reasoning is not None:
        candidates.append(plain)
    return next((format_ for format_ in candidates if _reads_back(format_, renders)), None)


@dataclass(frozen=True, slots=True)
class _Renders:
    """Renders of one template: what an assistant's message adds to a question."""

    template: Template
    fixed: Mapping[str, str]
    can: Capabilities

    def text(self, messages: Sequence[Mapping[str, Any]], *, generates: bool = False) -> str | None:
        tools: Any = [_TOOL.openai()] if self.can.tools else [] if self.can.empty_tools else None
        try:
            return self.template.render(values(self.template, self.fixed, messages, tools, generates=generates))
        except TemplateError:
            return None  # a refusal says that there is nothing to compare

    def turn(self, message: Mapping[str, Any]) -> str | None:
        """The assistant's turn: what the render has beyond the question's."""
        question = {"role": "user", "content": "ASKQTEXT"}
        whole, asked = self.text([question, message]), self.text([question])
        return None if whole is None or asked is None else whole[common(whole, asked) :]

    def prompt(self) -> str:
        """What asking for an answer adds to a question."""
        question = {"role": "user", "content": "ASKQTEXT"}
        asking, asked = self.text([question], generates=True), self.text([question])
        return "" if asking is None or asked is None else asking[common(asking, asked) :]

    def calls(self, *arguments: Mapping[str, object], why: str = "") -> str | None:
        """The turn with a call for each set of arguments."""
        calls = [
            {"id": id_, "type": "function", "function": {"name": _NAME, "arguments": self._form(each)}}
            for id_, each in zip(_IDS, arguments, strict=False)
        ]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if self.can.null_content else "",
            "tool_calls": calls,
        }
        if why:
            message[self.can.reasoning_fields[0]] = why
        return self.turn(message)

    def _form(self, arguments: Mapping[str, object]) -> Any:
        return dict(arguments) if "object" in self.can.arguments else json.dumps(arguments)


def _reasoning(renders: _Renders, before: str) -> ReasoningSyntax | None:
    """The marks around reasoning: from the field that the template reads, else from the tags that it cuts at."""
    if not renders.can.reasoning_fields:
        tagged = "</think>" in renders.template.source
        return ReasoningSyntax(open="<think>\n", close="\n</think>\n\n") if tagged else None
    field = renders.can.reasoning_fields[0]
    turn = renders.turn({"role": "assistant", "content": _SAID, field: _WHY})
    if turn is None or _WHY not in turn:
        turn = renders.calls({_KEYS[0]: _VALUES[0]}, why=_WHY)
    if turn is None or _WHY not in turn:
        return None
    head, _, rest = turn.partition(_WHY)
    tag = _TAG_AT_END.search(head)
    opening = tag.group() if tag else head[common(head, before) :]
    end = rest.find(_SAID)
    close = rest[:end] if end >= 0 else _first_tag(rest)
    if not opening.strip() or not _TAG.search(close):
        return None
    return ReasoningSyntax(open=opening, close=close, history="last_user", fields=(field,))


def _first_tag(text: str) -> str:
    found = re.match(r"\s*(<[^<>\s]+>|\[[^\[\]\s]+\])\s*", text)
    return found.group() if found else ""


def _start(renders: _Renders, before: str, reasoning: ReasoningSyntax | None) -> str:
    start = renders.prompt() or before
    if reasoning is not None and (place := start.find(reasoning.open.strip())) >= 0:
        start = start[:place]
    return start


def _tools(renders: _Renders, plain: Format) -> ToolSyntax | None:
    one = _body(renders.calls({_KEYS[0]: _VALUES[0]}), plain)
    two = _body(renders.calls({_KEYS[0]: _VALUES[0]}, {_KEYS[1]: _VALUES[1]}), plain)
    if one is None or _NAME not in one:
        return None
    as_json = _json_syntax(one)
    if as_json is not None:
        return as_json
    if (as_python := _pythonic(one)) is not None:
        return as_python
    if two is None or two.count(_NAME) != 2:
        return None
    both = _body(renders.calls(dict(zip(_KEYS, _VALUES, strict=True))), plain)
    in_markup = _tagged_args(one, two, both) if both and _IDS[0] not in one else None
    return _tagged_json(one, two) or _dictionary(one, two) or in_markup


def _body(turn: str | None, plain: Format) -> str | None:
    """A turn less its start, its empty reasoning and its end."""
    if turn is None:
        return None
    body = turn.removeprefix(plain.start)
    if plain.reasoning is not None:
        opening, closing = plain.reasoning.open.strip(), plain.reasoning.close.strip()
        head, found, tail = body.partition(closing)
        if found and not head.strip().removeprefix(opening).strip():
            body = tail.lstrip()
    for stop in plain.stops:
        body = body.partition(stop)[0]
    return body


def _json_syntax(one: str) -> ToolSyntax | None:
    """A JSON object that holds the name: its keys, and the marks around it."""
    for place in (match.start() for match in re.finditer(r"\{", one[: one.index(_NAME)])):
        try:
            value, end = json.JSONDecoder().raw_decode(one, place)
        except ValueError:
            continue
        call = as_mapping(value) or {}
        keys = _keys(call)
        opening, closing = one[:place], one[end:]
        if opening.endswith("["):
            opening, closing = opening[:-1], closing.lstrip().removeprefix("]")
        if _NAME in call and opening.strip():
            return ToolSyntax(shape="json", section=(opening, closing.rstrip()), name_is_key=True)
        if keys is None:
            return None
        name, arguments, id_, id_last = keys
        ids = (id_,) if id_ else ()
        bare = not opening.strip()
        return ToolSyntax(
            shape="json",
            section=("", "") if bare else (opening, closing.rstrip()),
            bare=bare,
            name_fields=(name,),
            arguments_fields=(arguments,),
            id_fields=ids,
            id_last=id_last,
        )
    return None


def _keys(call: Mapping[str, Any]) -> tuple[str, str, str, bool] | None:
    """The keys of a call's name, arguments and id ("" for none), and whether the id comes last."""
    name = next((key for key, value in call.items() if value == _NAME), None)
    arguments = next((key for key, value in call.items() if as_mapping(value) or _KEYS[0] in str(value)), None)
    id_ = next((key for key, value in call.items() if value == _IDS[0]), "")
    order = list(call)
    if name is None or arguments is None:
        return None
    return name, arguments, id_, bool(id_) and order.index(id_) > order.index(arguments)


def _tagged_json(one: str, two: str) -> ToolSyntax | None:
    """A name in markup, then its arguments as JSON; an id before or after the name, or made of it."""
    head, _, rest = one.partition(_NAME)
    brace = rest.find("{")
    try:
        value, end = json.JSONDecoder().raw_decode(rest, brace) if brace >= 0 else (None, 0)
    except ValueError:
        return None
    if value != {_KEYS[0]: _VALUES[0]}:
        return None
    name_end, spelt, tail = rest[:brace], rest[brace:end], rest[end:]
    more: dict[str, Any] = {}
    if _IDS[0] in head:
        head, _, more["id_end"] = head.partition(_IDS[0])
    elif _IDS[0] in name_end:
        more["id_open"], _, name_end = name_end.partition(_IDS[0])
    between = two.partition(spelt)[2].partition(_IDS[1] if "id_end" in more else _NAME)[0]
    parts = _nested(head, between, tail)
    if parts is None:
        return None
    section, call = parts
    if name_end.startswith(":0") and f"{_NAME}:1" in two:
        place = call[0].rfind(">") + 1
        more |= {"name_is_id": True, "name_prefix": call[0][place:]}
        name_end, call = name_end[2:], (call[0][:place], call[1])
    return ToolSyntax(shape="tagged_json", section=section, call=call, name_end=name_end, **more)


def _tagged_args(one: str, two: str, both: str) -> ToolSyntax | None:
    """Name and arguments in markup."""
    if any(text not in one for text in (_KEYS[0], _VALUES[0])):
        return None
    head, _, rest = one.partition(_NAME)
    to_key, _, rest = rest.partition(_KEYS[0])
    key_end, _, tail = rest.partition(_VALUES[0])
    between = both.partition(_VALUES[0])[2].partition(_KEYS[1])[0]
    opening = _from_tag(_common_end(to_key, between))
    if opening == to_key:
        opening = opening.lstrip()
    closing = _common_start(between[: len(between) - len(opening)], tail)
    name_end, after = to_key[: len(to_key) - len(opening)], tail[len(closing) :]
    if not opening.strip() or not closing.strip() or not key_end:
        return None
    parts = _nested(head, two.partition(_VALUES[0] + closing)[2].partition(_NAME)[0], after)
    return parts and ToolSyntax(
        shape="tagged_args",
        section=parts[0],
        call=parts[1],
        name_end=name_end,
        argument=(opening, closing),
        key_end=key_end,
    )


def _pythonic(one: str) -> ToolSyntax | None:
    """A list of Python calls."""
    found = re.search(rf"\[{_NAME}\({_KEYS[0]}=['\"]{_VALUES[0]}['\"]\)\]", one)
    if found is None or not one[: found.start()].strip():
        return None
    return ToolSyntax(shape="pythonic", section=(one[: found.start()], one[found.end() :]))


def _dictionary(one: str, two: str) -> ToolSyntax | None:
    """Bare keys, and strings between marks of their own."""
    head, _, rest = one.partition(_NAME)
    found = re.match(rf"\{{{_KEYS[0]}:(\S+?){_VALUES[0]}\1\}}", rest)
    if found is None:
        return None
    parts = _nested(head, two.partition(found.group())[2].partition(_NAME)[0], rest[found.end() :])
    return parts and ToolSyntax(shape="dictionary", section=parts[0], call=parts[1], quote=found.group(1))


def _nested(head: str, between: str, tail: str) -> tuple[tuple[str, str], tuple[str, str]] | None:
    """The section's marks and the call's: `head` comes before the first call, `between` stands between two calls,
    `tail` after the last. What repeats belongs to the call."""
    opening = _from_tag(_common_end(head, between))
    closing = _common_start(between[: len(between) - len(opening)], tail)
    if not opening.strip():
        return None
    return (head[: len(head) - len(opening)], tail[len(closing) :].rstrip()), (opening, closing)


def _from_tag(end: str) -> str:
    """What two texts share at their ends, less the rest of a tag that it begins inside of."""
    inside = end.partition("<")[0]
    return end[inside.rindex(">") + 1 :] if ">" in inside else end


def _common_start(first: str, second: str) -> str:
    return first[: common(first, second)]


def _common_end(first: str, second: str) -> str:
    length = common(first[::-1], second[::-1])
    return first[len(first) - length :]


def _reads_back(format_: Format, renders: _Renders) -> bool:
    """Whether the parser reads the probes' renders as the messages that they were made of."""
    said = renders.turn({"role": "assistant", "content": _SAID})
    if said is None or _read(format_, said) != ("", _SAID, []):
        return False
    if renders.can.reasoning_fields and format_.reasoning is not None:
        turn = renders.turn({"role": "assistant", "content": _SAID, renders.can.reasoning_fields[0]: _WHY})
        if turn is not None and _WHY in turn and _read(format_, turn) != (_WHY, _SAID, []):
            return False
    if format_.tools is None:
        return True
    first, second = {_KEYS[0]: _VALUES[0]}, {_KEYS[1]: _VALUES[1]}
    one, two = renders.calls(first), renders.calls(first, second)
    if one is None or _read(format_, one) != ("", "", [(_NAME, first)]):
        return False
    hard: dict[str, object] = {_KEYS[1]: _HARD, _NUMBER: 7, _KEYS[0]: "02134"}
    if _read(format_, renders.calls(hard) or "") != ("", "", [(_NAME, hard)]):
        return False
    several = two is not None and renders.can.parallel_calls
    return not several or _read(format_, two or "") == ("", "", [(_NAME, first), (_NAME, second)])


def _read(format_: Format, turn: str) -> tuple[str, str, list[tuple[str, object]]]:
    for stop in format_.stops:
        turn = turn.partition(stop)[0]
    parser = Parser(format_, tools=[_TOOL])
    completion = fold([*parser.feed(turn), *parser.close()])
    calls: list[tuple[str, object]] = [
        (call.name, call.error or json.loads(call.arguments)) for call in completion.tool_calls
    ]
    return completion.reasoning, completion.content.strip(), calls
