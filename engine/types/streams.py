"""The base classes of all streams of events: read with `for`, `async for` or `await`, cancelled by leaving a `with`."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from engine.support.errors import NotCopied, RequestError
from engine.support.guided import Guided
from engine.types import live
from engine.types.events import Event

Whole_co = TypeVar("Whole_co", covariant=True)
Begun_co = TypeVar("Begun_co", bound="TwoWayStream[Any]", covariant=True)


class TwoWayStream(Guided, NotCopied, ABC, Generic[Whole_co]):
    """The base of all streams of events.

    - `for event in stream` and `async for event in stream` yield its events.
    - `stream.result()` and `await stream` read it to its end and return its result, which `_whole` makes.
    - `with stream` and `async with stream` cancel it at the end of the block if it is still running.
    """

    _instead = "A stream is read once, while it runs; copy what it ends with: result(), or await it."

    @abstractmethod
    def __iter__(self) -> Iterator[Event]: ...

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Event]: ...

    @abstractmethod
    def _whole(self) -> Whole_co: ...

    @abstractmethod
    def cancel(self) -> None:
        """Stop what is running. Thread-safe; can be called more than once."""

    def result(self) -> Whole_co:
        """Read to the end and return the result."""
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
    """A stream whose events come from a generator: either `_read` or `_read_async` is called, once.

    The generators should not refer to the stream: then a stream without references is closed at once, along with its
    source.
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
            raise RequestError(
                "This stream is already read with `async for` or `await`; continue with that, or start another stream."
            )
        if self._sync is None:
            self._sync = self._read()
        return self._sync

    def __aiter__(self) -> AsyncIterator[Event]:
        if self._sync is not None:
            raise RequestError(
                "This stream is already read with `for` or `result()`; continue with that, or start another stream."
            )
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


class Starting(Guided, Coroutine[Any, Any, Begun_co]):
    """A stream that is started in a worker thread, for an event loop.

    - `stream = await starting` returns the stream, and a task can be made of it, as of a coroutine.
    - `async for event in starting` and `async with starting as stream` start it and read it, or cancel it.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Begun_co]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Begun_co]:
        return self._coroutine.__await__()

    if not TYPE_CHECKING:

        def __iter__(self) -> Iterator[Event]:
            self.close()
            raise TypeError("'Starting' object is read with `async for`; llm.stream(...) is for `for`.")

    def send(self, value: Any, /) -> Any:
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine.throw(*error)

    def close(self) -> None:
        self._coroutine.close()

    async def __aiter__(self) -> AsyncIterator[Event]:
        async for event in await self:
            yield event

    async def __aenter__(self) -> Begun_co:
        self._begun = await self
        return self._begun

    async def __aexit__(self, *_: object) -> None:
        self._begun.cancel()
