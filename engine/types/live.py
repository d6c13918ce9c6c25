"""A stream of events as it comes, in the output of a notebook's cell: one display, updated until the stream ends.

IPython is imported only where it runs already.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.support.display import Block, BlockKind, page_html, page_text
from engine.support.errors import EngineError
from engine.support.screens import cell_display
from engine.types import events
from engine.types.blocks import call_block, result_block
from engine.types.completion import Usage, ending, figures, summarised
from engine.types.messages import Message, message_block

UPDATE_SECONDS = 0.1
_DRAWING_SHARE = 5  # a long page takes a while to draw: four fifths of the time belong to the stream


class Streaming(Protocol):
    """What is shown: any stream of this package."""

    def __iter__(self) -> Iterator[events.Event]: ...

    def cancel(self) -> None:
        """Stop what is under way."""
        ...


@dataclass(slots=True)
class _Growing:
    """A part of the page; `pieces` are its text so far, `error` what is wrong with a call, `result` its result."""

    kind: BlockKind
    title: str = ""
    error: str | None = None
    pieces: list[str] = field(default_factory=list[str])
    result: Block | None = None

    def block(self, *, last: bool) -> Block:
        """Returns the part as it is now; the page's last one may still be written."""
        text = "".join(self.pieces)
        if self.kind == "call":
            return call_block(self.title, text, self.error, (self.result,) if self.result else ())
        return Block(self.kind, text, failed=self.kind == "notice", open=last)


class Page:
    """Events, taken one by one, as the blocks of a page. `question` stands above them."""

    def __init__(self, question: Message | None = None) -> None:
        self._question = question
        self._parts: dict[tuple[str, int, int], _Growing] = {}
        self._calls: dict[tuple[int, int], _Growing] = {}
        self._usages: list[Usage] = []
        self._last: _Growing | None = None

    def take(self, event: events.Event) -> None:
        """Append what an event tells."""
        match event:
            case events.ReasoningDelta(text, part, step):
                self._part("reasoning", part, step).pieces.append(text)
            case events.ContentDelta(text, part, step):
                self._part("content", part, step).pieces.append(text)
            case events.ToolCallStart(index, _, name, part, step):
                self._calls[step, index] = call = self._part("call", part, step)
                call.title = name
            case events.ToolCallDelta(index, text, _, step):
                self._calls[step, index].pieces.append(text)
            case events.ToolCallEnd(index, arguments, error, _, step):
                call = self._calls[step, index]
                call.pieces, call.error = [arguments], error
            case events.ToolResult(index, _, content, error, _, step, parts):
                result = result_block(content, parts, failed=error, seconds=event.seconds)
                self._calls[step, index].result, self._last = result, None
            case events.Summarised(_, messages, failure, step):
                self.note(summarised(messages, failure), step)
            case events.Finished(reason, usage, step):
                self._usages += [usage] if usage else []
                if reason not in ("stop", "tool_calls"):
                    self.note(ending(reason, usage), step)
                self._last = None

    def note(self, text: str, step: int = 0) -> None:
        """Append a line of our own, which tells of an error or an end."""
        notice = self._part("notice", len(self._parts), step)
        notice.pieces = [text]

    def blocks(self) -> list[Block]:
        """What was read so far, in the order in which its parts began; a call has its result inside."""
        return [part.block(last=part is self._last) for part in self._parts.values()]

    def data(self) -> dict[str, str]:
        """The page as a display's MIME bundle."""
        blocks, footer = self.blocks(), figures(self._usages) if self._usages else ""
        if self._question is not None:
            blocks.insert(0, message_block(self._question))
        return {"text/html": page_html(blocks, footer), "text/plain": page_text(blocks, footer)}

    def _part(self, kind: BlockKind, part: int, step: int) -> _Growing:
        key = (kind, part, step)
        if key not in self._parts:
            self._parts[key] = _Growing(kind)
        self._last = self._parts[key]
        return self._last


def show(stream: Streaming) -> None:
    """Show a stream in the present cell while it is read to its end; anywhere but in a notebook only its `repr`.

    Interrupting the kernel cancels the stream; what came before stays shown. An error that ends the stream is shown
    below what came before it.
    """
    display = cell_display()
    if display is None:
        sys.stdout.write(f"{stream!r}\n")
    else:
        draw(stream, display)


def draw(stream: Streaming, display: Callable[..., Any], clock: Callable[[], float] = time.monotonic) -> None:
    """`show` by IPython's `display`: one handle, updated at most ten times a second, and once at the end."""
    page = Page(getattr(getattr(stream, "run", None), "question", None))
    handle = display(page.data(), raw=True, display_id=True)
    due, over = clock(), False
    try:
        for event in stream:
            page.take(event)
            began = clock()
            if began >= due:
                handle.update(page.data(), raw=True)
                due = clock() + max(UPDATE_SECONDS, (_DRAWING_SHARE - 1) * (clock() - began))
        over = True
    except KeyboardInterrupt as stopped:
        stream.cancel()
        # What IPython shows in place of a traceback through this package: the note says what there is to know.
        setattr(stopped, "_render_traceback_", lambda: ["KeyboardInterrupt"])  # noqa: B010
        page.note("Interrupted: the request was cancelled. The engine can still be used.")
        raise
    except EngineError as error:
        page.note(f"{type(error).__name__}: {error}")
    finally:
        handle.update(_whole(stream, page) if over else page.data(), raw=True)


def _whole(stream: Streaming, page: Page) -> dict[str, str]:
    """The last state of a stream that is over: the page of what it came to."""
    whole = getattr(stream, "run", None) or getattr(stream, "completion", None)
    if whole is None:
        return page.data()
    plain = page.data()["text/plain"] if page.blocks() else repr(whole)
    return {"text/html": whole._repr_html_(), "text/plain": plain}
