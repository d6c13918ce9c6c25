"""An HTTP client's transport that ends in this process: takes requests, returns responses, uses no socket.

The engine's own thread generates. The reader of a body waits for that thread's queue, so closing the body, or
cancelling the task that waits, cancels the turns at once: there is no other thread or task in between.
"""

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from queue import Empty, SimpleQueue
from time import monotonic
from types import ModuleType
from typing import Any, cast

from engine.openai.api import Api
from engine.openai.decisions import DecisionCall
from engine.openai.embeddings import Embedding
from engine.openai.parameters import Json
from engine.openai.problems import Problem
from engine.openai.streaming import EngineLike, StreamReader, Turn, TurnStream, cancel
from engine.runtime.stream.pending import PendingVectors
from engine.support.deadlines import finished_by
from engine.support.errors import EngineError
from engine.support.extras import install
from engine.support.offloop import keep_awake, off_loop, off_loop_or_undo

_LIBRARIES = ("httpx2", "httpx")


def transport(engines: EngineLike | Mapping[str, EngineLike]) -> "InProcessTransport":
    """Returns the transport for an HTTP client of httpx or httpx2, sync or async, with which a client of OpenAI's API
    talks to engines in this process: `httpx.Client(transport=transport(llm))`.

    engines: one, which accepts any model name, or `{name: engine}`. Closing the client cancels no turn that is still
    being read, and closes no engine. Raises EngineError if neither library is installed.
    """
    return _transport_class()(Api(engines))


@cache
def _transport_class() -> "type[InProcessTransport]":
    """Returns a class that is a transport for each installed library."""
    libraries = [import_module(name) for name in _LIBRARIES if find_spec(name)]
    if not libraries:
        raise EngineError(f"Neither httpx2 nor httpx is installed: {install('openai')}.")
    bases = [base for library in libraries for base in (library.BaseTransport, library.AsyncBaseTransport)]
    return type("InProcessTransport", (InProcessTransport, *bases), {})


@cache
def _body_class(library: ModuleType, kind: type) -> Any:
    """Returns a subclass of `kind` that the library accepts as a stream of bytes."""
    base = library.AsyncByteStream if kind is _AsyncBody else library.SyncByteStream
    return type(kind.__name__.strip("_"), (kind, base), {})


_Base: Any = object  # for type checkers a base class of any kind, since it is the transports' of what is installed


class InProcessTransport(_Base):
    """A transport of httpx and of httpx2, sync and async."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def handle_request(self, request: Any) -> Any:
        timer = _Timer(request)
        try:
            content = request.read()
            with timer.limit():
                turn = self._api.handle(request.method, request.url.path, request.url.params, content)
            if isinstance(turn, Embedding):
                with timer.limit(), turn.problems():
                    body = turn.whole(turn.begin().result(timer.left))
                return _json(request, 200, body, turn.headers())
            if isinstance(turn, DecisionCall):
                with timer.limit(), turn.problems():
                    body = turn.whole()
                return _json(request, 200, body, turn.headers())
            if not isinstance(turn, Turn):
                return _json(request, 200, turn, {})
            with timer.limit():
                streams = turn.begin()
            if turn.request.stream:
                lines = _body_class(timer.library, _Body)(StreamReader(turn, streams), timer)
                return _streamed(request, lines, turn, streams)
            with timer.limit(), _ending(turn, streams):
                body = turn.whole([stream.result(timer.left) for stream in streams])
            return _json(request, 200, body, _headers(turn, streams))
        except Problem as problem:
            return _json(request, problem.status, problem.body(), {})

    async def handle_async_request(self, request: Any) -> Any:
        timer = _Timer(request)
        try:
            content = await request.aread()
            with timer.limit():
                turn = await off_loop(  # a model that is not there may have to be loaded
                    self._api.handle, request.method, request.url.path, request.url.params, content
                )
            if isinstance(turn, Embedding):
                with timer.limit(), turn.problems():
                    async with asyncio.timeout(timer.seconds):
                        body = turn.whole(await (await off_loop_or_undo(turn.begin, PendingVectors.cancel)))
                return _json(request, 200, body, turn.headers())
            if isinstance(turn, DecisionCall):
                with timer.limit(), turn.problems():
                    body = await off_loop(turn.whole)
                return _json(request, 200, body, turn.headers())
            if not isinstance(turn, Turn):
                return _json(request, 200, turn, {})
            with timer.limit():
                async with asyncio.timeout(timer.seconds):
                    streams = await off_loop_or_undo(turn.begin, cancel)
                    if not turn.request.stream:
                        with _ending(turn, streams):
                            body = turn.whole([await stream for stream in streams])
                        return _json(request, 200, body, _headers(turn, streams))
            lines = _body_class(timer.library, _AsyncBody)(StreamReader(turn, streams), timer)
            return _streamed(request, lines, turn, streams)
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

    @contextmanager
    def limit(self) -> Generator[None]:
        """Raises the library's timeout where the block took too long, also where it only prepared the request."""
        try:
            with finished_by(None if self.seconds is None else self._begun + self.seconds):
                yield
        except (TimeoutError, Empty, Problem) as error:
            if isinstance(error, Problem) and self.left != 0:
                raise
            raise self.library.ReadTimeout(
                f"The engine sent nothing for {self.seconds} s, so the turn was cancelled; use a longer read timeout.",
                request=self._request,
            ) from error


