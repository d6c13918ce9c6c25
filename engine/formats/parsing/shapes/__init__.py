"""The shapes of tool calls: each has a class that reads it and emits events while it reads."""

import re
from collections.abc import Sequence

from engine.formats.families import ToolSyntax
from engine.formats.parsing.emitter import Emitter
from engine.formats.parsing.grammar import Node, Rules, one_of
from engine.formats.parsing.reader import WINDOW, Gen, Reader, Spelling
from engine.formats.parsing.shapes import elements, json_calls, pythonic, tagged
from engine.formats.parsing.shapes.elements import DictionaryShape, NestedShape
from engine.formats.parsing.shapes.json_calls import JsonShape
from engine.formats.parsing.shapes.pythonic import PythonicShape
from engine.formats.parsing.shapes.section import Section
from engine.formats.parsing.shapes.tagged import TaggedArgumentsShape, TaggedJsonShape
from engine.types.tools import Tool

_OBJECTS = re.compile(r"\[?\s*\{")
_MAYBE_OBJECTS = re.compile(r"\[?\s*")
_CALL = re.compile(r"[A-Za-z_][\w.\-]*\(")
_NAME = re.compile(r"\A[\w.\-]+")
_LOOK = 200
"""The most characters looked at to distinguish the two syntaxes that the same markers may enclose."""
_MAYBE_CALL = re.compile(r"(?:[A-Za-z_][\w.\-]*)?")

__all__ = ["JsonShape", "PythonicShape", "Section", "SectionReader"]


class SectionReader:
    """Reads one section of calls in a format's own shape."""

    def __init__(self, reader: Reader, emitter: Emitter, syntax: ToolSyntax, spelling: Spelling) -> None:
        section = Section(reader, emitter, syntax, spelling)
        self.section = section
        self._whole: JsonShape | PythonicShape | None = None
        self._tagged: TaggedJsonShape | None = None
        self._call: TaggedJsonShape | TaggedArgumentsShape | DictionaryShape | NestedShape | None = None
        match syntax.shape:
            case "json":
                self._whole = JsonShape(section)
                if syntax.name_end:
                    # Models of one tokenizer write the newer syntax under the older template.
                    self._tagged = TaggedJsonShape(section, spelling)
            case "pythonic":
                self._whole = PythonicShape(section)
            case "tagged_json":
                self._call = TaggedJsonShape(section, spelling)
            case "tagged_args":
                self._call = TaggedArgumentsShape(section, spelling)
            case "dictionary":
                self._call = DictionaryShape(section, spelling)
            case "nested":
                self._call = NestedShape(section, spelling)

    def read(self, opener: str) -> Gen[str]:
        """Read the section whose opener was just consumed. Returns the white space that belongs after it."""
        section = self.section
        section.is_open = section.is_open or opener not in section.is_call.literals
        if opener != section.tag_open:
            yield from section.opened_again(opener)
        if self._whole is not None:
            return (yield from self._read_whole(opener))
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
            yield from self._call.read()
            after = section.call_close.after

    def _read_whole(self, opener: str) -> Gen[str]:
        """Read a section of JSON or of Python calls, whichever it contains: the same markers enclose both."""
        reader, section = self.section.reader, self.section
        yield from reader.space()
        pythonic = isinstance(self._whole, PythonicShape)
        if not (yield from reader.more()):
            return ""
        if opener == section.code_open.text and opener != section.open.text:
            return (yield from section.code())
        while True:
            rest = reader.buffer[reader.pos : reader.pos + _LOOK]
            if pythonic:
                other = _OBJECTS.match(rest) is not None
                open_ = _MAYBE_OBJECTS.fullmatch(rest) is not None
            else:
                other = _CALL.match(rest) is not None
                open_ = _MAYBE_CALL.fullmatch(rest) is not None
                if self._tagged is not None and not (other or open_ or rest[:1] in ("{", "[")):
                    newer = section.would_begin(opener, rest)
                    if newer:
                        return (yield from self._tagged.read())
                    open_ = newer is None
            if other or not open_ or reader.closed or len(rest) == _LOOK:
                break
            yield
        if opener == section.code_open.text and not other and rest[:1] not in ("{", "["):
            return (yield from section.code())
        shape = PythonicShape(section) if other != pythonic else JsonShape(section)
        return (yield from shape.read())

    def names_a_tool(self, opener: str) -> Gen[bool]:
        """Whether a declared tool's name (any name, if the tools are not known) and the end of a name follow the opener
        at the front. Consumes nothing."""
        section, reader = self.section, self.section.reader
        tools = section.emitter.tools
        while True:
            start = reader.pos + len(opener)
            rest = reader.buffer[start : start + WINDOW]
            # Raw code is a call of `python`, declared or not.
            names = (*tools, "python") if tools is not None else _NAME.findall(rest)
            ends = [f"{name}{section.syntax.name_end}" for name in names]
            if any(rest.startswith(end) for end in ends):
                return True
            possible = not rest or any(end.startswith(rest) for end in ends)
            if reader.closed or not possible:
                return possible and reader.cut
            yield


def grammar(syntax: ToolSyntax, tools: Sequence[Tool], rules: Rules, *, most: int | None) -> Node:
    """Returns the grammar of one to `most` calls (None: any number) of these tools in a family's own syntax."""
    makers = {
        "json": json_calls.grammar,
        "tagged_json": tagged.json_grammar,
        "tagged_args": tagged.grammar,
        "pythonic": pythonic.grammar,
        "dictionary": elements.dictionary_grammar,
        "nested": elements.nested_grammar,
    }
    make = makers[syntax.shape]
    if not syntax.bare:
        return make(syntax, tools, rules, most)
    unmarked = make(syntax.model_copy(update={"section": ("", "")}), tools, rules, most)
    return one_of(unmarked, make(syntax, tools, rules, most)) if syntax.section[0] else unmarked
