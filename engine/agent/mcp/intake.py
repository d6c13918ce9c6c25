"""What a server may send: its bytes are counted as they come, before anything is parsed, and its messages before they
are validated."""

import logging
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import ValidationError

from engine.tools.json_values import size

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage
    from mcp.types import JSONRPCMessage

_log = logging.getLogger("engine.mcp")
T = TypeVar("T")

MESSAGE_BYTES = 8 << 20
LISTING_BYTES = 16 << 20  # in four bytes a character, which one emoji is enough for, 64 MiB of memory
MESSAGE_PARTS = 30_000  # values, keys and lines: the validator takes up to 6 us for each, and lets no thread run
TYPED_PARTS = 8_000  # of these, the parts of records: a mistake in each of them takes the validator up to 24 us
MOST_ITEMS = 1_000  # blocks of content, or tools
_DEPTH = 200  # the JSON parser's own limit
_FREE = ("structuredContent", "inputSchema")  # any JSON, which the validator does not look into
_BLOCK = ("type", "text", "data", "mimeType", "name", "uri", "resource")
_RESOURCE = ("uri", "mimeType", "text", "blob")
_TOOL = ("name", "title", "description", "inputSchema")
_NEXT = re.compile(rb'["\[{\]},]')
_IN_TEXT = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)


class Refused(Exception):
    """The server sent more than it may; the message says what."""


class Meter:
    """Counts the bytes, parts and depth of one JSON message, which may come in pieces."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count a new message."""
        self._bytes = self._parts = self._depth = 0
        self._in_text = self._escaped = False

    def end_line(self) -> None:
        """Count the end of a line, which ends a text, too: in JSON it is written as \\n."""
        self._parts += 1
        self._in_text = self._escaped = False

    def feed(self, data: bytes) -> None:
        """Count the next bytes. Raises Refused."""
        self._bytes += len(data)
        if self._bytes > MESSAGE_BYTES:
            raise Refused(f"it sent a message of more than {MESSAGE_BYTES:,} bytes")
        at = 0
        while at < len(data):
            if self._in_text:
                at = self._through_text(data, at)
            elif following := _NEXT.search(data, at):
                at = following.end()
                self._count(following[0])
            else:
                break

    def _through_text(self, data: bytes, at: int) -> int:
        """Returns the position behind the text, or the length of `data` if it goes on."""
        if self._escaped:
            self._escaped = False
            return at + 1
        inside = _IN_TEXT.match(data, at)
        end = inside.end() if inside else at
        if end < len(data):  # there is a quotation mark, or a backslash as the last byte
            self._in_text = self._escaped = data[end : end + 1] == b"\\"
        return end + 1

    def _count(self, mark: bytes) -> None:
        if mark in b"]}":
            self._depth -= 1
            return
        self._in_text = mark == b'"'
        self._depth += mark in b"[{"
        self._parts += 1
        if self._depth > _DEPTH:
            raise Refused(f"it sent a message that nests deeper than {_DEPTH} levels")
        if self._parts > MESSAGE_PARTS:
            raise Refused(f"it sent a message of more than {MESSAGE_PARTS:,} values")


class Intake:
    """All that one server sends. `refuse` is called with the reason, once, when it sends what it may not; nothing of it
    is read after that."""

    def __init__(self, refuse: Callable[[Exception], None]) -> None:
        self.noise = ""
        self._refuse = refuse
        self._left: int | None = None
        self._over: Refused | None = None

    @contextmanager
    def listing(self) -> Generator[None]:
        """Count the bytes of all messages until the list of tools is read."""
        self._left = LISTING_BYTES
        try:
            yield
        finally:
            self._left = None

    def take(self, data: bytes, feed: Callable[[bytes], T]) -> T:
        """Count bytes that came, and return what `feed` makes of them. Raises Refused, then and ever after."""
        try:
            if self._over is not None:
                raise Refused(str(self._over))  # a new one: raised again and again, one keeps every frame alive
            if self._left is not None:
                self._left -= len(data)
                if self._left < 0:
                    raise Refused(f"it sent more than {LISTING_BYTES:,} bytes before it had listed its tools")
            return feed(data)
        except Refused as refused:
            self.refuse(refused)
            raise

    def refuse(self, refused: Refused) -> None:
        """End the connection for this reason."""
        if self._over is None:
            self._over = refused
            self._refuse(refused)

    def checked(self, item: "SessionMessage | Exception") -> "SessionMessage | Exception":
        """Returns a message as far as we read it, before the protocol's client validates it. An exception is a message
        that could not be parsed, so that nobody knows whose reply it was: it ends the connection."""
        if isinstance(item, Exception):
            is_invalid = isinstance(item, ValidationError)
            why = item.errors(include_url=False, include_input=False)[0]["msg"] if is_invalid else str(item)
            self.refuse(Refused(f"it sent a message that cannot be read: {why[:300]}"))
        else:
            item.message = _reduced(item.message)
        return item


