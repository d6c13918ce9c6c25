"""Which request gets what: methods and paths, models by name, and the endpoints that this process serves.

Knows: OpenAI's paths, and what a body must be before an endpoint reads it. Does not know: HTTP libraries, threads,
event loops; what travels and how is `engine.openai.transport`'s.
"""

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

from engine.errors import EngineWarning, RequestError
from engine.openai.completions import ChatAnswer, read_chat
from engine.openai.fields import read_body
from engine.openai.items import Seal, messages_of
from engine.openai.problems import Problem, bad
from engine.openai.responses import ResponsesAnswer, read_responses
from engine.openai.store import ResponseStore, Stored
from engine.openai.turns import Ask, EngineLike, Json, Projection

SERVED = (
    "POST /chat/completions",
    "POST /responses",
    "GET /responses/{id}",
    "DELETE /responses/{id}",
    "GET /responses/{id}/input_items",
    "GET /models",
    "GET /models/{model}",
)
"""The endpoints that there are; every other is refused by name."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that needs no model."""

    body: Json
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Turn:
    """An answer that a model gives."""

    ask: Ask
    projection: Projection
    stream: bool
    logprobs: bool
    headers: Mapping[str, str]


class Api:
    """The endpoints over one engine, which goes by any name, or over several, each by its own."""

    def __init__(self, engines: EngineLike | Mapping[str, EngineLike]) -> None:
        self._created = int(time.time())
        self._store, self._seal = ResponseStore(), Seal()
        self._any_name = not isinstance(engines, Mapping)
        self._engines: dict[str, EngineLike]
        if isinstance(engines, Mapping):
            self._engines = dict(engines)
            if not self._engines:
                raise RequestError('There is no engine to talk to; give one, or {"name": engine, ...}.')
        else:
            self._engines = {model_name(engines): engines}

    def handle(self, method: str, path: str, query: Mapping[str, str], content: bytes) -> Answer | Turn:
        """What becomes of a request. Raises Problem for one that gets nothing."""
        steps = _steps(path)
        match method, steps:
            case "POST", ["chat", "completions"]:
                return self._chat(read_body(content))
            case "POST", ["responses"]:
                return self._responses(read_body(content))
            case "GET", ["responses", id_]:
                if query.get("stream") == "true":
                    raise bad("A stored response is not streamed again; leave stream out.", "stream")
                return Answer(self._store.get(id_).response)
            case "DELETE", ["responses", id_]:
                self._store.delete(id_)
                return Answer({"id": id_, "object": "response", "deleted": True})
            case "GET", ["responses", id_, "input_items"]:
                return Answer(_page(self._store.get(id_).own, query))
            case "POST", ["responses", id_, "cancel"]:
                self._store.get(id_)
                raise bad("Only background responses are cancelled so, and there are none; close the stream.", None)
            case "GET", ["models"]:
                return Answer({"object": "list", "data": [self._model(name) for name in self._engines]})
            case "GET", ["models", *rest] if rest:
                return Answer(self._model(self._find("/".join(rest))[0]))
            case _:
                raise _refused(method, steps)

    def _chat(self, body: Json) -> Turn:
        request = read_chat(body)
        name, engine = self._find(request.model)
        ask = Ask(engine, request.messages, request.tools, request.n, request.options, request.names)
        answer = ChatAnswer(request, name)
        return Turn(ask, answer, request.stream, request.logprobs, _warned(request.ignored))

    def _responses(self, body: Json) -> Turn:
        request = read_responses(body)
        name, engine = self._find(request.model)
        before: list[Json] = []
        if request.previous is not None:
            before = self._store.get(request.previous, "previous_response_id").conversation
        messages = messages_of(before, request.items, self._seal, request.instructions)
        ask = Ask(engine, messages, request.tools, 1, request.options, request.names)

        def finished(response: Json) -> None:
            if request.store:
                self._store.put(Stored(response, before, request.items))

        answer = ResponsesAnswer(request, name, self._seal, finished)
        return Turn(ask, answer, request.stream, logprobs=False, headers=_warned(request.ignored))

    def _find(self, name: str | None) -> tuple[str, EngineLike]:
        """The engine of that name, and the name that it says."""
        if self._any_name:
            return next(iter(self._engines.items()))
        known = ", ".join(map(repr, self._engines))
        if name is None:
            message = f"model is missing; the models here are {known}."
            raise Problem(400, message, param="model", code="missing_required_parameter")
        if name not in self._engines:
            message = f"There is no model {name!r}; the models here are {known}."
            raise Problem(404, message, param="model", code="model_not_found")
        return name, self._engines[name]

    def _model(self, name: str) -> Json:
        return {"id": name, "object": "model", "created": self._created, "owned_by": "llama-engine"}


def model_name(engine: EngineLike) -> str:
    """What a model calls itself: the name in its file, the file's name, or its family's."""
    try:
        info = engine.info
    except RequestError:
        return str(engine.family.name)
    return str(info.name or info.path.stem)


def _page(items: Sequence[Json], query: Mapping[str, str]) -> Json:
    """One page of a list. Raises Problem for a limit that is none, and for an unknown `after`."""
    limit, after = query.get("limit", "20"), query.get("after")
    if not limit.isdecimal() or not 1 <= int(limit) <= 100:
        raise bad(f"limit={limit!r} is not valid; ask for 1 to 100 items.", "limit")
    listed = list(items) if query.get("order") == "asc" else [*reversed(items)]
    ids = [item["id"] for item in listed]
    if after is not None and after not in ids:
        raise bad(f"after={after!r} is no item of this list.", "after")
    start = 0 if after is None else ids.index(after) + 1
    data = listed[start : start + int(limit)]
    edges = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
    return {"object": "list", "data": data, **edges, "has_more": start + len(data) < len(listed)}


def _steps(path: str) -> list[str]:
    """A path's steps after the base address, whatever that is: it ends with a version, if it has one."""
    steps = [unquote(step) for step in path.split("/") if step]
    return steps[steps.index("v1") + 1 :] if "v1" in steps else steps


def _refused(method: str, steps: list[str]) -> Problem:
    return Problem(
        404,
        f"{method} /{'/'.join(steps)} is not served in this process; what is: {', '.join(SERVED)}.",
        code="unsupported_endpoint",
    )


def _warned(ignored: tuple[str, ...]) -> dict[str, str]:
    """The header that names the fields which did nothing, after a warning that does."""
    if not ignored:
        return {}
    names = ", ".join(ignored)
    warnings.warn(
        f"These fields of the request do nothing here: {names} (docs/openai.md says why, and what does instead).",
        EngineWarning,
        stacklevel=2,
    )
    return {"x-ignored-fields": names}
