"""Turns argument text that models write in markup into JSON fragments under the tool's schema.

Rules: a pure string schema never coerces ("02134" stays text); a nullable or union schema tries JSON first and falls
back to text; a schema without strings coerces text that can mean only one value of its type ("007" for an integer),
even if the markup calls the value text, but never if it calls it JSON.
"""

import ast
import json
import re
from collections.abc import Callable, Iterable, Sequence

from engine.formats.grammar.schemas import TEXT, Schemas, type_name
from engine.tools import json_value

_PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}
JSON_TYPES = frozenset(["any"])
"""Stands in for the types of a value that the markup declares to be JSON, whatever the schema says."""
_encoded = json.JSONEncoder(ensure_ascii=False).encode
_INTEGER = re.compile(r"([+-]?)0*(\d+)")
_DECIMAL = re.compile(r"([+-]?)0*(\d*)\.(\d*)((?:[eE][+-]?\d+)?)")
_WRAPPERS = frozenset(["arguments", "args", "input", "kwargs", "parameters", "params", "properties"])
_STRING_EDGES = re.compile(r"[\"']|\\.?", re.DOTALL)
_BEFORE_STRING = ("", *"[{(,:")
"""What stands before a string of Python; elsewhere, its quotation mark is an apostrophe."""


def quoted(text: str) -> str:
    """Returns text as the inside of a JSON string."""
    return _encoded(text)[1:-1]


def typed(text: str, types: frozenset[str] | None) -> str:
    """Returns the JSON of a value that the markup does not call text: the value itself if it is JSON of an allowed
    type, the only value that it can mean if the schema takes no strings, else a string."""
    if types is not None and (meant := coerced(text, types)) is not None:
        return meant
    parsed = _parsed(text.strip(), types)
    if parsed is None or (types is not None and "string" in types):
        return f'"{quoted(text)}"'
    return parsed[0]


def enumerated(text: str, values: Iterable[object]) -> str | None:
    """Returns the JSON of the value that the text means among those that a schema enumerates: the text, else what it is
    as JSON. None if it means none of them."""
    known = [(type(value), value) for value in values]
    if not known or (str, text) in known:
        return f'"{quoted(text)}"' if known else None
    parsed = _parsed(text.strip(), None)
    value = json_value(parsed[0], strict=False) if parsed else None
    return parsed[0] if parsed and (type(value), value) in known else None


def coerced(text: str, types: frozenset[str]) -> str | None:
    """Returns the JSON of the only value of these types that the text can mean; None if there is none, or it may be a
    string."""
    bare = text.strip()
    parsed = _parsed(bare, types)
    if parsed is not None:
        as_json, kind = parsed
        if kind in types or (kind == "integer" and "number" in types):
            return as_json
        if kind == "string":
            return coerced(json.loads(as_json, strict=False), types)
    if "string" in types:
        return None
    if bare.casefold() in ("true", "false") and "boolean" in types:
        return bare.casefold()
    return _number(bare, types)


def _number(text: str, types: frozenset[str]) -> str | None:
    """Returns a loosely written number (`007`, `+3`, `.5`) as JSON; None if it is not one."""
    if types.isdisjoint({"integer", "number"}):
        return None
    if whole := _INTEGER.fullmatch(text):
        return whole[1].removeprefix("+") + whole[2]
    decimal = _DECIMAL.fullmatch(text)
    if decimal is None or "number" not in types or not (decimal[2] or decimal[3]):
        return None
    return f"{decimal[1].removeprefix('+')}{decimal[2] or '0'}.{decimal[3] or '0'}{decimal[4]}"


def _parsed(bare: str, types: frozenset[str] | None) -> tuple[str, str] | None:
    """Returns the JSON and the type of JSON text or of a Python literal; None if it is neither."""
    constants = types is None or not types.isdisjoint({"boolean", "null"})
    return _json(_PYTHON_LITERALS.get(bare, bare) if constants else bare) or _python(bare)


def _json(text: str) -> tuple[str, str] | None:
    """Returns JSON text (unchanged, or with raw control characters escaped) and its type; None if it is not JSON."""
    for strict in (True, False):
        try:
            value = json_value(text, strict=strict)
        except ValueError:
            continue
        return (text if strict else json.dumps(value, ensure_ascii=False)), type_name(value)
    return None


