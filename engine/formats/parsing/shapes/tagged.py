"""Calls whose name is in markup: with JSON arguments (`<function=f>{..}</function>` and the like) or with arguments in
markup too (`<function=f><parameter=k>v</parameter></function>` and the like).
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.formats.families import TaggedArgumentsSyntax, TaggedJsonSyntax
from engine.formats.grammar.nodes import (
    NOTHING,
    JsonText,
    Marker,
    Member,
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
    maybe,
    one_of,
    whole_pattern,
)
from engine.formats.grammar.schemas import Schemas, type_name
from engine.formats.parsing.argument_text import ArgumentWriter, Outdented
from engine.formats.parsing.emitter import CallEmitter
from engine.formats.parsing.json_reader import JsonReader, Outcome
from engine.formats.parsing.reader import Gen, Markers, Spelling, begins, compiled
from engine.formats.parsing.shapes.json_calls import JsonShape
from engine.formats.parsing.shapes.pythonic import PythonNotation
from engine.formats.parsing.shapes.section import Section
from engine.types.tools import Tool


class TaggedJsonShape:
    """`open [id id_end] [server server_end] name [id_open id] name_end {json} arguments_end close`."""

    def __init__(self, section: Section, syntax: TaggedJsonSyntax, spelling: Spelling) -> None:
        self._section = section
        self._reader = section.reader
        name_end = section.name_end
        self._is_name_end = compiled(name_end)
        self._arguments_end = compiled(spelling.mark(syntax.arguments_end).text)
        self._id_end = compiled(spelling.mark(syntax.id_end).text)
        self._server_end, self._is_name = (compiled(spelling.mark(end).text) for end in syntax.server_end)
        self._id_open = compiled(spelling.mark(syntax.id_open).text)
        # A brace also ends a name: no name contains one, and models omit the fence.
        ends = [name_end, "{", *self._id_open.literals, *section.closers.literals]
        self._name_ends = compiled(*ends)
        self._leading_ends = compiled(*ends, *self._id_end.literals, *self._server_end.literals)
        self._code_ends = compiled(*section.openers, *section.closers.literals)
        self._json = JsonReader(section.reader, section.closers.literals, section.hard)
        self._objects = JsonShape(section)

    def read(self) -> Gen[str]:
        """One call, after its opening marker."""
        reader, section = self._reader, self._section
        yield from reader.space()
        if self._id_open.literals and (yield from reader.more()) and reader.buffer[reader.pos] in "[{":
            # The older syntax of the same models: a list of objects after the same marker.
            return (yield from self._objects.read())
        id_ = yield from self._leading(self._id_end)
        server = yield from self._leading(self._server_end)
        if server is not None:
            yield from reader.space()
            if not (yield from reader.match(self._is_name)) and reader.cut_marker(self._is_name):
                return ""
        name = yield from section.name(self._name_ends)
        if name is None:
            return ""
        if (yield from reader.match(self._id_open)):
            id_ = yield from section.name(self._name_ends, name)
            if id_ is None and not reader.cut:
                return ""
        yield from reader.match(self._is_name_end)
        call = section.begin(name, id_, server)
        yield from reader.space()
        outcome = yield from self._arguments(call)
        if outcome is Outcome.COMPLETE and (self._arguments_end.literals or section.closers.literals):
            yield from reader.space()
            if self._arguments_end.literals:
                if not (yield from reader.match(self._arguments_end)):
                    reader.cut_marker(self._arguments_end)
                yield from reader.space()
        if outcome is not Outcome.TRUNCATED:
            yield from section.call_closed()
        return ""

    def _leading(self, end: Markers) -> Gen[str | None]:
        """Read what is written before the name, up to its own end; None if the family writes no such thing."""
        if not end.literals:
            return None
        text = yield from self._section.name(self._leading_ends)
        return text if (yield from self._reader.match(end)) else None

    def _arguments(self, call: CallEmitter) -> Gen[Outcome]:
        """Read the arguments and end the call."""
        reader, section = self._reader, self._section
        if not (yield from reader.more()):
            call.end("truncated" if reader.cut else None)
            return Outcome.TRUNCATED
        if (yield from reader.starts(section.closers)) is not None:
            call.end()
            return Outcome.COMPLETE
        first = reader.buffer[reader.pos]
        if call.name == "python" and first != "{":
            yield from section.raw_code(call, self._code_ends)
            return Outcome.COMPLETE
        read = self._json.unwrapped if first == '"' else self._json.value
        outcome = yield from read(call.write, "arguments")
        if outcome is Outcome.COMPLETE and not (yield from section.object_ends()):
            outcome = Outcome.MALFORMED
        if outcome is Outcome.COMPLETE and first not in '{["' and not (yield from self._is_whole()):
            outcome = Outcome.MALFORMED
        if outcome is Outcome.TRUNCATED:
            call.end("truncated")
        elif outcome is Outcome.MALFORMED:
            yield from section.rest_is_malformed(call, *section.closers.literals)
        else:
            call.end()
            yield from section.superfluous([*self._arguments_end.literals, *section.closers.literals])
        return outcome

    def _is_whole(self) -> Gen[bool]:
        """Whether what stands in place of an object ends the arguments, where a marker does."""
        section, ends = self._section, (*self._arguments_end.literals, *self._section.closers.literals)
        return not ends or (yield from section.followed("", ends))


@dataclass(slots=True)
class _Inner:
    """Calls, arguments and like elements that a value has opened as text: each may have a closing marker of its own.
    `ends`: the value's own closing marker, taken as text. `doubled`: the size of what repeats that marker. `opened`:
    the value's opening marker has come, if it has one."""

    calls: int = 0
    ends: int = 0
    arguments: int = 0
    elements: int = 0
    doubled: int = 0
    opened: bool = True


