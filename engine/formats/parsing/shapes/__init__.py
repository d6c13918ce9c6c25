"""The shapes of tool calls: each has a class that reads it and emits events while it reads."""

import re
from collections.abc import Sequence
from typing import TypeAlias

from engine.formats.families import (
    DictionarySyntax,
    JsonSyntax,
    NestedSyntax,
    PythonicSyntax,
    TaggedArgumentsSyntax,
    TaggedJsonSyntax,
    ToolSyntax,
    WholeSyntax,
)
from engine.formats.grammar.nodes import Node, Rules, one_of
from engine.formats.parsing.emitter import Emitter
from engine.formats.parsing.reader import Gen, Reader, Spelling, begins
from engine.formats.parsing.shapes import elements, json_calls, pythonic, tagged
from engine.formats.parsing.shapes.elements import DictionaryShape, NestedShape
from engine.formats.parsing.shapes.json_calls import JsonShape
from engine.formats.parsing.shapes.pythonic import PythonicShape
from engine.formats.parsing.shapes.section import Section
from engine.formats.parsing.shapes.tagged import TaggedArgumentsShape, TaggedJsonShape
from engine.types.tools import IN_NAME, Tool

_OBJECTS = re.compile(r"\[?\s*\{")
_MAYBE_OBJECTS = re.compile(r"\[?\s*")
_CALL = re.compile(rf"{IN_NAME}+\(")
_NAME = re.compile(rf"\A{IN_NAME}+")
_LOOK = 200
"""The most characters looked at to distinguish the two syntaxes that the same markers may enclose."""
_MAYBE_CALL = re.compile(rf"{IN_NAME}*")

__all__ = ["JsonShape", "PythonicShape", "Section", "SectionReader"]


_Call: TypeAlias = TaggedJsonShape | TaggedArgumentsShape | DictionaryShape | NestedShape


