"""Sends a Chat Completions request and reads all of its answer: over HTTP, or in this process. Sources: RFC 9110 for
what statuses mean; OpenAI API reference, "Chat"; README of llama.cpp's tools/server for `/props`."""

import json
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast
from urllib.parse import urlsplit

from engine.openai.api import Api
from engine.openai.problems import Problem
from engine.openai.streaming import StreamReader, Turn, cancel
from engine.remote.wire import Diagnostics, Wire, mapping_of, text_of
from engine.support.errors import EngineError, MalformedEventWarning, RemoteError, RequestError, shown

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from engine.api.engine import Engine

Json: TypeAlias = dict[str, Any]

_MOST_BYTES = 64 << 20
_PIECE = 64 << 10
_MOST_LATE = 3
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `status`: HTTP's, 0 if none came in time; `data`: the body, or the chunks of a stream; `broken`: what
    cut it off, or makes it unreadable; `malformed`: the number of events that are no JSON objects; `done`: the stream
    said that it ended."""

    status: int
    data: tuple[Json, ...] = ()
    broken: str = ""
    malformed: int = 0
    done: bool = False

    @property
    def body(self) -> Json:
        """The whole body, or the first chunk."""
        return self.data[0] if self.data else {}

    @property
    def refused(self) -> bool:
        """Whether the server will not do this, rather than fail at it."""
        return self.status == 501 or (400 <= self.status < 500 and self.status != 429)

    @property
    def told(self) -> str:
        """What was wrong, as far as the server says it."""
        error: object = self.body.get("error", self.body.get("detail"))
        message = mapping_of(error).get("message", error)
        said = text_of(message) or (shown(message) if message else "no message")
        return self.broken or f"{self.status}: {said[:_LONGEST]}"


class Exchange(Protocol):
    """A way to a server."""

    def send(self, body: Mapping[str, Any]) -> Reply:
        """Returns the whole answer to a body of `POST /chat/completions`; errors of the server are replies too. Raises
        RemoteError if there is no such server."""
        ...

    def markup(self) -> str:
        """Returns what the server tells of its chat template and its tokens; "" if nothing."""
        ...


class HttpExchange:
    """A server at a base address: `http://localhost:8080/v1`. `model`: None takes the first that the server lists;
    `timeout`: seconds for one whole answer; the third that is late in a row is an error."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        timeout: float = 120.0,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError as error:
            raise RequestError(f"{shown(url)} is not an address: {error}.") from error
        if parts.scheme not in ("http", "https") or not self._host:
            raise RequestError(f"{shown(url)} is not an http(s) address; give one like http://localhost:8080/v1.")
        self._secure = parts.scheme == "https"
        self._base = parts.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
        self._timeout = timeout
        key = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._headers = {"Content-Type": "application/json", **key, **(headers or {})}
        self._model = model
        self._late = 0

    def send(self, body: Mapping[str, Any]) -> Reply:
        if self._model is None:
            listed: object = self._call("GET", f"{self._base}/models").body.get("data")
            first = cast("list[object]", listed)[0] if isinstance(listed, list) and listed else None
            self._model = text_of(mapping_of(first).get("id")) or "default"  # servers of one model take any name
        streams = bool(body.get("stream"))
        return self._call("POST", f"{self._base}/chat/completions", {"model": self._model, **body}, streams=streams)

    def markup(self) -> str:
        told = self._call("GET", f"{self._base.removesuffix('/v1')}/props").body
        return "\n".join(text_of(told.get(name)) for name in ("chat_template", "bos_token", "eos_token")).strip()

    def _call(self, method: str, path: str, body: Json | None = None, *, streams: bool = False) -> Reply:
        """Returns the answer. Raises RemoteError if the server cannot be reached, or is late too often."""
        import http.client

        connect = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = connect(self._host, self._port, timeout=self._timeout)
        status, pieces, broken = 0, list[bytes](), ""
        try:
            connection.request(method, path, None if body is None else json.dumps(body).encode(), self._headers)
            response = connection.getresponse()
            status = response.status
            pieces.extend(_pieces(response, time.monotonic() + self._timeout))
        except TimeoutError:
            return self._is_late()
        except (OSError, http.client.HTTPException, ValueError) as error:
            if not status:
                raise RemoteError(
                    f"There is no answer from {self._host}, {path}: {error or type(error).__name__}. Start the server, "
                    "or correct the address; it is the one that clients call base_url."
                ) from error
            broken = f"the answer broke off ({type(error).__name__})"
        finally:
            connection.close()
        self._late = 0
        return read_reply(status, pieces, broken, streams=streams)

    def _is_late(self) -> Reply:
        self._late += 1
        if self._late == _MOST_LATE:
            raise RemoteError(
                f"{self._host} gave no whole answer within {self._timeout:g} s, {_MOST_LATE} times in a row. Look "
                "whether it hangs; if it is only slow, allow more time (--timeout)."
            )
        return Reply(0, broken=f"no whole answer within {self._timeout:g} s")


