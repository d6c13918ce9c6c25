"""Calls whose arguments are elements of a tree: a bare dictionary, `call:f{key:<|"|>text<|"|>,n:1}` (Gemma), or nested
tags, where the parameter's name is the tag, objects nest and arrays are `item`s (MiniMax M3).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.formats.families import DictionarySyntax, NestedSyntax
from engine.formats.grammar.nodes import (
    NOTHING,
    JsonText,
    Marker,
    Member,
    NestedNotation,
    Node,
    Pattern,
    Repeat,
    Rules,
    Schema,
    Until,
    Values,
    Words,
    arranged,
    bounds,
    in_order,
    listed,
    maybe,
    one_of,
    separated,
    whole_pattern,
)
from engine.formats.grammar.schemas import TEXT, Schemas
from engine.formats.parsing.argument_text import coerced, enumerated, quoted, typed, unwrapped
from engine.formats.parsing.json_reader import Outcome
from engine.formats.parsing.reader import CONTROL, Gen, Reader, Spelling, compiled
from engine.formats.parsing.shapes.pythonic import LiteralReader, Write
from engine.formats.parsing.shapes.section import Section
from engine.tools import DEEPEST, json_value
from engine.types.tools import Tool

_CONSTANTS = {"None": "null", "True": "true", "False": "false"}
_BARE = re.compile(rf"[^,{{}}\[\]:<{CONTROL}]+")


class DictionaryShape:
    """`open name{key:value, ..} close`."""

    def __init__(self, section: Section, syntax: DictionarySyntax, spelling: Spelling) -> None:
        self._section = section
        self._reader: Reader = section.reader
        self._literals = LiteralReader(section.reader)
        self._quote = compiled(spelling.text(syntax.quote))
        self._name_ends = compiled("{", *section.closers.literals)
        self._held = False  # a string of the call has a quote mark as text, so that it may have ended too early
        self._behind_value = (*",]}", *section.closers.literals)
        self._raw: list[str] = []  # the key that is being read, which a call that cannot be read keeps

    def read(self) -> Gen[str]:
        """One call, after its opening marker."""
        reader, section = self._reader, self._section
        name = yield from section.name(self._name_ends)
        if name is None:
            return ""
        call = section.begin(name)
        outcome, self._held = Outcome.COMPLETE, False
        self._raw.clear()
        if reader.buffer.startswith("{", reader.pos):
            outcome = yield from self._value(call.write, section.schemas(call.name))
        section.emitter.doubted |= self._held
        if outcome is Outcome.TRUNCATED:
            call.end("truncated")
            return ""
        if outcome is Outcome.COMPLETE:
            call.end()
            yield from section.superfluous(section.closers.literals)
            yield from reader.space()
        else:
            call.write(reader.plain("".join(self._raw)))
            yield from section.rest_is_malformed(call, *section.closers.literals)
        yield from section.call_closed()
        return ""

    def _value(self, write: Write, schemas: Schemas | None = None, depth: int = 0) -> Gen[Outcome]:
        """Read one value. `schemas`: those of the call's arguments, if it is these."""
        reader = self._reader
        if depth > DEEPEST:
            return Outcome.MALFORMED
        yield from reader.space("arguments")
        if (yield from reader.match(self._quote, "arguments")):
            return (yield from self._string(write, "arguments", self._behind_value))
        if reader.cut_marker(self._quote) or not (yield from reader.more()):
            return Outcome.TRUNCATED
        char = reader.buffer[reader.pos]
        if char in "{[":
            reader.take(1, "arguments")
            return (yield from self._members(write, schemas, "}" if char == "{" else "]", depth + 1))
        if char in "\"'":
            return (yield from self._literals.value(write))
        return (yield from self._bare(write))

    def _members(self, write: Write, schemas: Schemas | None, close: str, depth: int) -> Gen[Outcome]:
        reader = self._reader
        write("{" if close == "}" else "[")
        some = separated = False
        while True:
            char = yield from reader.after_space("arguments")
            if not char:
                return Outcome.TRUNCATED
            if char == ",":
                reader.take(1, "arguments")
                separated = True
                continue
            if char == close:
                write(reader.take(1, "arguments"))
                return Outcome.COMPLETE
            if some and not separated:
                return Outcome.MALFORMED
            separator = ", " if some else ""
            if close == "}":
                reader.record = self._raw
                key = yield from self._key(schemas)
                reader.record = None
                if isinstance(key, Outcome):
                    return key
                self._raw.clear()
                separator += f"{key}: "
            write(separator)
            some, separated = True, False
            outcome = yield from self._value(write, depth=depth)
            if outcome is not Outcome.COMPLETE:
                return outcome

    def _key(self, schemas: Schemas | None) -> Gen[str | Outcome]:
        """Consume a key and its colon, and return the key as a JSON string; what became of it if there is none, or
        prose in its place."""
        reader = self._reader
        parts: list[str] = []
        quoted_ = yield from reader.match(self._quote, "key")
        if not quoted_ and reader.cut_marker(self._quote):
            return Outcome.TRUNCATED
        if quoted_:
            if (yield from self._string(parts.append, "key", (":",))) is not Outcome.COMPLETE:
                return Outcome.TRUNCATED
        else:
            parts.append((yield from reader.all_of(_BARE, "key")))
        if (yield from reader.after_space("key")) != ":":
            return Outcome.MALFORMED if reader.left else Outcome.TRUNCATED
        reader.take(1, "key")
        key: str = json.loads("".join(parts)) if quoted_ else "".join(parts).strip().strip("\"'")
        if not (key or quoted_) or (schemas is not None and not schemas.takes(key)):
            return Outcome.MALFORMED
        return f'"{quoted(key)}"'

    def _string(self, write: Write, kind: str, follows: tuple[str, ...]) -> Gen[Outcome]:
        """Read a string behind its opening quote mark. A quote mark that none of `follows` comes after is text, and so
        is the one that closes it."""
        reader = self._reader
        write('"')

        def string(text: str) -> None:
            reader.note(kind, text)
            write(quoted(reader.plain(text)))

        def cut(text: str) -> None:
            reader.note(kind, text)

        inner = False
        while True:
            hit = yield from reader.until(self._quote, string, tail=cut)
            if hit is None:
                return Outcome.TRUNCATED
            if not inner and (yield from self._section.followed(hit, follows)):
                reader.take(len(hit), kind)
                write('"')
                return Outcome.COMPLETE
            inner, self._held = not inner, True
            string(reader.take(len(hit)))

    def _bare(self, write: Write) -> Gen[Outcome]:
        reader = self._reader
        text = (yield from reader.all_of(_BARE, "arguments")).strip()
        if not reader.left:
            return Outcome.TRUNCATED
        if not text:
            return Outcome.MALFORMED
        text = _CONSTANTS.get(text, text)
        try:
            json_value(text)
        except ValueError:
            text = f'"{quoted(text)}"'
        write(text)
        return Outcome.COMPLETE


