"""The process that a loaded model belongs to: a fork of it has its memory, but none of its threads."""

import os

from engine.support.errors import EngineError


class OwnerProcess:
    """The process in which this object was made."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process, not a fork of it."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise EngineError in a fork, where a call would wait for a thread that does not exist."""
        if os.getpid() != self._pid:
            raise EngineError(
                f"This engine belongs to process {self._pid}, and this process is a fork of it, without its threads: "
                'load the model here, or start processes with multiprocessing.set_start_method("spawn").'
            )
