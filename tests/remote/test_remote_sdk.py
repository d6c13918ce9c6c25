"""engine.remote under a real `openai` client, which talks to a scripted transport: no network."""

import json
from collections.abc import AsyncIterable
from typing import Any

import pytest
from fakes.server_streams import Json, call, sse, stream

from engine import RequestError, remote
from engine.types.events import fold

openai = pytest.importorskip("openai")
http = pytest.importorskip("httpx2" if int(openai.__version__.split(".")[0]) >= 3 else "httpx")

USAGE: Json = {
    "id": "chatcmpl-7",
    "object": "chat.completion.chunk",
    "created": 1757141666,
    "model": "some-model",
    "choices": [],
    "usage": {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 2},
    },
}
CALL = stream({"reasoning_content": "I look."}, call(0, "", "ping", "call_1"), call(0, "{}"), finish="tool_calls")
ANSWER = [*stream({"reasoning_content": "Good."}, {"content": "Pong."}), USAGE]


def ping() -> str:
    """Ping."""
    return "pong"


class Server:
    """The transport: answers one stream after the other."""

    def __init__(self, *streams: list[Json]) -> None:
        self.streams = list(streams)
        self.bodies: list[Json] = []

    def __call__(self, request: Any) -> Any:
        self.bodies.append(json.loads(request.content))
        text = sse(self.streams[len(self.bodies) - 1])
        return http.Response(200, headers={"content-type": "text/event-stream"}, text=text)

    def client(self, kind: Any, transport: Any) -> Any:
        return kind(api_key="none", base_url="http://server/v1", http_client=transport)


def test_the_agent_loop_over_a_client() -> None:
    server = Server(CALL, ANSWER)
    client = server.client(openai.OpenAI, http.Client(transport=http.MockTransport(server)))
    llm = remote.Remote(client, model="m")
    run = llm.run("Ping?", [ping], reasoning=True, top_k=3)
    assert (run.stopped, run.completion.content, run.completion.reasoning) == ("stop", "Pong.", "Good.")
    usage = run.completion.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (3, 2, 4)
    second = server.bodies[1]
    assert (second["top_k"], second["chat_template_kwargs"]) == (3, {"enable_thinking": True})
    assert second["messages"][1]["reasoning_content"] == "I look."
    assert second["messages"][2] == {"role": "tool", "tool_call_id": "call_1", "content": "pong"}
    client.close()


async def test_an_async_client() -> None:
    server = Server(ANSWER, ANSWER)
    async with server.client(openai.AsyncOpenAI, http.AsyncClient(transport=http.MockTransport(server))) as client:
        made: AsyncIterable[object] = await client.chat.completions.create(
            **remote.client_arguments(remote.request("Ping?", model="m"))
        )
        found = fold([event async for event in remote.events(made)])
        again = await remote.Remote(client, model="m").stream("Ping?")
    assert (found.reasoning, found.content) == ("Good.", "Pong.")
    assert again == found
    assert server.bodies[0] == server.bodies[1]


@pytest.mark.parametrize("given", ["http://localhost:8080/v1", None, []])
def test_what_sends_nothing_is_refused_with_the_line_to_write(given: Any) -> None:
    with pytest.raises(RequestError, match=r"Remote\(openai\.OpenAI\(base_url="):
        _ = remote.Remote(given)