_ITEM = "item"
_ARRAY = frozenset(["array"])
_EMPTY: Mapping[frozenset[str] | None, str] = {frozenset(["object"]): "{}", _ARRAY: "[]"}


class NestedShape:
    """`open name name_end (tag[0] key tag[1] value tag[2] key tag[1])* close`."""

    def __init__(self, section: Section, syntax: NestedSyntax, spelling: Spelling) -> None:
        self._section = section
        self._reader: Reader = section.reader
        begin, self._tag_end, end = (spelling.text(text) for text in syntax.tag)
        name_end = spelling.mark(syntax.name_end).text
        self._is_name_end = compiled(name_end)
        self._name_ends = compiled(name_end, *section.closers.literals)
        self._begin, self._end = compiled(begin), compiled(end)
        self._edge = compiled(begin, end, *section.closers.literals)
        self._markers = compiled(*self._edge.literals, *section.openers, *section.is_call.literals)
        self._is_tag_end = compiled(self._tag_end)
        self._tag_ends = compiled(self._tag_end, begin)
        self._unclosed = False  # a value of the call was ended by the next element
        self._raw: list[str] = []  # the argument's text that is not written, which a call that cannot be read keeps

    def read(self) -> Gen[str]:
        """One call, after its opening marker."""
        reader, section = self._reader, self._section
        name = yield from section.name(self._name_ends)
        if name is None:
            return ""
        yield from reader.match(self._is_name_end)
        call, self._unclosed = section.begin(name), False
        schemas = section.schemas(call.name)
        arguments = _Members(call.write, schemas, whole=False)
        self._raw.clear()
        outcome = yield from self._elements(arguments, schemas)
        reader.record = None
        if outcome is Outcome.MALFORMED:
            section.emitter.doubted |= self._unclosed
            arguments.break_off()
            call.write(reader.plain("".join(self._raw)))
            yield from section.rest_is_malformed(call, *section.closers.literals)
        elif outcome is Outcome.TRUNCATED:
            arguments.cut()
            call.end("truncated")
            return ""
        else:
            call.end()
        yield from section.call_closed()
        return ""

    def _elements(self, children: "_Items | _Members", schemas: Schemas, depth: int = 0) -> Gen[Outcome]:
        """Read elements up to their parent's closing tag (not consumed). At depth 0 they are the call's arguments."""
        reader, listed = self._reader, isinstance(children, _Items)
        if depth > DEEPEST:
            return Outcome.MALFORMED
        while True:
            children.begun = ""
            if depth == 0:
                self._raw.clear()
                reader.record = self._raw
            yield from reader.space()
            hit = (yield from reader.starts(self._edge)) if (yield from reader.more()) else None
            if hit is None and (not reader.left or reader.cut_marker(self._edge)):
                complete = depth == 0 and not reader.cut
                break
            if hit is None:
                return Outcome.MALFORMED
            if depth == 0 and hit in self._end.literals:
                return Outcome.MALFORMED  # it closes nothing
            if hit not in self._begin.literals:
                complete = True
                break
            reader.take(len(hit), "marker")
            key = yield from self._tag()
            if key is None:
                return Outcome.MALFORMED if reader.left else Outcome.TRUNCATED
            if children.has(key):
                return Outcome.MALFORMED  # which of the two values is meant cannot be known
            if not (listed or schemas.takes(key)):
                return Outcome.MALFORMED  # prose stands there
            child = schemas.items() if listed else schemas.child(key)
            write_child = children.child(key)
            outcome = yield from self._element(write_child, child, key, depth, children.missing)
            if outcome is not Outcome.COMPLETE:
                return outcome
        if not complete:
            return Outcome.TRUNCATED
        children.end()
        return Outcome.COMPLETE

    def _tags(self, names: Sequence[str]) -> tuple[str, ...]:
        """Returns what is left of the tags of these names behind their opening mark."""
        return tuple(name + self._tag_end for name in names)

    def _tag(self) -> Gen[str | None]:
        """Read the rest of a tag, after its opening mark. Returns None if the input ended, or another tag begins: then
        what follows may belong to the name of this one."""
        parts: list[str] = []
        hit = yield from self._reader.until(self._tag_ends, parts.append)
        self._reader.note("key", "".join(parts))
        if hit is None or not (yield from self._reader.match(self._is_tag_end)):
            self._section.emitter.doubted |= hit is not None
            return None
        return "".join(parts).strip()

    def _element(self, write: Write, schema: Schemas, key: str, depth: int, siblings: Sequence[str]) -> Gen[Outcome]:
        """Read one element's value and its closing tag."""
        reader = self._reader
        types = schema.own()
        untyped = types is None or "string" in types or bool(schema.values())
        hit = yield from reader.starts(self._markers if untyped else self._edge)
        if hit in self._begin.literals and schema.own() != TEXT:
            outcome = yield from self._children(write, schema, depth)
        elif untyped:
            return (yield from self._text(write, schema, key, siblings, streams=depth == 0))
        else:
            outcome = yield from self._scalar(write, schema)
            begun = yield from reader.starts(self._begin)
            if begun is not None and (yield from self._section.followed(begun, self._tags(siblings), at_end=False)):
                self._unclosed = True
                return outcome
        if outcome is not Outcome.COMPLETE:
            return outcome
        if not (yield from reader.match(self._end)):
            return Outcome.MALFORMED if reader.left and not reader.cut_marker(self._end) else Outcome.TRUNCATED
        closed = yield from self._tag()
        if closed is None and not reader.left:
            return Outcome.TRUNCATED
        return Outcome.COMPLETE if closed == key else Outcome.MALFORMED

    def _children(self, write: Write, schema: Schemas, depth: int) -> Gen[Outcome]:
        """Read nested elements: an array if the first is an item (unless the schema's type is object)."""
        reader = self._reader
        begin = self._begin.literals[0]
        tag = begin + _ITEM + self._tag_end
        array = (yield from reader.starts(compiled(tag))) is not None and schema.own() != frozenset(["object"])
        children = _Items(write) if array else _Members(write, schema, whole=True)
        return (yield from self._elements(children, schema, depth + 1))

    def _scalar(self, write: Write, schema: Schemas) -> Gen[Outcome]:
        """Read a value that is no text and has no elements inside, up to any marker."""
        reader, parts = self._reader, list[str]()

        def take(text: str) -> None:
            reader.note("arguments", text)
            parts.append(reader.plain(text))

        if (yield from reader.until(self._edge, take, tail=lambda text: reader.note("arguments", text))) is None:
            return Outcome.TRUNCATED
        write(_value("".join(parts), schema.own(), schema))
        return Outcome.COMPLETE

    def _text(self, write: Write, schema: Schemas, key: str, siblings: Sequence[str], *, streams: bool) -> Gen[Outcome]:
        """Read a value that may be text, with its closing tag; other markers are part of it. Where the closing tag is
        missing, an element that its parent has no value of yet ends it, and so does the end of the call."""
        reader, section, literal = self._reader, self._section, schema.is_literal
        parts: list[str] = []

        def take(text: str) -> None:
            reader.note("arguments", text)
            if literal:
                write(quoted(reader.plain(text)))
            else:
                parts.append(reader.plain(text))

        if literal:
            write('"')
        if literal and streams:
            self._raw.clear()
            reader.record = None
        inner = _Inner(key + self._tag_end, self._tags(siblings))
        tags = [f"{mark}{inner.own}" for mark in (*self._begin.literals, *self._end.literals)]
        markers = compiled(*(mark for mark in self._markers.literals if mark not in tags))  # a key may be a marker's
        while True:
            hit = yield from reader.until(markers, take, tail=lambda text: reader.note("arguments", text))
            if hit is None:
                return Outcome.TRUNCATED
            outcome = yield from self._at_marker(hit, inner)
            if outcome is not None:
                break
            take(reader.take(len(hit)))
        if outcome is Outcome.MALFORMED:
            section.emitter.doubted = True
            return outcome
        if (yield from reader.match(self._end)) and (yield from self._tag()) is None:
            return Outcome.TRUNCATED
        write('"' if literal else _value("".join(parts), schema.own(), schema))
        return outcome

    def _at_marker(self, hit: str, inner: "_Inner") -> Gen[Outcome | None]:
        """What the marker at the front does to a text: it ends it, shows that its closing tag is missing among those
        that it holds (MALFORMED), or is part of it (None)."""
        section = self._section
        own = yield from section.followed(hit, (inner.own,))
        if hit in self._end.literals:
            if own and not inner.same:
                return Outcome.COMPLETE
            inner.same -= own
            inner.elements -= 1
        elif hit in self._begin.literals:
            if not inner.calls and (yield from section.followed(hit, inner.siblings)):
                self._unclosed = True
                return Outcome.MALFORMED if inner.elements else Outcome.COMPLETE
            inner.same += own
            inner.elements += 1
        elif hit in section.is_call.literals:
            inner.calls += 1
        elif hit == section.call_close.text and inner.calls:
            inner.calls -= 1
        elif hit == section.call_close.text and (yield from section.ends_all(hit)):
            return Outcome.MALFORMED if inner.elements else Outcome.COMPLETE
        return None


