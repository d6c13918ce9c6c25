"""Turns messages into the dictionaries that one particular template expects.

Earlier reasoning is passed for every turn in the template's own field, and the template applies its own rule to it;
only if it has no such field, the rule is applied here and the reasoning is written in the family's markers.

Source for built-in tools: the harmony response format: calls of `python`, `browser.search`, .. go to the analysis
channel, their recipient has no namespace, and `python` gets code, not JSON.
"""

import hashlib
import json
import re
import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, TypeAlias

from engine.formats.families import REASONING_FIELDS, ChannelSyntax, Format, TaggedJsonSyntax
from engine.formats.template import generic
from engine.formats.template.capabilities import Capabilities
from engine.formats.template.env import Template
from engine.support.errors import RequestError, shown
from engine.tools import json_value
from engine.types.conversation import as_mapping
from engine.types.messages import Message
from engine.types.parts import ToolCall
from engine.types.tools import Tool

BUILTIN_VARIABLE = "builtin_tools"
_FUNCTIONS = {"browser": ("browser.search", "browser.open", "browser.find")}
_DECODER = json.JSONDecoder(strict=False)


def check_builtin(names: Sequence[str], template: Template) -> tuple[str, ...]:
    """Returns the names as a tuple. Raises RequestError if the template declares no built-in tools."""
    if isinstance(names, str):
        raise RequestError(f"builtin_tools must be a list of names; put it in a list: builtin_tools=[{shown(names)}].")
    if names and BUILTIN_VARIABLE not in template.variables:
        raise RequestError(
            f"builtin_tools={shown(list(names))} is not possible: this model's chat template declares none. Leave the "
            "option out, and give tools of your own with tools=."
        )
    return tuple(names)


def is_builtin(name: str, builtin: Iterable[str]) -> bool:
    """Whether a tool's name is one of the built-in tools, or a function of one (`browser.search`)."""
    return any(name == known or name.startswith(f"{known}.") for known in builtin)


def builtin_records(builtin: Sequence[str], known: Sequence[Tool]) -> tuple[Tool, ...]:
    """Returns records of the built-in tools for which the caller gave no tool: for the parser.
    They may be called with raw code."""
    given = {tool.name for tool in known}
    names = (name for each in builtin for name in _FUNCTIONS.get(each, (each,)))
    code: dict[str, object] = {"type": "object", "properties": {"code": {}}}
    return tuple(Tool(name=name, parameters=code) for name in names if name not in given)


def builtin_as_written(text: str, mark: str, syntax: ChannelSyntax) -> str:
    """Rewrite the calls of built-in tools, and their results, in a render as the model and its tools write them.

    `mark` precedes the names of these calls, and occurs nowhere else.
    """
    start, to, marked = map(re.escape, (syntax.start, syntax.recipient, syntax.namespace + mark))
    role, rest = re.escape(syntax.role), f"{re.escape(syntax.channel)}[^<]*{re.escape(syntax.message)}"
    call, result = f"{role} {to}{marked}(?P<called>[^<\\s]+)", f"{marked}(?P<answering>[^<\\s]+) {to}{role}"
    pattern = re.compile(f"{start}(?:{call}|{result}){rest}")
    parts: list[str] = []
    position = 0
    while (header := pattern.search(text, position)) is not None:
        value, end = _json_at(text, header.end())
        parts += (text[position : header.start()], _message(header, value, text[header.end() : end], syntax))
        position = end
    return "".join(parts) + text[position:]


def _json_at(text: str, position: int) -> tuple[object, int]:
    """Returns the JSON value at a position and its end; (None, `position`) if there is none."""
    try:
        return _DECODER.raw_decode(text, position)
    except ValueError:
        return None, position


def _message(header: re.Match[str], value: object, written: str, syntax: ChannelSyntax) -> str:
    analysis = f"{syntax.channel}{syntax.reasoning[0]}"
    if (name := header["called"]) is not None:
        author = f"{syntax.role} {syntax.recipient}{name}{analysis} code"
        return f"{syntax.start}{author}{syntax.message}{_sent(value, written)}"
    author = f"{header['answering']} {syntax.recipient}{syntax.role}{analysis}"
    return f"{syntax.start}{author}{syntax.message}{value if isinstance(value, str) else written}"


def _sent(value: object, written: str) -> str:
    """Returns what a call sends: the code if it is the only argument, else the JSON."""
    arguments = as_mapping(value) or {}
    code = arguments.get("code")
    return code if isinstance(code, str) and len(arguments) == 1 else written


Entry: TypeAlias = dict[str, Any]
"""One message as a template sees it."""

_ALPHABET = string.digits + string.ascii_letters
_SHORT = 9


