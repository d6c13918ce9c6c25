"""Turns classified text into events: numbers the parts, drops markup's white space at the edges, gives calls their
ids.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from engine.formats.parsing.quoting import Quoting
from engine.formats.parsing.reader import Reader
from engine.tools import json_value
from engine.types.events import ContentDelta, Event, ReasoningDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from engine.types.parts import CallError
from engine.types.tools import Tool

Kind = Literal["reasoning", "content"]
_NULL = "null"
_ESCAPED = re.compile(r"\\.", re.DOTALL)
QUOTES = frozenset("`'\"“‘«")


class Emitter:
    """Collects the events of one turn, and knows whether it is inside reasoning.

    `hide_reasoning` leaves reasoning out of the events (it still takes a part number), `hide_calls` calls. `trims`:
    white space before the content says nothing. `doubted`: a string of a call was never closed, so that what follows
    may be its text: no later call of the turn is without an error.
    """

    __slots__ = (
        "_call",
        "_fragments",
        "_ids",
        "_open",
        "_out",
        "_part",
        "_taken",
        "calls",
        "doubted",
        "hide_calls",
        "hide_reasoning",
        "in_reasoning",
        "tools",
        "trims",
    )

    def __init__(
        self,
        tools: Mapping[str, Tool] | None,
        id_salt: str = "",
        *,
        hide_reasoning: bool = False,
        trims: bool = False,
        hide_calls: bool = False,
    ) -> None:
        self._out: list[Event] = []
        self._open: tuple[Kind | int, int] | None = None
        self._fragments: list[str] = []
        self.tools = tools
        self.in_reasoning = self.doubted = False
        self.hide_reasoning = hide_reasoning
        self.trims = trims
        self.hide_calls = hide_calls
        self.calls = 0
        self._call: CallEmitter | None = None
        self._part = -1
        self._ids = id_salt
        self._taken: set[str] = set()

    def next_part(self) -> int:
        self._part += 1
        return self._part

    def delta(self, what: Kind | int, text: str, part: int) -> None:
        """Add text to a span, or to the call with that index. Adjacent fragments become one event."""
        if what == "reasoning" and self.hide_reasoning:
            return
        if self._open is None or self._open[1] != part:
            if self._open is not None:
                self._settle()
            self._open = (what, part)
        self._fragments.append(text)

    def emit(self, event: ToolCallStart | ToolCallDelta | ToolCallEnd) -> None:
        """Emit an event of a call."""
        if self.hide_calls:
            return
        self._settle()
        self._out.append(event)

    def drain(self) -> list[Event]:
        """Returns the events since the last drain."""
        if self._open is not None:
            self._settle()
        out, self._out = self._out, []
        return out

    def restart(self) -> None:
        """Drop the events so far, which belong to the prompt: the output's calls are counted from 0. A call that is
        still open belongs to the output, and is emitted again from its start."""
        self.drain()
        self.calls = 0
        if self._call is not None and self._call.is_open:
            self.calls = 1
            self._call.again()

    def _settle(self) -> None:
        if self._open is None:
            return
        (what, part), self._open = self._open, None
        text = self._fragments[0] if len(self._fragments) == 1 else "".join(self._fragments)
        self._fragments.clear()
        if what == "reasoning":
            self._out.append(ReasoningDelta(text, part))
        elif what == "content":
            self._out.append(ContentDelta(text, part))
        else:
            self._out.append(ToolCallDelta(what, text, part))

    def call(self, name: str, id_: str | None, *, id_follows: bool = False) -> "CallEmitter":
        """Begin a call. `id_follows`: the family writes the id after the arguments."""
        index, self.calls = self.calls, self.calls + 1
        made, id_ = self.made_id(index, name), self.own_id(id_)
        start = ToolCallStart(index, "" if id_follows and not id_ else id_ or made, name, self.next_part())
        self.emit(start)
        self._call = CallEmitter(self, start, made if id_follows and not id_ else None)
        return self._call

    def own_id(self, id_: str | None) -> str | None:
        """Returns the id that a model wrote; None if it was another call's, since an id names one call."""
        if id_ is None or id_ in self._taken:
            return None
        self._taken.add(id_)
        return id_

    def declared(self, name: str) -> str:
        """Returns the declared name for a name that a model wrote: models add namespaces to names that have none."""
        if self.tools is None or name in self.tools:
            return name
        bare = name.rpartition(".")[2]
        return bare if bare in self.tools else name

    def made_id(self, index: int, name: str) -> str:
        """Returns `call_` and 24 hexadecimal digits. Parsing the same text again gives the same ids; another salt gives
        others."""
        digest = hashlib.blake2b(
            f"{self._ids}\0{index}\0{name}".encode(errors="surrogatepass"), digest_size=12
        ).hexdigest()
        return f"call_{digest}"


