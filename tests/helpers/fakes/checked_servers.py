"""Stand-in servers of Chat Completions for `benchmarks.check`: good ones, and ones that are bad in one way."""

import contextlib
import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, cast

from benchmarks.check.exchange import Reply, read_reply

Json = dict[str, Any]
Change = Callable[[Json, Json], object]
"""Spoils the choice (`message`, `finish_reason`) that answers a body, given both."""

MARKERS = ("<|im_end|>", "<think>", "[TOOL_CALLS]", "</s>")
_WORD = re.compile(r"[A-Za-z0-9]+|\s+|.", re.DOTALL)
GOOD: Mapping[str, str] = {
    "get_weather": '{"city": "Paris", "unit": "celsius"}',
    "multiply": '{"a": 3, "b": 4}',
}
CITY = '{"city": "Paris", "large": true}'


def words(text: str) -> int:
    """Tokens as they should be: markers are characters like any others."""
    return len(_WORD.findall(text))


def forging(text: str) -> int:
    """Tokens of a server that reads callers' text as if it were its template's."""
    parts = re.split("|".join(map(re.escape, MARKERS)), text)
    return sum(map(words, parts)) + len(parts) - 1


def texts(node: object) -> Iterator[str]:
    """All texts of a body's messages and tools that reach a prompt."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping):
        for key, value in node.items():  # pyright: ignore[reportUnknownVariableType]
            if key not in ("id", "tool_call_id", "type"):
                yield from texts(value)  # pyright: ignore[reportUnknownArgumentType]
    elif isinstance(node, list):
        for each in node:  # pyright: ignore[reportUnknownVariableType]
            yield from texts(each)  # pyright: ignore[reportUnknownArgumentType]


def prompt_of(body: Json) -> str:
    return "\n".join(texts([body["messages"], body.get("tools", [])]))


class Counting:
    """An exchange that counts the tokens of prompts. `count`: None reports no usage."""

    def __init__(
        self,
        count: Callable[[str], int] | None = words,
        prompt: Callable[[Json], str] = prompt_of,
        refuses: Callable[[Json], Reply | None] = lambda _: None,
    ) -> None:
        self._count = count
        self._prompt = prompt
        self._refuses = refuses
        self.sent = 0

    def send(self, body: Mapping[str, Any]) -> Reply:
        self.sent += 1
        if (reply := self._refuses(dict(body))) is not None:
            return reply
        usage = {} if self._count is None else {"usage": {"prompt_tokens": 9 + self._count(self._prompt(dict(body)))}}
        return Reply(200, ({"choices": [{"message": {"content": "a"}, "finish_reason": "length"}], **usage},))

    def markup(self) -> str:
        return ""


def choice_for(body: Json) -> Json:
    """A choice as it should be."""
    message: Json = {"role": "assistant", "content": None}
    thinks = body.get("chat_template_kwargs", {}).get("enable_thinking", True)
    if thinks:
        message["reasoning_content"] = "I think."
    wanted: Any = body.get("tool_choice", "none")
    if wanted == "none":
        return {"index": 0, "message": {**message, "content": CITY}, "finish_reason": "stop"}
    name = "get_weather" if isinstance(wanted, str) else wanted["function"]["name"]
    function = {"name": name, "arguments": GOOD[name]}
    message["tool_calls"] = [{"id": "call1", "type": "function", "function": function}]
    return {"index": 0, "message": message, "finish_reason": "tool_calls"}


def chunks_of(choice: Json) -> list[Json]:
    """The choice as a stream: texts and arguments in two pieces."""
    message = choice["message"]
    deltas: list[Json] = [{"role": "assistant", "content": None}]
    for name in ("reasoning_content", "content"):
        if text := message.get(name):
            deltas += [{name: text[:3]}, {name: text[3:]}]
    for index, call in enumerate(message.get("tool_calls", [])):
        arguments = call["function"]["arguments"]
        deltas.append({"tool_calls": [{**call, "index": index, "function": {**call["function"], "arguments": ""}}]})
        for piece in (arguments[:5], arguments[5:]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    return [*chunks, {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}]


def events_of(choice: Json) -> bytes:
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks_of(choice)).encode() + b"data: [DONE]\n\n"


class Answering:
    """An exchange that answers. `change` spoils choices; `wire` spoils the bytes of streams."""

    def __init__(self, change: Change = lambda body, choice: None, wire: Callable[[bytes], bytes] = bytes) -> None:
        self._change = change
        self._wire = wire

    def send(self, body: Mapping[str, Any]) -> Reply:
        choice = choice_for(dict(body))
        reply = self._change(dict(body), choice)
        if isinstance(reply, Reply):
            return reply
        if body.get("stream"):
            return read_reply(200, [self._wire(events_of(choice))], "", streams=True)
        return Reply(200, ({"choices": [choice]},))

    def markup(self) -> str:
        return ""


class Handler(BaseHTTPRequestHandler):
    """Answers as `choice_for` does; what comes in is kept by the server."""

    protocol_version = "HTTP/1.1"

    @property
    def web(self) -> "Web":
        return cast("Web", self.server)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Say nothing."""

    def do_GET(self) -> None:
        self.web.seen.append((self.path, dict(self.headers), {}))
        if self.path == "/v1/models":
            self._json(200, {"data": [{"id": "first"}, {"id": "second"}]})
        elif self.path == "/props":
            self._json(200, {"chat_template": "{{ '<|im_start|>' }}", "eos_token": "<|done|>"})
        else:
            self._json(404, {"error": {"message": "no such page"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.web.seen.append((self.path, dict(self.headers), body))
        self.web.answer(self, body)

    def good(self, body: Json) -> None:
        """Answer as a server should."""
        choice = choice_for(body)
        if body.get("stream"):
            self.send(200, "text/event-stream", events_of(choice))
        else:
            self._json(200, {"choices": [choice], "usage": {"prompt_tokens": 9 + words(prompt_of(body))}})

    def send(self, status: int, kind: str, content: bytes, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content) if length is None else length))
        self.end_headers()
        self.wfile.write(content)

    def _json(self, status: int, body: Json) -> None:
        self.send(status, "application/json", json.dumps(body).encode())


class Web(ThreadingHTTPServer):
    """A server. `seen`: path, headers and body of each request; `over`: set when it stops, for answers that hang."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, answer: Callable[[Handler, Json], None]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.seen: list[tuple[str, dict[str, str], Json]] = []
        self.over = Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@contextlib.contextmanager
def served(answer: Callable[[Handler, Json], None] = Handler.good) -> Generator[Web]:
    """A server at an address of this machine."""
    with Web(answer) as web:
        thread = Thread(target=web.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield web
        finally:
            web.over.set()
            web.shutdown()
            thread.join()
