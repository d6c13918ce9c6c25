"""What every stream of events is, whoever makes the events: read with `for`, `async for` or `await`, left by `with`.

Knows: how a reader of each kind goes through a stream. Does not know: where events come from.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from typing import Generic, Self, TypeVar

from engine.errors import RequestError
from engine.events import Event
from engine.notebook import live

Whole_co = TypeVar("Whole_co", covariant=True)


class TwoWayStream(ABC, Generic[Whole_co]):
    """The base of all streams of events.

    - `for event in stream` and `async for event in stream` give its events.
    - `stream.result()` and `await stream` read it to its end and return what it comes to, which `_whole` makes.
    - `with stream` and `async with stream` cancel at the end of the block what is then still running.
    """

    @abstractmethod
    def __iter__(self) -> Iterator[Event]: ...

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Event]: ...

    @abstractmethod
    def _whole(self) -> Whole_co: ...

    @abstractmethod
    def cancel(self) -> None:
        """Stop what is under way; from any thread, any number of times."""

    def result(self) -> Whole_co:
        """Read to the end; the whole."""
        for _ in self:
            pass
        return self._whole()

    async def _finish(self) -> Whole_co:
        async for _ in self:
            pass
        return self._whole()

    def __await__(self) -> Generator[object, None, Whole_co]:
        return self._finish().__await__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def _ipython_display_(self) -> None:
        live.show(self)


class GeneratedStream(TwoWayStream[Whole_co]):
    """A stream whose events come from a generator, of `_read` or of `_read_async`: one of them is called, once.

    The generators should not hold the stream: so one that nobody holds any more is closed at once, and with it what it
    reads from.
    """

    def __init__(self) -> None:
        self._sync: Generator[Event, None, None] | None = None
        self._async: AsyncGenerator[Event, None] | None = None

    @abstractmethod
    def _read(self) -> Generator[Event, None, None]: ...

    @abstractmethod
    def _read_async(self) -> AsyncGenerator[Event, None]: ...

    def __iter__(self) -> Iterator[Event]:
        if self._async is not None:
            raise RequestError("This is read with `async for` or `await`; go on with that, or start another.")
        if self._sync is None:
            self._sync = self._read()
        return self._sync

    def __aiter__(self) -> AsyncIterator[Event]:
        if self._sync is not None:
            raise RequestError("This is read with `for` or `result()`; go on with that, or start another.")
        if self._async is None:
            self._async = self._read_async()
        return self._async

    def __exit__(self, *_: object) -> None:
        self.cancel()
        if self._sync is not None:
            self._sync.close()

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
        if self._async is not None:
            await self._async.aclose()
