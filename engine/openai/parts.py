"""The parts of one turn in their order, as events.

Knows: that a part ends before the next begins, and that reasoning of white space only is none. Does not know: where
the text comes from.
"""

from collections.abc import Mapping
from dataclasses import replace

from engine.events import ContentDelta, Event, ToolCallDelta, ToolCallEnd, ToolCallStart
from engine.parsing.emitter import CallEmitter, Emitter, Kind
from engine.types import Tool


class Parts:
    """Text and calls in, events out."""

    def __init__(self, tools: Mapping[str, Tool] | None) -> None:
        self._emitter = Emitter(tools)
        self._kind: Kind | None = None
        self._part = -1
        self._blank = ""
        self._moved: dict[int, tuple[int, int]] = {}

    @property
    def calls(self) -> int:
        """How many calls began."""
        return self._emitter.calls

    def text(self, kind: Kind, text: str) -> None:
        """More text; of another kind than before, it begins a part."""
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
        """Begin a call. Without an id, its end brings one."""
        self._end_text()
        return self._emitter.call(name, id_ or None, id_follows=True)

    def forward(self, event: Event) -> None:
        """An event of a parser's, other than reasoning; it numbers parts and calls by itself."""
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
        """The events since the last drain."""
        return self._emitter.drain()

    def _emit_moved(self, event: ToolCallStart | ToolCallDelta | ToolCallEnd) -> None:
        index, part = self._moved[event.index]
        self._emitter.emit(replace(event, index=index, part=part))

    def _end_text(self) -> None:
        self._kind, self._part, self._blank = None, -1, ""
