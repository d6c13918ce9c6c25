"""`MCP`: a server of the Model Context Protocol as a source of tools."""

import asyncio
import json
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from engine.agent.mcp.config import entries
from engine.agent.mcp.connection import Connection, Lost, reason_of
from engine.agent.mcp.content import cut, outcome_of
from engine.agent.mcp.transports import target_of
from engine.support.errors import EngineError, RequestError, shown
from engine.support.extras import install
from engine.support.offloop import off_loop, off_loop_or_undo
from engine.support.warning import warn
from engine.tools import ToolOutcome, as_tool, tool_error
from engine.types.tools import Tool

if TYPE_CHECKING:
    from mcp.types import Tool as Listed

_log = logging.getLogger("engine.mcp")
_PREFIX = re.compile(r"[\w./-]{0,64}")
_LONGEST_TOOL = 50_000  # characters of one tool's description and schema, which are part of every prompt


class MCP:
    """A server of the Model Context Protocol, whose tools a run may call: `llm.run("...", [MCP("python server.py")])`.

    `server` is a command (a string, or a list of words), which is started and connected over its standard input and
    output; the URL of a server that speaks streamable HTTP; or a server object of the `mcp` package, in this process. A
    run connects the server and disconnects it at its end. Within `with server:` or `async with server:` it stays
    connected, for many runs, and `server.tools()` returns its tools.

    - `prefix`: put before the names of its tools, for servers whose tools have the same names.
    - `only`: names of the tools to use (the server's own names); the others are not shown to the model.
    - `repeats`: names of tools (the server's own) that a run may call again and again with the same result: polling.
    - `timeout`: seconds that one call may take; `connect_timeout`: seconds until it has listed its tools.
    - `max_result`: maximum number of characters of a result; a longer result is cut, with a note that says so.
    - `env`, `cwd`: further environment variables and the working directory of a command. It gets PATH, HOME and the
      like from this process, and nothing else. `headers`: sent with the requests to a URL.

    An error in a call becomes a result that the model reads. If the connection is lost, that call fails, and each later
    call tries once to reconnect. Descriptions, schemas and results are the server's text: a tool whose name or schema
    cannot be used is left out with an EngineWarning, and no part of that text becomes a control token in a prompt.

    Raises RequestError for options that are not valid, EngineError if the `mcp` package is not installed; connecting
    raises EngineError for a server that does not start, answer or list tools.
    """

    def __init__(
        self,
        server: Any,
        *,
        prefix: str = "",
        only: Sequence[str] | None = None,
        repeats: Sequence[str] = (),
        timeout: float = 60.0,
        connect_timeout: float = 30.0,
        max_result: int = 20_000,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if find_spec("mcp") is None:
            raise EngineError(f"The mcp package is not installed: {install('mcp')}.")
        self._target = target_of(server, env, cwd, headers)
        _check_seconds(timeout=timeout, connect_timeout=connect_timeout)
        _check_counts(max_result=max_result)
        _check_names(prefix, only=only, repeats=repeats)
        self._prefix, self._only, self._repeats = prefix, None if only is None else tuple(only), tuple(repeats)
        self._timeout, self._connect_timeout, self._max_result = timeout, connect_timeout, max_result
        self._lock = threading.Lock()
        self._uses = 0
        self._connection: Connection | None = None
        self._made: tuple[object, tuple[Tool, ...]] | None = None
        self._withs: list[Callable[[], None]] = []

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | str | Path, *, prefix: str = "") -> tuple[Self, ...]:
        """Returns the servers of the configuration that MCP clients share: a dictionary, or the path of a JSON file.

            {"mcpServers": {"time": {"command": "uvx", "args": ["mcp-server-time"], "env": {"TZ": "${TZ}"}}}}

        A server has "command", "args", "env" and "cwd", or "url" and "headers". `${NAME}` is an environment variable,
        `${NAME:-text}` has a text for one that is not set. A server with `"disabled": true` is left out. `"prefix"` (of
        this package) is put before the names of its tools, and `prefix=` before those of all. Raises RequestError for
        what is no such configuration, and for a variable that is not set.
        """
        servers: list[Self] = []
        for entry in entries(config):
            server = cls(entry.server, prefix=prefix + entry.prefix, **entry.options)
            # Its command may hold a secret of the environment, so messages have its name.
            server._target = replace(server._target, label=f"the MCP server {entry.name!r}")
            servers.append(server)
        return tuple(servers)

    def __repr__(self) -> str:
        return f"<MCP: {self._target.label}, {'connected' if self._uses else 'not connected'}>"

    @property
    def label(self) -> str:
        """The server's name in messages."""
        return self._target.label

    def tools(self) -> tuple[Tool, ...]:
        """Returns the tools that the server listed last. Raises EngineError while it is not connected, RequestError for
        a name in `only` that the server does not list."""
        with self._lock:
            connection = self._open_connection()
            if self._made is None:
                self._made = connection.listed, self._tools_of(connection.listed, connection.until, first=True)
            elif connection.is_up and self._made[0] is not connection.listed:
                until = time.monotonic() + self._connect_timeout
                try:
                    made = self._tools_of(connection.listed, until, first=False)
                except EngineError as error:
                    _log.warning("%s The tools that it listed before are used.", error)
                    made = self._made[1]
                self._made = connection.listed, made
            return self._made[1]

    def refresh(self) -> None:
        """List the tools again, if the server reported a change. If it does not answer, the old list stays."""
        with self._lock:
            connection = self._open_connection()
        if connection.changed and connection.is_up:
            try:
                connection.relist().result(self._connect_timeout)
            except Exception as error:  # noqa: BLE001 - whatever the client raises; the calls will tell the model
                _log.warning("%s did not list its tools again: %s", self.label, reason_of(error))

    def begin_use(self) -> Callable[[], None]:
        """Connect, unless connected already. Returns a function that ends this use."""
        with self._lock:
            self._uses += 1
            if self._connection is None or self._connection.lost:
                self._connection = self._connect()
            connection = self._connection
        ended = threading.Event()

        def end() -> None:
            if not ended.is_set():
                ended.set()
                self._leave()

        try:
            connection.ready.result()  # connecting has a time limit of its own
            _ = self.tools()
        except BaseException:
            end()
            raise
        return end

    def close(self) -> None:
        """Leave the innermost `with`."""
        if self._withs:
            self._withs.pop()()

    def __enter__(self) -> Self:
        self._withs.append(self.begin_use())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self._withs.append(await off_loop_or_undo(self.begin_use, lambda end: end()))
        return self

    async def __aexit__(self, *_: object) -> None:
        await off_loop(self.close)

    def _leave(self) -> None:
        with self._lock:
            self._uses -= 1
            if self._uses:
                return
            connection, self._connection, self._made = self._connection, None, None
        if connection is not None:
            connection.close()

    def _connect(self) -> Connection:
        return Connection(self._target, self._connect_timeout)

    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise EngineError(f"{self.label} is not connected; use it in a run, or within `with server:`.")
        return self._connection

    def _tools_of(self, listed: "Sequence[Listed]", until: float, *, first: bool) -> tuple[Tool, ...]:
        wanted = self._only
        if first:
            self._check_listed({tool.name for tool in listed}, only=wanted or (), repeats=self._repeats)
        tools: dict[str, Tool] = {}
        for tool in listed:
            if wanted is not None and tool.name not in wanted:
                continue
            if time.monotonic() > until:
                raise EngineError(
                    f"{self.label} cannot be used: checking the schemas of its {len(listed):,} tools takes longer than "
                    f"connect_timeout={self._connect_timeout:g}. Name the tools that you want with only=, or raise it."
                )
            try:
                made = self._tool_of(tool)
                if made.name in tools:
                    raise RequestError("the server lists two tools of that name")
                tools[made.name] = made
            except RequestError as error:
                text = f"The tool {cut(tool.name, 128)!r} of {self.label} is left out: {cut(str(error), 600)}"
                warn(text)
        return tuple(tools.values())

    def _check_listed(self, listed: Collection[str], **options: Sequence[str]) -> None:
        """Raise RequestError for a name that the server does not list."""
        for option, names in options.items():
            if missing := [name for name in names if name not in listed]:
                known = ", ".join(sorted(listed)) or "none"
                raise RequestError(
                    f"{option}= names {missing[0]!r}, which {self.label} does not list. Its tools are: {known:.2000}."
                )

    def _tool_of(self, listed: "Listed") -> Tool:
        """Returns a listed tool as a record. Raises RequestError for a name, description or schema that is not
        allowed."""
        description = listed.description or listed.title or ""
        try:
            size = len(description) + len(json.dumps(listed.input_schema))
        except (ValueError, RecursionError):
            size = 0  # `as_tool` reports it
        if size > _LONGEST_TOOL:
            raise RequestError(
                f"its description and schema have {size:,} characters, but only {_LONGEST_TOOL:,} are allowed."
            )
        name = listed.name

        async def call(**arguments: Any) -> ToolOutcome:
            return await self._call(name, arguments)

        schema = {"type": "object", **listed.input_schema}
        # Checked like a caller's schema: JSON, not too deep, valid JSON Schema, only references within it.
        checked = as_tool({"name": self._prefix + name, "description": description, "parameters": schema})
        return checked.model_copy(update={"function": call, "repeats": name in self._repeats})

    async def _call(self, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Returns what the model reads of a call. Raises only the cancellation of the waiting task."""
        from mcp import MCPError

        try:
            async with asyncio.timeout(self._timeout):
                connection = self._reconnected()
                try:
                    await _waited(connection)
                except EngineError as error:
                    return tool_error(f"the connection to the server was lost, and reconnecting failed: {error}")
                result = await asyncio.wrap_future(connection.call(name, arguments))
        except TimeoutError:
            return tool_error(
                f"the server did not answer within {self._timeout:g} seconds. The call may still take effect."
            )
        except Lost as error:
            return tool_error(
                f"the connection to the server was lost during the call ({reason_of(error)}), so its result is not "
                "known. The next call of its tools reconnects."
            )
        except MCPError as error:
            return tool_error(cut(error.message, self._max_result))
        except Exception as error:  # noqa: BLE001 - whatever else the client raises on what a server sends
            return tool_error(cut(f"the server's answer cannot be read: {reason_of(error)}", self._max_result))
        return outcome_of(result, self._max_result)

    def _reconnected(self) -> Connection:
        """Returns the connection; a new one if it was lost. Concurrent calls share it."""
        with self._lock:
            connection = self._open_connection()
            if connection.lost:
                connection.close(wait=False)
                self._connection = connection = self._connect()
            return connection


async def _waited(connection: Connection) -> None:
    """Wait until the connection is ready, without cancelling it for other waiting calls. Raises what `ready` holds."""
    ready = asyncio.wrap_future(connection.ready)
    ready.add_done_callback(
        lambda done: done.cancelled() or done.exception()
    )  # reads the exception, so that asyncio does not report it as never retrieved
    await asyncio.shield(ready)


def _check_seconds(**options: Any) -> None:
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise RequestError(f"{name}={shown(value)} is not valid; give seconds above 0.")


def _check_names(prefix: Any, **options: Any) -> None:
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise RequestError(
            f"prefix={shown(prefix)} is not valid; give at most 64 letters, digits, and _ . / -, like 'files_'."
        )
    for option, given in options.items():
        names = () if given is None and option == "only" else given
        listed = isinstance(names, list | tuple | set | frozenset)
        if not listed or not all(isinstance(name, str) for name in cast("Sequence[object]", names)):
            raise RequestError(f"{option}={shown(given)} is not valid; give a list of tool names.")


def _check_counts(**options: Any) -> None:
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise RequestError(f"{name}={shown(value)} is not valid; give an integer, at least 1.")
