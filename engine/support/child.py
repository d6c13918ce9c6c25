"""Child processes that run Python code of ours: all started alike, spoken to in frames, and reliably ended.

Both sides are here: `Child` is the parent's, `ends` and `read_frame` are the child's. A frame is its length (8 bytes,
big-endian) and that many bytes, whose meaning the two sides define; but a parent never unpickles what a child sends.

All children start alike. With `-P` and a cleaned environment, no module is imported from the current directory or from
PYTHONPATH's empty entries. The module path is the standard library, then the folder of this package, then this
process's own path. A child has a process group of its own, so Ctrl-C goes to the parent only. It ends when the pipe of
its orders closes, so none outlives its parent.
"""

import json
import os
import select
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

from engine.support.deadlines import call_later
from engine.support.errors import EngineError
from engine.support.threads import after_fork

GREETING = b"\nllama-engine child 1\n"
"""The first bytes of a child's answers; anything before them was printed by a start-up file of the interpreter."""
LARGEST = 1 << 40
"""The default limit of a frame, in bytes."""
_LENGTH = struct.Struct(">Q")
_SMALL = 1 << 16
"""The size in bytes below which a frame is sent with one write."""
_AT_ONCE = 1 << 20
"""The most bytes that are read at once, so that a child cannot make this process allocate memory for bytes that it does
not send."""
_GRACE = 1.0
"""The time in seconds that a child has to end by itself after its orders have ended."""
_ENDING = 10.0
"""The time in seconds that a child has to end after it closed its answers."""
_TOLD = 2000
"""The most characters of a child's standard error in an error message."""
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
    """A child process that runs `main()` of a module, and the pipes to and from it.

    module: its full name. name, remedy: how messages call the child, and what they advise if it cannot be started.
        as_here: it imports what this process would, including from the current directory, and writes to this process's
        standard error; otherwise the last line of its standard error is kept for messages. grace: the seconds that it
        has to end by itself when it is closed.

    `greeted`: it has reported that it is ready. Raises ChildNotStartedError if no child can be started. One thread at a
    time may send, and one receive.
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
        # Unbuffered files have no lock, which could be held during a fork.
        self.orders, self._answers = cast("tuple[FileIO, FileIO]", (self.process.stdin, self.process.stdout))
        self._files = [file for file in (self.orders, self._answers, self._errors) if file is not None]
        self._end = weakref.finalize(self, _end, self._owner, self.process, self._files, grace)
        _children.add(self)

    @property
    def alive(self) -> bool:
        """Whether it can still answer: it has not ended, is not late, and is a child of this process."""
        return self.is_ours and self._late is None and self._end.alive and self.process.poll() is None

    @property
    def is_ours(self) -> bool:
        """Whether this process started it; a fork of this process did not."""
        return self._owner == os.getpid()

    def check_owner(self) -> None:
        """Raise ChildGoneError in a fork."""
        if not self.is_ours:
            raise ChildGoneError(
                "This process is a fork, and the model lives in a child of the original process; load it again."
            )

    def send(self, data: bytes) -> None:
        """Send one frame; wait while the pipe is full. Raises ChildGoneError if the child no longer reads."""
        self.check_owner()
        try:
            write_frame(self.orders, data)
        except (OSError, ValueError) as error:
            raise self.gone() from error

    def receive(self, limit: int = LARGEST) -> bytes:
        """Returns the next frame, of at most `limit` bytes. Raises ChildGoneError if there is none; a child that sends
        a longer one is killed."""
        try:
            if not self.greeted:
                self.wait_for_greeting()
            return read_frame(self._answers, limit)
        except (EOFError, OSError, ValueError) as error:
            raise self.gone() from error
        except OverflowError as error:
            self.kill()
            raise ChildGoneError(f"{self._name} sent {error}, and was ended.") from error

    def answers_within(self, seconds: float) -> bool:
        """Whether an answer, or its end, comes within `seconds`. On Windows True at once: `receive` waits there."""
        if os.name != "posix":
            return True
        pipe = select.poll()
        pipe.register(self._answers, select.POLLIN)
        return bool(pipe.poll(1000 * seconds))

    @contextmanager
    def within(self, seconds: float) -> Generator[None]:
        """Limit the time of the `with` block: after `seconds` the child is killed, which ends both pipes."""

        def expire() -> None:
            self._late = seconds
            self.process.kill()

        cancel = call_later(seconds, expire)
        try:
            yield
        finally:
            cancel()

    @property
    def late(self) -> bool:
        """Whether a time limit has killed it."""
        return self._late is not None

    def gone(self) -> ChildGoneError:
        """Returns the error for a child that has closed its pipes; wait for its exit status."""
        return ChildGoneError(f"{self._name} {self._ending()}.")

    def _ending(self) -> str:
        try:
            code = self.process.wait(_ENDING)
        except subprocess.TimeoutExpired:
            self.kill()
            return "no longer answers"
        if self._late is not None:
            return f"did not finish within {self._late:.3g} seconds"
        said = self._said()
        if fault := signal_name(code):
            return f"died by {fault}{said}"
        return f"ended with exit code {code}{said}"

    def _said(self) -> str:
        """Returns the last line of its standard error, in brackets."""
        if self._errors is None or self._errors.closed:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f" ({lines[-1][:_TOLD]})" if lines else ""

    def wait_for_greeting(self) -> None:
        """Wait until it is ready for orders, as `receive` also does. Raises ChildGoneError if it ends before."""
        seen = b""
        while not seen.endswith(GREETING):
            byte = self._answers.read(1)
            if not byte:
                raise self.gone()
            seen = (seen + byte)[-len(GREETING) :]
        self.greeted = True

    def disown(self) -> None:
        """In a fork: close this process's copies of the pipes."""
        self.process.returncode = 0  # a fork cannot wait for it
        for file in self._files:
            file.close()

    def kill(self) -> None:
        """End it now, whatever it is doing, even if it is stopped."""
        if self.is_ours:
            self.process.kill()
        self._end()

    def close(self) -> None:
        """Close its orders, and kill it if it does not end by itself. Can be called more than once."""
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


