"""The records and pipes between a process and the child that its model runs in, in addition to requests and replies.

Orders are pickles: the child trusts its parent. Replies are not, see `engine.isolated.answers`.
"""

import threading
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from engine.llama.gguf.projector_file import ProjectorFile
from engine.runtime.cache.state_file import Origin
from engine.runtime.loop.backend import ContextInfo
from engine.runtime.loop.config import ContextOptions, LoopOptions, ModelOptions
from engine.runtime.loop.request import Reply
from engine.runtime.media.media import PromptPart
from engine.support import threads
from engine.support.child import write_frame
from engine.support.nothing import nothing
from engine.types.events import Finished
from engine.types.media import Media
from engine.types.sampling import FinishReason


class Load(NamedTuple):
    """Load the weights; the reply is their ModelInfo. `level`: minimum level of the log records to send. `tells`:
    report the progress of loading. `draft`: a draft model to load beside them. `head`:
    the model's own head guesses."""

    path: Path
    options: ModelOptions
    level: int
    tells: bool
    draft: Path | None = None
    head: bool = False


class Open(NamedTuple):
    """Make a context, with a projector if there is one, and one of these options over the draft model; the reply is
    `Opened`."""

    options: ContextOptions
    draft: ContextOptions | None = None
    projector: ProjectorFile | None = None


class Start(NamedTuple):
    """Serve requests from now on."""

    options: LoopOptions


class PickledRequest(NamedTuple):
    """A request, pickled by itself, so that one which cannot be read in the child fails alone."""

    id: int
    request: bytes


class Read(NamedTuple):
    """Read a picture or a sound with the projector; the reply is `Parts`."""

    id: int
    media: Media


class Drop(NamedTuple):
    """Forget what the `Read` of this number read."""

    id: int


class Parts(NamedTuple):
    """A picture or a sound as the model reads it. The source of a unit is its number among the units; their chunks stay
    in the child until `Drop`."""

    id: int
    parts: tuple[PromptPart, ...]


class Opened(NamedTuple):
    """A context was made. `origin`: what it is of, which must be the same when another child takes its place."""

    info: ContextInfo
    origin: Origin


class Loading(NamedTuple):
    """The fraction of the weights that is loaded, 0 to 1."""

    fraction: float


class Failed(NamedTuple):
    """An order failed with this error."""

    error: Exception


class Line(NamedTuple):
    """A log record, its traceback included in `text`."""

    logger: str
    level: int
    text: str


class Channel:
    """Writes frames into a pipe, from any thread; no sender waits.

    A thread of its own writes them: a sender may be a destructor or a signal handler that interrupts another sender,
    and the other end may wait for us to read before it reads. `lost` is called if a frame cannot be written, before the
    pipe is closed.
    """

    def __init__(self, pipe: FileIO, lost: Callable[[], object] = nothing) -> None:
        self._pipe = pipe
        self._lost = lost
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="llama-engine-pipe", daemon=True)
        threads.start(self._thread)

    def send(self, frame: bytes) -> None:
        """Queue a frame. The frame is lost if the other end is gone, or in a fork, which does not have the writing
        thread."""
        self._queue.put(frame)

    def close(self) -> None:
        """Close the pipe after all queued frames. Does not wait; may be called twice."""
        self._queue.put(None)

    def join(self, seconds: float | None = None) -> None:
        """Wait until everything is written, after `close`."""
        self._thread.join(seconds)

    def _write(self) -> None:
        while (frame := self._queue.get()) is not None:
            try:
                if not self._pipe.closed:
                    write_frame(self._pipe, frame)
            except (OSError, ValueError):
                # The other end is gone, or will end when it reads this one's: the reader of its replies reports that.
                self._lost()
                self._pipe.close()
        self._pipe.close()


def ending(id_: int, reason: FinishReason) -> Reply:
    """Returns the last reply to a request that the child did not end."""
    return Reply(id_, (Finished(reason),), final=True)


def refusal(id_: int, error: Exception) -> Reply:
    """Returns the only reply to a request that was not started."""
    return Reply(id_, (Finished("error"),), final=True, error=error)
