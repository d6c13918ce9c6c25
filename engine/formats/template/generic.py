"""Tools, calls and results as plain text, for templates that do not support them.

The parser of the same syntax reads back what is written here.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from engine.formats import families
from engine.formats.families import Format, ToolSyntax
from engine.tools import json_value
from engine.types.messages import Message
from engine.types.parts import ToolCall

GENERIC = families.JsonSyntax(shape="json", section=("\n<tool_call>\n", "\n</tool_call>"), bare=True, answers=True)
"""The syntax that models without one of their own are asked to write: one JSON object between tags, which most have
seen."""

_SERVER = "tools"
"""The server that a call names, in syntaxes that name one."""
_EXAMPLE = ToolCall(name="NAME", arguments='{"ARGUMENT": "VALUE"}')


def with_generic_tools(format_: Format) -> Format:
    """Returns the format, with the generic syntax for calls if it has none."""
    if format_.tools or format_.channels:
        return format_
    return format_.model_copy(update={"tools": GENERIC})


def writable(
    syntax: ToolSyntax,
) -> families.JsonSyntax | families.PythonicSyntax | families.TaggedJsonSyntax | families.TaggedArgumentsSyntax:
    """Returns the syntax, or the generic one if this module cannot write it: all templates of such families write calls
    themselves."""
    if isinstance(syntax, families.DictionarySyntax | families.NestedSyntax):
        return GENERIC
    typed = isinstance(syntax, families.TaggedArgumentsSyntax) and (syntax.type_end or syntax.attributes_end)
    return GENERIC if typed else syntax


def reads_values(syntax: ToolSyntax) -> bool:
    """Whether writing calls in this syntax needs the values of their arguments rather than their JSON text."""
    return isinstance(writable(syntax), families.PythonicSyntax | families.TaggedArgumentsSyntax)


def written(calls: Sequence[ToolCall], syntax: ToolSyntax) -> str:
    """Returns the calls as a model writes them in this syntax."""
    match writable(syntax):
        case families.PythonicSyntax() as own:
            return _section(own, "[" + ", ".join(map(_pythonic, calls)) + "]")
        case families.TaggedJsonSyntax() as own:
            return _section(own, "".join(_tagged(call, own) for call in calls))
        case families.TaggedArgumentsSyntax() as own:
            sections = [_section(own, _elements(call, own)) for call in calls]
            if not own.heading[0]:
                return "".join(sections)
            headings = [own.heading[0] + call.name + own.heading[1] for call in calls]
            return (own.between or "").join(map("".join, zip(headings, sections, strict=True)))
        case families.JsonSyntax() as own:
            objects = [_object(call, own) for call in calls]
            if not own.section[1]:
                return own.section[0] + (objects[0] if own.bare else f"[{', '.join(objects)}]")
            return "".join(_section(own, one) for one in objects)


def _section(syntax: ToolSyntax, body: str) -> str:
    return syntax.section[0] + body + syntax.section[1]


def _object(call: ToolCall, syntax: families.JsonSyntax) -> str:
    if syntax.name_is_key:
        return "{" + f"{_json(call.name)}: {call.arguments}" + "}"
    fields = [
        f"{_json(syntax.name_fields[0])}: {_json(call.name)}",
        f"{_json(syntax.arguments_fields[0])}: {call.arguments}",
    ]
    if syntax.id_fields:
        id_ = f"{_json(syntax.id_fields[0])}: {_json(call.id)}"
        fields = [*fields, id_] if syntax.id_last else [id_, *fields]
    return "{" + ", ".join(fields) + "}"


def _tagged(call: ToolCall, syntax: families.TaggedJsonSyntax) -> str:
    name = syntax.name_prefix + call.name
    if syntax.server_end[0]:
        name = _SERVER + "".join(syntax.server_end) + name
    if syntax.id_end:
        name = call.id + syntax.id_end + name
    elif syntax.name_is_id:
        name = call.id
    elif syntax.id_open:
        name += syntax.id_open + call.id
    return syntax.call[0] + name + syntax.name_end + call.arguments + syntax.arguments_end + syntax.call[1]


def _elements(call: ToolCall, syntax: families.TaggedArgumentsSyntax) -> str:
    arguments = "".join(
        syntax.argument[0] + key + syntax.key_end + syntax.value_open + _text(value) + syntax.argument[1]
        for key, value in _values(call).items()
    )
    return syntax.call[0] + call.name + syntax.name_end + arguments + syntax.call[1]


def _pythonic(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in _values(call).items())})"


def _values(call: ToolCall) -> Mapping[str, Any]:
    """Returns the arguments as an object; text that is not one (a malformed call) becomes the value of one key."""
    try:
        value: object = json_value(call.arguments or "{}")
    except ValueError:
        value = None
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {"arguments": call.arguments}


def _text(value: object) -> str:
    return value if isinstance(value, str) else _json(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def with_statement(
    messages: Sequence[Message], functions: Sequence[Mapping[str, Any]], syntax: ToolSyntax
) -> list[Message]:
    """Returns the conversation with the tools' functions stated in its system message."""
    text = statement(functions, syntax)
    if messages and messages[0].role in ("system", "developer"):
        first = messages[0].model_copy(update={"content": f"{messages[0].content or ''}\n\n{text}".lstrip()})
        return [first, *messages[1:]]
    return [Message(role="system", content=text), *messages]


