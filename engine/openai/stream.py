"""A server's stream as an iterator of events, sync or async.

Knows: when a source is read, left and closed. Does not know: what chunks mean.
"""

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Generator, Iterable, Iterator, Mapping
from typing import Self, cast

from engine.events import Event
from engine.openai.turn import TurnReader
from engine.openai.wire import Diagnostics, Wire


class _Reading:
    """What reading a stream keeps, and each step of it; no iteration here."""

    def __init__(self, reader: TurnReader, diagnostics: Diagnostics) -> None:
        self._reader = reader
        self._wire = Wire(diagnostics)
        self.cancelled = False

    @property
    def over(self) -> bool:
        return self.cancelled or self._wire.done

    def feed(self, item: object) -> Iterator[Event]:
        for chunk in self._wire.feed(item):
            yield from self._reader.feed(chunk)

    def close(self) -> Iterator[Event]:
        for chunk in self._wire.close():
            yield from self._reader.feed(chunk)
        yield from self._reader.close(done=self._wire.done, cancelled=self.cancelled)


class Events(Iterator[Event]):
    """The events of a stream as it is read; leaving early and `close` close the source, if it can be closed."""

    def __init__(self, chunks: Iterable[object], reader: TurnReader, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._reading = _Reading(reader, diagnostics)
        self._run = _run(chunks, self._reading)

    @property
    def malformed(self) -> int:
        """How many events or fields made no sense and were left out; each was warned of."""
        return self._diagnostics.count

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        return next(self._run)

    def cancel(self) -> None:
        """End at the next chunk, with reason "cancelled"; from any thread."""
        self._reading.cancelled = True

    def close(self) -> None:
        """Read no more."""
        self._run.close()


class AsyncEvents(AsyncIterator[Event]):
    """The events of an async stream as it is read; `aclose` closes the source, if it can be closed."""

    def __init__(self, chunks: AsyncIterable[object], reader: TurnReader, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._reading = _Reading(reader, diagnostics)
        self._run = _run_async(chunks, self._reading)

    @property
    def malformed(self) -> int:
        """How many events or fields made no sense and were left out; each was warned of."""
        return self._diagnostics.count

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._run)

    def cancel(self) -> None:
        """End at the next chunk, with reason "cancelled"; from any thread."""
        self._reading.cancelled = True

    async def aclose(self) -> None:
        """Read no more."""
        await self._run.aclose()


def _run(chunks: Iterable[object], reading: _Reading) -> Generator[Event, None, None]:
    # One thing that is itself iterable (a text, a whole response) is one item.
    whole = isinstance(chunks, str | bytes | bytearray | Mapping) or hasattr(chunks, "model_dump")
    source = [cast("object", chunks)] if whole else cast("Iterable[object]", chunks)
    try:
        for item in source:
            if reading.over:
                break
            yield from reading.feed(item)
            if reading.over:
                break
        yield from reading.close()
    finally:
        if (close := getattr(source, "close", None)) is not None:
            close()


async def _run_async(chunks: AsyncIterable[object], reading: _Reading) -> AsyncGenerator[Event, None]:
    try:
        async for item in chunks:
            if reading.over:
                break
            for event in reading.feed(item):
                yield event
            if reading.over:
                break
        for event in reading.close():
            yield event
    finally:
        close = getattr(chunks, "aclose", None) or getattr(chunks, "close", None)
        if close is not None and inspect.isawaitable(closing := close()):
            await closing
