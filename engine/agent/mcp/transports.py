"""Makes a connection's transport from what a caller gives as an MCP server: the protocol's own transports, behind the
limits of `intake`."""

import codecs
import logging
import os
import shlex
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from engine.agent.mcp.intake import MESSAGE_BYTES, Events, Intake, Lines, Meter, Refused
from engine.support import threads
from engine.support.errors import EngineError, RequestError, shown

_log = logging.getLogger("engine.mcp")
_KEPT = 2_000  # characters of standard error that an error message quotes
_READ_SECONDS = 24 * 3600.0  # calls have time limits of their own
_GOODBYE_SECONDS = 2.0


class Stderr:
    """The standard error of a server's process: keeps its last lines for messages, and logs every line (DEBUG)."""

    def __init__(self) -> None:
        self._tail = ""
        self._reader: threading.Thread | None = None

    @asynccontextmanager
    async def pipe(self) -> AsyncGenerator[Any, None]:
        """Open a file for the process to write to. On exit, waits for the last lines."""
        reading, writing = os.pipe()
        reader = threading.Thread(target=self._read, args=(reading,), name="llama-engine mcp stderr", daemon=True)
        try:
            threads.start(reader)
        except EngineError:
            os.close(reading)
            os.close(writing)
            raise
        self._reader = reader
        try:
            with os.fdopen(writing, "w") as file:
                yield file
        finally:
            reader.join(1.0)  # takes longer only if a child of the process still holds the pipe

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            while chunk := file.read(4096):
                text = chunk.decode(errors="replace")
                _log.debug("%s", text.rstrip())
                self._tail = (self._tail + text)[-_KEPT:]

    def last_words(self, seconds: float) -> str:
        """Returns the end of what a server wrote; "" if it wrote nothing or has no process. Waits for so long until a
        server that has ended was read to its end."""
        if self._reader is not None:
            self._reader.join(seconds)
        return self._tail.strip()


@dataclass(frozen=True, slots=True)
class Target:
    """The server to connect to: a command and its arguments, a URL, or a server object of the `mcp` package.

    `environment`, `folder`: environment variables and working directory of the command. `headers`: of every HTTP
    request.
    """

    server: Any
    label: str
    environment: Mapping[str, str] | None = None
    folder: str | Path | None = None
    headers: Mapping[str, str] | None = field(default=None, repr=False)

    def transport(self, stderr: Stderr, intake: Intake) -> Any:
        """Returns the argument for `mcp.Client`; for one connection. A server object is code of this process: what it
        sends is not counted."""
        if isinstance(self.server, tuple):
            return _process(self, stderr, intake)
        if isinstance(self.server, str):
            return _http(self.server, self.headers, intake)
        return self.server


def target_of(
    server: object,
    environment: Mapping[str, str] | None,
    folder: str | Path | None,
    headers: Mapping[str, str] | None,
) -> Target:
    """Returns the target of the caller's options. Raises RequestError for what cannot be a server, and for options that
    do not belong to it."""
    kind, readable, label = _read(server)
    for name, value, owner in (
        ("env", environment, "command"),
        ("cwd", folder, "command"),
        ("headers", headers, "URL"),
    ):
        if value is not None and kind != owner:
            raise RequestError(f"{name}= is for a server given as a {owner}, which {label} is not; leave it out.")
    return Target(readable, label, environment, folder, headers)


def _read(server: object) -> tuple[str, Any, str]:
    """Returns the kind of server, the server, and its name in messages. The name of a URL leaves out what may be secret
    in it."""
    if isinstance(server, str) and server.strip().startswith(("http://", "https://")):
        address = server.strip()
        try:
            parts = urlsplit(address)
            where = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"
        except ValueError as error:
            raise RequestError(f"The URL of an MCP server cannot be read: {error}. Correct it.") from error
        return "URL", address, f"the MCP server {parts.scheme}://{where}"
    if isinstance(server, str | list | tuple):
        words = _words(server) if isinstance(server, str) else list(cast("Sequence[Any]", server))
        if not words or not all(isinstance(word, str) and word and "\0" not in word for word in words):
            raise RequestError(
                f"{shown(cast('object', server))} is not a command; give one like 'python server.py' or "
                "['python', 'server.py']."
            )
        command = shlex.join(words)
        short = command if len(command) <= 80 else f"{command[:77]}..."
        return "command", tuple(words), f"the MCP server `{short}`"
    if hasattr(server, "run") and hasattr(server, "name"):
        return "object", server, f"the MCP server {server.name!r}"  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    raise RequestError(
        f"{shown(server)} is not an MCP server; give a command ('python server.py'), a URL "
        "('http://localhost:8000/mcp') or a server object of the mcp package."
    )


