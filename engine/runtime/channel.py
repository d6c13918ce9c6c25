"""What goes between a process and the child that its model runs in, beside requests and replies, and how.

Knows: the records, and a pipe for pickles. Does not know: who is at which end.
"""

import logging
import pickle
import threading
from pathlib import Path
from typing import BinaryIO, NamedTuple

from engine.events import Finished
from engine.runtime.options import ContextOptions, ModelOptions
from engine.runtime.requests import Reply
from engine.runtime.state_file import Origin


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

    longest_draft: int


class Parcel(NamedTuple):
    """A request, pickled by itself: one that cannot be read here fails alone."""

    id: int
    request: bytes


class Opened(NamedTuple):
    """A context was made."""

    n_ctx_sequence: int
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
    """Pickles into a pipe, from any thread."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._gate = threading.Lock()

    def send(self, message: object) -> None:
        """Raises OSError, or ValueError, when the other end is gone; what pickle raises, before anything is sent."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        with self._gate:
            self._pipe.write(data)
            self._pipe.flush()

    def close(self) -> None:
        """Tells the other end that nothing follows."""
        try:
            self._pipe.close()
        except OSError:
            return  # it has gone first


def refusal(id_: int, error: Exception) -> Reply:
    """The only reply to a request that was not started."""
    return Reply(id_, (Finished("error"),), final=True, error=error)
