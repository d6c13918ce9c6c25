"""Runs blocking work of the engine in a worker thread while an event loop continues."""

from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar
from weakref import WeakSet

from engine.support import threads
from engine.support.nothing import nothing

if TYPE_CHECKING:  # only an event loop needs it
    import asyncio

T = TypeVar("T")
P = ParamSpec("P")
_WAKE_SECONDS = 0.25


class _Request(Protocol):
    def cancel(self) -> None: ...


class Call:
    """A call in a thread, for which others wait, and the requests that it has started."""

    def __init__(self) -> None:
        self.unwanted = False
        self._lock = Lock()
        self._requests: WeakSet[_Request] = WeakSet()

    def add(self, request: _Request) -> None:
        """Note a request that was started."""
        with self._lock:
            self._requests.add(request)
            late = self.unwanted
        if late:
            request.cancel()

    def cancel(self) -> None:
        """Cancel the requests, also those that it starts from now on."""
        with self._lock:
            self.unwanted = True
            requests = list(self._requests)
        for request in requests:
            request.cancel()


_call: ContextVar[Call | None] = ContextVar("call", default=None)


@contextmanager
def cancellable() -> Generator[Call]:
    """Yields what cancels, from any thread, the requests that the block starts in this one."""
    token = _call.set(call := Call())
    try:
        yield call
    finally:
        _call.reset(token)


async def off_loop(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a blocking method of an engine in a thread while the event loop goes on, and return its result.

        >>> vectors = await off_loop(llm.embed, ["red", "green"])

    Like `asyncio.to_thread`, but cancelling the task also cancels the requests that the call has started; and the
    thread is the call's own, so that no number of waiting calls stops another one. Raises what the function raises.
    """
    return await off_loop_or_undo(lambda: function(*arguments, **options), nothing)


async def off_loop_or_undo(work: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Run `work` in a thread of its own with this context's variables, and return its result. If the caller is
    cancelled meanwhile, `undo` is called with the result once there is one, the requests that the work has started are
    cancelled, and `is_unwanted` returns True in the thread, so that it may give up early. Raises what `work` raises.

    The event loop's own few threads do not serve: calls that wait there for memory would block the call that holds it.
    """
    import asyncio

    context, call = copy_context(), Call()
    context.run(_call.set, call)
    result = in_thread(lambda: context.run(work))
    done = asyncio.wrap_future(result)
    keep_awake(done)
    try:
        return await done
    except asyncio.CancelledError:
        call.cancel()
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
    call = _call.get()
    return call is not None and call.unwanted


def belongs_to_call(request: _Request) -> None:
    """Note that a request was started by the call that this thread makes for a task: it is cancelled with the task."""
    if (call := _call.get()) is not None:
        call.add(request)