_LONGEST_COMMAND = 1 << 16
"""In characters: shlex takes a minute for a million."""


def _words(command: str) -> list[Any]:
    if len(command) > _LONGEST_COMMAND:
        raise RequestError(f"The command {shown(command)} has {len(command):,} characters. Give it as a list of words.")
    try:
        return shlex.split(command, posix=os.name != "nt")
    except ValueError as error:
        raise RequestError(
            f"The command {shown(command)} cannot be read: {error}. Give it as a list of words."
        ) from error


class _Checked:
    """The protocol's stream of messages, each checked before the client reads it."""

    def __init__(self, stream: Any, intake: Intake) -> None:
        self._stream, self._intake = stream, intake

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> "_Checked":
        return self

    async def __anext__(self) -> Any:
        return self._intake.checked(await self._stream.__anext__())

    async def receive(self) -> Any:
        return self._intake.checked(await self._stream.receive())

    async def __aenter__(self) -> "_Checked":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)


_CODEC = "llama_engine_mcp"
_reading: ContextVar[Intake] = ContextVar("_reading")


class _Decoder(codecs.IncrementalDecoder):
    """UTF-8 of a process, in whole lines and only those that are messages. The protocol's transport keeps a line of any
    length in memory; the name of an encoding is the one place where it lets us read first."""

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._intake = _reading.get()
        self._lines = Lines(self._intake)

    def decode(self, input: Any, final: bool = False) -> str:  # noqa: A002 - the names of `codecs`
        del final
        try:
            return self._intake.take(input, self._lines.feed).decode(errors="replace")
        except Refused:
            return ""


def _codec(name: str) -> codecs.CodecInfo | None:
    utf8 = codecs.lookup("utf-8")
    return codecs.CodecInfo(utf8.encode, utf8.decode, incrementaldecoder=_Decoder) if name == _CODEC else None


codecs.register(_codec)


@asynccontextmanager
async def _process(target: Target, stderr: Stderr, intake: Intake) -> AsyncGenerator[Any, None]:
    from mcp import StdioServerParameters, stdio_client

    environment = None if target.environment is None else dict(target.environment)
    command, *arguments = target.server
    _reading.set(intake)
    parameters = StdioServerParameters(
        command=command, args=arguments, env=environment, cwd=target.folder, encoding=_CODEC
    )
    async with stderr.pipe() as file, stdio_client(parameters, errlog=file) as (reading, writing):
        yield _Checked(reading, intake), writing


@asynccontextmanager
async def _http(address: str, headers: Mapping[str, str] | None, intake: Intake) -> AsyncGenerator[Any, None]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def shorten_goodbye(request: Any) -> None:
        if request.method == "DELETE":  # the end of a session
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(_GOODBYE_SECONDS).as_dict()}

    async def count(response: Any) -> None:
        try:
            response.stream = _counted(response, intake)
        except Refused as refused:
            intake.refuse(refused)
            raise httpx2.ReadError(str(refused)) from refused

    sent_headers = httpx2.Headers(dict(headers or {}))
    sent_headers["Accept-Encoding"] = "identity"
    async with (
        httpx2.AsyncClient(
            headers=sent_headers,
            timeout=httpx2.Timeout(30.0, read=_READ_SECONDS),
            event_hooks={"request": [shorten_goodbye], "response": [count]},
        ) as client,
        streamable_http_client(address, http_client=client, max_sse_event_size=MESSAGE_BYTES) as (reading, writing),
    ):
        yield _Checked(reading, intake), writing


def _counted(response: Any, intake: Intake) -> Any:
    """Returns the stream of a response, counted. Raises Refused for a body that only its decoder could count."""
    import httpx2

    kind = response.headers.get("content-type", "").partition(";")[0]
    charset = response.charset_encoding or "utf-8"
    if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
        raise Refused(f"it answered with the content encoding {encoding[:40]!r}, though none was asked for")
    if charset.lower() not in ("utf-8", "utf8", "us-ascii", "iso-8859-1"):
        raise Refused(f"it answered in the character set {charset[:40]!r}; the protocol's is UTF-8")
    has_events = kind.strip().lower() == "text/event-stream" and response.status_code == 200
    feed: Callable[[bytes], None] = (Events() if has_events and response.request.method != "DELETE" else Meter()).feed
    stream = response.stream

    class Counted(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for piece in stream:
                try:
                    intake.take(piece, feed)
                except Refused as refused:
                    raise httpx2.ReadError(str(refused)) from refused
                yield piece

        async def aclose(self) -> None:
            await stream.aclose()

    return Counted()
