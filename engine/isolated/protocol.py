"""What goes between a process and the child that its model runs in, beside requests and replies, and how.

Knows: the records, and that no sender waits. Orders are pickles: the child trusts its parent. Answers are not, see
`engine.isolated.answers`. Does not know: who is at which end.
"""

import threading
from io import FileIO
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from engine.child import write_frame
from engine.events import Finished
from engine.runtime.backend import ContextInfo
from engine.runtime.options import ContextOptions, LoopOptions, ModelOptions
from engine.runtime.request import Reply
from engine.runtime.state_file import Origin
from engine.types import FinishReason


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
    """Something to log, with its traceback if it has one."""

    logger: str
    level: int
    text: str


class Channel:
    """Frames into a pipe, from any thread; no sender waits.

    A thread writes them: a sender may be a destructor or a signal handler that interrupts another sender, and the other
    end may wait for us to read before it reads.
    """

    def __init__(self, pipe: FileIO) -> None:
        self._pipe = pipe
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="llama-engine-pipe", daemon=True)
        self._thread.start()

    def send(self, frame: bytes) -> None:
        """Leave a frame. What is sent when the other end is gone is lost; so is what a fork sends, which has no thread
        of ours."""
        self._queue.put(frame)

    def close(self) -> None:
        """Tells the other end, after all that was sent, that nothing follows. Does not wait; twice is fine."""
        self._queue.put(None)

    def join(self, seconds: float | None = None) -> None:
        """Wait until all is written, after `close`."""
        self._thread.join(seconds)

    def _write(self) -> None:
        lost = False
        while (frame := self._queue.get()) is not None:
            try:
                if not lost:
                    write_frame(self._pipe, frame)
            except (OSError, ValueError):
                lost = True  # the other end is gone, as whoever reads from it hears
        self._pipe.close()


def ending(id_: int, reason: FinishReason) -> Reply:
    """The last reply to a request that the child did not end."""
    return Reply(id_, (Finished(reason),), final=True)


def refusal(id_: int, error: Exception) -> Reply:
    """The only reply to a request that was not started."""
    return Reply(id_, (Finished("error"),), final=True, error=error)