class SectionReader:
    """Reads one section of calls in a format's own shape."""

    def __init__(self, reader: Reader, emitter: Emitter, syntax: ToolSyntax, spelling: Spelling) -> None:
        section = Section(reader, emitter, syntax, spelling)
        self.section = section
        self._whole: JsonShape | PythonicShape | None = None
        self._tagged: TaggedJsonShape | None = None
        self._call: _Call | None = None
        match syntax:
            case JsonSyntax():
                self._whole = JsonShape(section, syntax)
                if syntax.name_end and syntax.section[0]:
                    self._tagged = TaggedJsonShape(section, _newer(syntax), spelling)
            case PythonicSyntax():
                self._whole = PythonicShape(section)
            case TaggedJsonSyntax():
                self._call = TaggedJsonShape(section, syntax, spelling)
            case TaggedArgumentsSyntax():
                self._call = TaggedArgumentsShape(section, syntax, spelling)
            case DictionarySyntax():
                self._call = DictionaryShape(section, syntax, spelling)
            case NestedSyntax():
                self._call = NestedShape(section, syntax, spelling)

    def read(self, opener: str) -> Gen[str]:
        """Read the section whose opener was just consumed. Returns the white space that belongs after it."""
        section = self.section
        section.is_open = section.is_open or opener not in section.is_call.literals
        if opener != section.tag_open:
            yield from section.opened_again(opener)
        if self._whole is not None:
            return (yield from self._read_whole(opener, self._whole))
        if opener == section.code_open.text:
            return (yield from section.code())
        assert self._call is not None  # every shape is one of the two kinds
        after = ""
        if opener == section.tag_open:
            yield from section.tag_opened()
        elif opener in section.is_call.literals:
            yield from self._call.read()
            after = section.call_close.after
            if not section.close.text:
                return after
        return (yield from self._read_calls(self._call, after))

    def _read_calls(self, call: "_Call", after: str) -> Gen[str]:
        """Read the calls of a section up to what closes it. `after`: the white space behind the last one so far."""
        section = self.section
        while True:
            yield from section.reader.space()
            if (yield from section.closed()):
                return section.close.after
            if section.close.text and section.reader.buffer[section.reader.pos :][:1] in ("{", "["):
                # Another family's syntax between this family's markers, or a slip before this family's.
                after = yield from JsonShape(section).read()
                if not section.is_open or (yield from section.reader.starts(section.is_call)) is None:
                    return after
            if section.reader.cut_marker(section.inside):
                return after
            if not (yield from section.reader.match(section.is_call)):
                return after
            yield from call.read()
            after = section.call_close.after

    def _read_whole(self, opener: str, whole: JsonShape | PythonicShape) -> Gen[str]:
        """Read a section of JSON or of Python calls, whichever it contains: the same markers enclose both."""
        reader, section = self.section.reader, self.section
        yield from reader.space()
        pythonic = isinstance(whole, PythonicShape)
        if not (yield from reader.more()):
            return ""
        if opener == section.code_open.text and opener != section.open.text:
            return (yield from section.code())

        def kind(rest: str) -> str | None:
            found, maybe = (_OBJECTS, _MAYBE_OBJECTS) if pythonic else (_CALL, _MAYBE_CALL)
            if found.match(rest):
                return "other"
            if maybe.fullmatch(rest):
                return None
            if self._tagged is None or rest[:1] in ("{", "["):
                return "own"
            newer = section.would_begin(opener, rest)
            return None if newer is None else "newer" if newer else "own"

        written = yield from reader.judged(kind, most=_LOOK)
        if written == "newer" and self._tagged is not None:
            return (yield from self._tagged.read())
        if written == "other":
            return (yield from (JsonShape(section) if pythonic else PythonicShape(section)).read())
        if opener == section.code_open.text and reader.buffer[reader.pos] not in "{[":
            return (yield from section.code())
        return (yield from whole.read())

    def names_a_tool(self, opener: str) -> Gen[bool]:
        """Whether a declared tool's name (any name, if the tools are not known) and the end of a name follow the opener
        at the front. Consumes nothing."""
        section, reader = self.section, self.section.reader
        tools = section.emitter.tools

        def named(rest: str) -> bool | None:
            # Raw code is a call of `python`, declared or not.
            names = (*tools, "python") if tools is not None else _NAME.findall(rest)
            return begins(rest, [f"{name}{section.names.end}" for name in names]) if rest else None

        found = yield from reader.judged(named, len(opener))
        return found or (found is None and reader.cut)


def _newer(syntax: JsonSyntax) -> TaggedJsonSyntax:
    """The syntax that models of one tokenizer also write under the older template."""
    return TaggedJsonSyntax(shape="tagged_json", call=syntax.section, name_end=syntax.name_end, id_open=syntax.id_open)


def grammar(syntax: ToolSyntax, tools: Sequence[Tool], rules: Rules, *, most: int | None) -> Node:
    """Returns the grammar of one to `most` calls (None: any number) of these tools in a family's own syntax."""
    if isinstance(syntax, WholeSyntax) and syntax.bare:
        unmarked = _grammar(syntax.model_copy(update={"section": ("", "")}), tools, rules, most)
        return one_of(unmarked, _grammar(syntax, tools, rules, most)) if syntax.section[0] else unmarked
    return _grammar(syntax, tools, rules, most)


def _grammar(syntax: ToolSyntax, tools: Sequence[Tool], rules: Rules, most: int | None) -> Node:
    match syntax:
        case JsonSyntax():
            return json_calls.grammar(syntax, tools, most)
        case PythonicSyntax():
            return pythonic.grammar(syntax, tools, rules, most)
        case TaggedJsonSyntax():
            return tagged.json_grammar(syntax, tools, most)
        case TaggedArgumentsSyntax():
            return tagged.grammar(syntax, tools, rules, most)
        case DictionarySyntax():
            return elements.dictionary_grammar(syntax, tools, rules, most)
        case NestedSyntax():
            return elements.nested_grammar(syntax, tools, rules, most)