class CallEmitter:
    """One call's events: fragments of arguments, then the end with its error."""

    __slots__ = (
        "_doubted",
        "_emitter",
        "_fragments",
        "_index",
        "_late_id",
        "_null",
        "_part",
        "_start",
        "is_open",
        "name",
    )

    def __init__(self, emitter: Emitter, start: ToolCallStart, late_id: str | None) -> None:
        self._emitter = emitter
        self._doubted = emitter.doubted
        self._start = start
        self._index = start.index
        self._part = start.part
        self._fragments: list[str] = []
        self._late_id = late_id
        self._null = ""
        self.name = start.name
        self.is_open = True

    def again(self) -> None:
        """Emit the call's events so far again, as the turn's first call."""
        self._index = 0
        self._emitter.emit(replace(self._start, index=0))
        for text in () if self._emitter.hide_calls else self._fragments:
            self._emitter.delta(0, text, self._part)

    def write(self, text: str) -> None:
        """Add a fragment of the arguments' JSON text. `null` is held back: it means no arguments."""
        if not self._fragments:
            text, self._null = self._null + text, ""
            if _NULL.startswith(text):
                self._null = text
                return
        self._out(text)

    def _out(self, text: str) -> None:
        if text:
            self._fragments.append(text)
            if not self._emitter.hide_calls:
                self._emitter.delta(self._index, text, self._part)

    def doubt(self) -> None:
        """The text goes on with a marker although the arguments are not over: if they end inside a string, the marker,
        and any call behind it, may belong to the string."""
        text = _ESCAPED.sub("", "".join(self._fragments))
        self._emitter.doubted = self._emitter.doubted or text.count('"') % 2 == 1

    def end(self, error: CallError | None = None, id_: str | None = None) -> None:
        """End the call. If there is no error yet, its arguments are checked: JSON, an object, valid for the tool."""
        if error is None and not self._fragments and self._null in ("", _NULL):
            self._null = "{}"
        self._out(self._null)
        arguments = "".join(self._fragments)
        if error is None:
            arguments = arguments.strip()
            error = self._judge(arguments)
        late = (self._emitter.own_id(id_) or self._late_id) if self._late_id is not None else None
        self.is_open = False
        self._emitter.emit(ToolCallEnd(self._index, arguments, error, self._part, id=late))

    def _judge(self, arguments: str) -> CallError | None:
        if self._doubted:
            return "malformed"
        try:
            value = json_value(arguments, unique=True)
        except ValueError:
            return "malformed"
        if not self.name:
            return "malformed"
        tools = self._emitter.tools
        if tools is not None and self.name not in tools:
            return "unknown_tool"
        if not isinstance(value, dict):
            return "invalid_arguments"
        tool = tools[self.name] if tools is not None else None
        if tool is not None and "properties" in value and value == tool.parameters:
            return "invalid_arguments"  # the tool's own definition
        check = tool.check if tool is not None else None
        return "invalid_arguments" if check is not None and check(value) is not None else None


