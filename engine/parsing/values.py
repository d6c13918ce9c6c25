"""Argument text as models write it in markup, made into JSON fragments under the tool's schema.

Knows: which schemas take text literally, how other values are read (JSON first, then text), and how text becomes the
inside of a JSON string. Does not know: markers. Rules: a pure string schema never coerces ("02134" stays text); a
nullable or union schema tries JSON first and falls back to text.
"""

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

_PYTHON_LITERALS = {"True": "true", "False": "false", "None": "null"}
_ANY: Mapping[str, Any] = {"any": True}  # no schema: not the root's, which `None` would mean
TEXT = frozenset(["string"])
_STRING_EDGES = re.compile(r'"|\\.?', re.DOTALL)
_TYPE_NAMES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (str, "string"),
    (int, "integer"),
    (float, "number"),
    (list, "array"),
    (dict, "object"),
)


class Schemas:
    """A schema, asked for the types of its parts: a tool's parameters, or (deeper) one of them. An unknown tool or
    parameter has no schema: any type may come."""

    __slots__ = ("_node", "_properties", "_root")

    def __init__(self, parameters: Mapping[str, Any] | None, node: object = None) -> None:
        self._root: Mapping[str, Any] = parameters or {}
        self._node = self._followed(self._root if node is None else node)
        properties = self._node.get("properties")
        known = isinstance(properties, Mapping)
        self._properties: Mapping[str, Any] = cast("Mapping[str, Any]", properties) if known else {}

    def types(self, name: str) -> frozenset[str] | None:
        """The JSON types that a parameter takes; None when that is not said."""
        return self._types(self._properties.get(name), depth=0)

    def own(self) -> frozenset[str] | None:
        """The JSON types of this schema itself."""
        return self._types(self._node, depth=0)

    def child(self, name: str) -> "Schemas":
        """The schema of a property."""
        return Schemas(self._root, self._properties.get(name, _ANY))

    def items(self) -> "Schemas":
        """The schema of an array's items."""
        return Schemas(self._root, self._node.get("items", _ANY))

    def at(self, position: int) -> str | None:
        """The name of the parameter in that position."""
        names = list(self._properties)
        return names[position] if position < len(names) else None

    def only(self) -> str | None:
        """The name of the only parameter."""
        return self.at(0) if len(self._properties) == 1 else None

    def _followed(self, node: object) -> Mapping[str, Any]:
        for _ in range(8):
            reference = cast("Mapping[str, Any]", node).get("$ref") if isinstance(node, Mapping) else None
            if not isinstance(reference, str):
                break
            node = self._resolve(reference)
        return cast("Mapping[str, Any]", node) if isinstance(node, Mapping) else {}

    def _types(self, schema: object, depth: int) -> frozenset[str] | None:
        if not isinstance(schema, Mapping) or depth > 8:
            return None
        node = cast("Mapping[str, Any]", schema)
        if isinstance(reference := node.get("$ref"), str):
            return self._types(self._resolve(reference), depth + 1)
        if "type" in node:
            stated = node["type"]
            return frozenset([stated] if isinstance(stated, str) else stated)
        if "const" in node:
            return frozenset([type_name(node["const"])])
        if "enum" in node:
            return frozenset(type_name(value) for value in node["enum"])
        for union in ("anyOf", "oneOf"):
            if union in node:
                return _union(self._types(branch, depth + 1) for branch in node[union])
        if "allOf" in node:
            known = [types for branch in node["allOf"] if (types := self._types(branch, depth + 1)) is not None]
            return known[0].intersection(*known[1:]) if known else None
        return None

    def _resolve(self, reference: str) -> object:
        node: object = self._root
        for step in reference.removeprefix("#/").split("/"):
            if not isinstance(node, Mapping):
                return None
            node = cast("Mapping[str, object]", node).get(step)
        return node


