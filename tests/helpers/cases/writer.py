"""Writes the canonical turns in a family's format, from the family's row alone: nothing here reads an output.

tests/formats/parsing/test_writer.py compares what it writes with official templates' renderings and literal outputs.
"""

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeAlias, TypeVar, cast

from cases.canonical import Call, Turn

from engine.formats.families import (
    DictionarySyntax,
    Format,
    JsonSyntax,
    NestedSyntax,
    PythonicSyntax,
    TaggedArgumentsSyntax,
    TaggedJsonSyntax,
    ToolSyntax,
    WholeSyntax,
)
from engine.formats.families.schema import ChannelSyntax, ReasoningSyntax

Arguments: TypeAlias = Mapping[str, Any]


def applies(turn: Turn, format_: Format) -> bool:
    """Whether a model of this format can write the turn, and it then means what it says."""
    reasoning, tools = format_.reasoning, format_.tools
    if turn.reasoning or turn.prompt:
        if reasoning is None or (turn.prompt and reasoning.implicit):
            return False
        if format_.channels and (turn.unclosed or turn.again):
            return False
        if (turn.unclosed and not reasoning.ends_on_call) or (turn.quotes and (not tools or reasoning.ends_on_call)):
            return False
    if turn.content != turn.content.strip() and (format_.content[0] or (reasoning and reasoning.implicit)):
        return False
    return not turn.calls or format_.channels is not None or (tools is not None and _can_call(turn, tools))


D = TypeVar("D")


def stated(tools: ToolSyntax | None, field: str, default: D) -> D:
    """A field of a syntax of calls; the default where its shape has no such field."""
    return getattr(tools, field, default)


def _can_call(turn: Turn, tools: ToolSyntax) -> bool:
    if len(turn.calls) > 1 and not tools.parallel:
        return False
    if is_bare(tools) and not tools.section[0] and turn.content and turn.parts[-1] != turn.content:
        return False  # a bare call begins the answer
    first = next(iter(turn.calls))
    match first.error:
        case "malformed":  # each of the other syntaxes is spoiled in a way of its own
            return tools.shape in ("json", "tagged_json")
        case "unknown_tool":  # markup before another name is text
            return not (stated(tools, "names_declared", default=False) or (is_bare(tools) and not tools.section[1]))
        case _:  # elements have no type
            return not (tools.shape == "nested" and "null" in first.arguments)


def is_bare(tools: ToolSyntax) -> bool:
    """Whether calls may stand without any marks."""
    return isinstance(tools, WholeSyntax) and tools.bare


def prefix(turn: Turn, format_: Format) -> str:
    """The end of the prompt that the turn continues."""
    if not turn.prompt or format_.reasoning is None:
        return format_.start
    opened = format_.start + format_.reasoning.open
    if turn.prompt == "open":
        return opened
    channels = format_.channels
    answer = format_.start + _header(channels, channels.content[0]) if channels else ""
    return opened + format_.reasoning.close + answer


def call_id(turn: Turn, format_: Format, number: int) -> str:
    """The id that the format writes for a call of the turn; "" if it writes none."""
    tools = format_.tools
    if tools is None:
        return ""
    writes: object = False
    if isinstance(tools, JsonSyntax):
        writes = (tools.id_fields or (tools.id_open and tools.id_length)) and not (turn.cut and tools.id_last)
    elif isinstance(tools, TaggedJsonSyntax):
        if tools.name_is_id:
            return f"{tools.name_prefix}{turn.calls[number].name}:{number}"
        writes = tools.id_end or (tools.id_open and tools.id_length)
    return f"abcdef00{number}" if writes else ""


def reasoning_of(turn: Turn, format_: Format) -> str:
    """The turn's reasoning, with the markup that it quotes."""
    if turn.quotes is None:
        return turn.reasoning
    return turn.reasoning.format(written(Turn("quoted", (turn.quotes,)), format_).strip())


