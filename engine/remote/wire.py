"""Turns a server's stream (dictionaries, SDK objects, lines or blocks of server-sent events) into chunks. Sources:
WHATWG HTML, section "Server-sent events"; OpenAI API reference, "Streaming", for the `[DONE]` that ends one."""

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, cast

from engine.support.errors import MalformedEventWarning, RemoteError, RequestError, shown
from engine.support.warning import warn

Chunk: TypeAlias = Mapping[str, Any]

_LINE_END = re.compile(r"\r\n|\n|\r(?!\Z)")
_FIELD = re.compile(r"(data|event|id|retry|error):")
_ENDS = re.compile(r"[\r\n]")
_NESTING = re.compile(r'\\.?|["{}]', re.DOTALL)
_MOST_LINES = 100
_LONGEST = 1 << 20
"""Characters of a line, and of the lines of one event together."""
_MOST_WARNINGS = 100
_DONE = "[DONE]"


class Diagnostics:
    """Reads fields of chunks. Counts the malformed parts of a stream, and warns about the first hundred."""

    def __init__(self) -> None:
        self.count = 0

    def report(self, what: str, value: object) -> None:
        self.count += 1
        if self.count > _MOST_WARNINGS:  # Python remembers each text that it has warned of
            return
        text = value if isinstance(value, str) else repr(value)
        text = text if len(text) <= 120 else f"{text[:117]}..."
        warn(
            f"Malformed event {self.count} of this stream was left out: {what}: {text}. The rest was read; check the "
            "server, and any proxy in between.",
            MalformedEventWarning,
        )

    def record(self, record: Chunk, name: str) -> Chunk:
        """Returns an object in a field; an empty one if the field is absent, null or malformed."""
        value: object = record.get(name)
        if value is not None and not isinstance(value, Mapping):
            self.report(f"{name} that is not an object", value)
        return mapping_of(cast("object", value))

    def items(self, record: Chunk, name: str) -> Iterator[Chunk]:
        """Yields the objects of a list in a field; nothing if the field is absent or null."""
        value: object = record.get(name)
        for item in cast("list[object]", value) if isinstance(value, list) else [] if value is None else [str(value)]:
            if isinstance(item, Mapping):
                yield mapping_of(cast("object", item))
            else:
                self.report(f"{name} that are not a list of objects", item)


def text_of(value: object) -> str:
    """Returns a text; an empty one for anything else."""
    return value if isinstance(value, str) else ""


def mapping_of(value: object) -> Chunk:
    """Returns the fields of an object; an empty mapping for anything else."""
    return cast("Chunk", value) if isinstance(value, Mapping) else {}


