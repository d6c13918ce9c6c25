"""Makes a connection's transport from what a caller gives as an MCP server.

Knows: commands, addresses and server objects; what a server's process writes to its standard error. Does not know: the
protocol.
"""

import logging
import os
import shlex
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from engine.errors import RequestError

_log = logging.getLogger("engine.mcp")
_KEPT = 2_000  # characters of standard error that an error message quotes
_READ_SECONDS = 24 * 3600.0  # calls have time limits of their own


class Stderr:
    """The standard error of a server's process: keeps its last lines for messages, and logs every line (DEBUG)."""

    def __init__(self) -> None:
        self._tail = ""
        self._reader: threading.Thread | None = None

    @asynccontextmanager
    async def pipe(self) -> AsyncGenerator[Any, None]:
        """Open a file for the process to write to. On exit, waits for the last lines."""
        reading, writing = os.pipe()
        self._reader = threading.Thread(target=self._read, args=(reading,), name="llama-engine mcp stderr", daemon=True)
        self._reader.start()
        try:
            with os.fdopen(writing, "w") as file:
                yield file
        finally:
            self._reader.join(1.0)  # takes longer only if a child of the process still holds the pipe

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            while chunk := file.read(4096):
                text = chunk.decode(errors="replace")
                _log.debug("%s", text.rstrip())
                self._tail = (self._tail + text)[-_KEPT:]

    def last_words(self) -> str:
        """Returns the end of what a server that has ended wrote; "" if it wrote nothing or has no process."""
        if self._reader is not None:
            self._reader.join(1.0)
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

    def transport(self, stderr: Stderr) -> Any:
        """Returns the argument for `mcp.Client`; for one connection."""
        if isinstance(self.server, tuple):
            return _process(self, stderr)
        if isinstance(self.server, str):
            return _http(self.server, self.headers)
        return self.server


def target_of(
    server: object,
    environment: Mapping[str, str] | None,
    folder: str | Path | None,
    headers: Mapping[str, str] | None,
) -> Target:
    """Returns the target of the caller's options. Raises RequestError for what cannot be a server, and for options that
    do not belong to it."""
    kind, found, label = _read(server)
    for name, value, owner in (
        ("env", environment, "command"),
        ("cwd", folder, "command"),
        ("headers", headers, "URL"),
    ):
        if value is not None and kind != owner:
            raise RequestError(f"{name}= is for a server given as a {owner}, which {label} is not; leave it out.")
    return Target(found, label, environment, folder, headers)


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
                f"{server!r} is not a command; give one like 'python server.py' or ['python', 'server.py']."
            )
        shown = shlex.join(words)
        return "command", tuple(words), f"the MCP server `{shown if len(shown) <= 80 else f'{shown[:77]}...'}`"
    if hasattr(server, "run") and hasattr(server, "name"):
        return "object", server, f"the MCP server {server.name!r}"  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    raise RequestError(
        f"{server!r:.80} is not an MCP server; give a command ('python server.py'), a URL "
        "('http://localhost:8000/mcp') or a server object of the mcp package."
    )


def _words(command: str) -> list[Any]:
    try:
        return shlex.split(command, posix=os.name != "nt")
    except ValueError as error:
        raise RequestError(f"The command {command!r} cannot be read: {error}. Give it as a list of words.") from error


@asynccontextmanager
async def _process(target: Target, stderr: Stderr) -> AsyncGenerator[Any, None]:
    from mcp import StdioServerParameters, stdio_client

    environment = None if target.environment is None else dict(target.environment)
    command, *arguments = target.server
    parameters = StdioServerParameters(command=command, args=arguments, env=environment, cwd=target.folder)
    async with stderr.pipe() as file, stdio_client(parameters, errlog=file) as streams:
        yield streams


@asynccontextmanager
async def _http(address: str, headers: Mapping[str, str] | None) -> AsyncGenerator[Any, None]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    timeout = httpx2.Timeout(30.0, read=_READ_SECONDS)
    async with (
        httpx2.AsyncClient(headers=dict(headers or {}), timeout=timeout) as client,
        streamable_http_client(address, http_client=client) as streams,
    ):
        yield streams
