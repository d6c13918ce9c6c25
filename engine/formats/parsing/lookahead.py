"""A call's markup inside open reasoning, read on trial: whether it is a call or a draft is decided before any event."""

from collections.abc import Callable

from engine.formats.families import ToolSyntax
from engine.formats.parsing.emitter import Emitter
from engine.formats.parsing.reader import WINDOW, Gen, Markers, Reader, Spelling, compiled
from engine.formats.parsing.shapes import SectionReader
from engine.types.events import Event, ToolCallEnd, ToolCallStart

LONGEST = 65_536
"""In characters: the longest call that is held. It leaves room for a whole file as an argument; what is still no whole
call by then is text, so a marker in reasoning cannot hold a stream back for ever."""
MOST = 64
"""The most trials of one turn that may fail. Each reads its text once more, so this bounds the cost of a turn that is
full of openings; markup that begins after so many drafts is text."""


class Trial:
    """Reads the calls at the front beside the turn's own reader, which then reads them again if they are calls.

    `ends`: the markers that end reasoning. `at_once`: the first whole section is a call, whatever follows; if not, it
    must be the last thing in the output. `wrapped`: it begins with the section's marker, where there is one; if not, it
    must be whole too, and end an output that nothing cut.
    """

    def __init__(
        self,
        reader: Reader,
        emitter: Emitter,
        syntax: ToolSyntax,
        spelling: Spelling,
        ends: Markers,
        *,
        at_once: bool,
        wrapped: bool,
    ) -> None:
        self._outer = reader
        self._ends = ends
        self._at_once = at_once and wrapped
        self._wrapped = wrapped
        self._inner = Reader(spelling.characters, spelling.hard)
        self._inner.listener = self._note
        self._emitter = Emitter(emitter.tools)
        self._calls = SectionReader(self._inner, self._emitter, syntax, spelling)
        self._run = self._sections()
        self._running = True
        self._malformed = 0
        self._begun = self._inside = False
        self._errors: list[str | None] = []
        self._unnamed = False

    def succeeds(self, put_back: Callable[[str], None]) -> Gen[bool]:
        """Whether the text at the front is a call. Consumes nothing: what it has read goes to `put_back`."""
        outer = self._outer
        read: list[str] = []
        size = 0
        decided: bool | None = None
        while decided is None:
            if (yield from outer.starts(self._ends)) is not None:
                decided = False  # it closes reasoning, so what stands before it was a draft
            elif not (yield from outer.more()):
                decided = self._ended_output()
            else:
                found = self._ends.pattern.search(outer.buffer, outer.pos + 1)
                stop = len(outer.buffer) if found is None else found.start()
                text = outer.take(min(stop - outer.pos, LONGEST + 1 - size))
                read.append(text)
                size += len(text)
                decided = self._fed(text)
                if decided is None and size > LONGEST:
                    decided = False
        put_back("".join(read))
        return decided

    def _sections(self) -> Gen[None]:
        reader, openers = self._inner, compiled(*self._calls.section.openers)
        while (hit := (yield from reader.starts(openers))) is not None:
            self._inside = True
            reader.take(len(hit), "marker")
            yield from self._calls.read(hit)
            self._inside = False
            self._take_note()
            if self._at_once or any(self._errors):
                return
            yield from reader.space()
            if not (yield from reader.more()):
                return

    def _fed(self, text: str) -> bool | None:
        """Whether this is a call, after more of its text; None: still open."""
        self._inner.feed(text)
        self._advance()
        if self._unnamed or self._malformed > WINDOW:
            return False
        if self._running:
            return None
        if self._whole:
            return self._at_once  # if not: other text follows
        # A section that cannot be read is a call only as the last thing in the output.
        return None if not self._inner.buffer[self._inner.pos :].strip() else False

    @property
    def _whole(self) -> bool:
        return bool(self._errors) and not any(self._errors)

    def _ended_output(self) -> bool:
        """The same at the end of the output. There a section that has an error is a call too, so that the turn does not
        look like one without; one that is not over only if a call may stand in reasoning."""
        over = not self._running or not self._inside
        self._inner.closed = self._inner.cut = True
        self._advance()
        if self._at_once and self._outer.cut:
            self._inner.cut_marker(self._calls.section.inside)
        if self._unnamed or self._inner.buffer[self._inner.pos :].strip():
            return False
        if not self._wrapped:
            return self._whole and not self._outer.cut
        if not self._errors:  # cut in its markers, which are not shown
            return self._at_once and self._outer.cut and not self._malformed
        return over or self._whole or (self._at_once and not self._malformed)

    def _advance(self) -> None:
        if self._running:
            self._running = next(self._run, self) is None
        self._take_note()

    def _take_note(self) -> None:
        for event in self._emitter.drain():
            self._judge(event)

    def _judge(self, event: Event) -> None:
        tools = self._emitter.tools
        if isinstance(event, ToolCallStart):
            self._unnamed = self._unnamed or not event.name or (tools is not None and event.name not in tools)
        elif isinstance(event, ToolCallEnd):
            self._errors.append(event.error)

    def _note(self, kind: str, text: str) -> None:
        self._malformed += len(text) if kind == "malformed" else 0