def _pieces(response: "HTTPResponse", until: float) -> Iterator[bytes]:
    """Yields what comes. Raises TimeoutError, however slowly it trickles, and ValueError if it is too much."""
    size = 0
    while piece := response.read1(_PIECE):
        yield piece
        size += len(piece)
        if time.monotonic() > until:
            raise TimeoutError
        if size > _MOST_BYTES:
            raise ValueError("too many bytes")


class LocalExchange:
    """An engine of this process, without HTTP: the bodies, checks and answers are those of `engine.openai`."""

    def __init__(self, engine: "Engine", *, timeout: float = 120.0) -> None:
        self._engine = engine
        self._api = Api(engine)
        self._timeout = timeout

    def send(self, body: Mapping[str, Any]) -> Reply:
        try:
            turn = self._api.handle("POST", "/v1/chat/completions", {}, json.dumps(body).encode())
            assert isinstance(turn, Turn)
            streams = turn.begin()
            try:
                if turn.request.stream:
                    return read_reply(200, self._data(StreamReader(turn, streams)), "", streams=True)
                return Reply(200, (turn.whole([stream.result(self._timeout) for stream in streams]),))
            except EngineError as error:
                raise turn.problem(error) from error
            finally:
                cancel(streams)
        except Problem as problem:
            return Reply(problem.status, (problem.body(),))
        except (TimeoutError, Empty):
            return Reply(0, broken=f"no whole answer within {self._timeout:g} s")

    def markup(self) -> str:
        info = self._engine.info
        return f"{self._engine.template.source}\n{info.bos_text}\n{info.eos_text}"

    def _data(self, reading: StreamReader) -> Iterator[bytes]:
        bell: SimpleQueue[None] = SimpleQueue()
        for data in reading.data(lambda: bell.put(None)):
            if data:
                yield data
            elif data is None:
                bell.get(timeout=self._timeout)


def read_reply(status: int, pieces: Iterable[bytes], broken: str, *, streams: bool) -> Reply:
    """Returns the answer in these bytes. `streams`: a good answer is a stream of events."""
    if streams and status == 200:
        diagnostics = Diagnostics()
        wire = Wire(diagnostics)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MalformedEventWarning)  # they are counted
            chunks = [dict(chunk) for piece in pieces for chunk in wire.feed(piece)]
            chunks += map(dict, wire.close())
        return Reply(status, tuple(chunks), broken, diagnostics.count, wire.done)
    content = b"".join(pieces)
    try:
        body: object = json.loads(content)
    except (ValueError, RecursionError):
        body = None
    if isinstance(body, dict):
        return Reply(status, (cast("Json", body),), broken)
    return Reply(status, broken=broken or f"{status}: the answer is no JSON object")


def check_plain(exchange: Exchange, more: Mapping[str, Any]) -> Reply:
    """Returns the answer to a plain question. Raises RemoteError if there is none: then nothing can be learnt."""
    reply = exchange.send({"messages": [{"role": "user", "content": "Hello!"}], **more})
    if reply.status != 200:
        ways = {
            401: "give a key (--api-key)",
            403: "give a key (--api-key)",
            404: "correct the address or the model (--model)",
        }
        way = ways.get(reply.status, "look into the server's log, and correct the model (--model) or the address")
        raise RemoteError(
            f"The server does not answer a plain question ({reply.told.rstrip('.')}): {way}.", reply.status
        )
    return reply
