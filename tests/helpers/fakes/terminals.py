"""Programs in a real pseudo-terminal, whose output a terminal emulator (pyte) draws.

pyte's own resize clips rows and leaves the cursor; here it is as xterm's: the cursor stays with its row, rows leave at
the top as far as they must, else at the bottom. tmux, which wraps rows anew, is the second emulator.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyte

ROOT = Path(__file__).resolve().parents[3]
SUPPORT = Path(__file__).resolve().parent


_LOOK = 0.1
"""Seconds between two looks at what was drawn, while more comes."""


class _Screen(pyte.HistoryScreen):
    """A screen that keeps all rows that left it, and answers the program's questions."""

    def __init__(self, columns: int, lines: int, answer: Callable[[str], None]) -> None:
        super().__init__(columns, lines, history=1_000_000, ratio=0.5)
        self._answer = answer

    def write_process_input(self, data: str) -> None:
        self._answer(data)

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        lines, columns = lines or self.lines, columns or self.columns
        above = max(0, self.cursor.y - (lines - 1))
        for _ in range(above):
            self.history.top.append(self.buffer[0])
            for row in range(self.lines - 1):
                self.buffer[row] = self.buffer[row + 1]
            self.buffer.pop(self.lines - 1, None)
        self.cursor.y -= above
        for row in [row for row in self.buffer if row >= lines]:
            self.buffer.pop(row)
        self.lines, self.columns = lines, columns
        self.cursor.x = min(self.cursor.x, columns - 1)
        self.margins = None
        self.dirty.update(range(lines))


class Terminal:
    """A program in a terminal."""

    def __init__(self, command: Sequence[str], columns: int, lines: int, **more: str) -> None:
        self._end, inner = pty.openpty()
        self._size(inner, columns, lines)
        self.screen = _Screen(columns, lines, self.type)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._gone: list[str] = []
        self.child = subprocess.Popen(
            command,
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**_environment(), **more},
            preexec_fn=_own_terminal,
        )
        os.close(inner)

    @staticmethod
    def _size(descriptor: int, columns: int, lines: int) -> None:
        fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def resize(self, columns: int, lines: int) -> None:
        self.screen.resize(lines, columns)
        self._size(self._end, columns, lines)

    def read(self, seconds: float = 0.05) -> bool:
        """Draw what the program wrote; whether there was something."""
        if not select.select([self._end], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._end, 65536)
        except OSError:  # the program has ended
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    def rows(self) -> list[str]:
        """All rows, those that left the screen first."""
        top = self.screen.history.top
        self._gone += [_text(top[number]) for number in range(len(self._gone), len(top))]
        return [*self._gone, *(_text(self.screen.buffer[number]) for number in range(self.screen.lines))]

    def text(self) -> str:
        return "\n".join(self.rows()).rstrip()

    def until(self, pattern: str, seconds: float = 60) -> str:
        """Read until all that was drawn matches."""
        limit = time.monotonic() + seconds
        while not re.search(pattern, text := self.text(), re.DOTALL):
            assert time.monotonic() < limit, text
            again = time.monotonic() + _LOOK
            while self.read() and time.monotonic() < again:
                pass
        return text

    def interrupt(self) -> None:
        self.type("\x03")

    def echoes(self) -> bool:
        return bool(int(termios.tcgetattr(self._end)[3]) & termios.ECHO)


@contextmanager
def terminal(command: Sequence[str], columns: int = 80, lines: int = 24, **more: str) -> Generator[Terminal]:
    """A program in a terminal, ended with the block."""
    made = Terminal(command, columns, lines, **more)
    try:
        yield made
    finally:
        made.child.kill()
        made.child.wait()
        os.close(made._end)  # pyright: ignore[reportPrivateUsage]


def chat_command(script: Path, *arguments: str) -> list[str]:
    """The scripted chat as a command."""
    return [sys.executable, str(SUPPORT / "scripted_chat.py"), str(script), *arguments]


def _text(row: Any) -> str:
    return "".join(row[column].data for column in range(max(row, default=-1) + 1)).rstrip()


def _environment() -> dict[str, str]:
    kept: dict[str, Any] = {
        key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")
    }
    return {
        **kept,
        "TERM": "xterm-256color",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{SUPPORT.parent}",
        "PYTHONWARNINGS": "ignore",
    }


def _own_terminal() -> None:
    """A session whose terminal this is, and which heeds Ctrl-C."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