def entries(messages: Sequence[Message], writer: "MessageWriter", preamble: str = "") -> list[Entry]:
    """Returns the conversation in the terms of the writer's template. `messages` must be checked (see
    `engine.types.conversation`), and have the ids that the template requires (see `with_ids`).

    `preamble` is inserted before text next to a call, which the template would write as reasoning (see
    `preamble_headers`).
    """
    can, syntax = writer.can, writer.format.tools or generic.GENERIC
    if not syntax.parallel or (can.calls and not can.parallel_calls):
        messages = _one_call_a_message(messages)
    if not can.text_beside:
        messages = [part for message in messages for part in _text_apart(message)]
    if not can.calls:
        messages = generic.without_calls(messages, syntax)
    if not can.results:
        messages = generic.without_results(messages)
    if not can.developer:
        messages = [
            message.model_copy(update={"role": "system"}) if message.role == "developer" else message
            for message in messages
        ]
    if not can.system:
        messages = _system_in_user(messages)
    elif not can.later_system:
        messages = _one_system(messages)
    if not can.repeats:
        messages = generic.alternating(messages)
    kept = _kept_from(messages, writer.format)
    return [writer.entry(message, index >= kept, preamble) for index, message in enumerate(messages)]


class MessageWriter:
    """Writes single messages as one template, of this format and these capabilities, reads them."""

    def __init__(self, format_: Format, can: Capabilities) -> None:
        self.format = format_
        self.can = can
        self._field = _place(format_, can)
        """Where reasoning goes: a field's name, "" for tags in the content, None for nowhere."""

    def entry(self, message: Message, kept: bool, preamble: str) -> Entry:
        """Returns a message as the template reads it. `kept`: its reasoning is shown; `preamble`: see `entries`."""
        if message.role == "assistant":
            return self._assistant(message, kept, preamble)
        role = self.can.result_role if message.role == "tool" else message.role
        entry: Entry = {"role": role, "content": self._content(message.content or "")}
        if message.role == "tool":
            entry["tool_call_id"] = message.tool_call_id
        if message.name:
            entry["name"] = message.name
        return entry

    def _assistant(self, message: Message, kept: bool, preamble: str) -> Entry:
        content, reasoning = message.content or "", message.reasoning or ""
        entry: Entry = {"role": "assistant", "content": content}
        if not reasoning and content and message.tool_calls and not self.can.both and _has_preambles(self.format):
            entry["content"] = preamble + content
        if reasoning and self._field:
            if message.tool_calls and content and not self.can.both:
                reasoning, entry["content"] = self._analysis(reasoning, content), ""
            entry[self._field] = reasoning
        elif reasoning and self._field == "" and kept and (syntax := self.format.reasoning):
            # a template that drops reasoning cuts after the marker: white space written there would stay
            close = syntax.close.rstrip() if syntax.history == "none" else syntax.close
            entry["content"] = syntax.open + reasoning + close + content
        if self.can.needs_reasoning:
            entry.setdefault(self.can.reasoning_fields[0], "")
        if message.tool_calls:
            entry["tool_calls"] = [self._call(call) for call in message.tool_calls]
            if self.can.null_content and not entry["content"]:
                entry["content"] = None
        elif not (entry["content"] or self.can.silence):
            entry["content"] = " "
        if entry["content"] is not None:
            entry["content"] = self._content(entry["content"])
        return entry

    def _analysis(self, reasoning: str, content: str) -> str:
        """Returns reasoning and the text next to a call as one field, for templates that take only one of them."""
        channels = self.format.channels
        if channels is None or not _has_preambles(self.format):
            return f"{reasoning}\n\n{content}"
        return f"{reasoning}{channels.ends[0]}{preamble_headers(self.format, '')[1]}{content}"

    def _content(self, text: str) -> Any:
        return [{"type": "text", "text": text}] if self.can.content_parts else text

    def _call(self, call: ToolCall) -> Entry:
        function = {"name": call.name, "arguments": self._arguments(call.arguments)}
        return {"id": call.id, "type": "function", "function": function}

    def _arguments(self, text: str) -> Any:
        as_value = parses_arguments(self.format, self.can)
        if not as_value and self.can.any_text:
            return text
        try:
            value = as_mapping(json_value(text or "{}"))
        except ValueError:
            value = None
        if value is not None:
            return value if as_value else text or "{}"
        if self.can.any_text and "string" in self.can.arguments:
            return text
        whole = {"arguments": text}
        return whole if as_value else json.dumps(whole, ensure_ascii=False)


def parses_arguments(format_: Format, can: Capabilities) -> bool:
    """Whether the template gets a call's arguments as values rather than as text."""
    declared = format_.tools.arguments_as if format_.tools else "object"
    return (declared if declared in can.arguments else min(can.arguments)) == "object"


def _has_preambles(format_: Format) -> bool:
    return format_.channels is not None and len(format_.channels.content) > 1


def preamble_headers(format_: Format, preamble: str) -> tuple[str, str]:
    """Returns the header of a reasoning message that begins with `preamble`, and its replacement: gpt-oss's template
    writes the text next to a call as reasoning, while its models write it as commentary."""
    channels = format_.channels
    if channels is None or not _has_preambles(format_):
        return preamble, ""
    before = channels.start + channels.role + channels.channel
    return (
        f"{before}{channels.reasoning[0]}{channels.message}{preamble}",
        f"{before}{channels.content[1]}{channels.message}",
    )