@dataclass(slots=True)
class _Inner:
    """What a text has opened inside: calls, elements, and those with its own tag (`own`: the rest of that). `siblings`:
    the rest of the tags that may follow it."""

    own: str
    siblings: tuple[str, ...]
    calls: int = 0
    elements: int = 0
    same: int = 0


def _value(text: str, types: frozenset[str] | None, schema: Schemas) -> str:
    """Returns the JSON of a value that is not taken literally. If an array is expected, anything else becomes its
    item."""
    if (listed := enumerated(text, schema.values())) is not None:
        return listed
    if types in _EMPTY and not text.strip():
        return _EMPTY[types]
    if types != _ARRAY or (array := coerced(text, _ARRAY)) is None:
        items = schema.items() if types == _ARRAY else schema
        return f'"{quoted(text)}"' if items.is_literal else typed(text, items.own())
    return array


class _Items:
    """The children of an array."""

    missing: tuple[str, ...] = ()
    """The declared children that have no value yet."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._some = False
        self.begun = ""

    def has(self, key: str) -> bool:
        """Whether the child was written already, and can take no second value."""
        del key
        return False

    def child(self, key: str) -> Write:
        del key
        self._write(", " if self._some else "[")
        self._some = True
        return self._write

    def end(self) -> None:
        self._write("]" if self._some else "[]")


class _Members:
    """The children of an object. Some models write an array as repeated elements under the array's name, so a repeated
    child becomes an array, and only streamed text is written before the next child is known.

    `whole`: the object is written only when it ends, since its children may repeat in any order.
    """

    def __init__(self, write: Write, schemas: Schemas, *, whole: bool) -> None:
        self._write = write
        self._schemas = schemas
        self._whole = whole
        self._some = False
        self._waiting: dict[str, list[list[str]]] = {}
        self.begun = ""  # the child that is being read
        self._written: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether the child was written already, and can take no second value."""
        return key in self._written

    @property
    def missing(self) -> tuple[str, ...]:
        """The declared children that have no value yet."""
        return tuple(name for name in self._schemas.names if name not in self._written | self._waiting.keys())

    def child(self, key: str) -> Write:
        """Returns the function to which the next child's value is written."""
        self.begun = key
        if not self._whole and key not in self._waiting:
            self._flush()
            if self._schemas.child(key).is_literal:
                self._key(key)
                return self._write
        values = self._waiting.setdefault(key, [])
        values.append([])
        return values[-1].append

    def _key(self, key: str) -> None:
        self._write(f'{", " if self._some else "{"}"{quoted(key)}": ')
        self._some = True
        self._written.add(key)

    def _flush(self) -> None:
        for key, values in self._waiting.items():
            self._key(key)
            self._write(_joined(["".join(value) for value in values], self._schemas.child(key)))
        self._waiting.clear()

    def break_off(self) -> None:
        """Write what is left, but the value that was being read."""
        if self.begun in self._waiting and not self._waiting[self.begun][:-1]:
            del self._waiting[self.begun]
        elif self.begun in self._waiting:
            self._waiting[self.begun].pop()
        self._flush()

    def cut(self) -> None:
        """Write what is left, and the value in which the output ended, as far as it came."""
        values = self._waiting.get(self.begun) or [[]]
        self.break_off()
        if values[-1] and self.begun in self._schemas.names and self.begun not in self._written:
            self._key(self.begun)
            self._write("".join(values[-1]))

    def end(self) -> None:
        """Write what is left, and the end of the object."""
        wrapped = None if self._whole or self._some else self._wrapped()
        self._flush()
        self._write(wrapped or ("}" if self._some else "{}"))

    def _wrapped(self) -> str | None:
        """Returns the object inside the only child if its keys are the tool's parameters, and drop the child."""
        if len(self._waiting) != 1 or not self._schemas.names:
            return None
        ((key, values),) = self._waiting.items()
        found = None if key in self._schemas.names else unwrapped(key, "".join(values[-1]), self._schemas.names)
        if found is not None:
            self._waiting.clear()
        return found


