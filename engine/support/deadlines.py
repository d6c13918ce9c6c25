"""Deadlines of this process: one thread that sleeps until the next deadline, and calls its function; and the time by
which the work in a context must be done.

`threading.Timer` would take a thread per deadline; this thread is woken only for a deadline that is nearer than all
others, so that setting and cancelling one costs microseconds.
"""

import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TypeAlias

from engine.support import threads
from engine.support.errors import LateError

Act: TypeAlias = Callable[[], object]
_MANY = 1000


class _Clock:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int]] = []
        self._acts: dict[int, Act] = {}
        self._numbers = count()
        self._started = False

    def add(self, seconds: float, act: Act) -> int:
        at = time.monotonic() + seconds
        with self._changed:
            number = next(self._numbers)
            self._acts[number] = act
            if not self._due or at < self._due[0][0]:
                self._changed.notify()
            if not self._started:
                try:
                    threads.start(threading.Thread(target=self._run, name="llama-engine-deadlines", daemon=True))
                except BaseException:
                    del self._acts[number]
                    raise
                self._started = True
            heappush(self._due, (at, number))
        return number

    def remove(self, number: int) -> None:
        with self._changed:
            self._acts.pop(number, None)  # its time stays in the heap, as the thread may sleep until then
            if len(self._due) > _MANY + 2 * len(self._acts):
                self._due = [due for due in self._due if due[1] in self._acts]
                heapify(self._due)

    def _run(self) -> None:
        while True:
            self._next()()

    def _next(self) -> Act:
        """Wait until a deadline has passed, and return its function."""
        with self._changed:
            while True:
                left = self._due[0][0] - time.monotonic() if self._due else None
                if left is None or left > 0:
                    self._changed.wait(left if left is None else min(left, threading.TIMEOUT_MAX))
                elif (act := self._acts.pop(heappop(self._due)[1], None)) is not None:
                    return act


_clock = _Clock()


def call_later(seconds: float, act: Act) -> Callable[[], None]:
    """Call `act` after `seconds`, in a thread that all deadlines share: it must be quick and not raise.

    Returns a function that cancels the call; it may be called repeatedly, or too late. Raises EngineError if the thread
    cannot be started; the next call tries again.
    """
    clock = _clock
    number = clock.add(seconds, act)
    return lambda: clock.remove(number)


_until: ContextVar[float | None] = ContextVar("until", default=None)


@contextmanager
def finished_by(until: float | None) -> Generator[None]:
    """Limit the work in the `with` block to this time, on `time.monotonic`'s clock, or to that of a block around it, if
    that is earlier. None: no limit of its own."""
    outer = _until.get()
    token = _until.set(until if outer is None else outer if until is None else min(until, outer))
    try:
        yield
    finally:
        _until.reset(token)


def latest() -> float | None:
    """Returns the time by which the work in this context must be done; None if there is no limit."""
    return _until.get()


def check_time() -> None:
    """Raise LateError if that time is over. For work of many steps."""
    until = _until.get()
    if until is not None and time.monotonic() > until:
        raise LateError(
            "The request was still being prepared when its deadline passed: send fewer messages or tools, or give it "
            "more time."
        )


@threads.after_fork
def _after_fork() -> None:
    """A fork has no copy of the thread, and its copy of the lock may stay held forever."""
    global _clock  # noqa: PLW0603 - a process has one
    _clock = _Clock()