def _place(format_: Format, can: Capabilities) -> str | None:
    syntax = format_.reasoning
    declared = syntax.fields if syntax else ()
    for field in (*declared, *REASONING_FIELDS):
        if field in can.reasoning_fields:
            return field
    if syntax is None or format_.channels is not None or syntax.history == "unknown":
        return None
    return "" if "" in declared or syntax.history != "none" else None


def _kept_from(messages: Sequence[Message], format_: Format) -> int:
    """Returns the index of the first message whose reasoning the family's rule keeps. It is 0 for templates that read
    tags inside the content, and for the rule "none", where the template itself drops reasoning."""
    syntax = format_.reasoning
    if syntax is None:
        return len(messages)
    if "" in syntax.fields or syntax.history in ("all", "none"):
        return 0
    if syntax.history == "unknown":
        return len(messages)
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if syntax.history == "last_user" and message.role == "user":
            return index + 1
        if syntax.history == "last_answer" and message.role == "assistant" and not message.tool_calls:
            return index + 1
    return 0


def _one_call_a_message(messages: Sequence[Message]) -> list[Message]:
    """Split a message with several calls into one message per call, each followed by that call's results."""
    split: list[Message] = []
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        if len(message.tool_calls) < 2:
            split.append(message)
            continue
        results = list(takewhile(lambda after: after.role == "tool", messages[index:]))
        index += len(results)
        for number, call in enumerate(message.tool_calls):
            rest: dict[str, object] = {"content": "", "reasoning": None} if number else {}
            split.append(message.model_copy(update={"tool_calls": (call,), "parts": (), **rest}))
            split += [result for result in results if result.tool_call_id == call.id]
    return split


def _text_apart(message: Message) -> Iterator[Message]:
    """Yields a message's text and its call as two messages."""
    if message.tool_calls and message.content:
        yield message.model_copy(update={"tool_calls": (), "parts": ()})
        message = message.model_copy(update={"content": "", "reasoning": None, "parts": ()})
    yield message


def _one_system(messages: Sequence[Message]) -> list[Message]:
    """Join the system messages at the beginning, and put later ones before the next user message, for templates that
    show only the first."""
    first = list(takewhile(lambda message: message.role == "system", messages))
    later = _system_in_user(messages[len(first) :])
    if not first:
        return later
    text = "\n\n".join(message.content or "" for message in first)
    return [first[0].model_copy(update={"content": text}), *later]


def _system_in_user(messages: Sequence[Message]) -> list[Message]:
    """Put system text before the next user message, for templates without that role."""
    waiting: list[str] = []
    merged: list[Message] = []
    for message in messages:
        if message.role in ("system", "developer"):
            waiting.append(message.content or "")
        elif message.role == "user" and waiting:
            merged.append(message.model_copy(update={"content": "\n\n".join([*waiting, message.content or ""])}))
            waiting = []
        else:
            merged.append(message)
    if waiting:
        merged.append(Message(role="user", content="\n\n".join(waiting)))
    return merged


def with_ids(messages: Sequence[Message], format_: Format, can: Capabilities) -> list[Message]:
    """Returns the conversation with the ids under which calls are rendered, the same in call and result: their own, or
    in the form that the template requires."""
    syntax = format_.tools
    length = syntax.id_length if syntax else None
    if length is None and can.short_ids:
        length = _SHORT
    calls = [call for message in messages for call in message.tool_calls]
    if not can.calls:
        return list(messages)
    if isinstance(syntax, TaggedJsonSyntax) and syntax.name_is_id:
        ids = {call.id: _named(call, number, syntax.name_prefix) for number, call in enumerate(calls)}
    else:
        ids = {call.id: call.id if length is None else _fixed(call.id, length) for call in calls}
    return [_with_ids(message, ids) for message in messages]


def _with_ids(message: Message, ids: Mapping[str, str]) -> Message:
    if not message.tool_calls and not message.tool_call_id:
        return message
    calls = tuple(call.model_copy(update={"id": ids[call.id]}) for call in message.tool_calls)
    answered = message.tool_call_id
    update = {"tool_calls": calls, "tool_call_id": answered and ids.get(answered, answered), "parts": ()}
    return message.model_copy(update=update)


def _named(call: ToolCall, number: int, prefix: str) -> str:
    """Returns an id of the function's name and a counter: the call's own if it has that form."""
    head, _, counter = call.id.rpartition(":")
    return call.id if head == prefix + call.name and counter.isdecimal() else f"{prefix}{call.name}:{number}"


def _fixed(id_: str, length: int) -> str:
    """Returns an id of `length` letters and digits: the id itself if it has that form, else one derived from it."""
    if len(id_) == length and all(character in _ALPHABET for character in id_):
        return id_
    number = int.from_bytes(hashlib.sha256(id_.encode(errors="surrogatepass")).digest(), "big")
    characters: list[str] = []
    for _ in range(length):
        number, rest = divmod(number, len(_ALPHABET))
        characters.append(_ALPHABET[rest])
    return "".join(characters)
