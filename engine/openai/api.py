"""Routes requests: methods and paths, models by name, and the endpoints that this process serves."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import unquote

from engine.openai.chat_completions import chat_answer, read_chat
from engine.openai.completions import read_text, start_text, text_answer
from engine.openai.decisions import DecisionCall, read_decisions
from engine.openai.embeddings import Embedding, read_embeddings
from engine.openai.parameters import Json
from engine.openai.problems import Problem, bad
from engine.openai.request import Request, read_body
from engine.openai.response_items import messages_of, stored_items
from engine.openai.responses import ResponsesAnswer, read_responses
from engine.openai.store import ResponseStore, Stored
from engine.openai.streaming import EngineLike, Projection, Turn, TurnStream
from engine.openai.system_one import SystemOneCall, read_system_one
from engine.support.errors import RequestError, shown

SERVED = (
    "POST /chat/completions",
    "POST /completions",
    "POST /decisions",
    "POST /embeddings",
    "POST /responses",
    "GET /responses/{id}",
    "DELETE /responses/{id}",
    "GET /responses/{id}/input_items",
    "GET /models",
    "GET /models/{model}",
    "POST /systemone",
)
"""The endpoints served here; any other request is refused with an error that names it."""
_CALLS: Mapping[str, tuple[Callable[[Json], Any], Callable[[Any, Any, str], Embedding | DecisionCall]]] = {
    "decisions": (read_decisions, DecisionCall),
    "systemone": (read_system_one, SystemOneCall),
    "embeddings": (read_embeddings, Embedding),
}
"""The endpoints that are one call of the engine, with what reads their request."""


class Api:
    """The endpoints over one engine, which accepts any model name, or over several, each under its own name."""

    def __init__(self, engines: EngineLike | Mapping[str, EngineLike]) -> None:
        self._created = int(time.time())
        self._store = ResponseStore()
        self._any_name = not isinstance(engines, Mapping)
        self._engines: dict[str, EngineLike]
        if isinstance(engines, Mapping):
            self._engines = dict(engines)
            if not self._engines:
                raise RequestError('The dictionary of engines is empty; pass an engine, or {"name": engine, ...}.')
        else:
            self._engines = {model_name(engines): engines}

    def handle(
        self, method: str, path: str, query: Mapping[str, str], content: bytes
    ) -> Json | Turn | Embedding | DecisionCall:
        """Returns the response to a request, or the work that will give it. Raises Problem for a request that is
        refused."""
        steps = _steps(path)
        match method, steps:
            case "POST", ["chat", "completions"]:
                return self._chat(read_body(content))
            case "POST", ["completions"]:
                return self._text(read_body(content))
            case "POST", ["responses"]:
                return self._responses(read_body(content))
            case "POST", [kind] if kind in _CALLS:
                read, call = _CALLS[kind]
                request = read(read_body(content))
                name, engine = self._find(request.model)
                return call(engine, request, name)
            case "GET", ["responses", id_]:
                if query.get("stream") == "true":
                    raise bad("A stored response is not streamed again; leave stream out.", "stream")
                return self._store.get(id_).response
            case "DELETE", ["responses", id_]:
                self._store.delete(id_)
                return {"id": id_, "object": "response", "deleted": True}
            case "GET", ["responses", id_, "input_items"]:
                return _page(self._store.get(id_).own, query)
            case "POST", ["responses", id_, "cancel"]:
                self._store.get(id_)
                raise bad("Only background responses can be cancelled, and there are none; close the stream.", None)
            case "GET", ["models"]:
                return {"object": "list", "data": [self._model(name) for name in self._engines]}
            case "GET", ["models", *rest] if rest:
                return self._model(self._find("/".join(rest))[0])
            case _:
                raise _refused(method, steps)

    def _chat(self, body: Json) -> Turn:
        request = read_chat(body)
        name, engine = self._find(request.model)
        return self._conversation(engine, request, request.values["messages"], chat_answer(request, name))

    def _text(self, body: Json) -> Turn:
        request = read_text(body)
        name, engine = self._find(request.model)
        return Turn(request, partial(start_text, engine, request), text_answer(request, name))

    def _responses(self, body: Json) -> Turn:
        request = read_responses(body)
        name, engine = self._find(request.model)
        values, before = request.values, list[Json]()
        items = stored_items(values.get("input", []))
        if (previous := values.get("previous_response_id")) is not None:
            before = self._store.get(previous, "previous_response_id").conversation
        messages = messages_of(before, items, values.get("instructions"))

        def finished(response: Json) -> None:
            if values.get("store", True):
                self._store.put(Stored(response, before, items))

        answer = ResponsesAnswer(request, name, default_sampling(engine), finished)
        return self._conversation(engine, request, messages, answer)

    @staticmethod
    def _conversation(engine: EngineLike, request: Request, messages: Sequence[Any], projection: Projection) -> Turn:
        def start(options: Mapping[str, Any]) -> Sequence[TurnStream]:
            return engine.choices(messages, request.n, request.tools, **options)

        return Turn(request, start, projection)

    def _find(self, name: str | None) -> tuple[str, EngineLike]:
        """Returns the name under which a model is served, and its engine."""
        if self._any_name:
            return next(iter(self._engines.items()))
        served = ", ".join(map(repr, self._engines))
        if name is None:
            message = f"model is missing; the models here are {served}."
            raise Problem(400, message, param="model", code="missing_required_parameter")
        if name not in self._engines:
            message = f"There is no model {shown(name)}; the models here are {served}."
            raise Problem(404, message, param="model", code="model_not_found")
        return name, self._engines[name]

    def _model(self, name: str) -> Json:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "llama-engine"}


def default_sampling(engine: EngineLike) -> Mapping[str, float]:
    """Returns how an engine samples if a request does not say: the model's defaults over the filters that are off."""
    off = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    return {**off, **engine.sampling.values}


def model_name(engine: EngineLike) -> str:
    """Returns a model's name: the one in its file, the file's name, or its family's."""
    try:
        info = engine.info
    except RequestError:
        return str(engine.family.name)
    return str(info.name or info.path.stem)


def _page(items: Sequence[Json], query: Mapping[str, str]) -> Json:
    """Returns one page of a list. Raises Problem for a limit that is not valid, and for an unknown `after`."""
    limit, after = query.get("limit", "20"), query.get("after")
    if not limit.isdecimal() or len(limit) > 3 or not 1 <= int(limit) <= 100:
        raise bad(f"limit={shown(limit)} is not valid; ask for 1 to 100 items.", "limit")
    listed = list(items) if query.get("order") == "asc" else [*reversed(items)]
    ids = [item["id"] for item in listed]
    if after is not None and after not in ids:
        raise bad(f"after={shown(after)} is not the id of an item in this list.", "after")
    start = 0 if after is None else ids.index(after) + 1
    data = listed[start : start + int(limit)]
    edges = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **edges, "has_more": start + len(data) < len(listed)}


def _steps(path: str) -> list[str]:
    """Returns a path's segments after the base address: after "v1" if the path has that."""
    steps = [unquote(step) for step in path.split("/") if step]
    return steps[steps.index("v1") + 1 :] if "v1" in steps else steps


def _refused(method: str, steps: list[str]) -> Problem:
    return Problem(
        404,
        f"{method} /{'/'.join(steps)} is not served in this process; use one of: {', '.join(SERVED)}.",
        code="unsupported_endpoint",
    )
