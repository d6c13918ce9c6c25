"""A server instead of a model: the same turns and the same agent loop, over the caller's own transport."""

import inspect
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from functools import partial
from time import monotonic
from typing import Any, Protocol, TypeAlias, Unpack, cast

from engine.agent.limits import RunArguments, run_options
from engine.agent.run import Run, RunStream, stream_run
from engine.agent.transcript import RunInput, Transcript
from engine.formats.families import Family, Format
from engine.remote.bodies import RequestOptions, client_arguments, request
from engine.remote.chunks import ReadOptions, TurnReader
from engine.remote.timed import answered, timed, timed_async
from engine.support.errors import RequestError, shown
from engine.tools import RunTool, Toolbox, ToolLike, as_tools
from engine.types.completion import Completion
from engine.types.conversation import conversation_of
from engine.types.events import Event, Finished, fold
from engine.types.messages import MessagesLike
from engine.types.streams import GeneratedStream

Chunks: TypeAlias = Iterable[object] | AsyncIterable[object]
Send: TypeAlias = Callable[[dict[str, Any]], Chunks | Awaitable[Chunks]]


class Client(Protocol):
    """An `openai` client, sync or async, as far as it is used: `chat.completions.create`."""

    @property
    def chat(self) -> Any: ...


def _sender(given: "Send | Client") -> Send:
    """Returns the function that sends a request. Raises RequestError for what is neither one nor a client."""
    if callable(given):
        return given
    if not hasattr(getattr(cast("object", given), "chat", None), "completions"):
        raise RequestError(
            f"Remote({shown(given)}) has nothing that sends a request: pass an openai client, "
            'Remote(openai.OpenAI(base_url="http://localhost:8080/v1", api_key="none"), model="any"), or a function '
            "that takes a request's body and returns the response's stream."
        )
    return lambda body: given.chat.completions.create(**client_arguments(body))


class RemoteRunOptions(RequestOptions, RunArguments, total=False):
    """Options of the agent loop: those of its requests, and its own (`engine.agent.limits.RunOptions`)."""


class RemoteTurn(GeneratedStream[Completion]):
    """One turn of a server: `for`, `async for`, `next`, `await` or `result()` (its completion), and `with`; leaving it
    early and `close` close the server's stream. One reader only, sync or async as the transport is. `body`: what is
    sent; empty for a stream that was given."""

    def __init__(
        self, source: Callable[[], object], body: Mapping[str, Any] | None = None, **options: Unpack[ReadOptions]
    ) -> None:
        super().__init__()
        self.body = dict(body or {})
        self._sent = body is None
        self._source = source
        self._reader = TurnReader(**options)

    @property
    def completion(self) -> Completion:
        """The completion so far; the complete turn after its last event. Before that, its finish reason is
        "cancelled"."""
        events = self._reader.events
        ended = bool(events) and isinstance(events[-1], Finished)
        return fold(events if ended else [*events, Finished("cancelled")])

    @property
    def malformed(self) -> int:
        """Number of malformed events or fields that were left out, each with a warning."""
        return self._reader.diagnostics.count

    def cancel(self) -> None:
        """End at the next chunk, with reason "cancelled"; may be called from any thread. A turn not yet sent is never
        sent."""
        self._reader.cancelled = True

    def close(self) -> None:
        """Stop reading from sync code, without a last event."""
        cast("Generator[Event, None, None]", iter(self)).close()

    async def aclose(self) -> None:
        """Stop reading from async code, without a last event."""
        await cast("AsyncGenerator[Event, None]", aiter(self)).aclose()

    def __next__(self) -> Event:
        return next(iter(self))

    async def __anext__(self) -> Event:
        return await anext(aiter(self))

    def _whole(self) -> Completion:
        return self.completion

    def _read(self) -> Generator[Event, None, None]:
        return _read(self._reader, self._source, sent=self._sent)

    def _read_async(self) -> AsyncGenerator[Event, None]:
        return _read_async(self._reader, self._source, sent=self._sent)