def _joined(values: Sequence[str], schema: Schemas) -> str:
    """Join the values of one name: an array if there are several, or if the schema requires one."""
    if len(values) == 1 and (schema.own() != _ARRAY or values[0].startswith("[")):
        return values[0]
    return f"[{', '.join(values)}]"


_BARE_KEY = re.compile(r"[A-Za-z_][\w.\-]*")
_ANY_KEY = Pattern(r"\w[\w.\-]{0,100}")


def dictionary_grammar(syntax: DictionarySyntax, tools: Sequence[Tool], rules: Rules, most: int | None) -> Node:
    """Returns the grammar of one to `most` calls as bare dictionaries, with the markers around them."""
    notation = _Bare(syntax, rules)

    def call(tool: Tool) -> Node:
        arguments = Values(tool.parameters, notation, rules, notation).arguments(notation.members)
        return in_order(Words(tool.name), arguments)

    return arranged(syntax, one_of(*map(call, tools)), most)


class _Bare(NestedNotation):
    """The notation with bare keys and strings between quote marks."""

    def __init__(self, syntax: DictionarySyntax, rules: Rules) -> None:
        self._quote = syntax.quote
        self._rules = rules

    def text(self, schema: Schema) -> Node:
        pattern = whole_pattern(schema, self._rules)
        return in_order(Marker(self._quote), Until(self._quote, (self._quote,), pattern, *bounds(schema)))

    def constant(self, value: str | float | bool | None) -> Node:
        if isinstance(value, str):
            return in_order(Marker(self._quote), Words(value), Marker(self._quote))
        return Words(json.dumps(value))

    def array(self, item: Node, least: int, most: int | None) -> Node:
        return in_order(Words("["), listed(item, least, most, ","), Words("]"))

    def members(self, members: Sequence[Member], others: Node | None = None) -> Node:
        ranked = sorted(members, key=lambda member: member.key.lower())  # as these families' templates sort them
        pairs = [(in_order(self._key(member.key), Words(":"), member.value), member.required) for member in ranked]
        if others is not None:
            pairs.append((listed(in_order(_ANY_KEY, Words(":"), others), 1, None, ","), False))
        return in_order(Words("{"), separated(pairs, Words(","), self._rules), Words("}"))

    def _key(self, key: str) -> Node:
        return Words(key) if _BARE_KEY.fullmatch(key) else self.constant(key)


