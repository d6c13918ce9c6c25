"""The shapes of tool calls in markup: each reads one section of calls, straight down, and emits as it reads.

Knows: the three shapes of `engine.families.ToolSyntax` and how bad output is survived: the raw text goes on the call
once, as an error, then reading resumes at the next marker. Does not know: content, reasoning, or which family it
serves.
"""

from collections.abc import Mapping

from engine.families import ToolSyntax
from engine.parsing.emitter import CallEmitter, Emitter
from engine.parsing.json_reader import JsonReader, Outcome
from engine.parsing.marks import Mark, Spelling
from engine.parsing.reader import Markers, Reader, Reading
from engine.parsing.values import ArgumentWriter, Schemas
from engine.types import Tool


class Section:
    """Reads one section of calls. `openers` are the texts that begin one, with the white space before each."""

    def __init__(self, reader: Reader, emitter: Emitter, syntax: ToolSyntax, spelling: Spelling) -> None:
        self.reader = reader
        self.emitter = emitter
        self.syntax = syntax
        self.open = spelling.mark(syntax.section[0])
        self.close = spelling.mark(syntax.section[1])
        self.call_open = spelling.mark(syntax.call[0])
        self.call_close = spelling.mark(syntax.call[1])
        opens = [self.open] if self.open.text else []
        if self.call_open.text and (syntax.section_optional or not opens):
            opens.append(self.call_open)
        self.openers: Mapping[str, Mark] = {mark.text: mark for mark in opens}
        self.closers = Markers([self.close.text, self.call_close.text])
        self._is_close = Markers([self.close.text])
        self._is_call = Markers([self.call_open.text])
        self._is_call_close = Markers([self.call_close.text])
        self._resume = Markers([self.close.text, self.open.text, self.call_open.text])
        self._shape = _SHAPES[syntax.shape](self, spelling)

    def read(self, opener: str) -> Reading[str]:
        """Read the section whose opener was just consumed. Answers the white space that belongs after it."""
        if self.syntax.shape == "json":
            return (yield from self._shape.read())
        after = ""
        if opener == self.call_open.text and opener != self.open.text:
            after = yield from self._tagged_call()
            if not self.close.text:
                return after
        while True:
            yield from self.reader.space()
            if (yield from self.closed()):
                return self.close.after
            if not (yield from self.reader.match(self._is_call)):
                return after
            after = yield from self._tagged_call()

    def _tagged_call(self) -> Reading[str]:
        yield from self._shape.read()
        return self.call_close.after

    def closed(self) -> Reading[bool]:
        """Consume the section's closing marker, if it stands here."""
        if not self.close.text:
            return False
        return (yield from self.reader.match(self._is_close))

    def call_closed(self) -> Reading[bool]:
        """Consume the call's closing marker, if it stands here."""
        if not self.call_close.text:
            return False
        return (yield from self.reader.match(self._is_call_close))

    def rest_is_malformed(self, call: CallEmitter, *stops: str) -> Reading[None]:
        """Put what follows, up to a marker that reading can resume at, on the call as it stands, and end it."""
        markers = Markers([*self._resume.literals, *stops])

        def write(text: str) -> None:
            self.reader.note("malformed", text)
            call.write(self.reader.plain(text))

        yield from self.reader.until(markers, write)
        call.end("malformed")

    def schemas(self, name: str) -> Schemas:
        tool: Tool | None = (self.emitter.tools or {}).get(name)
        return Schemas(tool.parameters if tool else None)