def written(turn: Turn, format_: Format) -> str:
    """The turn's output, after its prefix."""
    if format_.channels and format_.reasoning:
        return turn.kept(format_.start.join(_messages(turn, format_.channels, format_.reasoning)))
    text = _joined(_texts(turn, format_))
    if turn.calls and turn.parts[-1] is turn.calls[-1]:
        text = text.rstrip()
    if turn.calls and turn.parts[0] is turn.calls[0] and not turn.reasoning:
        text = text.lstrip("\n")
    return turn.kept(text)


def _joined(texts: Iterable[str]) -> str:
    """The texts, the white space between two markers written once."""
    whole = ""
    for text in texts:
        whole += text.lstrip() if whole[-1:].isspace() else text
    return whole


def _texts(turn: Turn, format_: Format) -> Iterator[str]:
    """The turn's pieces, each with the white space of its markers."""
    reasoning, tools = format_.reasoning, format_.tools
    before: type | None = None  # of the turn's parts
    numbers = iter(range(len(turn.calls)))
    if reasoning is not None and (turn.reasoning or reasoning.implicit):
        opened = reasoning.implicit or (turn.prompt == "open" and not turn.again)
        yield ("" if opened else reasoning.open) + reasoning_of(turn, format_)
        yield "" if turn.unclosed else reasoning.close
        before = str
    for kind, parts in groupby(turn.parts, type):
        if before and tools is not None and stated(tools, "heading", ("", ""))[0]:
            yield format_.start if before is str else tools.between or ""
        if kind is str:
            opening, closing = format_.content
            opened = before and reasoning is not None and reasoning.close.strip() == opening.strip()
            yield ("" if opened else opening) + "".join(map(str, parts))
            yield closing
        elif tools is not None:
            calls = [part for part in parts if isinstance(part, Call)]
            texts = [_call(tools, call, next(numbers), turn, format_) for call in calls]
            names = [call.name for call in calls]
            yield from (
                _listed(tools, texts)
                if tools.several == "list"
                else _sections(tools, names, texts, bare=is_bare(tools) and not tools.section[1] and before is None)
            )
        before = kind


def _listed(tools: ToolSyntax, texts: Sequence[str]) -> Iterator[str]:
    """Calls as a list in one section."""
    before, between, after = (
        ("[\n    ", ",\n    ", "\n]") if stated(tools, "indented", default=False) else ("[", ", ", "]")
    )
    yield tools.section[0] + before + between.join(texts) + after + tools.section[1]


def _sections(tools: ToolSyntax, names: Sequence[str], texts: Sequence[str], *, bare: bool) -> Iterator[str]:
    """Calls one after the other, with the section's markers around each or all."""
    opening, closing = tools.section
    heading = stated(tools, "heading", ("", ""))
    apart = heading[0] or (tools.several or ("sections" if tools.shape == "json" else "together")) == "sections"
    between = "" if apart else closing[: -len(closing.lstrip())]
    for number, (name, text) in enumerate(zip(names, texts, strict=True)):
        first, last = number == 0, number == len(texts) - 1
        spaced = tools.between is not None
        if not first:
            yield tools.between or "" if spaced else between
        if heading[0]:
            yield heading[0] + name + heading[1]
        if (apart or first) and not bare:
            yield opening.lstrip() if spaced and not first else opening
        yield text
        if apart or last:
            yield closing.rstrip() if spaced and not last else closing


def _call(tools: ToolSyntax, call: Call, number: int, turn: Turn, format_: Format) -> str:
    if not isinstance(tools, JsonSyntax | TaggedJsonSyntax):
        return in_values(tools, call.name, json.loads(call.arguments), number)
    id_ = call_id(turn, format_, number)
    if isinstance(tools, JsonSyntax):
        return _object(tools, call, id_)
    name = ("tools" if tools.server_end[0] else "") + "".join(tools.server_end) + tools.name_prefix + call.name
    if tools.name_is_id:
        name = id_
    elif tools.id_end:
        name = id_ + tools.id_end + name
    elif id_:
        name += tools.id_open + id_
    return tools.call[0] + name + tools.name_end + call.arguments + tools.arguments_end + tools.call[1]


