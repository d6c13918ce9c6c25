"""Calls read on trial, with the real readers: whether a text is a call is decided before any event."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from engine.formats.families import ToolSyntax
from engine.formats.parsing.emitter import Emitter
from engine.formats.parsing.reader import FIRST_CONTROL, WINDOW, Gen, Markers, Reader, Spelling, begins, compiled
from engine.formats.parsing.shapes import SectionReader
from engine.types.events import ToolCallEnd, ToolCallStart

LONGEST = 65_536
"""In characters: the longest call that is held. It leaves room for a whole file as an argument; what is still no whole
call by then is text, so a marker in reasoning cannot hold a stream back for ever."""
MOST = 64
"""The most trials of one turn that may fail. Each reads its text once more, so this bounds the cost of a turn that is
full of openings; markup that begins after so many drafts is text."""
LONG_TRIAL = 4096
"""In characters: a trial that fails counts once more for each so many that it read."""


_ARGUMENTS = ("arguments", "key")


def ends_well(text: str, closer: str = "") -> bool | None:
    """Whether this text can stand behind calls without markers (`closer`: all but the last one). If not, it makes them
    a part of a sentence, or of other JSON. None: undecided."""
    rest = text.lstrip(" \t")
    if closer and rest and (found := begins(rest, [closer])) is not False:
        return found
    if rest[:1] in ("\r", "\n"):
        following = rest.lstrip()[:1]
        return following not in ("]", "}", ",") if following else None
    glued = rest == text and rest[:1].isalnum()
    return glued or rest[0] in "{;<`" or rest[0] >= chr(FIRST_CONTROL) if rest else None


class Trial(ABC):
    """Reads text at the front beside the turn's own reader, which then reads it again if it is a call.

    `inner` and `emitter` are for the readers that `begin` runs. `ends`: markers that end the text of which this may be
    a part.
    """

    def __init__(self, reader: Reader, emitter: Emitter, spelling: Spelling, ends: Markers) -> None:
        self._outer = reader
        self._ends = ends
        self.inner = Reader(spelling.characters, spelling.hard)
        self.inner.listener = self._note
        self.emitter = Emitter(emitter.tools)
        self._running = True
        self._errors: list[str | None] = []
        self._unnamed = False
        self._malformed = 0
        self._run = self._reads()

    @abstractmethod
    def _reads(self) -> Gen[None]:
        """Read the text with the real readers."""

    @abstractmethod
    def _fed(self) -> bool | None:
        """Whether this is a call, after more of its text; None: still open."""

    @abstractmethod
    def _ended_output(self) -> bool:
        """The same at the end of the output."""

    def succeeds(self) -> Gen[bool]:
        """Whether the text at the front is a call. Consumes nothing; holds the text until that is decided."""
        outer, has_ends = self._outer, bool(self._ends.literals)
        read: list[str] = []
        size = 0
        decided: bool | None = None
        while decided is None:
            if has_ends and (yield from outer.starts(self._ends)) is not None:
                decided = self._ended_text()
            elif not (yield from outer.more()):
                decided = self._ended_output()
            else:
                found = self._ends.pattern.search(outer.buffer, outer.pos + 1) if has_ends else None
                stop = len(outer.buffer) if found is None else found.start()
                text = outer.take(min(stop - outer.pos, LONGEST + 1 - size))
                read.append(text)
                size += len(text)
                self.inner.feed(text)
                self._advance()
                decided = self._fed()
                if decided is None and size > LONGEST:
                    decided = False
        outer.put_back("".join(read))
        return decided

    def _ended_text(self) -> bool:
        """The same where one of `ends` is at the front."""
        return False

    @property
    def _rest(self) -> str:
        """What the readers have left."""
        return self.inner.buffer[self.inner.pos :]

    @property
    def _whole(self) -> bool:
        return bool(self._errors) and not any(self._errors)

    def _advance(self) -> None:
        if self._running:
            self._running = next(self._run, self) is None
        self._take_note()

    def _take_note(self) -> None:
        tools = self.emitter.tools
        for event in self.emitter.drain():
            if isinstance(event, ToolCallStart):
                self._unnamed = self._unnamed or not event.name or (tools is not None and event.name not in tools)
            elif isinstance(event, ToolCallEnd):
                self._errors.append(event.error)

    def _note(self, kind: str, text: str) -> None:
        self._malformed += len(text) if kind == "malformed" else 0


class DraftTrial(Trial):
    """Whether a section of calls in open reasoning is one, rather than a draft.

    `ends`: the markers that end reasoning: what stands before one was a draft. `at_once`: the first whole section is a
    call, whatever follows; if not, it must be the last thing in the output. `wrapped`: it begins with the section's
    marker, where there is one; if not, it must be whole too, and end an output that nothing cut.
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
        super().__init__(reader, emitter, spelling, ends)
        self._at_once = at_once and wrapped
        self._wrapped = wrapped
        self._calls = SectionReader(self.inner, self.emitter, syntax, spelling)
        self._inside = False

    def _reads(self) -> Gen[None]:
        reader, openers = self.inner, compiled(*self._calls.section.openers)
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

    def _fed(self) -> bool | None:
        if self._unnamed or self._malformed > WINDOW:
            return False
        if self._running:
            return None
        if self._whole:
            return self._at_once  # if not: other text follows
        # A section that cannot be read is a call only as the last thing in the output.
        return None if not self._rest.strip() else False

    def _ended_output(self) -> bool:
        """There a section that has an error is a call too, so that the turn does not look like one without; one that is
        not over only if a call may stand in reasoning."""
        over = not self._running or not self._inside
        self.inner.closed = self.inner.cut = True
        self._advance()
        if self._at_once and self._outer.cut:
            self.inner.cut_marker(self._calls.section.inside)
        if self._unnamed or self._rest.strip():
            return False
        if not self._wrapped:
            return self._whole and not self._outer.cut
        if not self._errors:  # cut in its markers, which are not shown
            return self._at_once and self._outer.cut and not self._malformed
        return over or self._whole or (self._at_once and not self._malformed)