@after_fork
def _leave_to_the_parent() -> None:
    """Close our ends of the pipes in a fork: a child ends only when no process has them open."""
    for child in list(_children):
        child.disown()


def _interpreter() -> str:
    """Returns the path of this Python interpreter. Raises OSError if the program is not run by one."""
    if getattr(sys, "frozen", False):
        raise OSError("this is a frozen program")
    if not sys.executable:
        raise OSError("this program does not know its Python interpreter: sys.executable is empty")
    return sys.executable


def _environment(*, as_here: bool) -> dict[str, str]:
    """Returns a child's environment. If its standard error is kept, ggml's backtrace is off, which may start a
    debugger."""
    kept = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
    return kept if as_here else {**kept, "GGML_NO_BACKTRACE": "1"}


def _paths(*, current: bool) -> list[str]:
    """Returns where the child looks for modules, besides the standard library."""
    home = str(Path(__file__).resolve().parent.parent.parent)
    if not current:
        return [home, *(entry for entry in sys.path if Path(entry).is_absolute())]
    try:
        directory = Path.cwd()
    except OSError:  # it was removed
        return _paths(current=False)
    return [home, *(str(directory / entry) for entry in sys.path)]


def _scratch() -> FileIO | None:
    """Returns a file for the child's standard error; None if none can be made."""
    try:
        return tempfile.TemporaryFile(buffering=0)
    except OSError:
        return None


def signal_name(returncode: int) -> str | None:
    """Returns the name of the signal that ended a process; None for an exit code."""
    if returncode >= 0:
        return None
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def ends() -> tuple[BinaryIO, FileIO]:
    """In a child: return its orders and the pipe for its answers. What libraries print goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    orders, answers = os.fdopen(os.dup(0), "rb"), FileIO(os.dup(1), "wb")
    os.dup2(2, 1)
    answers.write(GREETING)
    return orders, answers


def write_frame(pipe: FileIO, data: bytes) -> None:
    """Send one frame; wait while the pipe is full."""
    length = _LENGTH.pack(len(data))
    for part in (length + data,) if len(data) < _SMALL else (length, data):
        left = memoryview(part)
        while left:
            left = left[pipe.write(left) :]


def read_frame(pipe: RawIOBase | BinaryIO, limit: int = LARGEST) -> bytes:
    """Returns the next frame. Raises EOFError at the end, OverflowError for one that is longer than `limit`."""
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
