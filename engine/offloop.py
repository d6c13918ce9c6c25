"""Blocking work of the engine, done in a worker thread while an event loop goes on.

Knows: that whoever waits may be cancelled before the work is done, and that what it made must be undone then. Does not
know: what the work is.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from threading import Event
from typing import Any, TypeVar

T = TypeVar("T")
_WAKE_SECONDS = 0.25
_cancelled: ContextVar[Event | None] = ContextVar("cancelled", default=None)


async def off_loop(work: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Returns what `work` returns, called in a worker thread with this context's variables. When the caller is
    cancelled meanwhile, `undo` is called with the result as soon as there is one, and `is_unwanted` tells the work that
    it may give up before. Raises what `work` raises."""
    context, cancelled = copy_context(), Event()
    context.run(_cancelled.set, cancelled)
    done = asyncio.get_running_loop().run_in_executor(None, context.run, work)
    keep_awake(done)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        cancelled.set()
        done.add_done_callback(lambda late: None if late.cancelled() or late.exception() else undo(late.result()))
        raise


def keep_awake(future: "asyncio.Future[Any]") -> None:
    """Wake the running event loop now and then until the future is done.

    A notebook's kernel cancels the cell's task in a signal handler, and a loop that sleeps does not notice it: the
    interrupted cell would go on until the next token, or the end of the answer, wakes the loop.
    """
    loop = asyncio.get_running_loop()

    def wake() -> None:
        if not future.done():
            loop.call_later(_WAKE_SECONDS, wake)

    loop.call_later(_WAKE_SECONDS, wake)


def is_unwanted() -> bool:
    """Whether whoever waited for the work that this thread does has been cancelled."""
    event = _cancelled.get()
    return event is not None and event.is_set()
