"""Draws an answer's Markdown on a terminal while it comes: each finished block once, below it the open one.

Only the last rows of the open block are shown, and the cursor waits on the first of them: whatever a resize does to the
rows below, erasing from there removes all of them and nothing else. Meanwhile typed characters are not shown, since
they would move the cursor, and the terminal does not wrap lines, since it may consider a character wider than we do.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import ClassVar, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown, MarkdownElement
from rich.segment import Segment
from rich.segment import Segments as RichSegments
from rich.style import Style

from engine.cli.blocks import Block, Blocks
from engine.cli.standard import output
from engine.support.display import visible

_PERIOD = 0.06
"""Seconds between two drawings of the open block."""
_ROWS = 5
"""Maximum number of rows shown of the open block. A terminal that becomes narrower may wrap each into several, and rows
that it pushes off the screen cannot be erased."""
_CODE = Style(color="cyan")
_ERASE = "\r\x1b[J"
_START, _STOP = "\x1b[?25l", "\x1b[?25h"  # the cursor is hidden
_UNWRAPPED, _WRAPPED = "\x1b[?7l", "\x1b[?7h"


class LiveMarkdown:
    """One answer. Always call `end`: it shows the cursor and typed characters again."""

    def __init__(self, console: Console, out: TextIO) -> None:
        self._console = console
        self._out = out
        self._blocks = Blocks()
        self._last = ""  # the kind of the block above
        self._drawn = False
        self._next = 0.0
        self._typing = _Typing()

    def feed(self, text: str) -> None:
        """Show a piece of the answer."""
        finished = list(self._blocks.feed(text))
        now = time.monotonic()
        if not finished and now < self._next:
            return
        self._draw(finished, self._blocks.pending)
        drawn = time.monotonic()
        self._next = drawn + max(_PERIOD, 3 * (drawn - now))  # drawing takes at most a quarter of the time

    def end(self) -> None:
        """Show the rest, and restore the terminal."""
        self._draw(list(self._blocks.close()), Block("text", ""))
        self._typing.show()

    def _draw(self, finished: Iterable[Block], pending: Block) -> None:
        """In one write: erase the open block, print the finished ones, draw what is open now."""
        text = "".join([_ERASE + _STOP if self._drawn else "", *map(self._printed, finished)])
        rows = self._open_rows(pending)
        if rows:
            self._typing.hide()
            up = f"\x1b[{len(rows) - 1}A" if len(rows) > 1 else ""
            text += _START + _UNWRAPPED + "\n".join(rows) + _WRAPPED + up + "\r"
        self._drawn = bool(rows)
        with output():
            self._out.write(text)
            self._out.flush()

    def _printed(self, block: Block) -> str:
        """Returns a finished block, after an empty line if it begins something new."""
        gap = "\n" if self._last and (block.kind == "text" or block.kind != self._last) else ""
        self._last = block.kind
        return gap + "".join(f"{row}\n" for row in self._rows(block))

    def _open_rows(self, block: Block) -> list[str]:
        """Returns the end of the open block: a few rows, and never more than fit on the screen."""
        if not block.text.strip():
            return []
        gap = [""] if self._last and (block.kind == "text" or block.kind != self._last) else []
        return [*gap, *self._rows(block)][-min(_ROWS, max(1, self._console.height - 1)) :]

    def _rows(self, block: Block) -> list[str]:
        """Returns a block as rows of text with styles."""
        if block.kind == "raw":
            return visible(block.text).split("\n")
        if block.kind == "code":
            lines = [[Segment(f"    {line}", _CODE)] for line in block.text.split("\n")]
        else:
            lines = _trimmed(self._console.render_lines(_markdown(visible(block.text)), pad=False))
        return list(self._encoded(lines))

    def _encoded(self, lines: Iterable[list[Segment]]) -> Iterator[str]:
        """Yields rows as the terminal reads them, without control characters of the model's: an entity in Markdown may
        become any character (`&#27;`), so the text is made visible again after parsing."""
        for line in lines:
            safe = [Segment(visible(text), style) for text, style, _ in line]
            with self._console.capture() as captured:
                self._console.print(RichSegments(safe), end="")
            yield captured.get()


class _LeftHeading(Heading):
    """A left-aligned heading."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Markdown(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": _LeftHeading}


def _markdown(text: str) -> Markdown:
    """Returns Markdown with its line breaks kept, as models intend them, and with images as their source text."""
    made = _Markdown(text, hyperlinks=False)
    for inline in (child for token in made.parsed for child in token.children or ()):
        if inline.type == "softbreak":
            inline.type = "hardbreak"
        elif inline.type == "image":
            inline.type, inline.children = "text", None
            inline.content = f"![{inline.content}]({inline.attrGet('src')})"
    return made


def _trimmed(lines: list[list[Segment]]) -> list[list[Segment]]:
    """Returns the lines without empty ones at the beginning and end."""
    full = [number for number, line in enumerate(lines) if "".join(segment.text for segment in line).strip()]
    return lines[full[0] : full[-1] + 1] if full else []


class _Typing:
    """Hides typed characters. Characters typed meanwhile are read at the next prompt."""

    def __init__(self) -> None:
        self._before: list[object] | None = None

    def hide(self) -> None:
        with suppress(ImportError, OSError, ValueError, AttributeError):
            import termios

            descriptor = sys.stdin.fileno()
            if self._before is None and sys.stdin.isatty():
                self._before = termios.tcgetattr(descriptor)
                changed = [*self._before]
                changed[3] = int(str(changed[3])) & ~termios.ECHO
                termios.tcsetattr(descriptor, termios.TCSANOW, changed)  # pyright: ignore[reportArgumentType]

    def show(self) -> None:
        if self._before is not None:
            import termios

            termios.tcsetattr(sys.stdin.fileno(), termios.TCSANOW, self._before)  # pyright: ignore[reportArgumentType]
            self._before = None