class JsonShape:
    """`{"name": .., "arguments": {..}}`, an array of such, or several."""

    def __init__(self, section: Section, spelling: Spelling) -> None:
        del spelling
        self._section = section
        self._reader = section.reader
        self._json = JsonReader(section.reader, (section.close.text,))

    def read(self) -> Reading[str]:
        """The calls of a section, its closing marker included where it has one."""
        reader, section = self._reader, self._section
        in_array = some = False
        while True:
            yield from reader.space()
            if not (yield from reader.more()):
                return ""
            if (yield from section.closed()):
                return section.close.after
            char = reader.buffer[reader.pos]
            if char == "{":
                yield from self.call()
                some = True
                if not in_array and not section.close.text:
                    return ""
            elif char == "[" and not in_array and not some:
                reader.take(1, "marker")
                in_array = True
            elif char == "]" and in_array:
                reader.take(1, "marker")
                in_array, some = False, True
                if not section.close.text:
                    return ""
            elif some and char in ",;}]":
                # Separators, and brackets too many, which are a model's commonest slip.
                reader.take(1, "marker")
            elif some:
                return ""
            else:
                yield from section.rest_is_malformed(section.emitter.call("", None))
                some = True

    def call(self) -> Reading[None]:
        """One call object, from its opening brace."""
        state = _JsonCall(self._section.emitter, self._section.syntax)
        reader = self._reader
        reader.record = state.raw
        outcome = yield from self._members(state)
        reader.record = None
        if outcome is Outcome.COMPLETE and state.call is not None:
            state.call.end(None, state.id)
        elif outcome is Outcome.TRUNCATED:
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
            yield from self._section.rest_is_malformed(state.call)

    def _members(self, state: "_JsonCall") -> Reading[Outcome]:
        reader = self._reader
        reader.take(1, "marker")
        while True:
            yield from reader.space("marker")
            if not (yield from reader.more()):
                return Outcome.TRUNCATED
            char = reader.buffer[reader.pos]
            if char == "}":
                reader.take(1, "marker")
                return Outcome.COMPLETE
            if char == ",":
                reader.take(1, "marker")
                continue
            key = yield from self._json.text("marker")
            if key is not None:
                yield from reader.space("marker")
                if (yield from reader.more()) and reader.buffer[reader.pos] == ":":
                    reader.take(1, "marker")
                    yield from reader.space("marker")
                    outcome = yield from self._member(state, key)
                    if outcome is Outcome.COMPLETE:
                        continue
                    return outcome
            return Outcome.MALFORMED if (yield from reader.more()) else Outcome.TRUNCATED

    def _member(self, state: "_JsonCall", key: str) -> Reading[Outcome]:
        reader, syntax = self._reader, self._section.syntax
        if not (yield from reader.more()):
            return Outcome.TRUNCATED
        first = reader.buffer[reader.pos]
        if key in syntax.name_fields and state.call is None:
            name = yield from self._json.text("name")
            if name is None:
                return Outcome.MALFORMED if (yield from reader.more()) else Outcome.TRUNCATED
            state.named(name)
            reader.record = None
            return Outcome.COMPLETE
        if key in syntax.arguments_fields and not state.has_arguments:
            state.has_arguments = True
            read = self._json.unwrapped if first == '"' else self._json.value
            return (yield from read(state.write, "arguments"))
        if key in syntax.id_fields:
            fragments: list[str] = []
            outcome = yield from self._json.value(fragments.append, "id")
            state.id = "".join(fragments).strip('"')
            return outcome
        if key == "function" and first == "{":
            return (yield from self._members(state))
        return (yield from self._json.value(lambda _: None, "marker"))


class _JsonCall:
    """What is known of a call while its object is read; arguments that come before the name wait for it."""

    __slots__ = ("_emitter", "_pending", "_syntax", "call", "has_arguments", "id", "raw")

    def __init__(self, emitter: Emitter, syntax: ToolSyntax) -> None:
        self._emitter = emitter
        self._syntax = syntax
        self._pending: list[str] = []
        self.call: CallEmitter | None = None
        self.id: str | None = None
        self.has_arguments = False
        self.raw: list[str] = []

    def named(self, name: str) -> None:
        self.call = self._emitter.call(name, self.id, id_follows=self._syntax.id_last)
        self.call.write("".join(self._pending))

    def write(self, text: str) -> None:
        if self.call is None:
            self._pending.append(text)
        else:
            self.call.write(text)


class TaggedJsonShape:
    """`open name name_end {json} arguments_end close`."""

    def __init__(self, section: Section, spelling: Spelling) -> None:
        self._section = section
        self._reader = section.reader
        self._name_end = _literal(spelling, section.syntax.name_end)
        self._arguments_end = Markers([spelling.mark(section.syntax.arguments_end).text])
        # A brace ends a name too: no name holds one, and models leave the fence out.
        self._name_ends = Markers([self._name_end, "{", section.call_close.text, section.close.text])
        self._is_name_end = Markers([self._name_end])
        self._json = JsonReader(section.reader, (section.call_close.text, section.close.text))

    def read(self) -> Reading[str]:
        """One call, after its opening marker."""
        reader, section = self._reader, self._section
        name = yield from _name(section, self._name_ends)
        if name is None:
            return ""
        yield from reader.match(self._is_name_end)
        call = section.emitter.call(name, None)
        yield from reader.space()
        outcome = Outcome.COMPLETE
        if (yield from reader.starts(section.closers)) is None:
            outcome = yield from self._json.value(call.write, "arguments")
        if outcome is Outcome.TRUNCATED:
            call.end("truncated")
            return ""
        if outcome is Outcome.MALFORMED:
            yield from section.rest_is_malformed(call, *section.closers.literals)
        else:
            call.end()
            yield from reader.space()
            if self._arguments_end.literals:
                yield from reader.match(self._arguments_end)
                yield from reader.space()
        yield from section.call_closed()
        return ""


