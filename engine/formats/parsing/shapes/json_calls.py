"""Calls written as JSON objects: `{"name": .., "arguments": {..}}`, an array of such, or several."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from engine.formats.families import JsonSyntax
from engine.formats.grammar.nodes import JsonText, Marker, Node, arranged, edges, in_order, relocated
from engine.formats.parsing.emitter import CallEmitter, Emitter
from engine.formats.parsing.json_reader import LONE_SURROGATE, JsonReader, Outcome
from engine.formats.parsing.reader import Gen, begins, compiled
from engine.formats.parsing.shapes.pythonic import LiteralReader
from engine.formats.parsing.shapes.section import Items, Section
from engine.types.tools import Tool

WRAPPERS = ("function", "tool_call")
_ARGUMENTS = frozenset(["arguments", "parameters", "args", "input", "params", "kwargs", "tool_input"])
"""The keys that models use for a call's arguments, in any case."""
_IDS = frozenset(["id", "call_id", "tool_call_id", "index"])
_EMPTY = ("null", "None", '""', "''", "{}", "[]")
_TYPES = tuple(f"{q}{name}{q}" for q in "\"'" for name in ("function", "function_call", "tool_call", "tool_use"))
PLAIN = JsonSyntax(shape="json", bare=True)
"""How most models write a call as JSON, with no marks of their own."""
_NEXT = re.compile(r"\s*[;,]?\s*\{")
_MAYBE_NEXT = re.compile(r"\s*[;,]?\s*")
FENCE = compiled("```json", "```")


