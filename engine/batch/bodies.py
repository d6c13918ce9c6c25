"""Converts the bodies of OpenAI's requests into turns, and finished turns into the bodies of responses in a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

from engine.formats.grammar.response import response_of
from engine.openai.chat_completions import chat_answer, read_chat
from engine.openai.embeddings import read_embeddings
from engine.openai.input_call import input_problem
from engine.openai.parameters import Json
from engine.openai.problems import Problem, bad, problem_of
from engine.openai.request import Request
from engine.openai.response_items import messages_of, stored_items
from engine.openai.responses import ResponsesAnswer, read_responses
from engine.runtime.guidance import matcher
from engine.support.errors import EngineError, RequestError, shown
from engine.support.nothing import nothing
from engine.tools import ToolLike, as_tools
from engine.turns.options import TurnOptions, turn_settings
from engine.types.answer_formats import ResponseFormat
from engine.types.completion import Completion
from engine.types.conversation import check_last, conversation_of
from engine.types.messages import Message, MessagesLike
from engine.types.tools import Tool

_CHAT, _RESPONSES, EMBEDDINGS = ENDPOINTS = ("/v1/chat/completions", "/v1/responses", "/v1/embeddings")
"""The valid values of a row's `url`."""
_Response: TypeAlias = Callable[[str, str, Sequence[Completion]], Json]


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: `n` answers to `messages`. `options` are those of `Engine.stream`. Of a request that had a body,
    `names` has the field of each option, `response(id, model, completions)` returns the body of the response, and
    `model` is the one that it names."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    options: Mapping[str, Any]
    n: int = 1
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    response: _Response | None = None
    model: str | None = None

    def problem(self, error: EngineError) -> Problem:
        """Returns the problem that an engine's error is for the client of this turn."""
        return problem_of(error, self.names)


@dataclass(frozen=True, slots=True)
class Texts:
    """One request for the vectors of texts."""

    request: Request

    @property
    def model(self) -> str | None:
        return self.request.model

    def problem(self, error: EngineError) -> Problem:
        """Returns the problem that an engine's error is for the client of this request."""
        return input_problem(error, self.request)


def checked_turn(
    messages: MessagesLike, tools: Sequence[ToolLike] | None = None, options: Mapping[str, Any] | None = None
) -> Turn:
    """Returns a turn, checked as far as possible without a model. Raises RequestError for what is not valid."""
    values = {name: value for name, value in (options or {}).items() if value is not None}
    _ = turn_settings(values, TurnOptions)
    _check_format(values.get("response_format"))
    conversation = conversation_of(messages)
    check_last(conversation, generates=True, continues=bool(values.get("continue_final_message", False)))
    return Turn(conversation, as_tools(tools), values)


def _check_format(form: object) -> None:
    """Raise RequestError for a `response_format` that cannot be enforced."""
    if isinstance(form, ResponseFormat):  # cached: most rows of a batch have the same
        _check_written_format(form.model_dump_json())
    elif form is not None:
        _ = response_of(form, matcher)


@lru_cache(maxsize=64)
def _check_written_format(text: str) -> None:
    _ = response_of(ResponseFormat.model_validate_json(text), matcher)


def read_body(
    url: str, body: Mapping[str, Any], defaults: Mapping[str, Any], tools: Sequence[ToolLike] | None = None
) -> Turn:
    """Read the body of a request to that endpoint. `defaults` are options, and `tools` tools, for a body without its
    own.

    A null counts as absent in any field, because Parquet gives each row the fields of all rows. Raises RequestError,
    naming the field, for what is not valid and for what this engine cannot do.
    """
    if url not in (_CHAT, _RESPONSES):
        raise RequestError(f'"url" is {shown(url)}; it must be one of {", ".join(ENDPOINTS)}.')
    records = as_tools(tools) if body.get("tools") is None else ()
    fields = _without_nulls(body)
    if records:
        fields["tools"] = [tool.openai() for tool in records]
    try:
        if fields.get("stream"):
            raise bad("stream is true, but a batch returns complete responses; remove it.", "stream")
        read = _read_chat if url == _CHAT else _read_responses
        request, messages, response = read(fields, defaults)
    except Problem as problem:
        raise RequestError(problem.message) from problem
    turn = checked_turn(messages, records or request.tools, {**defaults, **request.options})
    return replace(turn, n=request.n, names=request.names, response=response, model=request.model)


def read_texts(body: Mapping[str, Any]) -> Texts:
    """Read the body of a request for vectors; a null counts as absent. Raises RequestError, naming the field, for what
    is not valid."""
    try:
        return Texts(read_embeddings(_without_nulls(body)))
    except Problem as problem:
        raise RequestError(problem.message) from problem


def _without_nulls(body: Mapping[str, Any]) -> Json:
    return {name: value for name, value in body.items() if value is not None}


def _read_chat(body: Json, defaults: Mapping[str, Any]) -> tuple[Request, Sequence[Any], _Response]:
    del defaults
    request = read_chat(body)

    def response(id_: str, model: str, completions: Sequence[Completion]) -> Json:
        """Returns the `chat.completion` object, with every field of OpenAI's; null if there is no value."""
        whole = chat_answer(request, model).whole(completions)
        choices = [{**choice, "message": {"refusal": None, **choice["message"]}} for choice in whole["choices"]]
        return {**whole, "id": f"chatcmpl-{id_}", "choices": choices, "timings": timings(completions)}

    return request, request.values["messages"], response


def _read_responses(body: Json, defaults: Mapping[str, Any]) -> tuple[Request, Sequence[Any], _Response]:
    request = read_responses({**body, "store": False})  # only the output file stores it
    values = request.values
    if "previous_response_id" in values:
        raise bad("previous_response_id is given, but rows are independent; send the earlier items as input.")

    def response(id_: str, model: str, completions: Sequence[Completion]) -> Json:
        whole = ResponsesAnswer(request, model, defaults, nothing).whole(completions)
        return {**whole, "id": f"resp_{id_}", "timings": timings(completions)}

    return request, messages_of((), stored_items(values["input"]), values.get("instructions")), response


def timings(completions: Sequence[Completion]) -> Json:
    """Returns the timings, in milliseconds, each of the answer that took longest."""
    usages = [completion.usage for completion in completions]
    return {
        "prompt_ms": round(1000 * max((usage.prefill_seconds for usage in usages), default=0.0), 1),
        "predicted_ms": round(1000 * max((usage.decode_seconds for usage in usages), default=0.0), 1),
    }