@contextmanager
def _ending(turn: Turn, streams: Sequence[TurnStream]) -> Generator[None]:
    """Ends the turns with the block. Raises Problem for an error of the engine."""
    try:
        yield
    except EngineError as error:
        raise turn.problem(error) from error
    finally:
        cancel(streams)


class _Body:
    """A streamed response, read by a thread."""

    def __init__(self, reading: StreamReader, timer: _Timer) -> None:
        self._reading = reading
        self._timer = timer

    def __iter__(self) -> Iterator[bytes]:
        bell: SimpleQueue[None] = SimpleQueue()
        try:
            for data in self._reading.data(lambda: bell.put(None)):
                if data:
                    yield data
                elif data is None:
                    with self._timer.limit():
                        bell.get(timeout=self._timer.seconds)
        finally:
            self._reading.close()

    def close(self) -> None:
        self._reading.close()


class _AsyncBody:
    """A streamed response, read by a task."""

    def __init__(self, reading: StreamReader, timer: _Timer) -> None:
        self._reading = reading
        self._timer = timer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop, bell = asyncio.get_running_loop(), asyncio.Event()
        over: asyncio.Future[None] = loop.create_future()
        keep_awake(over)

        def ring() -> None:
            with suppress(RuntimeError):  # the loop is closed, so there is no reader any more
                loop.call_soon_threadsafe(bell.set)

        try:
            for data in self._reading.data(ring):
                if data:
                    yield data
                elif data is None:
                    with self._timer.limit():
                        async with asyncio.timeout(self._timer.seconds):
                            await bell.wait()
                    bell.clear()
                else:
                    await asyncio.sleep(0)
        finally:
            over.cancel()
            self._reading.close()

    async def aclose(self) -> None:
        self._reading.close()


def _headers(turn: Turn, streams: Sequence[TurnStream]) -> dict[str, str]:
    """Returns the response's headers: the fields without effect, and how many messages had their reasoning restored."""
    return {**turn.headers(), "x-restored-reasoning": str(len(streams[0].restored))}


def _streamed(request: Any, body: Any, turn: Turn, streams: Sequence[TurnStream]) -> Any:
    headers = {"content-type": "text/event-stream; charset=utf-8", **_headers(turn, streams)}
    return _response(request, 200, headers, stream=body)


def _json(request: Any, status: int, body: Json, headers: Mapping[str, str]) -> Any:
    content = json.dumps(body).encode()  # ASCII, since the body may repeat a lone surrogate of its request
    return _response(request, status, {"content-type": "application/json", **headers}, content=content)


def _response(request: Any, status: int, headers: Mapping[str, str], **body: Any) -> Any:
    library = cast("Any", sys.modules[type(request).__module__.partition(".")[0]])
    named = {**headers, "x-request-id": f"req_{secrets.token_hex(12)}"}
    return library.Response(status, headers=named, request=request, **body)