def _python(text: str) -> tuple[str, str] | None:
    """The same for a Python list or dictionary: some templates show models only this form."""
    if text[:1] not in ("[", "{", "("):
        return None
    try:
        value: object = ast.literal_eval(_ESCAPE.sub(_known_escape, text))
        as_json = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return as_json, ("object" if isinstance(value, dict) else "array")


_ESCAPE = re.compile(r"\\([4-7][0-7]{2}|.|\n|$)")


def _known_escape(escape: re.Match[str]) -> str:
    """Returns an escape as it is if Python knows it, else its two characters: Python reads them so, with a warning."""
    return escape[0] if len(escape[1]) == 1 and escape[1] in "\\'\"abfnrtvxuUN01234567\n" else rf"\{escape[0]}"


def unwrapped(name: str, text: str, names: Sequence[str]) -> str | None:
    """Returns the JSON of an object whose keys are parameters of the tool (`names`): the model wrote all arguments
    under one undeclared name. None if the text is anything else."""
    parsed = _parsed(text.strip(), None)
    if parsed is None or parsed[1] != "object":
        return None
    keys: set[str] = set(json.loads(parsed[0]))
    return parsed[0] if keys.issubset(names) and (keys or name in _WRAPPERS) else None


class Outdented:
    """Takes the indent of an indented call from the lines of a text in it, if its first line has it too."""

    def __init__(self, indent: str) -> None:
        self._start = f"\n{indent}"
        self._held = ""
        self._taken: bool | None = None

    def text(self, text: str) -> str:
        """Returns more of the text, as far as it is decided."""
        text, start = self._held + text, self._start
        if self._taken is None and len(text) < len(start) and start.startswith(text):
            self._held = text
            return ""
        self._taken = text.startswith(start) if self._taken is None else self._taken
        if not self._taken:
            self._held = ""
            return text
        size = next((size for size in range(len(start) - 1, 0, -1) if text.endswith(start[:size])), 0)
        self._held = text[len(text) - size :]
        return text[: len(text) - size].replace(start, "\n")

    def rest(self) -> str:
        """Returns what is left at the end of the text."""
        return "\n" if self._taken and self._held else self._held


