"""An MCP server in a process of its own, by hand: it behaves as its tools and its first argument say, badly if asked.

python mcp_stdio.py MODE [FILE]: "good"; "dead" exits at once; "mute" never answers; "garbage" writes lines that are no
messages; "endless" has a list of tools without end; "many" lists thousands; "hostile" reads its tools from FILE; "flag"
starts only while FILE is there. It speaks the protocol's revision 2025-06-18 and needs only the standard library.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

MODE, FILE = sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else None
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS: list[dict[str, Any]] = [
    {"name": "double", "description": "Doubles.", "inputSchema": NUMBER},
    {"name": "text", "description": "So many letters.", "inputSchema": NUMBER},
    *(
        {"name": name, "inputSchema": NOTHING}
        for name in ("pid", "die", "hang", "grow", "kinds", "fail", "where", "empty")
    ),
]
lock = threading.Lock()


def send(message: dict[str, Any]) -> None:
    with lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def text(value: object, *, failed: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": str(value)}], "isError": failed}


def called(name: str, given: dict[str, Any]) -> dict[str, Any] | None:
    match name:
        case "double":
            return text(2 * given["n"])
        case "text":
            return text("x" * given["n"])
        case "pid":
            return text(os.getpid())
        case "where":
            return text(
                json.dumps([str(Path.cwd()), os.environ.get("MCP_TEST"), os.environ.get("PYTEST_CURRENT_TEST")])
            )
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            if FILE is not None:
                FILE.write_text(str(os.getpid()), encoding="utf-8")
            return None
        case "grow":
            TOOLS.append({"name": "grown", "inputSchema": NOTHING})
            send({"method": "notifications/tools/list_changed"})
            return text("grown")
        case "grown":
            return text("I am new.")
        case "fail":
            return text("no luck", failed=True)
        case "empty":
            return {"content": []}
        case "kinds":
            return {
                "content": [
                    {"type": "text", "text": "seen:"},
                    {"type": "image", "data": "AAAA", "mimeType": "image/png"},
                    {"type": "audio", "data": "AAAAAAAA", "mimeType": "audio/wav"},
                    {"type": "resource_link", "name": "log", "uri": "file:///log"},
                    {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "inside"}},
                    {"type": "resource", "resource": {"uri": "file:///b", "blob": "AAAA", "mimeType": "image/gif"}},
                ]
            }
        case _:
            return text(f"no tool {name}", failed=True)
    return None


def answer(message: dict[str, Any]) -> None:
    number: Any = message["id"]
    params: dict[str, Any] = message.get("params") or {}
    match message["method"]:
        case "initialize":
            about = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "by hand", "version": "1"}}
            send({"id": number, "result": {**about, "capabilities": {"tools": {"listChanged": True}}}})
        case "tools/list" if MODE == "endless":
            send({"id": number, "result": {"tools": [], "nextCursor": "more"}})
        case "tools/list" if MODE == "many":
            tools: list[dict[str, Any]] = [{"name": f"t{index}", "inputSchema": NOTHING} for index in range(1500)]
            send({"id": number, "result": {"tools": tools}})
        case "tools/list" if MODE == "hostile" and FILE is not None:
            tools = json.loads(FILE.read_text(encoding="utf-8"))
            send({"id": number, "result": {"tools": [TOOLS[0], *tools]}})
        case "tools/list":
            send({"id": number, "result": {"tools": TOOLS}})
        case "tools/call":
            result = called(params["name"], params.get("arguments") or {})
            if result is not None:
                send({"id": number, "result": result})
        case method:
            send({"id": number, "error": {"code": -32601, "message": f"no method {method}"}})


def main() -> None:
    if MODE == "dead" or (MODE == "flag" and FILE is not None and not FILE.exists()):
        sys.exit("there is no configuration")
    for line in sys.stdin:
        message = json.loads(line)
        if MODE == "mute":
            continue
        if MODE == "garbage":
            sys.stdout.write("this is a log line\n{}\n[1, 2]\n\x00\n")
            sys.stdout.flush()
        if "id" in message and "method" in message:
            threading.Thread(target=answer, args=(message,), daemon=True).start()


if __name__ == "__main__":
    main()
