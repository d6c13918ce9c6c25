"""A call without any markers: a JSON object, or a pythonic list, which is one when it names a declared tool.

Knows: how far text must be seen until that is decided. Does not know: the inside of a call (`shapes`).
"""

import re
from collections.abc import Mapping

from engine.families import ToolSyntax
from engine.parsing.emitter import Emitter
from engine.parsing.marks import Spelling
from engine.parsing.reader import Reader, Reading
from engine.parsing.shapes import JsonShape, PythonicShape, Section
from engine.types import Tool

_STRING = re.compile(r'"([^"\\]*)("?)')
_SPACE = re.compile(r"\s*")
_CALL = re.compile(r"\[\s*([\w.\-]*)(\s*\()?")


class BareCalls:
    """A JSON object without markers, which is a call when it names a declared tool."""

    def __init__(self, reader: Reader, emitter: Emitter, syntax: ToolSyntax | None, spelling: Spelling) -> None:
        json = syntax if syntax is not None and syntax.shape == "json" else ToolSyntax(shape="json", bare=True)
        self._syntax = json.model_copy(update={"section": ("", ""), "bare": True})
        unmarked = Section(reader, emitter, self._syntax, spelling)
        self._reader = reader
        self._tools: Mapping[str, Tool] = emitter.tools or {}
        self._objects = JsonShape(unmarked)
        self._list = PythonicShape(unmarked) if syntax is not None and syntax.shape == "pythonic" else None

    def read(self) -> Reading[None]:
        """The call that stands here."""
        if self._list is not None and self._reader.buffer[self._reader.pos] == "[":
            yield from self._list.read()
        else:
            yield from self._objects.call()

    def stands_here(self) -> Reading[bool]:
        """Whether a call begins here, decided once its name is."""
        reader = self._reader
        while True:
            decided = self._names_a_tool(reader.buffer[reader.pos :])
            if decided is not None:
                return decided
            if reader.closed:
                return False
            yield

    def _names_a_tool(self, text: str) -> bool | None:
        """None while the text is too short to tell. Before the name only short string members may come."""
        if text.startswith("[") and self._list is not None:
            return self._lists_a_tool(text)
        if not text.startswith("{"):
            return False if text else None
        allowed = (*self._syntax.name_fields, *self._syntax.id_fields, "type")
        at = 1
        while True:
            key, at = _string_at(text, at, allowed)
            if key is None:
                return None if at < 0 else False
            at = _skip(text, at, ":")
            if at < 0 or at >= len(text):
                return None if at != -2 else False
            named = key in self._syntax.name_fields
            value, at = _string_at(text, at, tuple(self._tools) if named else None)
            if value is None:
                return None if at < 0 else False
            if named:
                return value in self._tools
            at = _skip(text, at, ",")
            if at < 0:
                return None if at != -2 else False

    def _lists_a_tool(self, text: str) -> bool | None:
        found = _CALL.match(text)
        assert found is not None  # the text starts with the bracket
        name, opening = found.groups()
        if opening:
            return name in self._tools
        possible = any(tool.startswith(name) for tool in self._tools)
        return None if found.end() == len(text) and possible else False


def _skip(text: str, at: int, expected: str) -> int:
    """The place after the expected character and white space; -1 when the text ends, -2 when another stands there."""
    match = _SPACE.match(text, at)
    at = match.end() if match else at
    if at == len(text):
        return -1
    if text[at] != expected:
        return -2
    match = _SPACE.match(text, at + 1)
    return match.end() if match else at + 1


def _string_at(text: str, at: int, allowed: tuple[str, ...] | None) -> tuple[str | None, int]:
    """A short string at this place and the place after it. (None, -1): the text ends within one that may still be
    allowed; (None, 0): none stands there, or one that is not allowed."""
    space = _SPACE.match(text, at)
    at = space.end() if space else at
    if at == len(text):
        return None, -1
    found = _STRING.match(text, at)
    if found is None:
        return None, 0
    content, closed = found.groups()
    if not closed:
        cut = found.end() == len(text)
        possible = allowed is None or any(option.startswith(content) for option in allowed)
        return (None, -1) if cut and possible else (None, 0)
    return (content, found.end()) if allowed is None or content in allowed else (None, 0)
