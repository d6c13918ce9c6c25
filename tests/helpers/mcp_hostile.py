"""An MCP server that attacks its client, in a process of its own; it needs only the standard library.

python mcp_hostile.py stdio MODE, or python mcp_hostile.py http MODE, which prints its port. It speaks the protocol
correctly up to the step that MODE names.
"""

import json
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

OVER, MODE = sys.argv[1], sys.argv[2]
PIECE = b"x" * 65_536
PARTS = 29_000  # just allowed
EMPTY = '{"name": "hit", "inputSchema": {"type": "object"}}'


def forever(*pieces: bytes) -> Iterator[bytes]:
    """The pieces, the last of them without end."""
    yield from pieces[:-1]
    while True:
        yield pieces[-1]


def reply(number: int, result: str) -> bytes:
    return f'{{"jsonrpc": "2.0", "id": {number}, "result": {result}}}'.encode()


def content(blocks: str) -> Callable[[int], Iterable[bytes]]:
    return lambda number: [reply(number, f'{{"content": [{blocks}]}}')]


def begun(*pieces: bytes) -> Callable[[int], Iterable[bytes]]:
    return lambda number: forever(b'{"jsonrpc": "2.0", "id": %d, "result": ' % number, *pieces)


def about(icons: str = "") -> str:
    info = f'{{"name": "hostile", "version": "1", "icons": [{icons}]}}'
    return f'{{"protocolVersion": "2025-06-18", "serverInfo": {info}, "capabilities": {{"tools": {{}}}}}}'


def page(number: int) -> list[bytes]:
    """Six megabytes of tools, and a promise of more."""
    tools = [f'{{"name": "t", "description": "{"x" * 700_000}", "inputSchema": {{"type": "object"}}}}'] * 9
    return [reply(number, f'{{"tools": [{", ".join(tools)}], "nextCursor": "more"}}')]


def listed(*tools: str) -> Callable[[int], Iterable[bytes]]:
    return lambda number: [reply(number, f'{{"tools": [{", ".join(tools)}]}}')]


ONES = ", ".join("1" * PARTS)
TEXT = '{"type": "text", "text": "x"}'
REFERENCES = ", ".join(['{"$ref": "#x"}'] * 2_900)
FULL = EMPTY.replace('"object"', f'"object", "allOf": [{REFERENCES}, {{"$anchor": "x"}}]')
ATTACKS: dict[str, tuple[str, Callable[[int], Iterable[bytes]]]] = {
    "endless": ("initialize", begun(b'{"x": "', PIECE)),
    "values": ("initialize", begun(b"[1", b", 1" * 20_000)),
    "icons": ("initialize", lambda number: [reply(number, about(ONES))]),
    "tools": ("tools/list", listed(*[EMPTY] * 100_000)),
    "pages": ("tools/list", page),
    "empty-pages": ("tools/list", lambda number: [reply(number, '{"tools": [], "nextCursor": "more"}')]),
    "references": ("tools/list", listed(FULL, FULL.replace("hit", "more"))),
    "mute": ("tools/list", lambda _: []),
    "blocks": ("tools/call", content(", ".join([TEXT] * 500_000))),
    "wrong-blocks": ("tools/call", content(ONES)),
    "wrong-parts": ("tools/call", content(f'{{"type": "text", "text": "x", "annotations": {{"audience": [{ONES}]}}}}')),
    "structured": (
        "tools/call",
        lambda number: [reply(number, f'{{"content": [], "structuredContent": {{"a": [{ONES}]}}}}')],
    ),
    "deep": ("tools/call", lambda number: [reply(number, "[" * 100_000 + "]" * 100_000)]),
    "wide": ("tools/call", content(TEXT.replace('"x"', f'"\U0001f600{"x" * 8_000_000}"'))),
    "envelope": (
        "tools/call",
        lambda number: [reply(number, f"[{', '.join(['{}'] * (PARTS // 2))}]").replace(b'"2.0"', b'"1.0"')],
    ),
    "broken": ("tools/call", lambda number: [reply(number, "")[:-1]]),
}
HONEST = {
    "initialize": about(),
    "tools/list": f'{{"tools": [{EMPTY}]}}',
    "tools/call": '{"content": [{"type": "text", "text": "fine"}]}',
}