class JsonShape:
    """Reads `{"name": .., "arguments": {..}}`, an array of such objects, or several.

    The arguments stand under the family's key, or one that models use for them. A second object of arguments, or a
    value under any other key, makes the call malformed, with that text in it: what is not known is never left out. So
    do missing arguments where no marker says that this is a call.
    """

    def __init__(self, section: Section, syntax: JsonSyntax = PLAIN) -> None:
        self._section = section
        self._syntax = syntax
        self._bare = not section.open.text
        self._reader = section.reader
        self._json = JsonReader(section.reader, (section.close.text,), section.hard)

    def read(self) -> Gen[str]:
        """Read the calls of a section, including its closing marker if it has one."""
        reader, section = self._reader, self._section
        items = Items(reader, ",;}]")  # superfluous brackets are the most common mistake of models
        while True:
            char = yield from reader.after_space()
            if not char:
                return ""
            if (yield from section.closed()):
                return section.close.after
            if char == "{":
                yield from self.call(listed=items.listed)
                items.some = True
                if not items.listed and not section.close.text and not (yield from self.another()):
                    return ""
            elif items.take(char):
                if items.over and not section.close.text:
                    return ""
            elif char == "`" and (yield from self._fence()):
                continue
            elif items.some or not (yield from section.no_call()):
                return ""
            else:
                items.some, items.listed = True, False

    def _fence(self) -> Gen[bool]:
        """Consume a code fence, complete or cut off, inside the section's markers."""
        inside = self._section.close.text != ""
        return inside and ((yield from self._reader.match(FENCE)) or self._reader.cut_marker(FENCE))

    def another(self) -> Gen[bool]:
        """Whether another object follows one without a closing marker; consumes the separator between them."""
        reader = self._reader

        def size(text: str) -> int | None:
            if (found := _NEXT.match(text)) is not None:
                return found.end() - 1
            return None if _MAYBE_NEXT.fullmatch(text) else -1

        separator = yield from reader.judged(size)
        if separator is None and reader.closed and reader.buffer[reader.pos :].strip():
            reader.take(reader.left, "space")
        if separator is None or separator < 0:
            return False
        reader.take(separator, "space")
        return True

    def call(self, *, listed: bool = False) -> Gen[None]:
        """Read one call object, from its opening brace. `listed`: it is one of an array."""
        state = _JsonCall(self._section.emitter, id_follows=self._syntax.id_last)
        reader = self._reader
        reader.record = state.raw
        outcome = yield from self._members(state)
        reader.record = None
        if outcome is Outcome.COMPLETE and self._bare and not state.has_arguments:
            outcome = Outcome.MALFORMED
        if outcome is Outcome.COMPLETE and state.call is not None:
            state.raw.clear()
            cut_short = not (yield from self._section.object_ends(listed=listed, bare=self._bare))
            outcome = Outcome.MALFORMED if cut_short else outcome
        if outcome is Outcome.COMPLETE and state.call is not None:
            state.call.end(None, state.id)
        elif outcome is Outcome.TRUNCATED and (state.call is not None or reader.cut):
            if state.call is not None:
                state.call.end("truncated", state.id)
        elif state.call is None:
            call = self._section.emitter.call("", state.id)
            call.write(reader.plain("".join(state.raw)))
            if outcome is Outcome.COMPLETE:
                call.end("malformed")
            else:
                yield from self._section.rest_is_malformed(call)
        else:
            state.call.write(reader.plain("".join(state.raw)))
            yield from self._section.rest_is_malformed(state.call)

    def _members(self, state: "_JsonCall", depth: int = 0) -> Gen[Outcome]:
        reader = self._reader
        if depth > 8:
            return Outcome.MALFORMED
        reader.take(1, "marker")
        while True:
            char = yield from reader.after_space("marker")
            if not char:
                return Outcome.TRUNCATED
            if char == "}":
                reader.take(1, "marker")
                return Outcome.COMPLETE
            if char == ",":
                reader.take(1, "marker")
                continue
            if state.has_arguments and (yield from reader.starts(self._section.closers)) is not None:
                return Outcome.COMPLETE  # a missing closing brace after complete arguments
            state.python = state.python or char == "'"
            key = yield from self._text(state, "marker")
            if key is not None and (yield from reader.after_space("marker")) == ":":
                reader.take(1, "marker")
                outcome = yield from self._member(state, key, depth)
                if outcome is not Outcome.COMPLETE:
                    return outcome
                if state.call is not None:
                    state.raw.clear()
                    reader.record = state.raw
                continue
            return Outcome.MALFORMED if (yield from reader.more()) else Outcome.TRUNCATED

    def _member(self, state: "_JsonCall", key: str, depth: int) -> Gen[Outcome]:
        reader, syntax = self._reader, self._syntax
        first = yield from reader.after_space("marker")
        if not first:
            return Outcome.TRUNCATED
        if (depth, key) in state.keys:
            return Outcome.MALFORMED  # which of the two values is meant cannot be known
        state.keys.add((depth, key))
        if key in syntax.name_fields and state.call is None:
            name = yield from self._text(state, "name")
            if name is None:
                return Outcome.MALFORMED if (yield from reader.more()) else Outcome.TRUNCATED
            state.named(name)
            return Outcome.COMPLETE
        if key in syntax.id_fields and first not in "{[":
            fragments: list[str] = []
            outcome = yield from self._whole(state, fragments, "id")
            state.id = _id("".join(fragments))
            return outcome
        tools = self._section.emitter.tools
        names = syntax.name_is_key and (tools is None or key in tools)
        if key in WRAPPERS and first == "{" and state.call is None and not names:
            return (yield from self._members(state, depth + 1))
        if syntax.name_is_key and state.call is None:
            state.named(key)
        elif state.has_arguments or not (key in syntax.arguments_fields or key.casefold() in _ARGUMENTS):
            return (yield from self._other(state, key))
        return (yield from self._arguments(state, unwrapped=first == '"' and not syntax.name_is_key))

    def _arguments(self, state: "_JsonCall", *, unwrapped: bool) -> Gen[Outcome]:
        state.has_arguments = True
        if state.call is not None:
            state.raw.clear()
            self._reader.record = None
        return (yield from self._value(state, state.write, "arguments", unwrapped=unwrapped))

    def _other(self, state: "_JsonCall", key: str) -> Gen[Outcome]:
        """Read a member that is no part of a call, unless it has something to say: then the call is malformed."""

        def is_idle(text: str) -> bool | None:
            if key in _IDS and text[:1] not in ("{", "["):
                return True
            return begins("".join(text.split()), _EMPTY if key != "type" else (*_EMPTY, *_TYPES))

        if (yield from self._reader.judged(is_idle)) is False:
            return Outcome.MALFORMED
        return (yield from self._whole(state, [], "marker"))

    def _whole(self, state: "_JsonCall", fragments: list[str], kind: str) -> Gen[Outcome]:
        """Read a member's value, its JSON into `fragments`; a bare word is no value."""
        outcome = yield from self._value(state, fragments.append, kind)
        text = "".join(fragments)
        is_word = outcome is Outcome.COMPLETE and text not in _EMPTY and _value(text) is None
        return Outcome.MALFORMED if is_word else outcome

    def _value(
        self, state: "_JsonCall", write: Callable[[str], None], kind: str, *, unwrapped: bool = False
    ) -> Gen[Outcome]:
        """Read a member's value and pass its JSON to `write`. `unwrapped`: the value is a string that contains JSON."""
        if state.python:
            return (yield from LiteralReader(self._reader, kind).value(write))
        return (yield from (self._json.unwrapped if unwrapped else self._json.value)(write, kind))

    def _text(self, state: "_JsonCall", kind: str) -> Gen[str | None]:
        """Consume a string and return its content; None if there is no complete string."""
        if not state.python:
            return (yield from self._json.text(kind))
        fragments: list[str] = []
        if (yield from LiteralReader(self._reader, kind).value(fragments.append)) is not Outcome.COMPLETE:
            return None
        return _string("".join(fragments))


