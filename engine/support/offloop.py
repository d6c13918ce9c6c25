"""Runs blocking work of the engine in a worker thread while an event loop continues."""

from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar, copy_context
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeVar

from engine.support import threads

if TYPE_CHECKING:  # only an event loop needs it
    import asyncio

T = TypeVar("T")
_WAKE_SECONDS = 0.25
_cancelled: ContextVar[Event | None] = ContextVar("cancelled", default=None)


async def off_loop(work: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Run `work` in a thread of its own with this context's variables, and return its result. If the caller is
    cancelled meanwhile, `undo` is called with the result once there is one, and `is_unwanted` returns True in the
    thread, so that it may give up early. Raises what `work` raises.

    The event loop's own few threads do not serve: calls that wait there for memory would block the call that holds it.
    """
    import asyncio

    context, cancelled = copy_context(), Event()
    context.run(_cancelled.set, cancelled)
    result = in_thread(lambda: context.run(work))
    done = asyncio.wrap_future(result)
    keep_awake(done)
    try:
        return await done
    except asyncio.CancelledError:
        cancelled.set()
        result.add_done_callback(lambda late: None if late.exception() else undo(late.result()))
        raise


def in_thread(work: Callable[[], T]) -> "Future[T]":
    """Start a thread of its own for `work`, and return its result to come, which cannot be cancelled. Raises
    EngineError if there is no thread for it."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
            result.set_exception(error)
        else:
            result.set_result(value)

    threads.start(Thread(target=run, name="llama-engine-call", daemon=True))
    return result


def keep_awake(future: "asyncio.Future[Any]") -> None:
    """Wake the running event loop regularly until the future is done.

    A notebook's kernel cancels the cell's task in a signal handler, which does not wake a sleeping loop: the
    interrupted cell would continue until the next token, or the end of the answer, wakes it.
    """
    import asyncio

    loop = asyncio.get_running_loop()

    def wake() -> None:
        if not future.done():
            loop.call_later(_WAKE_SECONDS, wake)

    loop.call_later(_WAKE_SECONDS, wake)


def is_unwanted() -> bool:
    """Whether the task that waits for this thread's work has been cancelled."""
    event = _cancelled.get()
    return event is not None and event.is_set()
