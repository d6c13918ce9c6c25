"""Emits the parts of one turn in order, as events; puts tool calls together from their deltas.

Knows: that a part ends before the next begins, that reasoning which is only white space does not count, and how deltas
identify their call (OpenAI API reference, "The chat completion chunk object": by `index`; and what other servers leave
out or repeat). Does not know: chunks.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from engine.events import ContentDelta, Event, ToolCallDelta, ToolCallEnd, ToolCallStart
from engine.openai.wire import Diagnostics
from engine.parsing.emitter import CallEmitter, Emitter, Kind
from engine.parsing.json_reader import JsonReader, Outcome
from engine.parsing.reader import Reader, Reading
from engine.types import Tool


class Parts:
    """Takes text and calls, emits events."""

    def __init__(self, tools: Mapping[str, Tool] | None) -> None:
        self._emitter = Emitter(tools)
        self._kind: Kind | None = None
        self._part = -1
        self._blank = ""
        self._moved: dict[int, tuple[int, int]] = {}

    @property
    def calls(self) -> int:
        """Number of calls begun."""
        return self._emitter.calls

    def text(self, kind: Kind, text: str) -> None:
        """Add text; if its kind differs from the previous text's, it begins a part."""
        if not text:
            return
        if kind != self._kind:
            self._end_text()
            self._kind = kind
        if self._part < 0:
            if kind == "reasoning" and not text.strip():
                self._blank += text
                return
            text, self._blank = self._blank + text, ""
            self._part = self._emitter.next_part()
        self._emitter.delta(kind, text, self._part)

    def call(self, name: str, id_: str) -> CallEmitter:
        """Begin a call. Without an id, the event of its end carries one."""
        self._end_text()
        return self._emitter.call(name, id_ or None, id_follows=True)

    def forward(self, event: Event) -> None:
        """Emit a parser's event, other than reasoning, with part and call numbers of this turn."""
        match event:
            case ContentDelta(text):
                self.text("content", text)
            case ToolCallStart(index):
                self._end_text()
                self._moved[index] = self._emitter.calls, self._emitter.next_part()
                self._emitter.calls += 1
                self._emit_moved(event)
            case ToolCallDelta() | ToolCallEnd():
                self._emit_moved(event)
            case _:
                pass

    def drain(self) -> list[Event]:
        """Returns the events since the last drain."""
        return self._emitter.drain()

    def _emit_moved(self, event: ToolCallStart | ToolCallDelta | ToolCallEnd) -> None:
        index, part = self._moved[event.index]
        self._emitter.emit(replace(event, index=index, part=part))

    def _end_text(self) -> None:
        self._kind, self._part, self._blank = None, -1, ""


class _Text(NamedTuple):
    """Text that arrived while an earlier call was still open."""

    kind: Kind
    text: str


class _JsonEnd:
    """Finds out whether a text that arrives in fragments is one complete JSON value."""

    def __init__(self) -> None:
        self._reader = Reader()
        self._begun = False
        self._run = self._read()
        self.complete = False
        next(self._run)

    def feed(self, text: str) -> None:
        text = text if self._begun else text.lstrip()
        if text:
            self._begun = True
            self._reader.feed(text)
            next(self._run)

    def _read(self) -> Reading[None]:
        reader = self._reader
        self.complete = (yield from JsonReader(reader).value(_ignore, "")) is Outcome.COMPLETE
        while True:
            if reader.take(reader.left).strip():
                self.complete = False
            yield


def _ignore(text: str) -> None:
    del text


