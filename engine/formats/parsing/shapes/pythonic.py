"""Calls written as Python calls, `[f(a=1, b="x"), g()]` or one per line, and the literals in them.

Source of the syntax: the Python language reference, "Literals".
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence

from engine.formats.families import PythonicSyntax
from engine.formats.grammar.nodes import (
    JsonText,
    Marker,
    Member,
    NestedNotation,
    Node,
    Pattern,
    Rules,
    Schema,
    Values,
    Words,
    arranged,
    bounds,
    in_order,
    listed,
    one_of,
    separated,
)
from engine.formats.grammar.schemas import Schemas
from engine.formats.parsing.argument_text import quoted
from engine.formats.parsing.emitter import CallEmitter
from engine.formats.parsing.json_reader import Outcome
from engine.formats.parsing.reader import CONTROL, WINDOW, Gen, Reader, begins
from engine.formats.parsing.shapes.section import Items, Section
from engine.tools import DEEPEST
from engine.tools.formats import PATTERNS
from engine.types.tools import IN_NAME, Tool

_WORD = re.compile(r"[\w.+\-]+")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_PYTHON_NUMBER = re.compile(r"([+-]?(?:0[xob][\da-fA-F_]+|\d[\d_]*))|[+-]?(?:\d[\d_]*)?\.?\d*(?:[eE][+-]?\d+)?")
_RUNS = {quote: re.compile(rf"[^{quote}\\{CONTROL}]+") for quote in "'\""}
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[^xuU])", re.DOTALL)
_ESCAPE_START = re.compile(r"\\(?:x[0-9a-fA-F]?|u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7})?")
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": ""}
_BRACKETS = {"[": "]", "(": ")", "{": "}"}
_CLOSING = ")]} \t\r\n"
_ITEM = re.compile(r"\w+\s*=(?!=)|[\"'\[({)\]}\d.+\-]|(?:[Tt]rue|[Ff]alse|None|null)\b")
_MAYBE_ITEM = re.compile(r"\w*\s*=?")

Write = Callable[[str], None]


class LiteralReader:
    """Reads literals from a reader. `kind` is the trace's kind for their text; `ends` are the markers that may follow
    if a bracket is missing; `keywords` are texts that may follow a comma although Python does not allow them there."""

    def __init__(self, reader: Reader, kind: str = "arguments", ends: Iterable[str] = ()) -> None:
        self._reader = reader
        self._kind = kind
        self._ends = tuple(ends)
        self.keywords: tuple[str, ...] = ()

    def value(self, write: Write, depth: int = 0) -> Gen[Outcome]:
        """Consume one literal and pass its JSON to `write` as it arrives. One that nests too deep is malformed."""
        reader = self._reader
        if depth > DEEPEST:
            return Outcome.MALFORMED
        char = yield from reader.after_space(self._kind)
        if not char:
            return Outcome.TRUNCATED
        if char in _RUNS:
            return (yield from self._string(write, char))
        if char in _BRACKETS:
            reader.take(1, self._kind)
            if char == "{":
                return (yield from self._dictionary(write, depth + 1))
            return (yield from self._items(write, _BRACKETS[char], depth + 1))
        return (yield from self._word(write))

    def _items(self, write: Write, close: str, depth: int, *, some: bool = False) -> Gen[Outcome]:
        """Read the items of a list, up to its closing bracket. `some`: the first item was already read."""
        if not some:
            write("[")
        while True:
            outcome = yield from self._next(close, first=not some)
            if outcome is not None:
                if outcome is Outcome.COMPLETE:
                    write("]")
                return outcome
            if some:
                write(", ")
            some = True
            outcome = yield from self.value(write, depth)
            if outcome is not Outcome.COMPLETE:
                return outcome

    def _dictionary(self, write: Write, depth: int) -> Gen[Outcome]:
        """Read a dictionary, or a set, which becomes a list."""
        reader = self._reader
        some = False
        while True:
            outcome = yield from self._next("}", first=not some)
            if outcome is not None:
                if outcome is Outcome.COMPLETE:
                    write("}" if some else "{}")
                return outcome
            key: list[str] = []
            outcome = yield from self.value(key.append, depth)
            text = "".join(key)
            if outcome is not Outcome.COMPLETE:
                write((", " if some else "{") + text)
                return outcome
            char = yield from reader.after_space(self._kind)
            if not char:
                return Outcome.TRUNCATED
            if char in ",}" and not some:
                write("[" + text)
                return (yield from self._items(write, "}", depth, some=True))
            if char != ":":
                return Outcome.MALFORMED
            write((", " if some else "{") + (text if text.startswith('"') else f'"{quoted(text)}"') + ": ")
            some = True
            reader.take(1, self._kind)
            outcome = yield from self.value(write, depth)
            if outcome is not Outcome.COMPLETE:
                return outcome

    def _next(self, close: str, *, first: bool) -> Gen[Outcome | None]:
        """Consume the text between items. COMPLETE: the closing bracket was consumed; None: an item follows."""
        reader = self._reader
        separated = first
        while True:
            char = yield from reader.after_space(self._kind)
            if not char:
                return Outcome.TRUNCATED
            if char == close:
                reader.take(1, self._kind)
                return Outcome.COMPLETE
            if separated:
                return None
            if char != ",":
                return Outcome.MALFORMED
            reader.take(1, self._kind)
            separated = True

    def _word(self, write: Write) -> Gen[Outcome]:
        """Read a number or the name of a constant."""
        reader = self._reader
        word = yield from reader.all_of(_WORD, self._kind)
        if not reader.left:
            return Outcome.TRUNCATED
        as_json = _constant(word)
        write(word if as_json is None else as_json)
        return Outcome.MALFORMED if as_json is None else Outcome.COMPLETE

    def _string(self, write: Write, quote: str) -> Gen[Outcome]:
        reader = self._reader
        delimiter = yield from self._delimiter(quote)
        write('"')
        if delimiter == "":
            write('"')
            return Outcome.COMPLETE
        while (yield from reader.more()):
            run = _RUNS[quote].match(reader.buffer, reader.pos)
            if run:
                write(quoted(reader.take(run.end() - reader.pos, self._kind)))
                continue
            char = reader.buffer[reader.pos]
            if char == quote:
                if (yield from self._delimits(delimiter)) and (len(delimiter) > 1 or (yield from self._is_over(quote))):
                    reader.take(len(delimiter), self._kind)
                    write('"')
                    return Outcome.COMPLETE
                write(quoted(reader.take(1, self._kind)))
            elif char != "\\":
                return Outcome.MALFORMED
            elif not (yield from self._escape(write)):
                return Outcome.TRUNCATED
        return Outcome.TRUNCATED

    def _delimiter(self, quote: str) -> Gen[str]:
        """Consume and return the opening quotes: one, or three. "" means an empty string, which was consumed."""
        reader = self._reader
        while reader.left < 3 and not reader.closed and set(reader.buffer[reader.pos :]) == {quote}:
            yield
        opening = reader.buffer[reader.pos : reader.pos + 3]
        if opening == quote * 3:
            return reader.take(3, self._kind)
        if opening[:2] == quote * 2:
            reader.take(2, self._kind)
            return ""
        return reader.take(1, self._kind)

    def _delimits(self, delimiter: str) -> Gen[bool]:
        reader = self._reader
        while reader.left < len(delimiter) and not reader.closed:
            if set(reader.buffer[reader.pos :]) != {delimiter[0]}:
                return False
            yield
        return reader.buffer.startswith(delimiter, reader.pos)

    def _is_over(self, quote: str) -> Gen[bool]:
        """Whether the quote at the front ends its string: it does if the text after it can follow a string. Models
        leave quotes inside strings unescaped (`'awk 'NR==2' f.txt'`)."""

        def follows(text: str) -> bool | None:
            return self._follows(text.lstrip(), quote, spaced=text[:1].isspace())

        return (yield from self._reader.judged(follows, 1)) is not False

    def _follows(self, rest: str, quote: str, *, spaced: bool) -> bool | None:
        """Whether this text, stripped of leading white space, can follow a string; None: undecided."""
        head = rest[:1]
        if head == ",":
            tail = rest[1:].lstrip()
            if _ITEM.match(tail) or any(map(tail.startswith, self.keywords)):
                return True
            if tail and any(keyword.startswith(tail) for keyword in self.keywords):
                return None
            return None if _MAYBE_ITEM.fullmatch(tail) else False
        if head in _CLOSING:
            tail = rest.lstrip(_CLOSING)
            return tail[0] != quote if tail else None
        if head == quote and spaced:
            return True  # two adjacent strings, which no call has
        ended = begins(rest, self._ends)
        return head in ":;" if ended is False else ended

    def _escape(self, write: Write) -> Gen[bool]:
        """Consume an escape. Returns False if the input ended inside it."""
        reader = self._reader
        while True:
            whole = _ESCAPE.match(reader.buffer, reader.pos)
            if whole:
                write(_unescaped(reader.take(whole.end() - reader.pos, self._kind)))
                return True
            start = _ESCAPE_START.match(reader.buffer, reader.pos)
            if start is None or start.end() < len(reader.buffer):
                write(quoted(reader.take(1, self._kind)))  # not an escape: the backslash itself
                return True
            if reader.closed:
                reader.take(reader.left, self._kind)
                return False
            yield


def _constant(word: str) -> str | None:
    """Returns the JSON of a number or constant; None if it is neither."""
    if word in _WORDS:
        return _WORDS[word]
    if _JSON_NUMBER.fullmatch(word):
        return word
    number = _PYTHON_NUMBER.fullmatch(word)
    if number is None or len(word) > 1000:
        return None
    try:
        if number.group(1):
            return str(int(word, 10 if number.group(1).lstrip("+-")[1:2].isdigit() else 0))
        return json.dumps(float(word), allow_nan=False)
    except (ValueError, OverflowError):
        return None


def _unescaped(escape: str) -> str:
    """Returns one Python escape as it is written inside a JSON string."""
    kind = escape[1]
    if kind == "u":
        return escape  # the same in JSON, halves of surrogate pairs included
    if kind in "xU":
        code = int(f"0x{escape[2:]}", 0)
        return quoted(chr(code)) if code < 0x110000 else quoted(escape)
    if kind in "\\'\"/":
        return quoted(kind)
    return quoted(_SIMPLE.get(kind, escape))


_NAME = re.compile(rf"{IN_NAME}+")
_NEXT = re.compile(rf"[,;]?\s*{IN_NAME}+\s*\(|[,;]\s*\]")
_MAYBE_NEXT = re.compile(rf"[,;]?\s*(?:{IN_NAME}+\s*)?")
_BLANKS_AND_BRACKETS = ")]} \t"
_KEYWORD = re.compile(r"(\w+)\s*=(?!=)")
_MAYBE_KEYWORD = re.compile(r"\w*\s*=?")


class PythonicShape:
    """Reads `name(key=value, ..)`, in a list, or several."""

    def __init__(self, section: Section) -> None:
        self._section = section
        self._reader = section.reader
        self._literals = LiteralReader(section.reader, ends=section.closers.literals)
        self._ends = (*section.closers.literals, *section.openers, "<")

    def read(self) -> Gen[str]:
        """Read the calls of a section, including its closing marker if it has one."""
        reader, section = self._reader, self._section
        items = Items(reader, ",;")
        while True:
            char = yield from reader.after_space()
            if not char:
                return ""
            if (yield from section.closed()):
                return section.close.after
            if items.take(char):
                if items.over and not section.close.text:
                    return ""
            elif _NAME.match(char):
                yield from self.call()
                items.some = True
            elif (items.some and not items.listed) or not (yield from section.no_call()):
                return ""
            else:
                items.some, items.listed = True, False

    def call(self) -> Gen[None]:
        """Read one call, from its name on."""
        reader = self._reader
        name = yield from reader.all_of(_NAME, "name")
        char = yield from reader.after_space("marker")
        if not char:
            if not reader.cut:
                self._section.begin(name).end("truncated")  # the name may be the beginning of another
            return
        # Llama's built-in tools are written name.call(..).
        declared = name in (self._section.emitter.tools or {})
        call = self._section.begin(name if declared else name.removesuffix(".call"))
        outcome = Outcome.MALFORMED
        if char == "(":
            reader.take(1, "marker")
            outcome = yield from self._arguments(call)
        if outcome is Outcome.COMPLETE and not (yield from self._is_followed()):
            outcome = Outcome.MALFORMED
        if outcome is Outcome.MALFORMED:
            yield from self._section.rest_is_malformed(call)
        elif outcome is Outcome.TRUNCATED:
            call.end("truncated")
        else:
            call.end()

    def _is_followed(self) -> Gen[bool]:
        """Whether the text behind a call can stand there: another line, another call, a marker, or the bracket that
        ends a list. If not, a quote inside a string has cut the call short."""
        reader, bare = self._reader, not self._section.close.text

        def follows(rest: str) -> bool | None:
            if bare and rest.lstrip(" \t")[:1] == "]":
                return True
            tail = rest.lstrip(_BLANKS_AND_BRACKETS)
            if tail and (tail[0] in "\r\n" or _NEXT.match(tail) or any(mark[0] == tail[0] for mark in self._ends)):
                return True
            return None if _MAYBE_NEXT.fullmatch(tail) else False

        return (yield from reader.judged(follows)) is not False

    def _arguments(self, call: CallEmitter) -> Gen[Outcome]:
        reader, schemas = self._reader, self._section.schemas(call.name)
        position, separated = 0, True
        # Parameter names that are not Python identifiers.
        self._literals.keywords = tuple(f"{name}=" for name in schemas.names if not name.isidentifier())
        while True:
            char = yield from reader.after_space("marker")
            if not char:
                # The closing bracket ends this shape: without it, the call is complete only if the model ended the turn
                # itself.
                if not reader.cut and not separated:
                    call.write("}")
                    return Outcome.COMPLETE
                return Outcome.TRUNCATED
            if char == "," and not separated:
                reader.take(1, "marker")
                separated = True
                continue
            if char == ")":
                reader.take(1, "marker")
                call.write("}" if position else "{}")
                return Outcome.COMPLETE
            if not separated:
                return Outcome.MALFORMED
            separated = False
            key = yield from self._key(schemas, position)
            if key is None:
                return Outcome.MALFORMED if reader.left else Outcome.TRUNCATED
            call.write(f'{", " if position else "{"}"{quoted(key)}": ')
            position += 1
            outcome = yield from self._literals.value(call.write)
            if outcome is not Outcome.COMPLETE:
                return outcome

    def _key(self, schemas: Schemas, position: int) -> Gen[str | None]:
        """Consume and return the keyword at the front, or return the name of the parameter in this position."""
        reader = self._reader
        odd = self._literals.keywords
        while True:
            rest = reader.buffer[reader.pos : reader.pos + WINDOW]
            if (named := next(filter(rest.startswith, odd), None)) is not None:
                return reader.take(len(named), "key")[:-1]
            if not reader.closed and rest and any(name.startswith(rest) for name in odd):
                yield
                continue
            found = _KEYWORD.match(reader.buffer, reader.pos)
            if found is not None and (found.end() < len(reader.buffer) or reader.closed):
                reader.take(found.end() - reader.pos, "key")
                return found.group(1)
            undecided = _MAYBE_KEYWORD.match(reader.buffer, reader.pos)
            if reader.closed and reader.cut and undecided is not None and undecided.end() == len(reader.buffer):
                reader.take(reader.left, "key")
                return None
            if undecided is None or undecided.end() < len(reader.buffer) or reader.closed:
                return schemas.at(position)
            if reader.left > WINDOW:
                return None
            yield


def grammar(syntax: PythonicSyntax, tools: Sequence[Tool], rules: Rules, most: int | None) -> Node:
    """Returns the grammar of one to `most` calls as Python calls, with the markers around them."""
    notation = PythonNotation(rules, raw=True)

    def given(members: Sequence[Member], others: Node | None) -> Node:
        pairs = [(in_order(Words(f"{member.key}="), member.value), member.required) for member in members]
        if others is not None:
            pairs.append((listed(in_order(_ANY_KEYWORD, Words("="), others), 1, None, ", "), False))
        return separated(pairs, Words(", "), rules)

    def call(tool: Tool) -> Node:
        arguments = Values(tool.parameters, notation, rules, notation).arguments(given)
        return in_order(Words(f"{tool.name}("), arguments, Words(")"))

    calls = one_of(*map(call, tools))
    if syntax.several == "list":
        items = in_order(Words("["), listed(calls, 1, most, ", "), Words("]"))
        return in_order(Marker(syntax.section[0].lstrip()), items, Marker(syntax.section[1].rstrip()))
    return arranged(syntax, calls, most)


_ANY_KEYWORD = Pattern(r"[A-Za-z_][A-Za-z0-9_]{0,100}")


class PythonNotation(NestedNotation):
    """The notation of Python's literals. `raw`: line breaks in strings are not escaped. `mixed`: constants may be
    JSON's too, as templates write lists and dictionaries."""

    def __init__(self, rules: Rules, *, raw: bool = False, mixed: bool = True) -> None:
        self._rules = rules
        self._mixed = mixed
        self._controls = r"\x00-\x08\x0b-\x1f\x7f" if raw else r"\x00-\x1f\x7f"

    def text(self, schema: Schema) -> Node:
        if "pattern" in schema or schema.get("format") in PATTERNS:
            held = {name: schema[name] for name in ("pattern", "minLength", "maxLength") if name in schema}
            return JsonText({"type": "string", "pattern": f"^({PATTERNS.get(schema.get('format', ''))})$", **held})
        least, most = bounds(schema)
        times = f"{{{least},{'' if most is None else most}}}"
        escapes = r"[\\'\"nrtbf]"
        return one_of(*(Pattern(rf"{q}(?:[^{q}\\{self._controls}]|\\{escapes}){times}{q}") for q in "'\""))

    def constant(self, value: str | float | bool | None) -> Node:
        if isinstance(value, str):
            inner = quoted(value)
            single = inner.replace('\\"', '"').replace("'", "\\'")
            return one_of(Words(f'"{inner}"'), Words(f"'{single}'"))
        spellings = [repr(value), json.dumps(value)] if self._mixed else [repr(value)]
        return one_of(*map(Words, dict.fromkeys(spellings)))

    def array(self, item: Node, least: int, most: int | None) -> Node:
        return in_order(Words("["), listed(item, least, most, ", "), Words("]"))

    def members(self, members: Sequence[Member], others: Node | None = None) -> Node:
        pairs = [
            (in_order(self.constant(member.key), Words(": "), member.value), member.required) for member in members
        ]
        if others is not None:
            pairs.append((listed(in_order(self.text({}), Words(": "), others), 1, None, ", "), False))
        return in_order(Words("{"), separated(pairs, Words(", "), self._rules), Words("}"))
