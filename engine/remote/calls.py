"""Emits the parts of one turn in order, as events, and puts tool calls together from their deltas: by index, and by
what servers that repeat or leave out the index send instead."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

from engine.formats.parsing.emitter import CallEmitter, Emitter, Kind
from engine.remote.wire import Diagnostics, text_of
from engine.types.events import ContentDelta, Event, ToolCallDelta, ToolCallEnd, ToolCallStart
from engine.types.tools import Tool


class Parts:
    """Takes text and calls, emits events. `blank`: white space that becomes reasoning if more of it follows."""

    def __init__(self, tools: Mapping[str, Tool] | None) -> None:
        self._emitter = Emitter(tools)
        self._kind: Kind | None = None
        self._part = -1
        self.blank = ""
        self._parsed = (0, 0)

    @property
    def calls(self) -> int:
        """Number of calls begun."""
        return self._emitter.calls

    def text(self, kind: Kind, text: str) -> None:
        """Add text; if its kind differs from the previous text's, it begins a part. Reasoning does not begin with white
        space alone."""
        if kind == "reasoning" and self._kind != "reasoning":
            text, self.blank = self.blank + text, ""
            if not text.strip():
                self.blank = text
                return
        if text and kind != self._kind:
            self._kind, self._part, self.blank = kind, self._emitter.next_part(), ""
        if text:
            self._emitter.delta(kind, text, self._part)

    def call(self, name: str, id_: str) -> CallEmitter:
        """Begin a call. Without an id, the event of its end carries one."""
        self._kind = None
        return self._emitter.call(name, id_ or None, id_follows=True)

    def forward(self, event: Event) -> None:
        """Emit a parser's event, other than reasoning, with part and call numbers of this turn."""
        match event:
            case ContentDelta(text):
                self.text("content", text)
            case ToolCallStart() | ToolCallDelta() | ToolCallEnd():
                if isinstance(event, ToolCallStart):
                    self._kind = None
                    self._parsed = self._emitter.calls, self._emitter.next_part()
                    self._emitter.calls += 1
                index, part = self._parsed
                self._emitter.emit(replace(event, index=index, part=part))
            case _:
                pass

    def drain(self) -> list[Event]:
        """Returns the events since the last drain."""
        return self._emitter.drain()


class _Text(NamedTuple):
    """Text that arrived while an earlier call was still open."""

    kind: Kind
    text: str


@dataclass(slots=True)
class _Call:
    """The state of one call so far. `sent`: how many of its fragments were emitted."""

    id: str = ""
    name: str = ""
    fragments: list[str] = field(default_factory=list[str])
    sent: int = 0
    emitter: CallEmitter | None = None
    index: int = 0
    over: bool = False
    _json: bool | None = None

    def add(self, text: str) -> None:
        if text := text if self.fragments else text.lstrip():
            self.fragments.append(text)
            self._json = None

    @property
    def is_json(self) -> bool:
        """Whether the arguments so far are a JSON value."""
        if self._json is None:
            try:
                json.loads("".join(self.fragments))
                self._json = True
            except (ValueError, RecursionError):
                self._json = False
        return self._json


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
        id_, name = text_of(delta.get("id")), text_of(function.get("name"))
        arguments = _arguments(function.get("arguments", function.get("input")))
        index: object = delta.get("index")
        call = self._which(index if isinstance(index, int) else None, id_, name)
        if name and not call.fragments and not (call.name == name and id_ and id_ == call.id):
            call.name += name
        call.id = call.id or id_
        if not call.over:
            call.add(arguments)
        elif arguments.strip():
            self._diagnostics.report(f"arguments after the end of the call of {call.name!r}", arguments)
        self._pump()

    def close(self, *, cut: bool) -> None:
        """End the turn. `cut`: it ended early, so that arguments that are not JSON are marked as truncated."""
        for item in self._queue:
            if isinstance(item, _Text):
                self._parts.text(item.kind, item.text)
            else:
                self._finish(item, cut=cut)
        self._queue.clear()

    def _which(self, index: int | None, id_: str, name: str) -> _Call:
        """Returns the call that a delta belongs to.

        Calls are found by their index. But some servers number every call 0, or send no index: then a different id with
        a name begins a call, and so does a name after arguments. An id that changes without a name is ignored.
        """
        call = self._by_index.get(index) if index is not None else self._last
        if index is None and id_:
            call = next((each for each in self._by_index.values() if each.id == id_), call)
        if call is not None and name:
            other = bool(id_ and call.id and id_ != call.id)
            again = bool(call.fragments and not id_ and (index is None or name != call.name))
            call = None if other or again else call
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
            else:
                if head.fragments:  # before them, the next delta may continue its name
                    self._send(head)
                if len(self._queue) == 1 or not head.is_json:
                    return
                self._finish(head, cut=False)
            self._queue.pop(0)

    def _send(self, call: _Call) -> CallEmitter:
        if call.emitter is None:
            call.id = "" if call.id in self._ids else call.id
            call.index = self._parts.calls
            call.emitter = self._parts.call(call.name, call.id)
        for text in call.fragments[call.sent :]:
            call.emitter.write(text)
        call.sent = len(call.fragments)
        return call.emitter

    def _finish(self, call: _Call, *, cut: bool) -> None:
        emitter = self._send(call)
        call.over = True
        if not call.id or call.id in self._ids:
            call.id = Emitter(None, self.salt).made_id(call.index, call.name)
        self._ids.add(call.id)
        emitter.end("truncated" if cut and not call.is_json else None, call.id)


def _arguments(value: object) -> str:
    """Returns arguments as text; some servers send the object itself."""
    return text_of(value) if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
