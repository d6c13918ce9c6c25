"""Calls whose name stands in markup and whose arguments are JSON: `<function=f>{..}</function>` and its kin.

Knows: names, ids beside them, the JSON and its fence. Does not know: what stands around a call.
"""

from engine.parsing.emitter import CallEmitter
from engine.parsing.json_reader import JsonReader, Outcome
from engine.parsing.marks import Spelling
from engine.parsing.reader import Markers, Reading
from engine.parsing.shapes.json_calls import JsonShape
from engine.parsing.shapes.section import Section


class TaggedJsonShape:
    """`open [id id_end] name [id_open id] name_end {json} arguments_end close`."""

    def __init__(self, section: Section, spelling: Spelling) -> None:
        syntax = section.syntax
        self._section = section
        self._reader = section.reader
        # A marker of white space only stands as it is: Functionary ends a name by a newline.
        name_end = spelling.mark(syntax.name_end).text or syntax.name_end
        self._is_name_end = Markers([name_end])
        self._arguments_end = Markers([spelling.mark(syntax.arguments_end).text])
        self._id_end = Markers([spelling.mark(syntax.id_end).text])
        self._id_open = Markers([spelling.mark(syntax.id_open).text])
        # A brace ends a name too: no name holds one, and models leave the fence out.
        ends = [name_end, "{", *self._id_open.literals, *section.closers.literals]
        self._name_ends = Markers(ends)
        self._id_ends = Markers([*ends, *self._id_end.literals])
        self._code_ends = Markers([*section.openers, *section.closers.literals])
        self._json = JsonReader(section.reader, section.closers.literals)
        self._objects = JsonShape(section)

    def read(self) -> Reading[str]:
        """One call, after its opening marker."""
        reader, section = self._reader, self._section
        yield from reader.space()
        if section.syntax.id_open and (yield from reader.more()) and reader.buffer[reader.pos] in "[{":
            # The older syntax of the same model line: a list of objects behind the same marker.
            return (yield from self._objects.read())
        id_ = yield from self._leading_id()
        name = yield from section.name(self._name_ends)
        if name is None:
            return ""
        if (yield from reader.match(self._id_open)):
            id_ = yield from section.name(self._name_ends)
        yield from reader.match(self._is_name_end)
        call = section.begin(name, id_)
        yield from reader.space()
        outcome = yield from self._arguments(call)
        if outcome is Outcome.COMPLETE and (self._arguments_end.literals or section.closers.literals):
            yield from reader.space()
            if self._arguments_end.literals:
                yield from reader.match(self._arguments_end)
                yield from reader.space()
        if outcome is not Outcome.TRUNCATED:
            yield from section.call_closed()
        return ""

    def _leading_id(self) -> Reading[str | None]:
        if not self._id_end.literals:
            return None
        id_ = yield from self._section.name(self._id_ends)
        return id_ if (yield from self._reader.match(self._id_end)) else None

    def _arguments(self, call: CallEmitter) -> Reading[Outcome]:
        """The arguments and the call's end."""
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
        if outcome is Outcome.TRUNCATED:
            call.end("truncated")
        elif outcome is Outcome.MALFORMED:
            yield from section.rest_is_malformed(call, *section.closers.literals)
        else:
            call.end()
        return outcome
