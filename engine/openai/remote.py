"""A remote server instead of a model: the same turns and the same agent loop, over the caller's own transport.

Knows: how a turn is sent and read (`request`, `reader`), when a source is read, left and closed. Does not know:
transports, what chunks mean, how the loop works.
"""

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Self, TypeAlias, Unpack, cast

from engine.agent import Run, RunArguments, RunInput, RunStream, Transcript, run_options, stream_run
from engine.errors import RequestError
from engine.events import Event, Finished, fold
from engine.families import Family, Format
from engine.openai.reader import TurnReader
from engine.openai.request import RequestOptions, request
from engine.openai.wire import Diagnostics, Wire
from engine.streams import GeneratedStream
from engine.template.conversation import conversation_of
from engine.tools import RunTool, Toolbox, ToolLike, as_tools
from engine.types import Completion, MessagesLike


class _Reading:
    """The state of reading a stream, and each step of it, without the iteration."""

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
    """The events of a stream while it is read. Leaving early and `close` close the source, if it can be closed."""

    def __init__(self, chunks: Iterable[object], reader: TurnReader, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._reading = _Reading(reader, diagnostics)
        self._run = _run(chunks, self._reading)

    @property
    def malformed(self) -> int:
        """Number of malformed events or fields that were left out, each with a warning."""
        return self._diagnostics.count

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        return next(self._run)

    def cancel(self) -> None:
        """End at the next chunk, with reason "cancelled"; may be called from any thread."""
        self._reading.cancelled = True

    def close(self) -> None:
        """Stop reading."""
        self._run.close()


class AsyncEvents(AsyncIterator[Event]):
    """The events of an async stream while it is read; `aclose` closes the source, if it can be closed."""

    def __init__(self, chunks: AsyncIterable[object], reader: TurnReader, diagnostics: Diagnostics) -> None:
        self._diagnostics = diagnostics
        self._reading = _Reading(reader, diagnostics)
        self._run = _run_async(chunks, self._reading)

    @property
    def malformed(self) -> int:
        """Number of malformed events or fields that were left out, each with a warning."""
        return self._diagnostics.count

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await anext(self._run)

    def cancel(self) -> None:
        """End at the next chunk, with reason "cancelled"; may be called from any thread."""
        self._reading.cancelled = True

    async def aclose(self) -> None:
        """Stop reading."""
        await self._run.aclose()


def _run(chunks: Iterable[object], reading: _Reading) -> Generator[Event, None, None]:
    # A single item may itself be iterable (a text, a complete response).
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


Sent: TypeAlias = "Iterable[object] | AsyncIterable[object] | Awaitable[Iterable[object] | AsyncIterable[object]]"
Send: TypeAlias = Callable[[dict[str, Any]], Sent]


class RemoteRunOptions(RequestOptions, RunArguments, total=False):
    """Options of the agent loop: those of its requests, and its own (`engine.agent.options.RunOptions`)."""


class Remote:
    """A remote server, with the methods that `Engine` has for a turn and for the agent loop.

    send: the transport: takes the body of a request and returns the stream of its response, for example
        `lambda body: client.chat.completions.create(**chat.client_arguments(body))`, or a generator over
        `response.iter_lines()`. An async one (a coroutine function, an async generator) works with `async for` and
        `await`, a sync one with `for` and `result`.
    family, in_reasoning: how responses are read; see `chat.events`.
    defaults: options of every request; see `chat.request`.
    """

    def __init__(
        self,
        send: Send,
        *,
        family: str | Family | Format | None = None,
        in_reasoning: bool = False,
        **defaults: Unpack[RequestOptions],
    ) -> None:
        self._send = send
        self._family = family
        self._in_reasoning = in_reasoning
        self._defaults = defaults

    def chat(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[RequestOptions]
    ) -> Completion:
        """Returns the completion of one turn. Raises what `stream` raises, and RemoteError if the server answers with
        an error."""
        return self.stream(messages, tools, **options).result()

    def stream(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[RequestOptions]
    ) -> "RemoteTurn":
        """Returns one turn, which is sent when it is first read. Raises RequestError for a request that is not
        valid."""
        known = as_tools(tools)
        body = request(messages, known, **{**self._defaults, **options})
        diagnostics = Diagnostics()
        reader = TurnReader(diagnostics, tools=known, family=self._family, in_reasoning=self._in_reasoning)
        return RemoteTurn(self._send, body, reader, diagnostics)

    def run(
        self,
        messages: RunInput,
        tools: Sequence[RunTool] | None = None,
        max_steps: int = 8,
        **options: Unpack[RemoteRunOptions],
    ) -> Run:
        """Run the agent loop: turns and tools until the model answers, at most `max_steps` turns. Raises what `chat`
        raises."""
        return self.stream_run(messages, tools, max_steps, **options).result()

    def stream_run(
        self,
        messages: RunInput,
        tools: Sequence[RunTool] | None = None,
        max_steps: int = 8,
        **options: Unpack[RemoteRunOptions],
    ) -> RunStream:
        """Returns the agent loop as a stream: `for`, `async for`, `await` (the Run), `with`. Each event carries its
        `step`."""
        toolbox = Toolbox(tools)
        policy, own = run_options(max_steps, options, RequestOptions)
        conversation = messages if isinstance(messages, Transcript) else conversation_of(messages)
        return stream_run(lambda history: self.stream(history, toolbox.tools, **own), conversation, toolbox, policy)


class RemoteTurn(GeneratedStream[Completion]):
    """One turn of a remote server: `for`, `async for`, `await` (its completion) and `with`; leaving it early closes the
    stream. One reader only."""

    def __init__(self, send: Send, body: dict[str, Any], reader: TurnReader, diagnostics: Diagnostics) -> None:
        super().__init__()
        self.body = body
        self._send = send
        self._diagnostics = diagnostics
        self._reader = reader
        self._source: Events | AsyncEvents | None = None
        self._events: list[Event] = []
        self._cancelled = False

    @property
    def completion(self) -> Completion:
        """The completion so far; the complete turn after its last event. Before that, its finish reason is
        "cancelled"."""
        ended = bool(self._events) and isinstance(self._events[-1], Finished)
        return fold(self._events if ended else [*self._events, Finished("cancelled")])

    @property
    def malformed(self) -> int:
        """Number of malformed events or fields that were left out."""
        return self._diagnostics.count

    def _whole(self) -> Completion:
        return self.completion

    def cancel(self) -> None:
        """End at the next chunk, with reason "cancelled"; may be called from any thread. A turn not yet sent is never
        sent."""
        self._cancelled = True
        if self._source is not None:
            self._source.cancel()

    def _read(self) -> Generator[Event, None, None]:
        sent: object = [] if self._cancelled else self._send(self.body)
        if not isinstance(sent, Iterable):
            if inspect.iscoroutine(sent):
                sent.close()
            raise RequestError("The transport is async; read the turn with `async for` or `await`, or use a sync one.")
        source = Events(cast("Iterable[object]", sent), self._reader, self._diagnostics)
        self._begin(source)
        try:
            for event in source:
                self._events.append(event)
                yield event
        finally:
            source.close()

    async def _read_async(self) -> AsyncGenerator[Event, None]:
        sent: object = _nothing() if self._cancelled else self._send(self.body)
        if inspect.isawaitable(sent):
            sent = await sent
        if not isinstance(sent, AsyncIterable):
            raise RequestError("The transport is sync; read the turn with `for` or `result()`, or use an async one.")
        source = AsyncEvents(cast("AsyncIterable[object]", sent), self._reader, self._diagnostics)
        self._begin(source)
        try:
            async for event in source:
                self._events.append(event)
                yield event
        finally:
            await source.aclose()

    def _begin(self, source: Events | AsyncEvents) -> None:
        self._source = source
        if self._cancelled:
            source.cancel()


async def _nothing() -> AsyncIterator[object]:
    for item in ():
        yield item
