"""OpenAI's API from replicas of a model on a Ray cluster: each replica is a process with an engine of its own.

pip install ".[ray]" "ray[serve]" httpx2
serve run examples.ray_serve:app model=owner/repo:Q4_K_M replicas=2
curl localhost:8000/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hello!"}]}'
"""

from typing import Any

import httpx2
from ray import serve
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import StreamingResponse

from engine import Engine, openai


@serve.deployment(max_ongoing_requests=32, ray_actor_options={"num_cpus": 1})
class Chat:
    """One replica. What it has no room for at once waits in the engine; a client that leaves cancels its answer."""

    def __init__(self, model: str | None = None, **load: Any) -> None:
        self.llm = Engine.load(model, **{"n_sequences": 8, **load})
        self.client = httpx2.AsyncClient(transport=openai.transport(self.llm), base_url="http://engine", timeout=None)

    async def __call__(self, request: Request) -> StreamingResponse:
        """Pass the request on to the engine of this process, and its answer back as it comes."""
        body = await request.body()
        asked = self.client.build_request(request.method, request.url.path, content=body)
        answer = await self.client.send(asked, stream=True)
        kind = answer.headers["content-type"]
        end = BackgroundTask(answer.aclose)
        return StreamingResponse(answer.aiter_bytes(), answer.status_code, media_type=kind, background=end)


def app(arguments: dict[str, str]) -> serve.Application:
    """Returns the application, for `serve run`."""
    replicas = int(arguments.get("replicas", "2"))
    return Chat.options(num_replicas=replicas).bind(arguments.get("model"))