def _object(tools: JsonSyntax, call: Call, id_: str) -> str:
    if tools.name_is_key:
        return f'{{"{call.name}": {call.arguments}}}'
    fields = [f'"{tools.name_fields[0]}": "{call.name}"', f'"{tools.arguments_fields[0]}": {call.arguments}']
    if tools.id_fields:
        fields.insert(len(fields) if tools.id_last else 0, f'"{tools.id_fields[0]}": "{id_ or "abcdef000"}"')
    return "{" + ", ".join(fields) + "}"


def _pythonic(name: str, arguments: Arguments) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def _tagged(tools: TaggedArgumentsSyntax, name: str, arguments: Arguments, number: int) -> str:
    escape: Callable[[str], str] = html.escape if tools.escaped else str
    attributes = f' index="{number + 1}"{tools.attributes_end}' if tools.attributes_end else ""
    body = ""
    for key, value in arguments.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        before = tools.argument[0] + escape(key) + tools.key_end
        body += before + _type(tools, value) + tools.value_open + text + tools.argument[1]
    return tools.call[0] + escape(name) + tools.name_end + attributes + body + tools.call[1]


def _type(tools: TaggedArgumentsSyntax, value: object) -> str:
    if not tools.type_end:
        return ""
    if tools.text_types == ("true",):
        return json.dumps(isinstance(value, str)) + tools.type_end
    names = {"str": "string", "bool": "boolean", "int": "number", "float": "number", "list": "array", "dict": "object"}
    return names.get(type(value).__name__, "null") + tools.type_end


def _dictionary(tools: DictionarySyntax, name: str, arguments: Arguments) -> str:
    def text(value: object) -> str:
        match value:
            case str():
                return tools.quote + value + tools.quote
            case dict():
                members = cast("Arguments", value).items()
                bare = {key: key if re.fullmatch(r"[\w.\-]+", key) else text(key) for key, _ in members}
                return "{" + ",".join(f"{bare[key]}:{text(member)}" for key, member in members) + "}"
            case list():
                return "[" + ",".join(map(text, cast("list[object]", value))) + "]"
            case _:
                return json.dumps(value)

    return tools.call[0] + name + tools.name_end + text(arguments) + tools.call[1]


def _nested(tools: NestedSyntax, name: str, arguments: Arguments) -> str:
    opening, end, closing = tools.tag

    def text(value: object) -> str:
        match value:
            case str():
                return value
            case dict():
                members = cast("Arguments", value).items()
                return "".join(opening + key + end + text(member) + closing + key + end for key, member in members)
            case list():
                return "".join(text({"item": item}) for item in cast("list[object]", value))
            case _:
                return json.dumps(value)

    return tools.call[0] + name + tools.name_end + text(arguments) + tools.call[1]


Valued: TypeAlias = PythonicSyntax | TaggedArgumentsSyntax | DictionarySyntax | NestedSyntax
"""The syntaxes that write the values of arguments; the others hold their JSON text."""


def in_values(tools: Valued, name: str, arguments: Arguments, number: int) -> str:
    """A call without its section; `number`: how many precede it."""
    match tools:
        case PythonicSyntax():
            return _pythonic(name, arguments)
        case TaggedArgumentsSyntax():
            return _tagged(tools, name, arguments, number)
        case DictionarySyntax():
            return _dictionary(tools, name, arguments)
        case NestedSyntax():
            return _nested(tools, name, arguments)


def _header(channels: ChannelSyntax, channel: str) -> str:
    return channels.channel + channel + channels.message


def _messages(turn: Turn, channels: ChannelSyntax, reasoning: ReasoningSyntax) -> Iterator[str]:
    """The turn as messages in channels. Text before a call is commentary."""
    final, commentary = channels.content
    if turn.reasoning:
        yield ("" if turn.prompt == "open" else reasoning.open) + turn.reasoning + reasoning.close
    for part in turn.parts:
        if isinstance(part, Call):
            to = f"{commentary} {channels.recipient}{channels.namespace}{part.name} {channels.constrain}json"
            yield _header(channels, to) + part.arguments + channels.call_end
        elif part is turn.parts[-1]:
            yield ("" if turn.prompt == "closed" else _header(channels, final)) + part + channels.ends[-1]
        else:
            yield _header(channels, commentary) + part + channels.ends[0]