def _string(text: str) -> str | None:
    """Returns the content of a JSON string; None for any other value."""
    value = _value(text)
    return LONE_SURROGATE.sub("\ufffd", value) if isinstance(value, str) else None


def _id(text: str) -> str | None:
    """Returns the id in a JSON value: a string, or an integer as text."""
    if isinstance(value := _value(text), int) and not isinstance(value, bool):
        return text
    return _string(text) or None


def _value(text: str) -> object:
    """Returns the value of JSON text; None also for text that is not JSON, or has an integer too long for Python."""
    try:
        return json.loads(text)
    except ValueError:
        return None


class _JsonCall:
    """The state of a call while its object is read; arguments that precede the name are kept until it is known."""

    __slots__ = ("_emitter", "_id_follows", "_pending", "call", "has_arguments", "id", "keys", "python", "raw")

    def __init__(self, emitter: Emitter, *, id_follows: bool) -> None:
        self._emitter = emitter
        self._id_follows = id_follows
        self._pending: list[str] = []
        self.call: CallEmitter | None = None
        self.id: str | None = None
        self.has_arguments = False
        self.keys: set[tuple[int, str]] = set()
        self.python = False
        self.raw: list[str] = []

    def named(self, name: str) -> None:
        self.call = self._emitter.call(self._emitter.declared(name), self.id, id_follows=self._id_follows)
        self.call.write("".join(self._pending))

    def write(self, text: str) -> None:
        if self.call is None:
            self._pending.append(text)
        else:
            self.call.write(text)


_ID = "^[a-zA-Z0-9_.:-]{1,40}$"


def grammar(syntax: JsonSyntax, tools: Sequence[Tool], most: int | None) -> Node:
    """Returns the grammar of one to `most` calls as JSON, with the markers around them."""
    objects = [_call_schema(syntax, tool, f"arguments-{number}") for number, tool in enumerate(tools)]
    defined = {name: schema for one in objects for name, schema in one.pop("$defs").items()}
    if syntax.several == "list":
        bounded = {} if most is None else {"maxItems": most}
        listed = {"$defs": defined, "type": "array", "items": {"anyOf": objects}, "minItems": 1, **bounded}
        array = JsonText(listed, indented=syntax.indented)
        before, closing, after = edges(syntax.section[1])
        return in_order(Marker(syntax.section[0].lstrip()), array, before, Marker(closing), after)
    return arranged(syntax, JsonText({"$defs": defined, "anyOf": objects}), most)


def _call_schema(syntax: JsonSyntax, tool: Tool, place: str) -> dict[str, Any]:
    """Returns the schema of one call of the tool; the schema of its arguments is in `$defs` under `place`."""
    arguments = {"$ref": f"#/$defs/{place}"}
    defined = {"$defs": {place: relocated(tool.parameters, f"#/$defs/{place}")}, "type": "object"}
    if syntax.name_is_key:
        return {**defined, "properties": {tool.name: arguments}, "required": [tool.name], "additionalProperties": False}
    name, key = syntax.name_fields[0], syntax.arguments_fields[0]
    length = syntax.id_length
    pattern = f"^[a-zA-Z0-9]{{{length}}}$" if length else _ID
    ids = {field: {"type": "string", "pattern": pattern} for field in syntax.id_fields[:1]}
    said = {name: {"const": tool.name}, key: arguments}
    members = {**said, **ids} if syntax.id_last else {**ids, **said}
    return {**defined, "properties": members, "required": [name, key], "additionalProperties": False}