class Wire:
    """Takes items, yields chunks, wherever the text is cut. `done`: the server sent the end of the stream."""

    def __init__(self, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._blocks = False
        self._tail: list[str] = []
        self._size = 0
        self._object = _Nesting()
        self._held: list[str] = []
        self.done = False

    def feed(self, item: object) -> Iterator[Chunk]:
        """Yields the chunks that this item completes. Raises RequestError for an item that cannot be part of a
        stream."""
        if isinstance(item, bytes | bytearray):
            # A line without a line end is complete; a block may end inside a character.
            yield from self._text(self._decoder.decode(bytes(item)), empty=not item)
        elif isinstance(item, str):
            yield from self._text(item, empty=not item)
        elif isinstance(item, Mapping):
            yield cast("Chunk", item)
        elif (dump := getattr(item, "model_dump", None)) is not None:
            yield cast("Chunk", dump())
        else:
            raise RequestError(
                f"A stream holds dictionaries, objects of an OpenAI client, or lines of server-sent events; this is "
                f"{shown(item)}. Pass the stream itself: create(..., stream=True), or the lines of the response."
            )

    def close(self) -> Iterator[Chunk]:
        """End the input. Yields the chunks that were held back."""
        if tail := self._taken() + self._decoder.decode(b"", final=True):
            yield from self._line(tail.removesuffix("\r"))
        self._give_up()

    def _text(self, text: str, *, empty: bool) -> Iterator[Chunk]:
        self._blocks = self._blocks or _ENDS.search(text) is not None
        for line in self._ended(text) if self._blocks else self._complete(text, empty=empty):
            if self.done:
                return
            yield from self._line(line)

    def _ended(self, text: str) -> list[str]:
        """Returns the lines that end. A line is put together once, when it ends, however many pieces it comes in."""
        if not _ENDS.search(text) and not (self._tail and self._tail[-1].endswith("\r")):
            self._keep(text)
            return []
        *lines, rest = _LINE_END.split(self._taken() + text)
        self._keep(rest)
        return lines

    def _complete(self, text: str, *, empty: bool) -> list[str]:
        """Returns the complete lines before any line end was seen: the text is lines without line ends, or a first
        block cut anywhere."""
        lines = [self._taken()] if self._tail and (empty or _FIELD.match(text)) else []
        self._keep(text)
        if empty or self._object.closes(text) or (self._size <= len(_DONE) + 10 and self._is_done()):
            whole = self._taken()
            data = _data(whole)
            if empty or data == _DONE or (data is not None and _object(data) is not None):
                return [*lines, whole]
            self._keep(whole)
            self._object.over = True  # what closed and is no object does not become one
        return lines

    def _is_done(self) -> bool:
        return _data("".join(self._tail)) == _DONE

    def _keep(self, text: str) -> None:
        self._tail.append(text)
        self._size += len(text)
        if self._size > _LONGEST:
            raise RemoteError(
                f"The server sent a line of more than {_LONGEST:,} characters. What came before it is valid; check the "
                "server, and any proxy in between."
            )

    def _taken(self) -> str:
        """Returns the line so far, and begins another one."""
        whole = "".join(self._tail)
        self._tail, self._size, self._object = [], 0, _Nesting()
        return whole

    def _line(self, line: str) -> Iterator[Chunk]:
        if not line.strip():
            self._give_up()
            return
        data = _data(line)
        if data is None:
            return
        if data == _DONE:
            self._give_up()
            self.done = True
            return
        self._held.append(data)
        chunk = _object("\n".join(self._held))
        if chunk is None and len(self._held) > 1 and (chunk := _object(data)) is not None:
            self._held.pop()
            self._give_up()
        if chunk is not None:
            self._held.clear()
            yield chunk
        elif len(self._held) >= _MOST_LINES or sum(map(len, self._held)) > _LONGEST:
            self._give_up()

    def _give_up(self) -> None:
        """Report the held text, which did not become an event."""
        if self._held:
            self._diagnostics.report("not a JSON object", "\n".join(self._held))
            self._held.clear()


class _Nesting:
    """Follows the braces of a text that comes in pieces. `over`: it has closed before."""

    def __init__(self) -> None:
        self._depth = 0
        self._quoted = False
        self._escaped = False
        self.over = False

    def closes(self, text: str) -> bool:
        """Whether an object that was open ends in this piece."""
        if self.over:
            return False
        closed, start = False, int(self._escaped and bool(text))
        self._escaped = self._escaped and not text
        for found in _NESTING.finditer(text, start):
            mark = found.group()
            if mark[0] == "\\":
                self._escaped = self._quoted and len(mark) == 1
            elif mark == '"':
                self._quoted = not self._quoted
            elif not self._quoted:
                self._depth += 1 if mark == "{" else -1
                closed = closed or self._depth <= 0
        return closed


def _data(line: str) -> str | None:
    """Returns a line's data. None for comments and fields without data. A line without a field counts as data, since
    some servers send errors as plain JSON."""
    field, colon, value = line.partition(":")
    if not field and colon:
        return None
    value = value.removeprefix(" ")
    match field.strip():
        case "data":
            return value.strip() or None
        case "event" | "id" | "retry":
            return None
        case "error":
            # llama-server's own field for errors, before they came as data.
            return f'{{"error": {value}}}'
        case _:
            return line


def _object(text: str) -> Chunk | None:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("Chunk", value) if isinstance(value, dict) else None
