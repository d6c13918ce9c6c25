"""Progress displays: a terminal's line, the output of a notebook's cell, or plain lines.

Times are seconds.
"""

import importlib
import io
import os
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TextIO

from engine.support.display import visible

_TERMINAL_EVERY, _NOTEBOOK_EVERY, _LINES_EVERY = 0.1, 0.25, 5.0
_ECHO = "^C"  # a terminal shows it behind the line when a user interrupts
_LOAD_SHOWN_AFTER = 1.0  # a faster load is not shown


class Screen(Protocol):
    """A display of progress. `every`: the least seconds between two updates."""

    every: float

    def state(self, text: str) -> None:
        """Show the current state in place of the previous one."""
        ...

    def line(self, text: str) -> None:
        """Show a text that stays."""
        ...


class VisibleStream(io.TextIOBase):
    """A stream to which anything may write: characters that act instead of being visible, such as terminal control
    codes, are escaped. Meant for standard error, so what cannot be written is dropped."""

    def __init__(self, inner: TextIO) -> None:
        self.inner = inner

    def write(self, text: str) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        with suppress(OSError):  # nobody can be told: this is where failures are reported
            self.inner.write(visible(text))
            self.inner.flush()
        return len(text)

    def isatty(self) -> bool:
        return self.inner.isatty()

    def fileno(self) -> int:
        return self.inner.fileno()

    def writable(self) -> bool:
        return True


class Terminal:
    """One line of a terminal, overwritten."""

    every = _TERMINAL_EVERY

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown = 0

    def state(self, text: str) -> None:
        text = _one_line(text)
        width = shutil.get_terminal_size().columns - 1 - len(_ECHO)
        if len(text) > width:  # what matters stands at both ends
            begin = width // 3
            text = f"{text[:begin]}…{text[len(text) - (width - begin - 1) :]}"
        self._out.write(f"\r{text.ljust(self._shown)}")
        self._out.flush()
        self._shown = len(text) + len(_ECHO)

    def line(self, text: str) -> None:
        if self._shown:
            self._out.write("\r" + " " * self._shown + "\r")
        self._shown = 0
        self._out.write(f"{visible(text)}\n")
        self._out.flush()


class Lines:
    """Plain lines, for logs and pipes."""

    every = _LINES_EVERY

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def state(self, text: str) -> None:
        self.line(text)

    def line(self, text: str) -> None:
        self._out.write(f"{visible(text)}\n")
        self._out.flush()


class Notebook:
    """The output of a notebook's cell: a display that is updated."""

    every = _NOTEBOOK_EVERY

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def state(self, text: str) -> None:
        data = {"text/plain": visible(text)}
        if self._handle is None:
            self._handle = self._display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def line(self, text: str) -> None:
        self.state(text)
        self._handle = None


def _one_line(text: str) -> str:
    """Returns the text without control codes, tabs and line breaks: it is written over again in its row."""
    return visible(text).replace("\n", " ").replace("\t", " ")


def cell_display() -> Callable[..., Any] | None:
    """Returns IPython's `display` if this process is a notebook's kernel: then IPython is imported already."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return None if getattr(shell, "kernel", None) is None else importlib.import_module("IPython.display").display


def notebook() -> Notebook | None:
    """Returns the display of the notebook whose kernel this process is; None if it is not one."""
    display = cell_display()
    return None if display is None else Notebook(display)


def screen_for(out: TextIO) -> Screen:
    """Returns the notebook's display if this process is a kernel; else `out`, as a terminal if it is one."""
    if (cell := notebook()) is not None:
        return cell
    if out.isatty() and os.environ.get("TERM") != "dumb":
        return Terminal(out.inner if isinstance(out, VisibleStream) else out)  # it moves the cursor itself
    return Lines(out)


class Loading:
    """Shows the progress of a model's load if it takes longer than a second; called with 0.0 to 1.0."""

    def __init__(self, screen: Screen, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._screen = screen
        self._name = name
        self._clock = clock
        self._began = clock()
        self._shown: float | None = None

    def __call__(self, share: float) -> None:
        now = self._clock()
        if now - self._began < _LOAD_SHOWN_AFTER or (self._shown and now - self._shown < self._screen.every):
            return
        self._shown = now
        self._screen.state(f"{self._name}  loading, {share:.0%}")

    def end(self) -> None:
        """Show that the model is loaded, if progress was shown."""
        if self._shown:
            self._screen.line(f"{self._name}  loaded in {duration_text(self._clock() - self._began)}")


def duration_text(seconds: float) -> str:
    """Returns a duration as text, such as "42 s", "3 min 05 s" or "1 h 20 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if whole or not seconds else f"{max(seconds, 0.1):.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