# These do not refer to the turn, so that a turn without references is closed at once, along with its source.


def _opened(open_source: Callable[[], object]) -> Iterable[object]:
    """Returns the items of a sync transport. Raises RequestError for an async one."""
    source = open_source()
    if isinstance(source, str | bytes | bytearray | Mapping) or hasattr(source, "model_dump"):
        source = [cast("object", source)]  # a single item may itself be iterable
    if not isinstance(source, Iterable):
        if inspect.iscoroutine(source):
            source.close()
        raise RequestError("The transport is async; read the turn with `async for` or `await`, or use a sync one.")
    return cast("Iterable[object]", source)


def _read(reader: TurnReader, open_source: Callable[[], object], *, sent: bool) -> Generator[Event, None, None]:
    source: Iterable[object] = ()
    if sent or not reader.cancelled:
        opened = partial(_opened, open_source)
        source = opened() if reader.seconds is None else timed(opened, reader.seconds)
    try:
        for item in source:
            yield from reader.feed(item)
            if reader.over:
                break
        yield from reader.close()
    finally:
        if (close := getattr(source, "close", None)) is not None:
            close()


async def _read_async(
    reader: TurnReader, open_source: Callable[[], object], *, sent: bool
) -> AsyncGenerator[Event, None]:
    until = None if reader.seconds is None else monotonic() + reader.seconds
    source = _nothing() if reader.cancelled and not sent else open_source()
    if inspect.isawaitable(source):
        source = await (source if until is None else answered(source, reader.seconds or 0.0))
    if not isinstance(source, AsyncIterable):
        raise RequestError("The transport is sync; read the turn with `for` or `result()`, or use an async one.")
    items = cast("AsyncIterable[object]", source)
    if until is not None:
        items = timed_async(items, reader.seconds or 0.0, until)
    try:
        async for item in items:
            for event in reader.feed(item):
                yield event
            if reader.over:
                break
        for event in reader.close():
            yield event
    finally:
        close = getattr(cast("object", source), "aclose", None) or getattr(cast("object", source), "close", None)
        if close is not None and inspect.isawaitable(closing := close()):
            await closing


async def _nothing() -> AsyncIterator[object]:
    for item in ():
        yield item


class Remote:
    """A server, with the methods that `Engine` has for a turn and for the agent loop.

    send: the transport: an `openai` client, or a function that takes the body of a request and returns the stream of
        its response, such as a generator over `response.iter_lines()`. An async one (`AsyncOpenAI`, a coroutine
        function, an async generator) works with `async for` and `await`, a sync one with `for` and `result`.
    family, in_reasoning, seconds: how responses are read, and for how long; see `remote.ReadOptions`.
    defaults: options of every request; see `remote.request`.
    """

    def __init__(
        self,
        send: Send | Client,
        *,
        family: str | Family | Format | None = None,
        in_reasoning: bool = False,
        seconds: float | None = None,
        **defaults: Unpack[RequestOptions],
    ) -> None:
        self._send = _sender(send)
        self._family = family
        self._in_reasoning = in_reasoning
        self._seconds = seconds
        self._defaults = defaults

    def chat(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[RequestOptions]
    ) -> Completion:
        """Returns the completion of one turn. Raises what `stream` raises, and RemoteError if the server answers with
        an error."""
        return self.stream(messages, tools, **options).result()

    def stream(
        self, messages: MessagesLike, tools: Sequence[ToolLike] | None = None, **options: Unpack[RequestOptions]
    ) -> RemoteTurn:
        """Returns one turn, which is sent when it is first read. Raises RequestError for a request that is not
        valid."""
        records = as_tools(tools)
        body = request(messages, records, **{**self._defaults, **options})
        read = ReadOptions(tools=records, family=self._family, in_reasoning=self._in_reasoning, seconds=self._seconds)
        return RemoteTurn(partial(self._send, body), body, **read)

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