@dataclass(slots=True)
class _Call:
    """The state of one call so far."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])
    unsent: list[str] = field(default_factory=list[str])
    end: _JsonEnd = field(default_factory=_JsonEnd)
    emitter: CallEmitter | None = None
    index: int = 0
    sent: bool = False
    over: bool = False

    def add(self, text: str) -> None:
        self.arguments.append(text)
        self.unsent.append(text)
        self.end.feed(text)


class Calls:
    """Takes deltas of calls, emits one call after the other.

    The first call streams. Everything after it waits until it is over: when something follows and its arguments are a
    complete JSON value, or at the end of the turn.
    """

    def __init__(self, parts: Parts, diagnostics: Diagnostics) -> None:
        self._parts = parts
        self._diagnostics = diagnostics
        self._queue: list[_Call | _Text] = []
        self._by_index: dict[object, _Call] = {}
        self._last: _Call | None = None
        self._ids: set[str] = set()
        self.salt = ""

    @property
    def open(self) -> bool:
        """Whether a call may still continue."""
        return bool(self._queue)

    def text(self, kind: Kind, text: str) -> None:
        """Add text while a call is open."""
        self._queue.append(_Text(kind, text))
        self._pump()

    def delta(self, delta: Mapping[str, Any]) -> None:
        """Add an item of `tool_calls`."""
        inner: object = delta.get("function") or delta.get("custom") or {}
        if not isinstance(inner, Mapping):
            self._diagnostics.report("a tool call without a function", dict(delta))
            return
        function = cast("Mapping[str, Any]", inner)
        id_, name = _text(delta.get("id")), _text(function.get("name"))
        arguments = _arguments(function.get("arguments", function.get("input")))
        index: object = delta.get("index")
        call = self._which(index if isinstance(index, int) else None, id_, name)
        if name and not call.arguments and not (call.name == name and id_ and id_ == call.id):
            call.name += name
        call.id = call.id or id_
        if arguments and call.over:
            if arguments.strip():
                self._diagnostics.report(f"arguments after the end of the call of {call.name!r}", arguments)
        elif arguments:
            call.add(arguments)
        self._pump()

    def close(self, *, cut: bool) -> None:
        """End the turn. `cut`: it ended early, so that arguments that are not JSON are marked as truncated."""
        while self._queue:
            self._pump()
            if self._queue:
                head = self._queue.pop(0)
                assert isinstance(head, _Call)  # a text at the head of the queue is emitted at once
                self._finish(head, cut=cut)

    def _which(self, index: int | None, id_: str, name: str) -> _Call:
        """Returns the call that a delta belongs to.

        Calls are found by their index. But some servers number every call 0, or send no index: then a different id with
        a name begins a call, and so does a name after arguments. An id that changes without a name is ignored.
        """
        call = self._by_index.get(index) if index is not None else self._last
        if index is None and id_:
            call = next((known for known in self._by_index.values() if known.id == id_), call)
        if call is not None and name:
            other = bool(id_ and call.id and id_ != call.id)
            again = bool(call.arguments and not id_ and name != call.name)
            unnumbered = index is None and not id_ and bool(call.arguments)
            if other or again or unnumbered:
                call = None
        if call is None:
            call = _Call()
            self._queue.append(call)
            self._by_index[object() if index is None else index] = call
        self._last = call
        return call

    def _pump(self) -> None:
        """Emit what can be emitted: the head of the queue, and what follows it once it is over."""
        while self._queue:
            head = self._queue[0]
            if isinstance(head, _Text):
                self._parts.text(head.kind, head.text)
            elif not head.arguments:
                return  # the next delta may continue its name
            else:
                self._send(head)
                if not (head.end.complete and len(self._queue) > 1):
                    return
                self._finish(head, cut=False)
            self._queue.pop(0)

    def _send(self, call: _Call) -> CallEmitter:
        if call.emitter is None:
            if call.id in self._ids:
                call.id = ""
            call.index = self._parts.calls
            call.emitter = self._parts.call(call.name, call.id)
        if call.sent or not "null".startswith("".join(call.unsent).strip()):
            for text in call.unsent:
                call.emitter.write(text)
            call.unsent.clear()
            call.sent = True
        return call.emitter

    def _finish(self, call: _Call, *, cut: bool) -> None:
        emitter = self._send(call)
        call.over = True
        if not call.id or call.id in self._ids:
            call.id = Emitter(None, self.salt).made_id(call.index, call.name)
        self._ids.add(call.id)
        whole = "".join(call.arguments)
        if not call.sent and whole.strip() not in ("", "null"):
            emitter.write(whole)  # a beginning of "null" that did not become one
        if cut and not _is_json(whole):
            emitter.end("truncated", call.id)
        else:
            emitter.end(None if call.name else "malformed", call.id)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _arguments(value: object) -> str:
    """Returns arguments as text; some servers send the object itself."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
