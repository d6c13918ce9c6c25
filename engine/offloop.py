"""Runs blocking work of the engine in a worker thread while an event loop continues."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from threading import Event
from typing import Any, TypeVar

T = TypeVar("T")
_WAKE_SECONDS = 0.25
_cancelled: ContextVar[Event | None] = ContextVar("cancelled", default=None)


async def off_loop(work: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Run `work` in a worker thread with this context's variables, and return its result. If the caller is cancelled
    meanwhile, `undo` is called with the result once there is one, and `is_unwanted` returns True in the worker, so that
    it may give up early. Raises what `work` raises."""
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
    """Wake the running event loop regularly until the future is done.

    A notebook's kernel cancels the cell's task in a signal handler, which does not wake a sleeping loop: the
    interrupted cell would continue until the next token, or the end of the answer, wakes it.
    """
    loop = asyncio.get_running_loop()

    def wake() -> None:
        if not future.done():
            loop.call_later(_WAKE_SECONDS, wake)

    loop.call_later(_WAKE_SECONDS, wake)


def is_unwanted() -> bool:
    """Whether the task that waits for this thread's work has been cancelled."""
    event = _cancelled.get()
    return event is not None and event.is_set()
