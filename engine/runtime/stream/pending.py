"""Vectors that the engine's thread makes, waited for in a thread or in an event loop."""

from collections.abc import Callable, Generator
from typing import Any

from engine.runtime.stream.embed_queue import Vectors
from engine.runtime.stream.stream import OutputQueue
from engine.support.errors import EngineError
from engine.support.offloop import keep_awake


class PendingVectors:
    """The reply to a request for vectors, once it is there."""

    def __init__(self, queue: OutputQueue, cancel: Callable[[], None], check: Callable[[], None]) -> None:
        """`check` is called before a wait; it raises if no reply can come."""
        self._queue = queue
        self._cancel = cancel
        self._check = check

    def cancel(self) -> None:
        """End the request; `result` then raises EngineError."""
        self._cancel()

    def result(self, timeout: float | None = None) -> Vectors:
        """Wait for the vectors, and return them. Leaving the wait, as by Ctrl-C, cancels the request. Raises what the
        request failed with, and TimeoutError after `timeout` seconds."""
        try:
            if not self._queue.over.is_set():
                self._check()
            if not self._queue.over.wait(timeout):
                raise TimeoutError(f"There were no vectors after {timeout} s, so the request was cancelled.")
        except BaseException:
            self.cancel()
            raise
        return _vectors(self._queue)

    def __await__(self) -> Generator[Any, None, Vectors]:
        """`result` for an event loop."""
        return self._wait().__await__()

    async def _wait(self) -> Vectors:
        import asyncio

        queue = self._queue
        queue.future = future = asyncio.get_running_loop().create_future()
        keep_awake(future)
        try:
            if not queue.over.is_set():
                self._check()
                await future
        except BaseException:
            self.cancel()
            raise
        return _vectors(queue)


def _vectors(queue: OutputQueue) -> Vectors:
    reply = queue.replies[-1]
    assert reply is not None, "no stream takes them"
    if reply.vectors is None:
        raise reply.error or EngineError("The vectors were not made.")
    return reply.vectors
