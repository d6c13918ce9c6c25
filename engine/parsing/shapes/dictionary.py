"""Calls written as a bare dictionary: `call:f{key:<|"|>text<|"|>,n:1}` (Gemma).

Knows: bare keys, strings between quote marks, nested lists and dictionaries. Does not know: what stands around a call.
"""

import json
import re

from engine.parsing.json_reader import Outcome
from engine.parsing.marks import Spelling
from engine.parsing.reader import CONTROL, Markers, Reader, Reading
from engine.parsing.shapes.literals import LiteralReader, Write
from engine.parsing.shapes.section import Section
from engine.parsing.values import no_constant, quoted

_BARE = re.compile(rf"[^,{{}}\[\]:<{CONTROL}]+")

_DEEPEST = 64


class DictionaryShape:
    """`open name{key:value, ..} close`."""

    def __init__(self, section: Section, spelling: Spelling) -> None:
        self._section = section
        self._reader: Reader = section.reader
        self._literals = LiteralReader(section.reader)
        self._quote = Markers([spelling.text(section.syntax.quote)])
        self._key_ends = Markers([*self._quote.literals, *section.closers.literals, ":"])
        self._name_ends = Markers(["{", *section.closers.literals])

    def read(self) -> Reading[str]:
        """One call, after its opening marker."""
        reader, section = self._reader, self._section
        name = yield from section.name(self._name_ends)
        if name is None:
            return ""
        call = section.begin(name)
        outcome = Outcome.COMPLETE
        if reader.buffer[reader.pos] == "{":
            outcome = yield from self._value(call.write)
        if outcome is Outcome.TRUNCATED:
            call.end("truncated")
            return ""
        if outcome is Outcome.COMPLETE:
            call.end()
            yield from reader.space()
        else:
            yield from section.rest_is_malformed(call, *section.closers.literals)
        yield from section.call_closed()
        return ""

    def _value(self, write: Write, depth: int = 0) -> Reading[Outcome]:
        reader = self._reader
        if depth > _DEEPEST:
            return Outcome.MALFORMED
        yield from reader.space("arguments")
        if (yield from reader.match(self._quote, "arguments")):
            return (yield from self._string(write))
        if not (yield from reader.more()):
            return Outcome.TRUNCATED
        char = reader.buffer[reader.pos]
        if char in "{[":
            reader.take(1, "arguments")
            return (yield from self._members(write, "}" if char == "{" else "]", depth + 1))
        if char in "\"'":
            return (yield from self._literals.value(write))
        return (yield from self._bare(write))

    def _members(self, write: Write, close: str, depth: int) -> Reading[Outcome]:
        reader = self._reader
        write("{" if close == "}" else "[")
        some = False
        while True:
            yield from reader.space("arguments")
            if not (yield from reader.more()):
                return Outcome.TRUNCATED
            char = reader.buffer[reader.pos]
            if char == ",":
                reader.take(1, "arguments")
                continue
            if char == close:
                write(reader.take(1, "arguments"))
                return Outcome.COMPLETE
            separator = ", " if some else ""
            if close == "}":
                key = yield from self._key()
                if key is None:
                    return Outcome.MALFORMED if reader.left else Outcome.TRUNCATED
                separator += f"{key}: "
            write(separator)
            some = True
            outcome = yield from self._value(write, depth)
            if outcome is not Outcome.COMPLETE:
                return outcome

    def _key(self) -> Reading[str | None]:
        """A key as a JSON string, its colon consumed; None when none stands here."""
        reader = self._reader
        parts: list[str] = []
        quoted_ = yield from reader.match(self._quote, "key")
        if quoted_:
            yield from reader.until(self._key_ends, parts.append)
            reader.note("key", "".join(parts))
            if not (yield from reader.match(self._quote, "key")):
                return None
        else:
            while (yield from reader.more()):
                run = _BARE.match(reader.buffer, reader.pos)
                if run is None:
                    break
                parts.append(reader.take(run.end() - reader.pos, "key"))
        yield from reader.space("key")
        if not (yield from reader.more()) or reader.buffer[reader.pos] != ":":
            return None
        reader.take(1, "key")
        text = "".join(parts)
        return f'"{quoted(text if quoted_ else text.strip().strip(chr(34) + chr(39)))}"'

    def _string(self, write: Write) -> Reading[Outcome]:
        reader = self._reader
        write('"')

        def string(text: str) -> None:
            reader.note("arguments", text)
            write(quoted(reader.plain(text)))

        def cut(text: str) -> None:
            reader.note("arguments", text)

        if (yield from reader.until(self._quote, string, tail=cut)) is None:
            return Outcome.TRUNCATED
        yield from reader.match(self._quote, "arguments")
        write('"')
        return Outcome.COMPLETE

    def _bare(self, write: Write) -> Reading[Outcome]:
        reader = self._reader
        parts: list[str] = []
        while (yield from reader.more()):
            run = _BARE.match(reader.buffer, reader.pos)
            if run is None:
                break
            parts.append(reader.take(run.end() - reader.pos, "arguments"))
        else:
            return Outcome.TRUNCATED
        text = "".join(parts).strip()
        if not text:
            return Outcome.MALFORMED
        try:
            json.loads(text, parse_constant=no_constant)
        except ValueError:
            text = f'"{quoted(text)}"'
        write(text)
        return Outcome.COMPLETE
