"""A Python process of our own: started like every other, spoken to in frames, and ended for certain.

Knows: the interpreter's flags and environment, which modules a child may import, frames, time limits, forks, and how an
end is read. Does not know: what a child is told or answers. Both ends are here: `Child` is the parent's, `ends` and
`read_frame` are the child's. A frame is its length (8 bytes, big-endian) and that many bytes; what they mean is up to
the two ends, but a parent never unpickles what a child sends.

Every child starts alike. `-P` and a cleaned environment: no module is taken from the current directory or from
PYTHONPATH's empty entries. The standard library comes first, then the folder that this package is in, then this
process's own path. A process group of its own: Ctrl-C is for the parent. It ends when its orders end, so none outlives
its parent.
"""

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from io import FileIO, RawIOBase
from pathlib import Path
from typing import BinaryIO, cast

from engine.deadlines import call_later
from engine.errors import EngineError

GREETING = b"\nllama-engine child 1\n"
"""What a child's answers begin with; whatever a start-up file of that interpreter prints stands before it."""
LARGEST = 1 << 40
"""Bytes of the largest frame, where a reader sets no limit of its own."""
_LENGTH = struct.Struct(">Q")
_SMALL = 1 << 16
"""Bytes of a frame that are copied to be sent at once."""
_AT_ONCE = 1 << 20
"""Bytes that are read at once: no child can make this process take memory for what it does not send."""
_GRACE = 1.0
"""Seconds that a child has to end by itself after its orders have ended."""
_ENDING = 10.0
"""Seconds that one has to end which has closed its answers."""
_TOLD = 2000
"""Characters of a child's standard error that an error message may hold."""
_START = (
    "import importlib, json, os, sys; "
    "library = os.path.dirname(os.__file__); "
    "sys.path[:] = [library, os.path.join(library, 'lib-dynload'), *json.loads(sys.argv[1])]; "
    "sys.exit(importlib.import_module(sys.argv[2]).main())"
)
_UNWANTED = ("PYTHONPATH", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONSAFEPATH")


class ChildGoneError(EngineError):
    """A child has ended, or was ended."""


class ChildNotStartedError(ChildGoneError):
    """A child cannot be started."""


class Child:
    """A child process that runs `main()` of a module, and both directions to it.

    module: its full name. name, remedy: how messages call the child, and what they advise where it cannot be started.
        as_here: it imports what this process would, from the current directory too, and writes to this process's
        standard error; otherwise the last line of its standard error is kept for messages. grace: seconds that it has
        to end by itself when it is closed.

    `greeted`: it has said that it is ready. Raises ChildNotStartedError where none can be started. One thread at a time
    may send, one receive.
    """

    def __init__(self, module: str, name: str, remedy: str, *, as_here: bool = False, grace: float = _GRACE) -> None:
        self._name = name
        self._owner = os.getpid()
        self._late: float | None = None
        self.greeted = False
        self._errors = None if as_here else _scratch()
        try:
            self.process = subprocess.Popen(
                [_interpreter(), "-P", "-c", _START, json.dumps(_paths(current=as_here)), module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if as_here else self._errors or subprocess.DEVNULL,
                bufsize=0,
                env=_environment(as_here=as_here),
                process_group=0 if os.name == "posix" else None,
            )
        except OSError as error:
            if self._errors is not None:
                self._errors.close()
            raise ChildNotStartedError(f"{name} cannot be started ({error}); {remedy}.") from error
        # None of these has a lock, which a fork might find held.
        self.orders, self._answers = cast("tuple[FileIO, FileIO]", (self.process.stdin, self.process.stdout))
        self._files = [file for file in (self.orders, self._answers, self._errors) if file is not None]
        self._end = weakref.finalize(self, _end, self._owner, self.process, self._files, grace)
        _children.add(self)

    @property
    def alive(self) -> bool:
        """Whether it may still answer: not ended, not late, and a child of this process."""
        return self.is_ours and self._late is None and self._end.alive and self.process.poll() is None

    @property
    def is_ours(self) -> bool:
        """Whether this process started it; a fork of this process did not."""
        return self._owner == os.getpid()

    def check_owner(self) -> None:
        """Raise ChildGoneError in a fork."""
        if not self.is_ours:
            raise ChildGoneError("This process is a fork, and its model lives in a child of the other; load it again.")

    def send(self, data: bytes) -> None:
        """Send one frame; waits while the pipe is full. Raises ChildGoneError when the child does not read any more."""
        self.check_owner()
        try:
            write_frame(self.orders, data)
        except (OSError, ValueError) as error:
            raise self.gone() from error

    def receive(self, limit: int = LARGEST) -> bytes:
        """The next frame, of `limit` bytes at most. Raises ChildGoneError when there is none; the child is ended if it
        sent more."""
        try:
            if not self.greeted:
                self.wait_for_greeting()
            return read_frame(self._answers, limit)
        except (EOFError, OSError, ValueError) as error:
            raise self.gone() from error
        except OverflowError as error:
            self.kill()
            raise ChildGoneError(f"{self._name} sent {error}, and was ended.") from error

    @contextmanager
    def within(self, seconds: float) -> Generator[None]:
        """A time limit for what is done here: after so many seconds the child is killed, so that both directions
        end."""

        def expire() -> None:
            self._late = seconds
            self.process.kill()

        take_back = call_later(seconds, expire)
        try:
            yield
        finally:
            take_back()

    @property
    def late(self) -> bool:
        """Whether a time limit has ended it."""
        return self._late is not None

    def gone(self) -> ChildGoneError:
        """The error for a child that has closed its ends; waits a moment for its exit status."""
        return ChildGoneError(f"{self._name} {self._ending()}.")

    def _ending(self) -> str:
        try:
            code = self.process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            self.kill()
            return "does not answer any more"
        if self._late is not None:
            return f"did not finish within {self._late:.3g} seconds"
        said = self._said()
        if fault := signal_name(code):
            return f"died by {fault}{said}"
        return f"ended with exit code {code}{said}"

    def _said(self) -> str:
        """The last line of its standard error, in brackets."""
        if self._errors is None or self._errors.closed:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f" ({lines[-1][:_TOLD]})" if lines else ""

    def wait_for_greeting(self) -> None:
        """Wait until it is ready for orders; `receive` does so too. Raises ChildGoneError when it ends before."""
        seen = b""
        while not seen.endswith(GREETING):
            byte = self._answers.read(1)
            if not byte:
                raise self.gone()
            seen = (seen + byte)[-len(GREETING) :]
        self.greeted = True

    def disown(self) -> None:
        """In a fork: let go of what is the other process's."""
        self.process.returncode = 0  # it is not ours to wait for
        for file in self._files:
            file.close()

    def kill(self) -> None:
        """End it now, whatever it does; stopped processes too."""
        if self.is_ours:
            self.process.kill()
        self._end()

    def close(self) -> None:
        """Let it end, and end it if it does not; twice is fine."""
        self._end()


def _end(owner: int, process: "subprocess.Popen[bytes]", files: list[FileIO], grace: float) -> None:
    if os.getpid() != owner:
        return  # a fork has copies of everything, but this is not its child
    files[0].close()  # its orders
    try:
        process.wait(grace)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for file in files:
        file.close()


_children: "weakref.WeakSet[Child]" = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """A fork lets go of our ends of the pipes: a child ends when nobody holds them any more."""
    for child in list(_children):
        child.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


def _interpreter() -> str:
    """Raises OSError in a program that is none."""
    if getattr(sys, "frozen", False):
        raise OSError("this is a frozen program")
    if not sys.executable:
        raise OSError("this program does not know its Python interpreter: sys.executable is empty")
    return sys.executable


def _environment(*, as_here: bool) -> dict[str, str]:
    """Of one whose standard error is kept: without ggml's trace of its death, for which it may start a debugger."""
    kept = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
    return kept if as_here else {**kept, "GGML_NO_BACKTRACE": "1"}


def _paths(*, current: bool) -> list[str]:
    """Where the child looks for modules, beside the standard library."""
    home = str(Path(__file__).resolve().parent.parent)
    if not current:
        return [home, *(entry for entry in sys.path if Path(entry).is_absolute())]
    try:
        directory = Path.cwd()
    except OSError:  # it was removed
        return _paths(current=False)
    return [home, *(str(directory / entry) for entry in sys.path)]


def _scratch() -> FileIO | None:
    """A file for the child's standard error; None where none can be made."""
    try:
        return tempfile.TemporaryFile(buffering=0)
    except OSError:
        return None


def signal_name(returncode: int) -> str | None:
    """The signal that ended a process, by name where it has one; None for an exit code."""
    if returncode >= 0:
        return None
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def ends() -> tuple[BinaryIO, FileIO]:
    """In a child: its orders, and where its answers go. What libraries print goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    orders, answers = os.fdopen(os.dup(0), "rb"), FileIO(os.dup(1), "wb")
    os.dup2(2, 1)
    answers.write(GREETING)
    return orders, answers


def write_frame(pipe: FileIO, data: bytes) -> None:
    """Send one frame; waits while the pipe is full."""
    length = _LENGTH.pack(len(data))
    for part in (length + data,) if len(data) < _SMALL else (length, data):
        left = memoryview(part)
        while left:
            left = left[pipe.write(left) :]


def read_frame(pipe: RawIOBase | BinaryIO, limit: int = LARGEST) -> bytes:
    """The next frame. Raises EOFError at the end, OverflowError for one that is longer than `limit`."""
    (length,) = _LENGTH.unpack(_exactly(pipe, _LENGTH.size))
    if length > limit:
        raise OverflowError(f"{length:,} bytes where {limit:,} are allowed")
    return _exactly(pipe, length)


def _exactly(pipe: RawIOBase | BinaryIO, length: int) -> bytes:
    parts: list[bytes] = []
    while length:
        data = pipe.read(min(length, _AT_ONCE))
        if not data:
            raise EOFError
        parts.append(data)
        length -= len(data)
    return b"".join(parts)
