"""The process that a loaded model belongs to: a fork of it has the memory, and none of the threads.

Knows: process ids. Does not know: what is loaded.
"""

import os

from engine.errors import EngineError


class Home:
    """The process that this is made in."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process, and no fork of it."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise EngineError in a fork, where a call would wait for a thread that is not there."""
        if not self.is_here:
            raise EngineError(
                f"This engine belongs to process {self._pid}, and this is a fork of it, without its threads: load the "
                "model here, or start processes by spawn (multiprocessing.set_start_method)."
            )
