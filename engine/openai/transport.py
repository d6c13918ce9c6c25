"""An HTTP client's transport that ends in this process: takes requests, returns responses, uses no socket.

The engine's own thread generates. The reader of a body waits for that thread's queue, so closing the body, or
cancelling the task that waits, cancels the turns at once: there is no other thread or task in between.
"""

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from queue import Empty, SimpleQueue
from time import monotonic
from types import ModuleType
from typing import Any, TypeAlias, cast

from engine.deadlines import call_later
from engine.errors import EngineError
from engine.offloop import off_loop
from engine.openai.api import Answer, Api, Embedding, Turn
from engine.openai.problems import Problem
from engine.openai.projection import EngineLike, Json, Reading, TurnStream, cancel, whole
from engine.runtime.service import PendingVectors

_LIBRARIES = ("httpx2", "httpx")
_More: TypeAlias = Callable[[], Coroutine[Any, Any, Iterable[bytes] | None]]


def transport(engines: EngineLike | Mapping[str, EngineLike]) -> Any:
    """Returns the transport for an HTTP client of httpx or httpx2, sync or async, with which a client of OpenAI's API
    talks to engines in this process: `httpx.Client(transport=transport(llm))`.

    engines: one, which accepts any model name, or `{name: engine}`. Closing the client cancels no turn that is still
    being read, and closes no engine. Raises EngineError if neither library is installed.
    """
    return _transport_class()(Api(engines))


@cache
def _transport_class() -> Any:
    """Returns a class that is a transport for each installed library."""
    libraries = [import_module(name) for name in _LIBRARIES if find_spec(name)]
    if not libraries:
        raise EngineError("Neither httpx2 nor httpx is installed: pip install 'llama-engine[openai]'.")
    bases = [base for library in libraries for base in (library.BaseTransport, library.AsyncBaseTransport)]
    return type("InProcessTransport", (_InProcess, *bases), {})


@cache
def _body_class(library: ModuleType, kind: type) -> Any:
    """Returns a subclass of `kind` that the library accepts as a stream of bytes."""
    base = library.AsyncByteStream if kind is _AsyncBody else library.SyncByteStream
    return type(kind.__name__.strip("_"), (kind, base), {})


class _InProcess:
    def __init__(self, api: Api) -> None:
        self._api = api

    def handle_request(self, request: Any) -> Any:
        timer = _Timer(request)
        try:
            found = self._api.handle(request.method, request.url.path, request.url.params, request.read())
            if isinstance(found, Answer):
                return _json(request, 200, found.body, found.headers)
            if isinstance(found, Embedding):
                return _json(request, 200, _embedded(found, found.ask.begin(), timer), found.headers())
            streams = found.ask.begin()
            if found.stream:
                body = _body_class(timer.library, _Body)(_reading(found, streams), timer)
                return _streamed(request, body, _headers(found, streams))
            return _json(request, 200, _completed(found, streams, timer), _headers(found, streams))
        except Problem as problem:
            return _json(request, problem.status, problem.body(), {})

    async def handle_async_request(self, request: Any) -> Any:
        timer = _Timer(request)
        try:
            found = self._api.handle(request.method, request.url.path, request.url.params, await request.aread())
            if isinstance(found, Answer):
                return _json(request, 200, found.body, found.headers)
            try:
                async with asyncio.timeout(timer.seconds):
                    if isinstance(found, Embedding):
                        pending = await off_loop(found.ask.begin, PendingVectors.cancel)
                        return _json(request, 200, await _aembedded(found, pending), found.headers())
                    streams = await off_loop(found.ask.begin, cancel)
                    if not found.stream:
                        return _json(request, 200, await _acompleted(found, streams), _headers(found, streams))
            except TimeoutError as error:
                raise timer.late() from error
            body = _body_class(timer.library, _AsyncBody)(_reading(found, streams), timer)
            return _streamed(request, body, _headers(found, streams))
        except Problem as problem:
            return _json(request, problem.status, problem.body(), {})


