"""The process's standard streams, made fit for commands: whatever is written to standard error shows control codes
instead of sending them, closed streams are filled, and a failure of standard output is told from any other.
"""

import io
import os
import stat
import sys
import threading
import traceback
import warnings
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from engine.cli.wording import spoken
from engine.support.errors import EngineWarning
from engine.support.screens import VisibleStream

_PATIENCE = 0.5
"""Seconds after which a person wonders whether anything happens."""


@contextmanager
def standard_streams() -> Generator[None]:
    """Every text that reaches standard error meanwhile, argparse's and Python's own included, is made visible."""
    _fill()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a character that the console lacks is shown as its escape
            stream.reconfigure(errors="backslashreplace")
    stdin: object = sys.stdin
    if is_piped() and isinstance(stdin, io.TextIOWrapper):  # as a file is read, in whatever locale
        stdin.reconfigure(encoding="utf-8", errors="strict")
    before = sys.stderr
    sys.stderr = cast("TextIO", VisibleStream(before))
    with warnings.catch_warnings():
        warnings.simplefilter("always", EngineWarning)
        warnings.showwarning = _show_warning
        try:
            yield
        finally:
            sys.stderr = before


def complain(text: str) -> None:
    """Write a message to standard error."""
    sys.stderr.write(f"llama-engine: {text}\n")


def is_piped() -> bool:
    """Whether standard input is a pipe or a file; not if it is a terminal, a device or a closed descriptor."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError, AttributeError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


@contextmanager
def loading(name: str) -> Generator[None]:
    """Say on a terminal what is loaded, if it takes longer than half a second."""
    timer = threading.Timer(_PATIENCE, lambda: sys.stderr.write(f"loading {name} ...\n"))
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def complain_of_a_bug() -> None:
    """Write the traceback of the error that is handled now, which should not have come this far."""
    complain(f"this is a mistake in llama-engine; please report it.\n{traceback.format_exc().rstrip()}")


class OutputError(Exception):
    """Standard output cannot be written; `__cause__` says why."""


@contextmanager
def output() -> Generator[None]:
    """Raise OutputError for an output that cannot be written, but BrokenPipeError if its reader is gone."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"the output cannot be written ({error.strerror}), so it is not complete.") from error


def give_up_output() -> None:
    """Drop what was not written, so that the interpreter does not report it when it ends."""
    with suppress(OSError, ValueError):  # not a file: nothing is flushed at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fill() -> None:
    """Open what the caller closed (`>&-`), so that no file of ours gets its number. Output that was closed cannot be
    written: it is opened for reading."""
    for name, flag in (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, flag)  # the lowest that is free: its own, unless a library has taken that
            opened = open(number, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - lasts
            setattr(sys, name, opened)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    complain(f"warning: {spoken(str(message))}")
