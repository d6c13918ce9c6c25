"""Blocking work of the engine, done in a worker thread while an event loop goes on.

Knows: that whoever waits may be cancelled before the work is done, and that what it made must be undone then. Does not
know: what the work is.
"""

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


async def off_loop(work: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Returns what `work` returns, called in a worker thread with this context's variables. When the caller is
    cancelled meanwhile, `undo` is called with the result as soon as there is one. Raises what `work` raises."""
    done = asyncio.get_running_loop().run_in_executor(None, copy_context().run, work)
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        done.add_done_callback(lambda late: None if late.cancelled() or late.exception() else undo(late.result()))
        raise