def statement(functions: Sequence[Mapping[str, Any]], syntax: ToolSyntax) -> str:
    """Returns the text that tells a model its tools' functions and how to call them."""
    listed = "\n".join(map(_json, functions))
    example = written([_EXAMPLE], syntax).strip()
    return (
        "## Tools\n\nThese functions can be called. Each line describes one in JSON, its parameters as JSON Schema.\n\n"
        f"{listed}\n\nTo call one, end the reply with exactly this form, filled in:\n\n{example}\n\n"
        "The result follows in the next message. Call a function only where it helps; otherwise answer directly."
    )


def without_calls(messages: Sequence[Message], syntax: ToolSyntax) -> list[Message]:
    """Returns the conversation with its calls written into the content."""
    return [
        message.model_copy(update={"content": _beside(message, syntax), "tool_calls": (), "parts": ()})
        if message.tool_calls
        else message
        for message in messages
    ]


def _beside(message: Message, syntax: ToolSyntax) -> str:
    text = written(message.tool_calls, syntax)
    return message.content + text if message.content else text.lstrip()


def without_results(messages: Sequence[Message]) -> list[Message]:
    """Returns the conversation with each run of tool results as one user message."""
    changed: list[Message] = []
    joins = False
    for message in messages:
        if message.role != "tool":
            changed.append(message)
            joins = False
            continue
        text = f"Result of {message.name}:\n{message.content or ''}"
        if joins:
            text = f"{changed.pop().content}\n\n{text}"
        changed.append(Message(role="user", content=text))
        joins = True
    return changed


def alternating(messages: Sequence[Message]) -> list[Message]:
    """Returns the conversation for templates that require alternating roles, and count neither calls nor results: two
    messages in a row of one role become one, and a question right behind a result follows an answer without text."""
    changed: list[Message] = []
    before: Message | None = None
    for message in messages:
        if message.role not in ("user", "assistant") or message.tool_calls:
            changed.append(message)
            continue
        if before is not None and before.role == message.role:
            if changed[-1] is before:
                message = _joined(changed.pop(), message)  # noqa: PLW2901
            elif message.role == "user":
                changed.append(Message(role="assistant", content=""))
        changed.append(message)
        before = message
    return changed


def _joined(first: Message, second: Message) -> Message:
    """Returns two messages of one role as one."""

    def both(one: str | None, other: str | None) -> str:
        return "\n\n".join(filter(None, (one, other)))

    reasoning = both(first.reasoning, second.reasoning) or None
    content = both(first.content, second.content)
    return second.model_copy(update={"content": content, "reasoning": reasoning, "parts": ()})
