"""Vectors that the engine's thread makes, waited for in a thread or in an event loop."""

from collections.abc import Callable, Generator
from queue import Empty
from typing import Any

from engine.runtime.loop.request import Reply
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
        self._reply: Reply | None = None

    def cancel(self) -> None:
        """End the request; `result` then raises EngineError."""
        self._cancel()

    def result(self, timeout: float | None = None) -> Vectors:
        """Wait for the vectors, and return them. Leaving the wait, as by Ctrl-C, cancels the request. Raises what the
        request failed with, and TimeoutError after `timeout` seconds."""
        try:
            if not self._queue.over.is_set():
                self._check()
            self._reply = self._reply or self._queue.replies.get(timeout=timeout)
        except BaseException as error:
            self.cancel()
            if isinstance(error, Empty):
                raise TimeoutError(f"There were no vectors after {timeout} s, so the request was cancelled.") from None
            raise
        return _vectors(self._reply)

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
        self._reply = self._reply or queue.replies.get_nowait()
        return _vectors(self._reply)


def _vectors(reply: Reply) -> Vectors:
    if reply.vectors is None:
        raise reply.error or EngineError("The vectors were not made.")
    return reply.vectors
