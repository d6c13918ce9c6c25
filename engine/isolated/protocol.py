"""What goes between a process and the child that its model runs in, beside requests and replies, and how.

Knows: the records, and a pipe for pickles. Does not know: who is at which end.
"""

import logging
import pickle
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import BinaryIO, NamedTuple

from engine.events import Finished
from engine.runtime.backend import ContextInfo
from engine.runtime.options import ContextOptions, LoopOptions, ModelOptions
from engine.runtime.request import Reply
from engine.runtime.state_file import Origin

GREETING = b"\nllama-engine worker 1\n"
"""What the child's answers begin with: whatever a start-up file of that interpreter prints stands before it."""


class Load(NamedTuple):
    """Load the weights; answered by their ModelInfo. `level`: of the log records that are wanted."""

    path: Path
    options: ModelOptions
    level: int
    tells: bool


class Open(NamedTuple):
    """Make a context; answered by `Opened`."""

    options: ContextOptions


class Start(NamedTuple):
    """Serve requests from now on."""

    options: LoopOptions


class Parcel(NamedTuple):
    """A request, pickled by itself: one that cannot be read there fails alone."""

    id: int
    request: bytes


class Opened(NamedTuple):
    """A context was made."""

    info: ContextInfo
    origin: Origin


class Loading(NamedTuple):
    """So much of the weights is there."""

    fraction: float


class Failed(NamedTuple):
    """What was ordered could not be done."""

    error: Exception


class Line(NamedTuple):
    """Something to log."""

    record: logging.LogRecord


class Channel:
    """Pickles into a pipe, from any thread; no sender waits.

    A thread writes them: a sender may be a destructor or a signal handler that interrupts another sender, and the other
    end may wait for us to read before it reads.
    """

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="llama-engine-pipe", daemon=True)
        self._thread.start()

    def send(self, message: object) -> None:
        """A pickle of it, or bytes as they are. Raises what pickle raises. What is sent when the other end is gone is
        lost; so is what a fork sends, which has no thread of ours."""
        self._queue.put(message if isinstance(message, bytes) else pickle.dumps(message, pickle.HIGHEST_PROTOCOL))

    def close(self) -> None:
        """Tells the other end, after all that was sent, that nothing follows. Does not wait; twice is fine."""
        self._queue.put(None)

    def join(self, seconds: float | None = None) -> None:
        """Wait until all is written, after `close`."""
        self._thread.join(seconds)

    def _write(self) -> None:
        lost = False
        while (data := self._queue.get()) is not None:
            try:
                if not lost:
                    self._pipe.write(data)
                    self._pipe.flush()
            except (OSError, ValueError):
                lost = True  # the other end is gone, as whoever reads from it hears
        try:
            self._pipe.close()
        except OSError:
            return  # what was buffered for it


def refusal(id_: int, error: Exception) -> Reply:
    """The only reply to a request that was not started."""
    return Reply(id_, (Finished("error"),), final=True, error=error)
