"""Calls the caller's functions in a run (`approve=`, `save=`), sync or async, from sync and from async code."""

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from typing import Any

from engine.support import threads
from engine.support.errors import CallbackError
from engine.tools import described, finish


def call(name: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Call the function and return its result. `name`: the option that it was given as. Raises CallbackError for what
    it raises."""
    try:
        result = function(*arguments)
        return finish(result) if inspect.isawaitable(result) else result
    except Exception as error:
        raise _named(name, function, error) from error


async def call_async(name: str, function: Callable[..., Any], *arguments: object) -> Any:
    """Same as `call`, on an event loop: awaits a coroutine function, calls any other in a worker thread."""
    try:
        if inspect.iscoroutinefunction(function):
            return await function(*arguments)
        result = await in_thread(lambda: function(*arguments))
        return await result if inspect.isawaitable(result) else result
    except Exception as error:
        raise _named(name, function, error) from error


def _named(name: str, function: Callable[..., Any], error: Exception) -> CallbackError:
    own = getattr(function, "__qualname__", type(function).__name__)
    return CallbackError(f"{name}={own} raised {described(error)}. That ended the run; fix the function.")


def in_thread(work: Callable[[], Any]) -> "asyncio.Future[Any]":
    """Call `work` in a thread of its own with this context's variables. It is a daemon thread: neither the end of the
    process nor a closed event loop waits for it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def settle(result: object, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):  # a future refuses it
            future.set_exception(RuntimeError(described(error)))
        else:
            future.set_exception(error)

    def body() -> None:
        result, failed = None, None
        try:
            result = context.run(work)
        except BaseException as error:  # noqa: BLE001 - passed on to the coroutine that waits
            failed = error
        with suppress(RuntimeError):  # the event loop is closed, so nothing waits any more
            loop.call_soon_threadsafe(settle, result, failed)

    threads.start(threading.Thread(target=body, name="llama-engine tool", daemon=True))
    return future
