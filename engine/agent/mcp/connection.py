"""One connection to an MCP server: the protocol's client, in a thread with an event loop of its own."""

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine, Generator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

from engine.agent.mcp.intake import MOST_ITEMS, Intake, Refused
from engine.agent.mcp.transports import Stderr, Target
from engine.support import threads
from engine.support.errors import EngineError

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult, Tool

_log = logging.getLogger("engine.mcp")
_MOST_PAGES = 100
_CLOSE_SECONDS = 10.0  # the protocol's client gives a process about six to end
_CUT_SECONDS = 8.0  # then a connection that does not close is cut
_FAILED_SECONDS = 1.0  # that a caller waits for the end of a connection that was never made


class Lost(Exception):
    """The connection to the server is lost, or was never made; the message says why, as far as known."""


class Connection:
    """A connection, which begins when this object is made. `ready` is done once the server's tools are listed, or holds
    the EngineError that says why there is no connection."""

    def __init__(self, target: Target, seconds: float) -> None:
        self.ready: Future[None] = Future()
        self.until = time.monotonic() + seconds
        self.lost = False
        self.changed = False
        self.listed: tuple[Tool, ...] = ()
        self._target = target
        self._seconds = seconds
        self._stderr = Stderr()
        self._intake = Intake(self._give_up)
        self._why: Exception | None = None
        self._life_task: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._client: Client | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._body, name="llama-engine mcp", daemon=True)
        try:
            threads.start(self._thread)
        except EngineError:
            self._loop.close()
            raise

    @property
    def is_up(self) -> bool:
        """Whether its tools are listed, and it is not known to be lost."""
        return self.ready.done() and self.ready.exception() is None and not self.lost

    def call(self, name: str, arguments: dict[str, Any]) -> "Future[CallToolResult]":
        """Returns a future of the tool's result. The future raises Lost if the connection is lost, `mcp.MCPError` if
        the server refuses the call. Cancelling the future cancels the call and notifies the server."""
        return self._submit(self._called(name, arguments))

    def relist(self) -> "Future[None]":
        """Request the list of tools again; `listed` holds it when the future is done. The future raises what `call`'s
        does."""
        self.changed = False
        return self._submit(self._relist())

    def close(self, *, wait: bool = True) -> None:
        """End the connection, and the process that was started for it."""
        with suppress(RuntimeError):  # its loop is closed: it has ended
            self._loop.call_soon_threadsafe(self._end)
        if wait:
            seconds = _FAILED_SECONDS if self.ready.done() and self.ready.exception() else _CLOSE_SECONDS
            self._thread.join(seconds)
            if self._thread.is_alive():
                _log.log(
                    logging.DEBUG if seconds < _CLOSE_SECONDS else logging.WARNING,
                    "%s has not ended in %g seconds; it keeps running.",
                    self._target.label,
                    seconds,
                )

    def _submit(self, work: Coroutine[Any, Any, Any]) -> "Future[Any]":
        """Run a coroutine on the connection's loop."""
        future: Future[Any] = Future()

        async def settled() -> None:
            """Put the outcome into the future; the task itself raises only a cancellation."""
            try:
                result = await work
            except BaseException as error:
                if future.set_running_or_notify_cancel():
                    lost = Lost(reason_of(self._why) if self._why else "its connection was closed")
                    future.set_exception(lost if isinstance(error, asyncio.CancelledError) else error)
                if isinstance(error, asyncio.CancelledError):
                    raise
            else:
                if future.set_running_or_notify_cancel():
                    future.set_result(result)

        def begin() -> None:
            task = self._loop.create_task(settled())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            future.add_done_callback(lambda done: self._cancel(task) if done.cancelled() else None)

        try:
            self._loop.call_soon_threadsafe(begin)
        except RuntimeError:
            work.close()
            future.set_exception(Lost("its connection is closed"))
        return future

    def _cancel(self, task: "asyncio.Task[None]") -> None:
        with suppress(RuntimeError):  # its loop is closed, and the task with it
            self._loop.call_soon_threadsafe(task.cancel)

    def _body(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._life())
                reason: BaseException = Lost("it was closed")
            except BaseException as error:  # noqa: BLE001 - raised by `ready`, and logged
                _log.debug("%s: the connection ended by %r", self._target.label, error)
                reason = error
            self.lost = True
        self._fail(self._why or reason, self._stderr.last_words(1.0))

    def _fail(self, reason: BaseException, wrote: str) -> None:
        """Raise to all that wait for the connection why there is none, and what the server wrote."""
        if self.ready.done():
            return
        quoted = f" It wrote: {wrote.rstrip('.')}." if wrote else ""
        label = self._target.label[0].upper() + self._target.label[1:]
        error = EngineError(
            f"{label} cannot be used: {reason_of(reason)}.{quoted} Start it by hand to see what is wrong, or leave it "
            "out."
        )
        self.ready.set_exception(error)

    async def _life(self) -> None:
        self._life_task = task = asyncio.current_task()
        assert task is not None
        if self._why is not None:  # it was closed already
            raise self._why
        late = self._loop.call_later(self._seconds, self._too_late)
        try:
            async with AsyncExitStack() as stack:
                with self._intake.listing():
                    self._client = await stack.enter_async_context(self._made())
                await self._relist()
                late.cancel()
                self.ready.set_result(None)
                listening = asyncio.create_task(self._listen(self._client))
                try:
                    await self._stop.wait()
                finally:
                    self.lost = True
                    listening.cancel()
                    await asyncio.gather(listening, return_exceptions=True)
                    self._loop.call_later(_CUT_SECONDS, task.cancel)
        finally:
            late.cancel()

    def _too_late(self) -> None:
        noise = f". Its last line that is no message: {self._intake.noise!r}" if self._intake.noise else ""
        self._give_up(Lost(f"it did not answer within {self._seconds:g} seconds{noise}"))

    def _end(self) -> None:
        if self.is_up:
            self._stop.set()
        else:
            self._give_up(Lost("it was closed"))

    def _give_up(self, reason: Exception) -> None:
        """End the connection at once for this reason; all that wait get it. Called on the connection's loop."""
        if self._why is not None:
            return
        self._why, self.lost = reason, True
        self._fail(reason, self._stderr.last_words(0.0))
        if self._life_task is not None:
            for task in (*self._tasks, self._life_task):
                task.cancel()
            self._loop.call_later(_CUT_SECONDS, self._life_task.cancel)

    def _made(self) -> "Client":
        from mcp import Client

        transport = self._target.transport(self._stderr, self._intake)
        return Client(transport, message_handler=self._on_message, cache=None)

    async def _relist(self) -> None:
        """Read all pages of the list. Raises EngineError if the list has too many tools or pages."""
        client = self._connected()
        # The client would match results against the server's own schemas, whose patterns it matches without a bound on
        # time. Only the model reads results, and it does not need that check.
        client.session.validate_tool_result = _unchecked
        tools: list[Tool] = []
        cursor: str | None = None
        with self._intake.listing():
            for _ in range(_MOST_PAGES):
                with self._losses():
                    page = await client.list_tools(cursor=cursor)
                tools += page.tools
                cursor = page.next_cursor
                if cursor is None or len(tools) > MOST_ITEMS:
                    break
        if cursor is not None or len(tools) > MOST_ITEMS:
            raise EngineError(f"it lists more than {MOST_ITEMS:,} tools, or more than {_MOST_PAGES} pages of them")
        self.listed = tuple(tools)

    async def _called(self, name: str, arguments: dict[str, Any]) -> "CallToolResult":
        with self._losses():
            return await self._connected().call_tool(name, arguments)

    @contextmanager
    def _losses(self) -> Generator[None]:
        """Raise errors that mean a lost connection as Lost, and mark the connection as lost."""
        try:
            yield
        except BaseException as error:
            if isinstance(error, Lost) or not _is_loss(error):
                raise
            self.lost = True
            raise Lost(reason_of(error)) from error

    def _connected(self) -> "Client":
        if self._client is None or self.lost:
            raise Lost("its connection is closed")
        return self._client

    async def _on_message(self, message: object) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self.changed = True

    async def _listen(self, client: "Client") -> None:
        """Subscribe to changes of the tools. Newer servers notify subscribers; older ones notify all clients
        (`_on_message`)."""
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        try:
            async with client.listen(tools_list_changed=True) as subscription:
                async for _ in subscription:
                    self.changed = True
        except Exception as error:  # noqa: BLE001 - then changes are seen at the next connection
            _log.debug("%s does not report changes of its tools: %r", self._target.label, error)


def _is_loss(error: BaseException) -> bool:
    import anyio
    import httpx2
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED

    if isinstance(error, MCPError):
        return error.code == CONNECTION_CLOSED
    if isinstance(error, BaseExceptionGroup):
        return any(map(_is_loss, cast("BaseExceptionGroup[BaseException]", error).exceptions))
    return isinstance(error, OSError | httpx2.HTTPError | anyio.ClosedResourceError | anyio.BrokenResourceError)


def reason_of(error: BaseException) -> str:
    """Returns the message of an error, or of the first error of a group, without the full stop at its end."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    text = " ".join(str(error).split()).rstrip(".")[:400]
    if isinstance(error, Lost | Refused | EngineError) and text:
        return text
    return f"{type(error).__name__}: {text}".removesuffix(": ")


async def _unchecked(name: str, result: object) -> None:
    del name, result