_LONGEST_KEY = 128
_ATTRIBUTES = re.compile(r"""(\S+?)["']?(?:\s+[\w:\-]+\s*=\s*(?:"[^"]*(?:"|$)|'[^']*(?:'|$)|[^\s"']+))+\s*""")
"""A key, and the attributes behind it; the last may lack the quotation mark that the end of the key brings."""
_IDLE = re.compile(r"\S*(?:\s+[\w:\-]+=\S*)*\s*")
"""Attributes of a call, which say nothing that its reader needs. Other words are prose."""
_SPACE = re.compile(r"\s+")
_CDATA_OPEN = "<![CDATA["
_CDATA_CLOSE = compiled("]]>")


class TaggedArgumentsShape:
    """`open name name_end (argument key key_end value argument_end)* close`."""

    def __init__(self, section: Section, syntax: TaggedArgumentsSyntax, spelling: Spelling) -> None:
        self._section = section
        self._syntax = syntax
        self._reader = section.reader
        argument, self._value_end = (spelling.mark(literal) for literal in syntax.argument)
        key_end, value_open = spelling.mark(syntax.key_end), spelling.mark(syntax.value_open)
        type_end = spelling.mark(syntax.type_end)
        self._argument = compiled(argument.text)
        self._is_empty = compiled(spelling.mark(syntax.call_empty).text)
        self._lead = next((mark.after for mark in (value_open, type_end, key_end) if mark.text), "")
        self._is_name_end = compiled(section.name_end)
        self._is_key_end, self._is_type_end = compiled(key_end.text), compiled(type_end.text)
        self._is_value_open = compiled(value_open.text)
        self._attributes_end = compiled(spelling.mark(syntax.attributes_end).text)
        closers = section.closers.literals
        self._name_ends = compiled(*self._is_name_end.literals, *self._is_empty.literals, argument.text, *closers)
        self._key_ends = compiled(key_end.text, type_end.text, self._value_end.text, *closers)
        self._type_ends = compiled(type_end.text, self._value_end.text, *closers)
        self._is_json_block, self._json_block_end = (compiled(spelling.text(text)) for text in syntax.json_block)
        self._json = JsonReader(section.reader, [*self._json_block_end.literals, *closers], section.hard)
        self._no_prose = spelling.is_hard(syntax.argument[0])
        # How an element begins that this closing marker may close, whatever else its tag says.
        tag = spelling.mark(syntax.value_open or syntax.argument[0]).text
        self._element = tag.rpartition(" ")[0] or tag.rstrip("=>")
        calls = (section.call_close.text, *section.is_call.literals)
        self._value_ends = compiled(self._value_end.text, *calls, argument.text, self._element)
        # Texts that may follow a value: anything else means that the closing marker was part of the value.
        self._follow_markers = compiled(argument.text, *closers)
        self._after_key = key_end.text
        self._inside = compiled(argument.text, *closers, *self._is_json_block.literals)
        self._follows = self._follow_markers.literals
        self._unclosed = False  # a value of the call was ended by the next argument
        self._indent = ""  # of the argument's opening marker
        self._raw: list[str] = []  # the markup of the argument so far, which a call that cannot be read keeps

    def read(self) -> Gen[str]:
        """One call, after its opening marker."""
        section, reader = self._section, self._reader
        name = yield from section.name(self._name_ends)
        if name is None:
            return ""
        if (yield from reader.match(self._is_empty)):
            section.begin(name).end()
            return ""
        yield from reader.match(self._is_name_end)
        attributes: list[str] = []
        if self._attributes_end.literals:
            yield from reader.until(self._attributes_end, attributes.append)
            reader.note("marker", "".join(attributes))
            yield from reader.match(self._attributes_end)
        call, self._unclosed, self._indent = section.begin(name), False, ""
        arguments = ArgumentWriter(call.write, section.schemas(call.name))
        yield from self._space()
        self._raw.clear()
        if (yield from reader.more()) and not _IDLE.fullmatch("".join(attributes)):
            self._raw += attributes
            outcome = Outcome.MALFORMED
        elif (yield from reader.match(self._is_json_block)) or reader.buffer.startswith("{", reader.pos):
            yield from self._whole_json(call)
            return ""
        else:
            outcome = yield from self._arguments(arguments)
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
            arguments.end()
            call.end()
        yield from section.call_closed()
        return ""

    def _whole_json(self, call: CallEmitter) -> Gen[None]:
        """Read all arguments as one JSON text, and end the call."""
        reader, section = self._reader, self._section
        yield from reader.space()
        outcome = yield from self._json.value(call.write, "arguments")
        if outcome is Outcome.TRUNCATED:
            call.end("truncated")
            return
        if outcome is Outcome.MALFORMED:
            yield from section.rest_is_malformed(call, *self._json_block_end.literals, *section.closers.literals)
        else:
            call.end()
            yield from reader.space()
        if not (yield from reader.match(self._json_block_end)):
            reader.cut_marker(self._json_block_end)
        yield from reader.space()
        yield from section.call_closed()

    def _arguments(self, arguments: ArgumentWriter) -> Gen[Outcome]:
        """Read all arguments, up to a closing marker (not consumed)."""
        reader = self._reader
        while True:
            yield from self._space()
            if not (yield from reader.more()) or reader.cut_marker(self._inside):
                # The closing marker ends this shape: without it, the call is complete only if the model ended the turn
                # itself.
                return Outcome.TRUNCATED if reader.cut else Outcome.COMPLETE
            if (yield from reader.starts(self._section.closers)) is not None:
                return Outcome.COMPLETE
            reader.record = self._raw
            found = yield from self._one_key(arguments)
            reader.record = None
            if isinstance(found, Outcome):
                return found
            self._raw.clear()
            if found is not None and (outcome := (yield from self._value(arguments, *found))) is not Outcome.COMPLETE:
                return outcome

    def _space(self) -> Gen[None]:
        """Consume white space. At the end of a line it is the indent of what follows."""
        space = yield from self._reader.all_of(_SPACE, "space")
        _, line, indent = space.rpartition("\n")
        self._indent = indent if line else self._indent if not space else ""

    def _one_key(self, arguments: ArgumentWriter) -> Gen["tuple[str, _Inner] | Outcome | None"]:
        """Read an argument up to its value, and begin that. None: it has no value."""
        reader = self._reader
        if not (yield from reader.match(self._argument)):
            if reader.cut_marker(self._inside):
                return Outcome.TRUNCATED if reader.cut else Outcome.COMPLETE
            return Outcome.MALFORMED if (yield from reader.more()) else Outcome.TRUNCATED
        parts: list[str] = []
        hit = yield from reader.until(self._key_ends, parts.append)
        key, inner = self._key(reader.plain("".join(parts)).strip(), arguments.schemas.names), _Inner()
        reader.note("key", "".join(parts))
        if hit is None:
            return Outcome.TRUNCATED
        stated = yield from self._stated_type()
        if hit not in self._is_key_end.literals and stated is None:
            return Outcome.MALFORMED
        prose = not arguments.schemas.takes(key) or (stated and not stated.isalnum())
        if prose and (yield from reader.more()):
            return Outcome.MALFORMED
        if self._is_value_open.literals:
            yield from reader.space()
            if not (yield from reader.match(self._is_value_open)):
                if reader.cut_marker(self._is_value_open):
                    return Outcome.TRUNCATED
                if (yield from reader.starts(self._follow_markers)) is not None:
                    return None  # a key without a value is ignored
                inner.opened = False
        if key in arguments.given:
            return Outcome.MALFORMED  # which of the two values is meant cannot be known
        text = None if stated is None else stated in self._syntax.text_types
        if self._syntax.untyped_text and arguments.schemas.types(key) is None:
            text = True
        arguments.key(key, self._lead, text)
        return key, inner

    def _key(self, written: str, names: Sequence[str]) -> str:
        """Returns the key in a tag's text, which models put into quotes, or attributes behind it."""
        key = self._section.unescaped(written)
        if key in names:
            return key
        if (tagged := _ATTRIBUTES.fullmatch(written)) and self._section.unescaped(tagged[1]) in names:
            written = tagged[1]
        return self._section.unescaped(written.strip("\"'"))

    def _stated_type(self) -> Gen[str | None]:
        """Consume the end of the key. Returns the type that the markup states for the value; None if it states none."""
        reader = self._reader
        keyed = yield from reader.match(self._is_key_end)
        if not self._is_type_end.literals:
            return None
        if not keyed:
            return "" if (yield from reader.match(self._is_type_end)) else None
        parts: list[str] = []
        hit = yield from reader.until(self._type_ends, parts.append)
        reader.note("marker", "".join(parts))
        if hit in self._is_type_end.literals:
            yield from reader.match(self._is_type_end)
        return "".join(parts)

    def _value(self, arguments: ArgumentWriter, key: str, inner: "_Inner") -> Gen[Outcome]:
        reader, end = self._reader, self._value_end.text
        is_known = end.startswith("</") and len(key) <= _LONGEST_KEY and key in arguments.schemas.names
        named = f"{end[:-1]}={key}>" if is_known else ""  # models repeat the name
        markers = compiled(*self._value_ends.literals, named)

        outdented = Outdented(self._indent) if self._indent and self._lead == "\n" and arguments.is_text else None

        def write(text: str) -> None:
            reader.note("arguments", text)
            arguments.text(outdented.text(reader.plain(text)) if outdented else reader.plain(text))

        def cut(text: str) -> None:
            # Most likely the beginning of a marker: it is not added to the arguments.
            reader.note("arguments", text)

        cdata = self._syntax.cdata and (yield from self._cdata())
        if cdata:
            yield from reader.until(_CDATA_CLOSE, write, tail=cut)
            yield from reader.match(_CDATA_CLOSE)
            if (yield from self._section.followed("", (self._value_end.text,), at_end=False)):
                yield from reader.space()
        while True:
            hit = yield from reader.until(markers, write, tail=cut)
            if hit is None:
                return Outcome.TRUNCATED
            outcome = yield from self._at_marker(hit, arguments, inner, named)
            if outcome is None:
                write(reader.take(len(hit)))
                continue
            if outdented is not None:
                arguments.text(outdented.rest())
            if outcome is Outcome.COMPLETE:
                reader.take(len(hit) + inner.doubled if hit in (end, named) else 0, "marker")
                arguments.end_value(self._value_end.before)
            self._section.emitter.doubted |= outcome is Outcome.MALFORMED
            return outcome

    def _at_marker(self, hit: str, arguments: ArgumentWriter, inner: "_Inner", named: str) -> Gen[Outcome | None]:
        """What the marker at the front does to the value: it ends it, shows that its own closing marker is missing
        among those that it holds as text (MALFORMED), or is part of it (None)."""
        whole = Outcome.MALFORMED if inner.arguments or inner.ends else Outcome.COMPLETE
        if hit == self._value_end.text:
            return (yield from self._at_end(hit, arguments, inner))
        if hit == named:
            return Outcome.COMPLETE if (yield from self._section.followed(hit, self._follows)) else None
        if arguments.in_string:
            return None
        if hit == self._element and hit not in self._argument.literals:
            inner.elements += 1
            return None if inner.opened else Outcome.MALFORMED  # prose stands before the value
        if hit in self._argument.literals:
            if not inner.calls and (yield from self._opens_next(hit, arguments)):
                self._unclosed = True
                return whole
            inner.arguments += 1
        elif hit in self._section.is_call.literals:
            inner.calls += 1
        elif inner.calls:
            inner.calls -= 1
        elif (yield from self._section.ends_all(hit)):
            return whole
        return None

    def _at_end(self, hit: str, arguments: ArgumentWriter, inner: "_Inner") -> Gen[Outcome | None]:
        """The same for the value's closing marker, which a model may write twice."""
        if not arguments.is_json() and (inner.arguments or arguments.in_string):
            return (yield from self._inner_end(hit, arguments, inner))
        inner.doubled = yield from self._doubled(hit)
        ends = inner.doubled or arguments.is_json() or (yield from self._section.followed(hit, self._follows))
        if self._unclosed and (inner.doubled or not ends):
            return Outcome.MALFORMED  # this argument is part of the value that seemed to end where it begins
        if ends and not (inner.doubled and inner.elements):
            return Outcome.COMPLETE
        inner.ends += not inner.elements
        inner.elements = max(inner.elements - 1, 0)
        return None

    def _inner_end(self, marker: str, arguments: ArgumentWriter, inner: "_Inner") -> Gen[Outcome | None]:
        """The same for the closing marker of an argument that the value holds as text."""
        if (yield from self._section.ends_all(marker, self._section.call_close.text)):
            return Outcome.MALFORMED
        following = tuple(f"{opening}{name}" for opening in self._argument.literals for name in self._named(arguments))
        outside = not (inner.calls or arguments.in_string)
        if outside and (yield from self._section.followed(marker, following, at_end=False)):
            return Outcome.MALFORMED
        inner.arguments -= bool(inner.arguments)
        return None

    def _named(self, arguments: ArgumentWriter) -> list[str]:
        """What follows an argument's opening marker: a parameter that has no value yet, and the end of its key."""
        return [f"{name}{self._after_key}" for name in arguments.missing]

    def _opens_next(self, marker: str, arguments: ArgumentWriter) -> Gen[bool]:
        """Whether the marker at the front opens another of the tool's arguments; if not, it is text, perhaps of
        code."""
        if self._no_prose and not arguments.schemas.names:
            return True
        ends = self._named(arguments)
        return (yield from self._reader.judged(lambda rest: begins(rest, ends), len(marker))) is True

    def _cdata(self) -> Gen[bool]:
        """Consume the opening mark of a CDATA section, and white space before it, if there is one at the front."""
        reader = self._reader
        begun = yield from reader.judged(lambda rest: begins(rest.lstrip(), [_CDATA_OPEN]))
        if begun:
            reader.take(reader.buffer.index(_CDATA_OPEN, reader.pos) + len(_CDATA_OPEN) - reader.pos, "marker")
        elif begun is None and reader.closed:  # most likely the beginning of the mark: it is not added to the arguments
            reader.take(reader.left, "arguments")
        return begun is True

    def _doubled(self, marker: str) -> Gen[int]:
        """Returns the size of what repeats the value's closing marker, behind the one at the front and before what can
        follow a value; 0 if nothing does, or other text follows."""
        reader = self._reader

        def size(rest: str) -> int | None:
            tail, doubled = rest.lstrip(), 0
            while tail.startswith(marker):
                doubled = len(rest) - len(tail) + len(marker)
                tail = tail[len(marker) :].lstrip()
            if any(map(tail.startswith, self._follows)) or (reader.closed and not tail):
                return doubled
            return None if any(text.startswith(tail) for text in (marker, *self._follows)) else 0

        return (yield from reader.judged(size, len(marker))) or 0


