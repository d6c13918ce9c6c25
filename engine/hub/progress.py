"""How a download is shown: bytes, speed and the time that is left.

Knows: one line that is written over on a terminal, a display that is updated in a notebook, and plain lines every few
seconds anywhere else. Does not know: what is downloaded, or from where. Sizes are bytes, times seconds.
"""

import importlib
import os
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from engine.hub.variants import size_text

_WINDOW = 10.0  # the speed is that of the last seconds, so that it follows the network
_TERMINAL_EVERY, _NOTEBOOK_EVERY, _LINES_EVERY = 0.1, 0.25, 5.0


class Screen(Protocol):
    """Where progress is shown. `every`: the least seconds between two states that are worth showing."""

    every: float

    def state(self, text: str) -> None:
        """Show where a download is, in place of what was shown before."""
        ...

    def line(self, text: str) -> None:
        """Show a text that stays, after whatever was shown."""
        ...


class Terminal:
    """One line of a terminal, written over."""

    every = _TERMINAL_EVERY

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._shown = 0

    def state(self, text: str) -> None:
        width = shutil.get_terminal_size().columns - 1
        if len(text) > width:
            text = f"…{text[len(text) - width + 1 :]}"
        self._out.write(f"\r{text.ljust(self._shown)}")
        self._out.flush()
        self._shown = len(text)

    def line(self, text: str) -> None:
        if self._shown:
            self._out.write("\r" + " " * self._shown + "\r")
        self._shown = 0
        self._out.write(f"{text}\n")
        self._out.flush()


class Lines:
    """Plain lines, for logs and pipes."""

    every = _LINES_EVERY

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def state(self, text: str) -> None:
        self.line(text)

    def line(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()


class Notebook:
    """The output of a notebook's cell: a display that is updated."""

    every = _NOTEBOOK_EVERY

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def state(self, text: str) -> None:
        if self._handle is None:
            self._handle = self._display({"text/plain": text}, raw=True, display_id=True)
        else:
            self._handle.update({"text/plain": text}, raw=True)

    def line(self, text: str) -> None:
        if self._handle is None:
            self._display({"text/plain": text}, raw=True)
        else:
            self._handle.update({"text/plain": text}, raw=True)
        self._handle = None


def screen_for(out: TextIO) -> Screen:
    """The notebook that this process is the kernel of; else `out`, as a terminal if it is one."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None:
        # IPython is loaded already where there is a notebook; nobody else needs it.
        return Notebook(importlib.import_module("IPython.display").display)
    if out.isatty() and os.environ.get("TERM") != "dumb":
        return Terminal(out)
    return Lines(out)


class Progress:
    """The progress of one download after another. With no screen nothing is shown."""

    def __init__(self, screen: Screen | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._screen = screen
        self._clock = clock
        self._name = ""
        self._total = self._done = self._began_with = 0
        self._began = self._shown = 0.0
        self._samples: deque[tuple[float, int]] = deque()

    def say(self, text: str) -> None:
        """Show a text that stays."""
        if self._screen:
            self._screen.line(text)

    def begin(self, name: str, total: int, done: int = 0) -> None:
        """A download of `total` bytes begins, `done` of which are there already."""
        self._name, self._total, self._done, self._began_with = name, total, done, done
        self._began = self._clock()
        self._samples.clear()
        self._show(self._began)

    def at(self, done: int) -> None:
        """So many bytes are there now."""
        self._done = done
        now = self._clock()
        if self._screen and now - self._shown >= self._screen.every:
            self._show(now)

    def end(self) -> None:
        """The download is complete."""
        seconds = max(self._clock() - self._began, 1e-3)
        came = self._done - self._began_with
        self.say(
            f"{self._name}  {size_text(self._total)} in {duration_text(seconds)}, {size_text(int(came / seconds))}/s"
        )

    def stopped(self) -> None:
        """The download ended before it was complete; what is there is kept."""
        self.say(
            f"{self._name}  stopped at {size_text(self._done)} of {size_text(self._total)}; the next attempt goes on "
            "from there"
        )

    def _show(self, now: float) -> None:
        if self._screen is None:
            return
        self._shown = now
        self._samples.append((now, self._done))
        while len(self._samples) > 2 and now - self._samples[0][0] > _WINDOW:
            self._samples.popleft()
        self._screen.state(self._text())

    def _text(self) -> str:
        share = 100 * self._done // self._total if self._total else 100
        text = f"{self._name}  {size_text(self._done)} of {size_text(self._total)} ({share} %)"
        (since, had), (now, has) = self._samples[0], self._samples[-1]
        if now <= since or has <= had:
            return text
        speed = (has - had) / (now - since)
        return f"{text}, {size_text(int(speed))}/s, {duration_text((self._total - self._done) / speed)} left"


def duration_text(seconds: float) -> str:
    """Such as "42 s", "3 min 05 s" or "1 h 20 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if whole or not seconds else f"{max(seconds, 0.1):.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"