def _union(branches: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    types: set[str] = set()
    for branch in branches:
        if branch is None:
            return None
        types |= branch
    return frozenset(types)


def type_name(value: object) -> str:
    """The JSON type of a Python value."""
    return next((name for kind, name in _TYPE_NAMES if isinstance(value, kind)), "null")


def quoted(text: str) -> str:
    """Text as the inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def typed(text: str, types: frozenset[str] | None) -> str:
    """The JSON of a value that is not purely text: what the model wrote if that is JSON of an allowed type, else a
    string."""
    bare = text.strip()
    bare = _PYTHON_LITERALS.get(bare, bare) if types is None or not types.isdisjoint({"boolean", "null"}) else bare
    parsed = _json(bare) or _python(bare)
    if parsed is None:
        return f'"{quoted(text)}"'
    as_json, kind = parsed
    if types is None or kind in types or (kind == "integer" and "number" in types):
        return as_json
    return as_json if "string" not in types else f'"{quoted(text)}"'


def _json(text: str) -> tuple[str, str] | None:
    """JSON text for JSON text (the same, or with raw control characters escaped), and its type; None when not."""
    for strict in (True, False):
        try:
            value = json.loads(text, strict=strict, parse_constant=no_constant)
        except (ValueError, RecursionError):
            continue
        return (text if strict else json.dumps(value, ensure_ascii=False)), type_name(value)
    return None


def _python(text: str) -> tuple[str, str] | None:
    """The same for a list or dictionary as Python writes it: some templates show models no other form."""
    if text[:1] not in ("[", "{", "("):
        return None
    try:
        value: object = ast.literal_eval(text)
        return json.dumps(value, ensure_ascii=False), ("object" if isinstance(value, dict) else "array")
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def no_constant(name: str) -> object:
    """For `json.loads(parse_constant=..)`: NaN and Infinity are no JSON."""
    raise ValueError(f"{name} is not JSON")


class ArgumentWriter:
    """Assembles `{"key": value, ...}` from keys and values that come in markup, as fragments."""

    __slots__ = ("_held", "_inside", "_lead", "_never_json", "_open", "_parts", "_scanned", "_some", "_types", "_write")

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._some = False
        self._open = False
        self._held: list[str] = []
        self._lead: str = ""
        self._types: frozenset[str] | None = None
        self._parts: list[str] = []
        self._scanned = 0
        self._inside = ""
        self._never_json = False

    def key(self, name: str, types: frozenset[str] | None, lead: str) -> None:
        """A value begins. `lead` is the white space that the template writes before it."""
        self._write(f'{", " if self._some else "{"}"{quoted(name)}": ')
        self._some, self._types, self._lead = True, types, lead
        self._held.clear()
        self._open = False
        self._parts.clear()
        self._scanned, self._inside, self._never_json = 0, "", False
        if self.is_text:
            self._write('"')

    @property
    def is_text(self) -> bool:
        """Whether the present value is taken literally, and so streams."""
        return self._types == TEXT

    def is_json(self) -> bool:
        """Whether what came of the present value is whole JSON of its own (never so for text), and a marker follows.

        The marker is part of the value else, and outside of a string no JSON holds one: so a value is read as a whole
        once at most, however many markers it has.
        """
        if self.is_text or self._never_json:
            return False
        for part in self._parts[self._scanned :]:
            self._scan(part)
        self._scanned = len(self._parts)
        if self._inside:
            return False
        self._never_json = _json("".join(self._parts).strip()) is None
        return not self._never_json

    def _scan(self, text: str) -> None:
        """Keep up whether the text ends inside a string (`"`), and there behind a backslash (`\\`)."""
        if self._inside == "\\":
            self._inside, text = '"', text[1:]
        for found in _STRING_EDGES.finditer(text):
            if found.group() == '"':
                self._inside = "" if self._inside else '"'
            elif self._inside and len(found.group()) == 1:
                self._inside = "\\"

    def text(self, text: str) -> None:
        """More of the value. White space that may belong to the markup is held back."""
        if not self._open:
            text = "".join(self._held) + text
            self._held.clear()
            if self._lead.startswith(text) and text != self._lead:
                self._held.append(text)
                return
            text = text.removeprefix(self._lead)
            self._open = True
        kept = text.rstrip()
        if kept:
            kept = "".join(self._held) + kept
            self._held.clear()
            if self.is_text:
                self._write(quoted(kept))
            else:
                self._parts.append(kept)
        if space := text[len(text.rstrip()) :]:
            self._held.append(space)

    def end_value(self, before: str) -> None:
        """The value is over, the template writes `before` ahead of what closed it."""
        held = "".join(self._held)
        held = (held if self._open else held.removeprefix(self._lead)).removesuffix(before)
        if self.is_text:
            self._write(quoted(held) + '"')
        else:
            self._write(typed("".join(self._parts) + held, self._types))

    def end(self) -> None:
        """No more arguments."""
        self._write("}" if self._some else "{}")