def answered(message: dict[str, Any]) -> Iterable[bytes]:
    """The pieces of the reply to a request."""
    number, method = message["id"], message["method"]
    at, attack = ATTACKS.get(MODE, ("", None))
    if attack is not None and method == at:
        return attack(number)
    if method in HONEST:
        return [reply(number, HONEST[method])]
    return [json.dumps({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "none"}}).encode()]


def serve_lines() -> None:
    out = sys.stdout.buffer
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            for piece in answered(message):
                out.write(piece)
            out.write(b"\n")
            out.flush()


def bomb() -> Iterator[bytes]:
    """0.5 MB that are 0.5 GB."""
    squeezed = zlib.compressobj(9, zlib.DEFLATED, 31)
    yield squeezed.compress(b'{"x": "')
    for _ in range(500):
        yield squeezed.compress(bytes(1_000_000))
    yield squeezed.flush()


BOMB = b"".join(bomb()) if MODE == "gzip" else b""


def raw(message: dict[str, Any]) -> Iterator[bytes] | None:
    """A whole response that is no honest HTTP; None if MODE is another."""
    first = message.get("method") == "initialize"
    ok = b"HTTP/1.1 200 OK\r\n"
    events = ok + b"Content-Type: text/event-stream\r\n"
    match MODE:
        case "gzip" if first:
            head = b"Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
            return iter([ok + head % len(BOMB), BOMB])
        case "utf-7" if first:
            return iter([ok + b"Content-Type: text/event-stream; charset=utf-7\r\n\r\ndata: +ACI-x\n\n"])
        case "headers" if first:
            return forever(ok, b"X-More: y\r\n" * 1_000)
        case "hints" if first:
            return forever(b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000)
        case "drip" if first:
            return forever(ok, b"X")
        case "event" if first:
            return forever(events + b"\r\ndata: ", PIECE)
        case "event-lines" if first:
            return forever(events + b"\r\n", b"data: x\r\n" * 5_000)
        case "events" if first:
            note = b'data: {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info"}}\n\n'
            return forever(events + b"\r\n", note * 100)
        case "redirect" if first:
            head = b"HTTP/1.1 307 X\r\nLocation: /mcp\r\nContent-Type: text/event-stream\r\n\r\n"
            return forever(head, b"x\n\n" * 20_000)
        case _:
            return None


def one_request(file: Any) -> dict[str, Any] | None:
    line = file.readline()
    if not line:
        return None
    length = 0
    while (header := file.readline().strip().lower()) and header:
        if header.startswith(b"content-length:"):
            length = int(header.split(b":")[1])
    return {"verb": line.split(b" ")[0], **(json.loads(file.read(length)) if length else {})}


def serve_connection(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as file:
        while (message := one_request(file)) is not None:
            if message["verb"] != b"POST":
                connection.sendall(b"HTTP/1.1 405 X\r\nContent-Length: 0\r\n\r\n")
            elif (pieces := raw(message)) is not None:
                for piece in pieces:
                    connection.sendall(piece)
                    time.sleep(0.05 if MODE == "drip" else 0)
                return
            elif "id" not in message:
                connection.sendall(b"HTTP/1.1 202 X\r\nContent-Length: 0\r\n\r\n")
            else:
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
                )
                for piece in answered(message):
                    connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
                connection.sendall(b"0\r\n\r\n")


def serve_guarded(connection: socket.socket) -> None:
    try:
        serve_connection(connection)
    except OSError:
        return  # the client has had enough


def serve_http() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sys.stdout.write(f"{server.getsockname()[1]}\n")
        sys.stdout.flush()
        while True:
            threading.Thread(target=serve_guarded, args=(server.accept()[0],), daemon=True).start()


if __name__ == "__main__":
    serve_lines() if OVER == "stdio" else serve_http()