def json_grammar(syntax: TaggedJsonSyntax, tools: Sequence[Tool], most: int | None) -> Node:
    """Returns the grammar of one to `most` calls with a name in markup and JSON arguments, with the markers around
    them."""
    call_id = Pattern(rf"[a-zA-Z0-9]{{{syntax.id_length}}}" if syntax.id_length else r"[a-zA-Z0-9_.\-]{1,40}")
    ends = filter(None, (syntax.id_end, "".join(syntax.server_end)))
    leading = in_order(*(in_order(call_id, Marker(end)) for end in ends))
    later = maybe(in_order(Marker(syntax.id_open), call_id)) if syntax.id_open else NOTHING
    counter = Pattern(":[0-9]{1,3}") if syntax.name_is_id else NOTHING
    prefix = Marker(syntax.name_prefix)

    def call(tool: Tool) -> Node:
        name = in_order(prefix, Words(tool.name), counter, later, Marker(syntax.name_end))
        return in_order(name, JsonText(tool.parameters), Marker(syntax.arguments_end))

    return arranged(syntax, in_order(leading, one_of(*map(call, tools))), most)


def grammar(syntax: TaggedArgumentsSyntax, tools: Sequence[Tool], rules: Rules, most: int | None) -> Node:
    """Returns the grammar of one to `most` calls with name and arguments in markup, with the markers around them."""
    attributes = in_order(Pattern(r"( index=\"[0-9]{1,3}\")?"), Marker(syntax.attributes_end))

    # A line break of its own would keep the lexer from one that a marker begins with.
    space = NOTHING if syntax.call[1][:1].isspace() else _BREAK

    def given(members: Sequence[Member], others: Node | None) -> Node:
        opening = Marker(syntax.argument[0])
        arguments: list[Node] = []
        for member in members:
            argument = in_order(opening, Words(escaped(syntax, member.key)), member.value, space)
            arguments.append(argument if member.required else maybe(argument))
        if others is not None:
            arguments.append(Repeat(in_order(opening, _ANY_NAME, others, space)))
        if any(member.required for member in members):
            return in_order(*arguments)
        return one_of(in_order(*arguments), Marker("\n"))  # as templates do: a line break between the arguments

    def call(tool: Tool) -> Node:
        arguments = Values(tool.parameters, _Markup(syntax, rules, tool.parameters), rules).arguments(given)
        end = syntax.name_end if space == NOTHING else syntax.name_end.rstrip()
        begun = in_order(Words(tool.name), Marker(end), space)
        return in_order(begun, attributes if syntax.attributes_end else NOTHING, arguments)

    def announced(tool: Tool) -> Node:
        named = in_order(Marker(syntax.heading[0]), Words(tool.name), Marker(syntax.heading[1]))
        return in_order(named, arranged(syntax, call(tool), 1))

    if not syntax.heading[0]:
        return arranged(syntax, one_of(*map(call, tools)), most)
    single = one_of(*map(announced, tools))
    further = in_order(Marker(syntax.between or ""), single)
    return in_order(single, Repeat(further, 0, None if most is None else most - 1))