class ArgumentWriter:
    """Assembles `{"key": value, ...}` from fragments of keys and values in markup.

    A first argument with an undeclared name is held back: if it is the only one, and an object of the tool's own
    parameters, that object becomes the arguments.
    """

    __slots__ = (
        "_emit",
        "_held",
        "_inside",
        "_lead",
        "_never_json",
        "_open",
        "_parts",
        "_scanned",
        "_stated",
        "_types",
        "_undeclared",
        "_value",
        "_values",
        "_waiting",
        "given",
        "schemas",
    )

    def __init__(self, write: Callable[[str], None], schemas: Schemas) -> None:
        self._emit = write
        self.schemas = schemas
        self.given: set[str] = set()
        self._open = False
        self._held: list[str] = []
        self._lead: str = ""
        self._types: frozenset[str] | None = None
        self._stated = False
        self._parts: list[str] = []
        self._scanned = 0
        self._inside = ""
        self._never_json = False
        self._undeclared = ""
        self._value: list[str] = []
        self._values: tuple[object, ...] = ()
        self._waiting: list[str] | None = None

    def key(self, name: str, lead: str, stated: bool | None) -> None:
        """Begin a value. `lead` is the white space that the template writes before it; `stated`: whether the markup
        declares it to be text (None: it declares nothing)."""
        self.flush()
        types = self.schemas.types(name)
        names = self.schemas.names
        if not self.given and names and name not in names:
            self._undeclared, self._waiting = name, []
        self._write(f'{", " if self.given else "{"}"{quoted(name)}": ')
        self.given.add(name)
        self._types, self._stated = types, bool(stated)
        if stated is not None:
            self._types = JSON_TYPES if not stated else TEXT if types is None or "string" in types else types
        self._values = self.schemas.child(name).values() if stated is None else ()
        self._lead = lead
        self._held.clear()
        self._open = False
        self._parts.clear()
        self._value.clear()
        self._scanned, self._inside, self._never_json = 0, "", False
        if self.is_text:
            self._write('"')

    def _write(self, text: str) -> None:
        if self._waiting is None:
            self._emit(text)
        else:
            self._waiting.append(text)

    def flush(self) -> None:
        """Emit the argument that was held back."""
        if self._waiting is not None:
            waited, self._waiting = self._waiting, None
            self._emit("".join(waited))

    def break_off(self) -> None:
        """Emit what was held back, as it was written: the value, or a key in its place, cannot be read."""
        self.flush()
        held = "".join(self._held)
        self._emit(quoted(held) if self.is_text else "".join(self._parts) + held)
        self._parts.clear()
        self._held.clear()

    def cut(self) -> None:
        """Emit a list or an object in which the output ended, as far as it came."""
        text = "".join(self._parts)
        if self._waiting is None and text.lstrip()[:1] in ("[", "{"):
            self._emit(text)

    @property
    def missing(self) -> tuple[str, ...]:
        """The tool's parameters that have no argument yet."""
        return tuple(name for name in self.schemas.names if name not in self.given)

    @property
    def is_text(self) -> bool:
        """Whether the current value is taken literally, and so is streamed."""
        return self._types == TEXT

    def is_json(self) -> bool:
        """Whether the current value, at a marker, is complete JSON (never so for text).

        If not, the marker is part of the value. Outside a string, JSON cannot contain a marker, so a value is parsed at
        most once, however many markers it contains.
        """
        if self.is_text or self._never_json or self.in_string:
            return False
        self._never_json = _json("".join(self._parts).strip()) is None
        return not self._never_json

    @property
    def in_string(self) -> bool:
        """Whether the current value, which cannot be text, ends inside a string of an array or object, where a marker
        is text."""
        if self._types is None or "string" in self._types:
            return False
        for part in self._parts[self._scanned :]:
            self._scan(part)
        self._scanned = len(self._parts)
        return bool(self._inside) and self._parts[0].lstrip()[:1] in ("{", "[")

    def _scan(self, text: str) -> None:
        """Track which quotation mark began the string inside which the text so far ends, and whether a backslash is its
        last character."""
        if self._inside.endswith("\\"):
            self._inside, text = self._inside[0], text[1:]
        for found in _STRING_EDGES.finditer(text):
            edge = found.group()
            if edge == self._inside:
                self._inside = ""
            elif not self._inside and edge[0] != "\\":
                self._inside = edge if edge == '"' or text[: found.start()].rstrip()[-1:] in _BEFORE_STRING else ""
            elif self._inside and edge == "\\":
                self._inside += edge

    def text(self, text: str) -> None:
        """Add text to the value. White space that may belong to the markup is held back."""
        if not self._open:
            text = "".join(self._held) + text
            self._held.clear()
            leads = (self._lead, self._lead.replace("\n", "\r\n"))  # models write either
            if text not in leads and any(lead.startswith(text) for lead in leads):
                self._held.append(text)
                return
            text = text.removeprefix(next(filter(text.startswith, leads), ""))
            self._open = True
        kept = text.rstrip()
        space = text[len(kept) :]
        if kept:
            if self._held:
                kept = "".join(self._held) + kept
                self._held.clear()
            if self.is_text:
                self._write_text(kept)
            else:
                self._parts.append(kept)
        if space:
            self._held.append(space)

    def end_value(self, before: str) -> None:
        """End the value; `before` is the white space that the template writes before the closing marker."""
        held = "".join(self._held)
        held = held if self._open else held.removeprefix(self._lead)
        held = held.removesuffix(before.replace("\n", "\r\n") if held.endswith("\r\n") else before)
        if self.is_text:
            self._write_text(held)
            self._write('"')
        else:
            self._write(self._typed("".join(self._parts) + held))
        self._parts.clear()
        self._held.clear()

    def _write_text(self, text: str) -> None:
        self._write(quoted(text))
        if self._waiting is not None:
            self._value.append(text)

    def _typed(self, text: str) -> str:
        if self._waiting is not None:
            self._value.append(text)
        if (listed := enumerated(text, self._values)) is not None:
            return listed
        if self._types == JSON_TYPES:
            return typed(text, None)
        if not self._stated or self._types is None:
            return typed(text, self._types)
        return coerced(text, self._types) or f'"{quoted(text)}"'

    def end(self) -> None:
        """End the arguments."""
        if self._waiting is not None:
            wrapped = unwrapped(self._undeclared, "".join(self._value), self.schemas.names)
            if wrapped is not None:
                self._waiting = None
                self._emit(wrapped)
                return
        self.flush()
        self._emit("}" if self.given else "{}")
