"""A stream of events as it comes, in the output of a notebook's cell: one display, updated until the stream ends.

IPython is imported only where it runs already.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.display import Block, BlockKind, ending, figures, page_html, page_text
from engine.errors import EngineError
from engine.events import (
    ContentDelta,
    Event,
    Finished,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
)
from engine.parts import MediaPart
from engine.screens import cell_display
from engine.types import Usage, media_block

UPDATE_SECONDS = 0.1
_DRAWING_SHARE = 5  # a long page takes a while to draw: four fifths of the time belong to the stream


class Streaming(Protocol):
    """What is shown: any stream of this package."""

    def __iter__(self) -> Iterator[Event]: ...

    def cancel(self) -> None:
        """Stop what is under way."""
        ...


@dataclass(slots=True)
class _Growing:
    """A part of the page; `pieces` are its text so far, `result` the result of a call, `media` the pictures in it."""

    kind: BlockKind
    title: str = ""
    failed: bool = False
    pieces: list[str] = field(default_factory=list[str])
    media: list[Block] = field(default_factory=list[Block])
    result: "_Growing | None" = None


class Page:
    """Events, taken one by one, as the blocks of a page."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int, int], _Growing] = {}
        self._calls: dict[tuple[int, int], _Growing] = {}
        self._usages: list[Usage] = []
        self._last: _Growing | None = None

    def take(self, event: Event) -> None:
        """Append what an event tells."""
        match event:
            case ReasoningDelta(text, part, step):
                self._part("reasoning", part, step).pieces.append(text)
            case ContentDelta(text, part, step):
                self._part("content", part, step).pieces.append(text)
            case ToolCallStart(index, _, name, part, step):
                self._calls[step, index] = call = self._part("call", part, step)
                call.title = name
            case ToolCallDelta(index, text, _, step):
                self._calls[step, index].pieces.append(text)
            case ToolCallEnd(index, arguments, error, _, step):
                call = self._calls[step, index]
                call.pieces, call.failed = [arguments, f"\n[{error}]" if error else ""], error is not None
            case ToolResult(index, _, content, error, _, step, parts):
                result = self._part("result", index, step)
                call = self._calls[step, index]
                call.result, result.title, result.failed, result.pieces = result, call.title, error, [content]
                result.media = [media_block(part.media) for part in parts if isinstance(part, MediaPart)]
            case Finished(reason, usage, step):
                self._usages += [usage] if usage else []
                if reason not in ("stop", "tool_calls"):
                    self.note(ending(reason), step)
                self._last = None

    def note(self, text: str, step: int = 0) -> None:
        """Append a line of our own, which tells of an error or an end."""
        notice = self._part("notice", len(self._parts), step)
        notice.failed, notice.pieces = True, [text]

    def blocks(self) -> list[Block]:
        """The page so far, in the order in which its parts began; a call's result follows the call."""
        parts: list[_Growing] = []
        for part in self._parts.values():
            if part.kind != "result":
                parts += [part, part.result] if part.result else [part]
        blocks: list[Block] = []
        for part in parts:
            text = "".join(part.pieces)
            blocks.append(Block(part.kind, text, part.title, failed=part.failed, open=part is self._last))
            blocks += part.media
        return blocks

    def data(self) -> dict[str, str]:
        """The page as a display's MIME bundle."""
        blocks, footer = self.blocks(), figures(self._usages) if self._usages else ""
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
    page = Page()
    handle = display(page.data(), raw=True, display_id=True)
    due = clock()
    try:
        for event in stream:
            page.take(event)
            began = clock()
            if began >= due:
                handle.update(page.data(), raw=True)
                due = clock() + max(UPDATE_SECONDS, (_DRAWING_SHARE - 1) * (clock() - began))
    except KeyboardInterrupt as stopped:
        stream.cancel()
        # What IPython shows in place of a traceback through this package: the note says what there is to know.
        setattr(stopped, "_render_traceback_", lambda: ["KeyboardInterrupt"])  # noqa: B010
        page.note("Interrupted: the request was cancelled. The engine can still be used.")
        raise
    except EngineError as error:
        page.note(f"{type(error).__name__}: {error}")
    finally:
        handle.update(_whole(stream, page), raw=True)


def _whole(stream: Streaming, page: Page) -> dict[str, str]:
    """The last state: what this reading showed; of a stream that was read before, what it came to."""
    if page.blocks():
        return page.data()
    whole = getattr(stream, "run", None) or getattr(stream, "completion", None)
    if whole is None:
        return page.data()
    return {"text/html": whole._repr_html_(), "text/plain": repr(whole)}