class Lines:
    """Messages that come as lines (standard input and output). Lines that are no messages are passed over."""

    def __init__(self, intake: Intake) -> None:
        self._intake, self._meter, self._line = intake, Meter(), bytearray()

    def feed(self, data: bytes) -> bytearray:
        """Returns the messages that are complete, as lines."""
        complete = bytearray()
        for number, piece in enumerate(data.split(b"\n")):
            if number:
                line, self._line = self._line, bytearray()
                self._meter.begin()
                if b'"jsonrpc"' not in line:
                    self._pass_over(line)
                else:
                    line += b"\n"
                    complete = complete + line if complete else line
            self._meter.feed(piece)
            self._line += piece
        return complete

    def _pass_over(self, line: bytearray) -> None:
        if line.strip():
            self._intake.noise = line[:200].decode(errors="replace")
            _log.debug("A line that is no message: %r", self._intake.noise)


class Events:
    """Messages that come as server-sent events, which end with an empty line."""

    def __init__(self) -> None:
        self._meter, self._is_empty, self._held = Meter(), True, b""

    def feed(self, data: bytes) -> None:
        """Count the next bytes. Raises Refused."""
        data = self._held + data
        self._held = b"\r" if data.endswith(b"\r") else b""  # the first half of a line's end, perhaps
        data = data.removesuffix(b"\r").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        for number, piece in enumerate(data.split(b"\n")):
            if number:
                (self._meter.begin if self._is_empty else self._meter.end_line)()
                self._is_empty = True
            self._meter.feed(piece)
            self._is_empty = self._is_empty and not piece


def _reduced(message: "JSONRPCMessage") -> "JSONRPCMessage":
    from mcp.types import INVALID_REQUEST, ErrorData, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

    if isinstance(message, JSONRPCRequest | JSONRPCNotification):
        if size(message.params) > MOST_ITEMS:  # we read none that have long ones
            message.params = None
        return message
    if not isinstance(message, JSONRPCResponse):
        return message
    result = message.result = _what_we_read(message.result)
    reason = ""
    for key in ("content", "tools"):
        if isinstance(items := result.get(key), list) and len(cast("list[object]", items)) > MOST_ITEMS:
            reason = f"its result has more than {MOST_ITEMS:,} {'blocks' if key == 'content' else 'tools'}"
    if not reason and _typed(result) > TYPED_PARTS:
        reason = f"its result has more than {TYPED_PARTS:,} values"
    if reason:
        return JSONRPCError(jsonrpc="2.0", id=message.id, error=ErrorData(code=INVALID_REQUEST, message=reason))
    return message


def _what_we_read(result: dict[str, Any]) -> dict[str, Any]:
    """Returns a result without the parts of tools and of content that nobody here reads."""
    read = dict(result)
    for key, kept in (("tools", _TOOL), ("content", _BLOCK)):
        if isinstance(items := result.get(key), list):
            read[key] = [_part(item, kept) for item in cast("list[object]", items)]
    return read


def _part(item: object, kept: tuple[str, ...]) -> Any:
    if not isinstance(item, dict):
        return item
    part = {key: value for key, value in cast("dict[str, Any]", item).items() if key in kept}
    if "resource" in part:
        part["resource"] = _part(part["resource"], _RESOURCE)
    return part


def _typed(result: dict[str, Any]) -> int:
    """Returns how many values of a result the validator looks into."""
    tools = result.get("tools")
    records: list[Any] = [result, *(cast("list[Any]", tools) if isinstance(tools, list) else ())]
    dictionaries = [cast("dict[str, Any]", record) for record in records if isinstance(record, dict)]
    return size(result) - sum(size(record.get(key)) for record in dictionaries for key in _FREE)