class TaggedArgumentsShape:
    """`open name name_end (argument key key_end value argument_end)* close`, the values typed by the tool's schema."""

    def __init__(self, section: Section, spelling: Spelling) -> None:
        syntax = section.syntax
        self._section = section
        self._reader = section.reader
        self._argument = Markers([spelling.mark(syntax.argument[0]).text])
        self._value_end = spelling.mark(syntax.argument[1])
        name_end, key_end = spelling.mark(syntax.name_end), spelling.mark(syntax.key_end)
        self._lead = key_end.after
        self._is_name_end, self._is_key_end = Markers([name_end.text]), Markers([key_end.text])
        self._name_ends = Markers([name_end.text, section.call_close.text, section.close.text])
        self._key_ends = Markers([key_end.text, self._value_end.text, section.call_close.text, section.close.text])
        self._value_ends = Markers([self._value_end.text, section.call_close.text])
        # What may follow a value: anything else shows that the closing marker was part of the value.
        self._follow_markers = Markers([*self._argument.literals, *section.closers.literals])
        self._follows = self._follow_markers.literals
        self._ends = section.closers

    def read(self) -> Reading[str]:
        """One call, after its opening marker."""
        section, reader = self._section, self._reader
        name = yield from _name(section, self._name_ends)
        if name is None:
            return ""
        yield from reader.match(self._is_name_end)
        call = section.emitter.call(name, None)
        arguments = ArgumentWriter(call.write)
        schemas = section.schemas(name)
        while True:
            yield from reader.space()
            if not (yield from reader.more()):
                # The end of this shape is its marker: without it, only a turn that ended by itself is complete.
                if reader.cut:
                    call.end("truncated")
                else:
                    arguments.end()
                    call.end()
                return ""
            if (yield from reader.starts(self._ends)) is not None:
                arguments.end()
                call.end()
                yield from section.call_closed()
                return ""
            if reader.cut_marker(self._follow_markers):
                continue
            outcome = yield from self._one_argument(arguments, schemas)
            if outcome is Outcome.TRUNCATED:
                call.end("truncated")
                return ""
            if outcome is Outcome.MALFORMED:
                yield from section.rest_is_malformed(call, *self._ends.literals)
                yield from section.call_closed()
                return ""

    def _one_argument(self, arguments: ArgumentWriter, schemas: Schemas) -> Reading[Outcome]:
        reader = self._reader
        if not (yield from reader.match(self._argument)):
            return Outcome.MALFORMED if (yield from reader.more()) else Outcome.TRUNCATED
        parts: list[str] = []
        hit = yield from reader.until(self._key_ends, parts.append)
        key = reader.plain("".join(parts)).strip()
        reader.note("key", "".join(parts))
        if hit is None:
            return Outcome.TRUNCATED
        if not (yield from reader.match(self._is_key_end)):
            return Outcome.MALFORMED
        arguments.key(key, schemas.types(key), self._lead)
        return (yield from self._value(arguments))

    def _value(self, arguments: ArgumentWriter) -> Reading[Outcome]:
        reader = self._reader

        def write(text: str) -> None:
            reader.note("arguments", text)
            arguments.text(reader.plain(text))

        def cut(text: str) -> None:
            # The beginning of a marker, most likely: the arguments stay what was emitted.
            reader.note("arguments", text)

        doubtful = False
        while True:
            hit = yield from reader.until(self._value_ends, write, tail=cut)
            if hit is None:
                return Outcome.TRUNCATED
            if hit == self._value_end.text:
                if (yield from self._followed(hit)) or arguments.is_json:
                    reader.take(len(hit), "marker")
                    arguments.end_value(self._value_end.before)
                    return Outcome.COMPLETE
                doubtful = True
            elif doubtful and (yield from self._ends_call(hit)):
                return Outcome.MALFORMED
            write(reader.take(len(hit)))

    def _followed(self, marker: str) -> Reading[bool]:
        """Whether what follows the marker can follow a value."""
        return (yield from _followed_by(self._reader, marker, self._follows, at_end=True))

    def _ends_call(self, marker: str) -> Reading[bool]:
        close = self._section.close.text
        return not close or (yield from _followed_by(self._reader, marker, (close,), at_end=False))


def _followed_by(reader: Reader, marker: str, follows: tuple[str, ...], *, at_end: bool) -> Reading[bool]:
    """Whether the marker at the front is followed, after white space, by one of the texts (or by the end of the
    input)."""
    while True:
        rest = reader.buffer[reader.pos + len(marker) :].lstrip()
        if any(rest.startswith(text) for text in follows):
            return True
        possible = any(text.startswith(rest) for text in follows)
        if reader.closed or not possible:
            return possible and at_end
        yield


def _name(section: Section, ends: Markers) -> Reading[str | None]:
    """A function's name, up to one of the ends (not consumed). None: the input ended first, there is no call."""
    reader = section.reader
    parts: list[str] = []
    hit = yield from reader.until(ends, parts.append)
    reader.note("name", "".join(parts))
    return None if hit is None else reader.plain("".join(parts)).strip()


def _literal(spelling: Spelling, literal: str) -> str:
    """A marker's text; one that is white space only stands as it is."""
    return spelling.mark(literal).text or literal


_SHAPES = {"json": JsonShape, "tagged_json": TaggedJsonShape, "tagged_args": TaggedArgumentsShape}
