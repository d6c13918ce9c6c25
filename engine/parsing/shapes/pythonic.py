"""Calls written as Python calls: `[f(a=1, b="x"), g()]`, or one a line.

Knows: names, keywords, positional arguments (named by the tool's schema), the list around. Does not know: literals
(`literals`), what stands around a section.
"""

import re

from engine.parsing.emitter import CallEmitter
from engine.parsing.json_reader import Outcome
from engine.parsing.reader import WINDOW, Reading
from engine.parsing.shapes.literals import LiteralReader
from engine.parsing.shapes.section import Section
from engine.parsing.values import Schemas, quoted

_NAME = re.compile(r"[\w.\-]+")
_KEYWORD = re.compile(r"(\w+)\s*=(?!=)")
_MAYBE_KEYWORD = re.compile(r"\w*\s*=?")


class PythonicShape:
    """`name(key=value, ..)`, in a list, or several."""

    def __init__(self, section: Section) -> None:
        self._section = section
        self._reader = section.reader
        self._literals = LiteralReader(section.reader)

    def read(self) -> Reading[str]:
        """The calls of a section, its closing marker included where it has one."""
        reader, section = self._reader, self._section
        in_list = some = False
        while True:
            yield from reader.space()
            if not (yield from reader.more()):
                return ""
            if (yield from section.closed()):
                return section.close.after
            char = reader.buffer[reader.pos]
            if char == "[" and not in_list and not some:
                reader.take(1, "marker")
                in_list = True
            elif char == "]" and in_list:
                reader.take(1, "marker")
                in_list, some = False, True
                if not section.close.text:
                    return ""
            elif some and char in ",;":
                reader.take(1, "marker")
            elif _NAME.match(char):
                yield from self.call()
                some = True
            elif (some and not in_list) or not (yield from section.no_call()):
                return ""
            else:
                some, in_list = True, False

    def call(self) -> Reading[None]:
        """One call, from its name on."""
        reader = self._reader
        parts: list[str] = []
        while (yield from reader.more()):
            run = _NAME.match(reader.buffer, reader.pos)
            if run is None:
                break
            parts.append(reader.take(run.end() - reader.pos, "name"))
        yield from reader.space("marker")
        if not (yield from reader.more()):
            return
        # Llama's built-in tools are written name.call(..).
        call = self._section.begin("".join(parts).removesuffix(".call"))
        outcome = Outcome.MALFORMED
        if reader.buffer[reader.pos] == "(":
            reader.take(1, "marker")
            outcome = yield from self._arguments(call)
        if outcome is Outcome.MALFORMED:
            yield from self._section.rest_is_malformed(call)
        elif outcome is Outcome.TRUNCATED:
            call.end("truncated")
        else:
            call.end()

    def _arguments(self, call: CallEmitter) -> Reading[Outcome]:
        reader, schemas = self._reader, self._section.schemas(call.name)
        position, separated = 0, True
        while True:
            yield from reader.space("marker")
            if not (yield from reader.more()):
                # The end of this shape is its bracket: without it, only a turn that ended by itself is complete.
                if not reader.cut and not separated:
                    call.write("}")
                    return Outcome.COMPLETE
                return Outcome.TRUNCATED
            char = reader.buffer[reader.pos]
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

    def _key(self, schemas: Schemas, position: int) -> Reading[str | None]:
        """The keyword that stands here, or the name of the parameter in this position."""
        reader = self._reader
        while True:
            found = _KEYWORD.match(reader.buffer, reader.pos)
            if found is not None and (found.end() < len(reader.buffer) or reader.closed):
                reader.take(found.end() - reader.pos, "key")
                return found.group(1)
            undecided = _MAYBE_KEYWORD.match(reader.buffer, reader.pos)
            if undecided is None or undecided.end() < len(reader.buffer) or reader.closed:
                return schemas.at(position)
            if reader.left > WINDOW:
                return None
            yield
