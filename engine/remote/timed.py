"""One deadline over a whole response, whatever the caller's transport waits for meanwhile."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Generator, Iterable
from contextlib import suppress
from queue import Empty, Full, Queue
from threading import Event
from time import monotonic

from engine.support.errors import RemoteError
from engine.support.nothing import nothing
from engine.support.offloop import in_thread

_AHEAD = 16  # items that are read before anybody asks for them
_WAKE_SECONDS = 0.25


def _late(seconds: float) -> RemoteError:
    return RemoteError(
        f"The server gave no whole answer within {seconds:g} s. What came before is valid; look whether it hangs, or "
        "give it more time (seconds=)."
    )


def timed(opened: Callable[[], Iterable[object]], seconds: float) -> Generator[object, None, None]:
    """Yields the items of a stream, which a thread opens and reads: a transport that waits cannot be interrupted. When
    the time is over the stream is closed, and the thread ends as soon as the transport returns. Raises RemoteError
    then, else what the transport raises."""
    until, over = monotonic() + seconds, Event()
    items: Queue[tuple[object, BaseException | None, bool]] = Queue(_AHEAD)
    sources: list[Iterable[object]] = []

    def give(item: object, error: BaseException | None = None, *, ends: bool = False) -> None:
        while not over.is_set():
            with suppress(Full):
                items.put((item, error, ends), timeout=_WAKE_SECONDS)
                return

    def read() -> None:
        try:
            sources.append(opened())
            for item in sources[0]:
                give(item)
                if over.is_set():
                    break
            give(None, ends=True)
        except BaseException as error:  # noqa: BLE001 - raised where the items are read
            give(None, error)
        finally:
            _close(sources)

    in_thread(read)
    try:
        while True:
            try:
                item, error, ends = items.get(timeout=max(0.0, until - monotonic()))
            except Empty:
                raise _late(seconds) from None
            if error is not None:
                raise error
            if ends:
                return
            yield item
    finally:
        over.set()
        _close(sources)


def _close(sources: Iterable[object]) -> None:
    for source in sources:
        with suppress(Exception):  # a generator that another thread runs refuses; that thread closes it
            getattr(source, "close", nothing)()


async def answered(response: Awaitable[object], seconds: float) -> object:
    """Returns what an async transport opens. Raises RemoteError if that takes longer."""
    try:
        return await asyncio.wait_for(response, seconds)
    except TimeoutError:
        raise _late(seconds) from None


async def timed_async(source: AsyncIterable[object], seconds: float, until: float) -> AsyncGenerator[object, None]:
    """`timed` for an async stream, which is cancelled. `until`: on `time.monotonic`'s clock."""
    items = aiter(source)
    while True:
        try:
            yield await asyncio.wait_for(anext(items), max(0.0, until - monotonic()))
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise _late(seconds) from None
