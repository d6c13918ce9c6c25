"""A section of calls: its markers, and what every shape shares in reading one.

Knows: where a section begins and ends, and how bad output is survived: the raw text goes on the call once, as an
error, then reading resumes at the next marker. Does not know: the inside of a call (the other modules of this
folder).
"""

from collections.abc import Callable, Mapping

from engine.families import ToolSyntax
from engine.parsing.emitter import CallEmitter, Emitter
from engine.parsing.marks import Mark, Spelling
from engine.parsing.reader import Markers, Reader, Reading
from engine.parsing.values import Schemas, quoted


class Section:
    """The markers of one format's calls, and the steps that shapes are made of.

    `openers` are the texts that begin a section or, where that may go without one, a call.
    """

    def __init__(self, reader: Reader, emitter: Emitter, syntax: ToolSyntax, spelling: Spelling) -> None:
        self.reader = reader
        self.emitter = emitter
        self.syntax = syntax
        self.open, self.close = (spelling.mark(literal) for literal in syntax.section)
        self.call_open, self.call_close = (spelling.mark(literal) for literal in syntax.call)
        self.code_open, self.code_close = (spelling.mark(literal) for literal in syntax.code)
        opens = [mark for mark in (self.open, *map(spelling.mark, syntax.section_also)) if mark.text]
        if self.call_open.text and (syntax.section_optional or not opens):
            opens.append(self.call_open)
        opens.extend([self.code_open] if self.code_open.text else [])
        self.openers: Mapping[str, Mark] = {mark.text: mark for mark in opens}
        self.closers = Markers([self.close.text, self.call_close.text])
        self.is_call = Markers([self.call_open.text])
        self._is_close = Markers([self.close.text])
        self._is_call_close = Markers([self.call_close.text])
        self._resume = Markers([self.close.text, *self.openers, self.call_open.text])
        self._code_end = Markers([self.code_close.text])

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
        yield from self.reader.until(Markers([*self._resume.literals, *stops]), self.raw_writer(call))
        call.end("malformed")

    def raw_writer(self, call: CallEmitter) -> Callable[[str], None]:
        """Writes text on the call as it stands."""

        def write(text: str) -> None:
            self.reader.note("malformed", text)
            call.write(self.reader.plain(text))

        return write

    def name(self, ends: Markers) -> Reading[str | None]:
        """A function's name, up to one of the ends (not consumed). None: the input ended first, there is no call."""
        parts: list[str] = []
        yield from self.reader.space()
        hit = yield from self.reader.until(ends, parts.append)
        self.reader.note("name", "".join(parts))
        return None if hit is None else self.reader.plain("".join(parts)).strip()

    def begin(self, written: str, id_: str | None = None) -> CallEmitter:
        """Begin a call by the name as written: prefix and counter are taken off where the family writes them."""
        name = written.removeprefix(self.syntax.name_prefix)
        if self.syntax.name_is_id:
            id_ = id_ or written
            stem, _, counter = name.rpartition(":")
            name = stem if stem and counter.isdigit() else name
        return self.emitter.call(name, id_, id_follows=self.syntax.id_last)

    def schemas(self, name: str) -> Schemas:
        """The types of a tool's parameters."""
        tool = (self.emitter.tools or {}).get(name)
        return Schemas(tool.parameters if tool else None)

    def code(self) -> Reading[str]:
        """Raw code for `python`, after its opening mark. Answers the white space after the closing one."""
        call = self.emitter.call("python", None)
        yield from self.raw_code(call, self._code_end)
        if self.code_close.text:
            yield from self.reader.match(self._code_end)
        return self.code_close.after

    def raw_code(self, call: CallEmitter, ends: Markers) -> Reading[None]:
        """A call's argument as raw code: made `{"code": ..}`, or the name of the tool's only text parameter."""
        reader = self.reader
        call.write(f'{{"{quoted(self._code_parameter(call.name))}": "')

        def write(text: str) -> None:
            reader.note("arguments", text)
            call.write(quoted(reader.plain(text)))

        hit = yield from reader.until(ends, write)
        if hit is None and reader.cut:
            call.end("truncated")
            return
        call.write('"}')
        call.end()

    def _code_parameter(self, name: str) -> str:
        return self.schemas(name).only() or "code"
