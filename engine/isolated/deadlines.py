"""Deadlines that are kept where the work is not: a thread that wakes when the next one is over.

Knows: numbers and times. Does not know: requests, or what happens to one that is late.
"""

import threading
import time
from collections.abc import Callable
from heapq import heappop, heappush


class Deadlines:
    """Calls `expired` with each number whose time is over, in a thread that starts with the first; until `close`."""

    def __init__(self, expired: Callable[[int], None]) -> None:
        self._expired = expired
        self._due: list[tuple[float, int]] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, number: int, seconds: float) -> None:
        """Let it be over so many seconds from now."""
        with self._changed:
            heappush(self._due, (time.monotonic() + seconds, number))
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="llama-engine-deadlines", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """No more calls begin; does not wait for one."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while (number := self._next()) is not None:
            self._expired(number)

    def _next(self) -> int | None:
        """Wait for the next that is over; None when closed."""
        with self._changed:
            while not self._closed:
                left = self._due[0][0] - time.monotonic() if self._due else None
                if left is not None and left <= 0:
                    return heappop(self._due)[1]
                self._changed.wait(left if left is None else min(left, threading.TIMEOUT_MAX))
            return None