class BareTrial(Trial):
    """Whether what stands at the front without markers is calls and nothing else: each names a declared tool, and has
    arguments that it takes; behind them their line is over.

    `read` makes the generator that reads them; `closer` may stand behind them. `at_end`: they must be whole; if not,
    they are calls as soon as the first one's arguments begin, so that these are passed on as they come.
    """

    def __init__(
        self,
        reader: Reader,
        emitter: Emitter,
        spelling: Spelling,
        read: Callable[[Reader, Emitter], Gen[None]],
        *,
        closer: str,
        at_end: bool,
    ) -> None:
        super().__init__(reader, emitter, spelling, compiled(*spelling.characters.values()))
        self._read = read
        self._closer = closer
        self._at_end = at_end
        self._begun = False
        self.is_cut = False
        """Whether the output was cut off before it could be told."""

    def _reads(self) -> Gen[None]:
        yield from self._read(self.inner, self.emitter)

    def _fed(self) -> bool | None:
        if self._begun and not self._at_end:
            return True
        if self._unnamed or any(self._errors) or self._malformed:
            return False
        return None if self._running else self._whole and ends_well(self._rest, self._closer)

    def _ended_text(self) -> bool:
        self.inner.closed = self.inner.cut = True
        self._advance()
        return (self._begun and not self._at_end) or (self._whole and ends_well(self._rest, self._closer) is not False)

    def _ended_output(self) -> bool:
        is_open = self._running and self._outer.cut and not self._malformed
        if is_open and not self._begun:
            self.is_cut = True
        return self._ended_text() or (is_open and self._begun)

    def _note(self, kind: str, text: str) -> None:
        super()._note(kind, text)
        self._begun = self._begun or (kind in _ARGUMENTS and self.emitter.calls > 0 and not self._malformed)