class _Timer:
    """The read timeout of a request, and the HTTP library that made the request."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._begun = monotonic()
        self.library = sys.modules[type(request).__module__.partition(".")[0]]
        timeouts: Mapping[str, float | None] = request.extensions.get("timeout", {})
        self.seconds = timeouts.get("read")

    @property
    def left(self) -> float | None:
        """Seconds until the response must be complete."""
        return None if self.seconds is None else max(0.0, self.seconds - (monotonic() - self._begun))

    def late(self) -> Exception:
        error: Exception = self.library.ReadTimeout(
            f"The engine sent nothing for {self.seconds} s, so the turn was cancelled; use a longer read timeout.",
            request=self._request,
        )
        return error


def _embedded(embedding: Embedding, pending: PendingVectors, timer: _Timer) -> Json:
    try:
        return embedding.ask.body(pending.result(timer.left))
    except TimeoutError as error:
        raise timer.late() from error
    except EngineError as error:
        raise embedding.ask.problem(error) from error


async def _aembedded(embedding: Embedding, pending: PendingVectors) -> Json:
    try:
        return embedding.ask.body(await pending)
    except EngineError as error:
        raise embedding.ask.problem(error) from error


def _completed(turn: Turn, streams: Sequence[TurnStream], timer: _Timer) -> Json:
    try:
        return whole(turn.projection, [stream.result(timer.left) for stream in streams])
    except TimeoutError as error:
        raise timer.late() from error
    except EngineError as error:
        raise turn.ask.problem(error) from error
    finally:
        cancel(streams)


async def _acompleted(turn: Turn, streams: Sequence[TurnStream]) -> Json:
    try:
        return whole(turn.projection, [await stream for stream in streams])
    except EngineError as error:
        raise turn.ask.problem(error) from error
    finally:
        cancel(streams)


def _reading(turn: Turn, streams: Sequence[TurnStream]) -> Reading:
    return Reading(turn.ask, turn.projection, streams, logprobs=turn.logprobs)


class _Body:
    """A streamed response, read by a thread."""

    def __init__(self, reading: Reading, timer: _Timer) -> None:
        self._reading = reading
        self._timer = timer
        self._closed = False
        self._late = False

    def __iter__(self) -> Iterator[bytes]:
        reading = self._reading
        try:
            yield from reading.opening()
            yield from self._one() if len(reading.streams) == 1 else self._several()
            yield from reading.closing()
        except (Problem, EngineError) as error:
            if self._late:
                raise self._timer.late() from error
            if not self._closed:
                yield from reading.failed(error)
        finally:
            reading.cancel()

    def _one(self) -> Iterator[bytes]:
        """Yields the data of the only turn; an event that does not come in time ends it."""
        source, seconds = iter(self._reading.streams[0]), self._timer.seconds
        while True:
            undo = None if seconds is None else call_later(seconds, self._give_up)
            try:
                event = next(source, None)
            finally:
                if undo is not None:
                    undo()
            if event is None:
                return
            yield from self._reading.event(0, event)

    def _several(self) -> Iterator[bytes]:
        """Yields the data of several turns, whose events are interleaved; if no event comes in time, all of them
        end."""
        bell: SimpleQueue[None] = SimpleQueue()
        for stream in self._reading.streams:
            stream.listen(lambda: bell.put(None))
        while not self._reading.over:
            try:
                bell.get(timeout=self._timer.seconds)
            except Empty:
                raise self._timer.late() from None
            yield from self._reading.arrived()

    def _give_up(self) -> None:
        self._late = True
        self._reading.cancel()

    def close(self) -> None:
        self._closed = True
        self._reading.cancel()


class _AsyncBody:
    """A streamed response, read by a task."""

    def __init__(self, reading: Reading, timer: _Timer) -> None:
        self._reading = reading
        self._timer = timer
        self._closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        reading = self._reading
        try:
            for data in reading.opening():
                yield data
            more = self._one() if len(reading.streams) == 1 else self._several()
            while (found := await more()) is not None:
                for data in found:
                    yield data
            for data in reading.closing():
                yield data
        except (Problem, EngineError) as error:
            if not self._closed:
                for data in reading.failed(error):
                    yield data
        finally:
            reading.cancel()

    # What waits are coroutines, not generators: a generator within this one would be closed by a task of its own.

    def _one(self) -> _More:
        """Yields the data of the only turn."""
        source = aiter(self._reading.streams[0])

        async def more() -> Iterable[bytes] | None:
            event = await self._in_time(anext(source, None))
            return None if event is None else self._reading.event(0, event)

        return more

    def _several(self) -> _More:
        """Yields the data of several turns, whose events are interleaved."""
        loop, bell = asyncio.get_running_loop(), asyncio.Event()

        def ring() -> None:
            with suppress(RuntimeError):  # the loop is closed, so there is no reader any more
                loop.call_soon_threadsafe(bell.set)

        for stream in self._reading.streams:
            stream.listen(ring)

        async def more() -> Iterable[bytes] | None:
            if self._reading.over:
                return None
            await self._in_time(bell.wait())
            bell.clear()
            return self._reading.arrived()

        return more

    async def _in_time(self, waiting: Awaitable[Any]) -> Any:
        if self._timer.seconds is None:
            return await waiting
        try:
            async with asyncio.timeout(self._timer.seconds):
                return await waiting
        except TimeoutError as error:
            raise self._timer.late() from error

    async def aclose(self) -> None:
        self._closed = True
        self._reading.cancel()


def _headers(turn: Turn, streams: Sequence[TurnStream]) -> dict[str, str]:
    """Returns the response's headers: the fields without effect, and how many messages had their reasoning restored."""
    return {**turn.headers(), "x-restored-reasoning": str(len(streams[0].restored))}


def _streamed(request: Any, body: Any, headers: Mapping[str, str]) -> Any:
    return _response(request, 200, {"content-type": "text/event-stream; charset=utf-8", **headers}, stream=body)


def _json(request: Any, status: int, body: Json, headers: Mapping[str, str]) -> Any:
    content = json.dumps(body).encode()  # ASCII, since the body may repeat a lone surrogate of its request
    return _response(request, status, {"content-type": "application/json", **headers}, content=content)


def _response(request: Any, status: int, headers: Mapping[str, str], **body: Any) -> Any:
    library = cast("Any", sys.modules[type(request).__module__.partition(".")[0]])
    named = {**headers, "x-request-id": f"req_{secrets.token_hex(12)}"}
    return library.Response(status, headers=named, request=request, **body)