_BREAK = maybe(Marker("\n"))
"""A line break between two markers: templates of one family differ in them, and so do models."""
_ANY_NAME = Pattern(r"[^<>\"\x00-\x1f\x7f]{1,100}")


def escaped(syntax: TaggedArgumentsSyntax, text: str) -> str:
    """Returns a name escaped for the quotes of an attribute, if the family escapes names."""
    if not syntax.escaped:
        return text
    return text.replace("&", "&amp;").replace('"', "&quot;")


class _Markup:
    """The notation of values between the end of a key and the end of an argument: text unchanged; the rest as JSON, or,
    where the markup states no types, as Python's literals, which some templates write."""

    def __init__(self, syntax: TaggedArgumentsSyntax, rules: Rules, root: Schema) -> None:
        literals = PythonNotation(rules, mixed=False)
        self._python = None if syntax.type_end else Values(root, literals, rules, literals)
        self._syntax = syntax
        self._rules = rules
        self._end = syntax.argument[1].rstrip()
        markers = (syntax.argument[1], syntax.call[1], syntax.section[1], syntax.argument[0])
        self._without = tuple(dict.fromkeys(text.strip() for text in markers if text.strip()))

    def text(self, schema: Schema) -> Node:
        least, most = bounds(schema)
        pattern = whole_pattern(schema, self._rules)
        return in_order(self._lead("string"), Until(self._end, self._without, pattern, least, most))

    def constant(self, value: str | float | bool | None) -> Node:
        if isinstance(value, str):
            return in_order(self._lead("string"), Words(value), Marker(self._end))
        words = Words(json.dumps(value))
        if self._python is not None:
            words = one_of(words, Words(repr(value)))
        return in_order(self._lead(type_name(value)), words, Marker(self._end))

    def json(self, schema: Schema, root: Schema) -> Node:
        types = Schemas(root, schema).own() or frozenset(["object"])
        leads = one_of(*(self._lead(name) for name in sorted(types)))
        written: Node = JsonText(schema, root)
        if self._python is not None and types <= _NESTED:
            written = one_of(written, self._python.value(schema))
        return in_order(leads, written, Marker(self._end))

    def any(self) -> Node:
        if self._python is not None:
            return self.text({})
        kinds = ("number", "boolean", "null", "array", "object")
        return one_of(self.text({}), *(self.json({"type": kind}, {}) for kind in kinds))

    def _lead(self, name: str) -> Node:
        """Returns the markup between a key and a value of that type."""
        syntax = self._syntax
        if syntax.value_open:
            return in_order(Marker(syntax.key_end.rstrip()), _BREAK, Marker(syntax.value_open))
        if not syntax.type_end:
            return Marker(syntax.key_end)
        stated = syntax.text_types[0] if name == "string" else _OTHER_TYPES.get(syntax.text_types[0], name)
        stated = "number" if stated == "integer" else stated
        return in_order(Marker(syntax.key_end), Words(stated), Marker(syntax.type_end))


_NESTED = frozenset(["array", "object"])
_OTHER_TYPES = {"true": "false"}
"""The word that markup has for every type but text, by its word for text."""