def nested_grammar(syntax: NestedSyntax, tools: Sequence[Tool], rules: Rules, most: int | None) -> Node:
    """Returns the grammar of one to `most` calls whose arguments are nested elements, with the markers around them."""
    notation = _Elements(syntax, rules)

    def call(tool: Tool) -> Node:
        arguments = Values(tool.parameters, notation, rules, notation).arguments(notation.elements)
        return in_order(Words(tool.name), Marker(syntax.name_end), arguments)

    return arranged(syntax, one_of(*map(call, tools)), most)


class _Elements(NestedNotation):
    """The notation with an element for each member. Every value includes the opening mark of its closing tag."""

    def __init__(self, syntax: NestedSyntax, rules: Rules) -> None:
        self._begin, self._tag_end, self._end = syntax.tag
        self._without = (self._begin, self._end)
        self._rules = rules

    def elements(self, members: Sequence[Member], others: Node | None = None) -> Node:
        """Returns elements for these members, one after the other, then those of other names."""
        found = [(self._element(Words(member.key), member.value), member.required) for member in members]
        # No grammar can make an end tag repeat any name: one that differs makes the call malformed.
        further = NOTHING if others is None else Repeat(self._element(_ANY_KEY, others))
        return in_order(*(element if required else maybe(element) for element, required in found), further)

    def text(self, schema: Schema) -> Node:
        pattern = whole_pattern(schema, self._rules)
        return Until(self._end, self._without, pattern, *bounds(schema))

    def constant(self, value: str | float | bool | None) -> Node:
        return self._closed(Words(value if isinstance(value, str) else json.dumps(value)))

    def array(self, item: Node, least: int, most: int | None) -> Node:
        return self._closed(Repeat(self._element(Words(_ITEM), item), least, most))

    def members(self, members: Sequence[Member], others: Node | None = None) -> Node:
        return self._closed(self.elements(members, others))

    def json(self, schema: Schema, root: Schema) -> Node:
        return self._closed(JsonText(schema, root))

    def _any_type(self, item: Node) -> Node:
        return one_of(self.text({}), self._closed(Repeat(self._element(_ANY_KEY, item), 1)))

    def _closed(self, value: Node) -> Node:
        return in_order(value, Marker(self._end))

    def _element(self, key: Node, value: Node) -> Node:
        return in_order(Marker(self._begin), key, Marker(self._tag_end), value, key, Marker(self._tag_end))
