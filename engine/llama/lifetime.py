"""The lifetime of C objects: made so that Ctrl-C works, used by several threads, never freed while one uses them."""

import atexit
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import cache
from typing import Any, ClassVar

from engine.llama.lib import LOGGER
from engine.runtime.stream.process import OwnerProcess
from engine.support import threads
from engine.support.errors import EngineError


class Shared:
    """A C object that several threads may use inside `with`. After `close` it is freed when the last of them is done.

    At interpreter exit, new uses are refused and running ones are waited for, since C's exit handlers destroy what they
    use.
    """

    _all: ClassVar["weakref.WeakSet[Shared]"] = weakref.WeakSet()
    _is_leaving: ClassVar[bool] = False
    _PATIENCE: ClassVar[float] = 5.0

    def __init__(self, pointer: int, free: Callable[[int], object]) -> None:
        self._pointer = pointer
        self._free = free
        self._home = OwnerProcess()
        self._lock = threading.RLock()  # a finalizer may call `close` at any point
        self._users = 0
        self._lent = 0
        self._refusal: EngineError | None = None
        self._all.add(self)
        _leave_at_the_end()

    def __enter__(self) -> int:
        self._home.check()
        with self._lock:
            if self._refusal is not None:
                raise type(self._refusal)(*self._refusal.args)
            if Shared._is_leaving:
                raise EngineError("The interpreter is ending, so the engine takes no more calls.")
            self._users += 1
        return self._pointer

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            last = self._is_unused
        if last:
            self._free(self._pointer)

    @property
    def is_here(self) -> bool:
        """Whether this process made it, not one that this is a fork of."""
        return self._home.is_here

    @property
    def _is_unused(self) -> bool:
        return self._refusal is not None and not self._users and not self._lent

    def lend(self) -> "Shared":
        """Returns another holder of the object, which is freed when all of them are closed. Raises what `with` raises
        after `close`."""
        with self, self._lock:
            self._lent += 1
        return Shared(self._pointer, self._return)

    def _return(self, _pointer: int) -> None:
        with self._lock:
            self._lent -= 1
            last = self._is_unused
        if last:
            self._free(self._pointer)

    def close(self, refusal: EngineError) -> None:
        """Raise `refusal` for later uses, and free the object once it is unused. Can be called more than once. In a
        fork nothing is freed."""
        if not self._home.is_here:
            return
        with self._lock:
            first = self._refusal is None
            self._refusal = self._refusal or refusal
            last = first and self._is_unused
        if last:
            self._free(self._pointer)

    @classmethod
    def leave(cls) -> None:
        """Refuse new uses at interpreter exit, and wait for running ones."""
        cls._is_leaving = True
        limit = time.monotonic() + cls._PATIENCE
        while any(shared._users and shared._home.is_here for shared in list(cls._all)) and time.monotonic() < limit:
            try:
                time.sleep(0.001)
            except BaseException as error:  # noqa: BLE001 - another Ctrl-C must not end it in the middle of C
                LOGGER.debug("%r while calls of the engine end", error)


def freeing(owner: object, free: Callable[[int], object], pointer: int) -> "weakref.finalize[..., Any]":
    """Returns what frees a C object when it is called, or with its owner, but not at exit. In a fork it frees nothing:
    what is on a GPU is not the fork's, and CUDA ends a process that touches it."""
    home = OwnerProcess()
    end = weakref.finalize(owner, lambda: free(pointer) if home.is_here else None)
    end.atexit = False
    return end


@cache
def _leave_at_the_end() -> None:
    atexit.register(Shared.leave)


def made_in_thread(
    make: Callable[[], int | None], free: Callable[[int], object], stop: Callable[[], object] | None = None
) -> int | None:
    """Call `make`, which returns the address of an object that `free` frees, in a thread that then ends.

    llama.cpp repacks weights for AMX with OpenMP. libgomp keeps a thread's workers as long as the thread lives, and
    lets threads spin while waiting for one another only if there are no more of them than processors: with workers left
    over from the caller's thread, a small model's decode took 1.2 to 1.7 times as long (decision 19).

    The caller waits in Python, so Ctrl-C works; in a callback from C the KeyboardInterrupt would be lost. On an
    interrupt `stop` is called, and an object that is made nevertheless is freed.
    """
    made: Future[int | None] = Future()
    begin = threading.Event()

    def work() -> None:
        begin.wait()
        if made.set_running_or_notify_cancel():
            try:
                made.set_result(make())
            except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
                made.set_exception(error)

    thread = threading.Thread(target=work, name="llama-engine-load")
    try:
        threads.start(thread)
        begin.set()
        address = made.result()
        thread.join()
    except BaseException:
        if stop is not None:
            stop()
        _free_made(made, begin, free)
        raise
    return address


def _free_made(made: "Future[int | None]", begin: threading.Event, free: Callable[[int], object]) -> None:
    """Cancel `make` if it has not begun; else wait for it, whatever interrupts that, and free its object."""
    made.cancel()
    begin.set()
    while not made.done():
        try:
            wait([made])
        except BaseException as error:  # noqa: BLE001 - a signal handler's
            LOGGER.debug("%r while what was begun ends", error)
    if not made.cancelled() and made.exception() is None and (address := made.result()):
        free(address)