class Span:
    """A span of text between markers: emits text, but holds back white space that may belong to the next marker.

    White space that the template writes around a marker is dropped (`lead` after the opening one, `Mark.before` of the
    closing one), all other text is exact, unless the emitter trims content. A span of only white space is dropped,
    unless its end is exact. `edge` is the trace's kind for dropped white space.
    """

    __slots__ = ("_code", "_edge", "_emitter", "_held", "_kind", "_last", "_lead", "_part", "_parted", "_reader")

    def __init__(self, emitter: Emitter, reader: Reader, kind: Kind, lead: str = "", edge: str = "space") -> None:
        self._emitter = emitter
        self._reader = reader
        self._kind: Kind = kind
        self._lead = lead
        self._edge = edge
        self._held: list[str] = []
        self._last = ""
        self._part = -1
        self._parted = False
        self._code = Quoting()

    @property
    def blank(self) -> bool:
        """Whether the span has only white space so far."""
        return self._part < 0

    @property
    def _trims(self) -> bool:
        return self._kind == "content" and self._emitter.trims

    @property
    def begins_line(self) -> bool:
        """Whether only white space precedes the next character on its line."""
        return self.blank or any("\n" in text for text in self._held)

    @property
    def quotes(self) -> bool:
        """Whether a quotation mark directly precedes the next character."""
        return not self._held and self._last[-1:] in QUOTES

    def quotes_code(self, marker: str) -> bool:
        """Whether the next character is quoted code (for a marker that is a fence itself: in a longer one)."""
        code = self._code.here()
        return code.is_open and code.holds(marker)

    def quotes_mark(self, marker: str) -> bool:
        """The same for one of which nothing that follows it tells: backticks quote it in their own line only."""
        code = self._code.here()
        if not (code.is_near and code.holds(marker)):
            return False
        self._code.quote()
        return True

    @property
    def code(self) -> Quoting | None:
        """The code in which the next character is; a fence that begins the text counts only in reasoning."""
        code = self._code.here()
        return code if code.is_open or (self._kind == "reasoning" and code.depth) else None

    @property
    def is_fenced(self) -> bool:
        """Whether the next character is in a fence that began the text."""
        return self._code.here().begins

    def show_mark(self) -> None:
        """The next marker is shown in code."""
        self._code.quote()

    @property
    def begins_word(self) -> bool:
        """Whether white space, or nothing, precedes the next character."""
        return self.blank or bool(self._held)

    def write(self, text: str) -> None:
        """Add text."""
        self._last = text
        self._code.write(text)
        stripped = text.rstrip()
        if not stripped:
            self._held.append(text)
            return
        stripped = self._let_go() + stripped
        if self._parted:
            self._part_lines(stripped)
        if text[-1:].isspace():
            self._held.append(text[len(text.rstrip()) :])
        if self._part < 0:
            trimmed = len(stripped) - len(stripped.lstrip())
            dropped = trimmed if self._trims else common_prefix(stripped, self._lead)
            self._reader.note(self._edge, stripped[:dropped])
            stripped = stripped[dropped:]
        self._emit(stripped)

    def end(self, before: str = "", *, exact: bool = False) -> None:
        """End the span at a marker that has this white space before it in the template, or at the end of the input.
        `exact`: white space alone counts as text."""
        held = self._let_go()
        if self._part < 0:
            dropped = common_prefix(held, self._lead) if exact and not self._trims else len(held)
            self._reader.note(self._edge, held[:dropped])
            held = held[dropped:]
        kept = len(held) - common_suffix(held, before)
        if kept:
            self._emit(held[:kept])
        self._reader.note("space" if self._kind == "content" else self._edge, held[kept:])

    def settle(self, *, parted: bool = False) -> None:
        """Keep the held white space: the markup that follows means nothing here and is left out. (A blank span stays
        blank.) `parted`: what follows begins a line."""
        self._lead = ""
        held = self._let_go()
        self._parted = parted and self._part >= 0 and "\n" not in held
        if self._part >= 0 and held:
            self._emit(held)
        elif held:
            self._reader.note(self._edge, held)

    def _part_lines(self, text: str) -> None:
        """Break the line before text that does not: no input, so the trace does not have it."""
        self._parted = False
        if "\n" not in text[: len(text) - len(text.lstrip())]:
            self._emitter.delta(self._kind, "\n", self._part)

    def _let_go(self) -> str:
        if not self._held:
            return ""
        held = "".join(self._held)
        self._held.clear()
        return held

    def _emit(self, text: str) -> None:
        text = self._reader.own(self._kind, text)
        if self._part < 0:
            self._part = self._emitter.next_part()
        if text:
            self._emitter.delta(self._kind, text, self._part)


def common_prefix(text: str, other: str) -> int:
    """Returns the length of the common prefix."""
    count = 0
    for a, b in zip(text, other, strict=False):
        if a != b:
            break
        count += 1
    return count


def common_suffix(text: str, other: str) -> int:
    """Returns the length of the common suffix."""
    return common_prefix(text[::-1], other[::-1])
