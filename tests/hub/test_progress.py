"""How a download is shown: on a terminal, in a notebook, as lines."""

import io
import re
import sys
from collections.abc import Iterable
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest

from engine.hub.progress import Progress
from engine.support.screens import Lines, Loading, Notebook, Screen, Terminal, duration_text, screen_for

MB = 10**6
NAME = "m-Q4_K_M.gguf"


class Clock:
    """Seconds that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def shown(screen: Screen, steps: Iterable[tuple[float, int]], total: int = 100 * MB, done: int = 0) -> None:
    """A download: after so many seconds each, so many bytes are here."""
    clock = Clock()
    progress = Progress(screen, clock)
    progress.begin(NAME, total, done)
    for seconds, here in steps:
        clock.now += seconds
        progress.at(here)
    progress.end()


def test_lines_come_every_few_seconds_with_speed_and_time_left() -> None:
    out = io.StringIO()
    shown(Lines(out), [(1.0, 5 * second * MB) for second in range(1, 21)])
    assert out.getvalue().splitlines() == [
        f"{NAME}  0 B of 100 MB (0 %)",
        f"{NAME}  25.0 MB of 100 MB (25 %), 5.00 MB/s, 15 s left",
        f"{NAME}  50.0 MB of 100 MB (50 %), 5.00 MB/s, 10 s left",
        f"{NAME}  75.0 MB of 100 MB (75 %), 5.00 MB/s, 5 s left",
        f"{NAME}  100 MB of 100 MB (100 %), 5.00 MB/s, 0 s left",
        f"{NAME}  100 MB in 20 s, 5.00 MB/s",
    ]


def test_the_speed_is_that_of_the_last_seconds_and_of_what_came_now() -> None:
    out = io.StringIO()
    shown(Lines(out), [(5.0, 60 * MB), *[(5.0, 60 * MB + step * 5 * MB) for step in range(1, 9)]], done=50 * MB)
    lines = out.getvalue().splitlines()
    assert lines[0] == f"{NAME}  50.0 MB of 100 MB (50 %)"
    assert lines[-2].endswith("100 MB of 100 MB (100 %), 1.00 MB/s, 0 s left")
    assert lines[-1].endswith("100 MB in 45 s, 1.11 MB/s")


def test_a_terminal_has_one_line_that_is_written_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    out = io.StringIO()
    shown(Terminal(out), [(0.05, second * MB) for second in range(1, 101)])
    text = out.getvalue()
    assert text.count("\n") == 1
    states = text.split("\r")[1:-2]
    assert len(states) <= 52
    assert all(len(state) <= 49 for state in states)
    assert all(len(after) >= len(before.rstrip()) for before, after in pairwise(states))
    assert states[-1].startswith(f"{NAME}  …"), "both ends stay: what it is, and how far"
    assert states[-1].rstrip().endswith(" left")
    assert text.endswith(f"\r{NAME}  100 MB in 5 s, 20.0 MB/s\n")


def test_a_line_replaces_the_state_of_a_terminal() -> None:
    out = io.StringIO()
    terminal = Terminal(out)
    terminal.state("12345")
    terminal.line("ab")
    assert out.getvalue() == f"\r12345\r{' ' * len('12345^C')}\rab\n"


def test_what_stopped_says_that_it_goes_on() -> None:
    out = io.StringIO()
    progress = Progress(Lines(out), Clock())
    progress.begin(NAME, 100 * MB)
    progress.at(30 * MB)
    progress.stopped()
    assert out.getvalue().splitlines()[-1] == (
        f"{NAME}  stopped at 30.0 MB of 100 MB; the next attempt goes on from there"
    )


def test_nothing_is_shown_without_a_screen(capfd: pytest.CaptureFixture[str]) -> None:
    progress = Progress(None)
    progress.begin(NAME, 1)
    progress.at(1)
    progress.say("x")
    progress.end()
    assert capfd.readouterr() == ("", "")


class Cell:
    """IPython's display, as a cell of a notebook keeps it."""

    def __init__(self) -> None:
        self.outputs: list[str] = []

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool = False) -> "Handle | None":
        assert raw
        self.outputs.append(data["text/plain"])
        return Handle(self, len(self.outputs) - 1) if display_id else None


class Handle:
    def __init__(self, cell: Cell, index: int) -> None:
        self._cell, self._index = cell, index

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self._cell.outputs[self._index] = data["text/plain"]


def test_a_notebook_has_one_output_for_each_download() -> None:
    cell = Cell()
    notebook = Notebook(cell.display)
    notebook.line("Q4_K_M chosen")
    shown(notebook, [(1.0, 50 * MB), (1.0, 100 * MB)])
    shown(notebook, [(2.0, 100 * MB)])
    assert cell.outputs == ["Q4_K_M chosen", f"{NAME}  100 MB in 2 s, 50.0 MB/s", f"{NAME}  100 MB in 2 s, 50.0 MB/s"]


def test_the_screen_is_chosen_by_where_this_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tty(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(screen_for(io.StringIO()), Lines)
    assert isinstance(screen_for(Tty()), Terminal)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(screen_for(Tty()), Lines)

    cell = Cell()
    ipython: Any = ModuleType("IPython")
    display: Any = ModuleType("IPython.display")
    display.display = cell.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    ipython.get_ipython = lambda: None  # imported by a program that is no notebook
    assert isinstance(screen_for(io.StringIO()), Lines)
    ipython.get_ipython = lambda: type("Shell", (), {"kernel": object()})()
    screen_for(io.StringIO()).line("in the cell")
    assert cell.outputs == ["in the cell"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.3, "0.3 s"),
        (0.01, "0.1 s"),
        (42.4, "42 s"),
        (59.7, "1 min 00 s"),
        (185, "3 min 05 s"),
        (4800, "1 h 20 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
    assert re.fullmatch(r"[\d. a-z]+", text)


def test_a_load_is_shown_after_a_second() -> None:
    clock, out = Clock(), io.StringIO()
    loading = Loading(Lines(out), "m.gguf", clock)
    for seconds, share in ((0.5, 0.1), (0.6, 0.3), (0.6, 0.5), (6, 0.9)):
        clock.now += seconds
        loading(share)
    loading.end()
    assert out.getvalue().splitlines() == [
        "m.gguf  loading, 30%",
        "m.gguf  loading, 90%",
        "m.gguf  loaded in 8 s",
    ]


def test_a_load_that_was_quick_is_not_shown() -> None:
    out = io.StringIO()
    loading = Loading(Lines(out), "m.gguf", Clock())
    loading(1.0)
    loading.end()
    assert out.getvalue() == ""
