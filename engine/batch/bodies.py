"""Converts the bodies of OpenAI's requests into turns, and finished turns into the bodies of responses in a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias, cast

from engine.constraint.matcher import refusal
from engine.constraint.response import response_of
from engine.errors import RequestError
from engine.openai.completions import ChatAnswer, ChatRequest, read_chat
from engine.openai.items import messages_of
from engine.openai.problems import Problem, bad
from engine.openai.responses import ResponsesAnswer, ResponsesRequest, read_responses
from engine.options import TurnOptions, checked, prompt_options, sampling_params
from engine.template.conversation import check_last, conversation_of
from engine.tools import ToolLike, as_tools
from engine.types import Completion, Message, MessagesLike, ResponseFormat, Tool, Usage

JsonObject: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: `n` answers to `messages`. `options` are those of `Engine.stream`."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    options: Mapping[str, Any]
    n: int = 1


def turn(
    messages: MessagesLike,
    tools: Sequence[ToolLike] | None = None,
    options: Mapping[str, Any] | None = None,
    n: int = 1,
) -> Turn:
    """Returns a turn, checked as far as possible without a model. Raises RequestError for what is not valid."""
    given = {name: value for name, value in (options or {}).items() if value is not None}
    _ = sampling_params(given), prompt_options(checked(cast("TurnOptions", given), TurnOptions))
    _check_format(given.get("response_format"))
    conversation = conversation_of(messages)
    check_last(conversation, generates=True, continues=bool(given.get("continue_final_message", False)))
    return Turn(conversation, as_tools(tools), given, n)


def _check_format(asked: object) -> None:
    """Raise RequestError for a `response_format` that cannot be enforced."""
    if isinstance(asked, ResponseFormat):  # cached: most rows of a batch have the same
        _check_written_format(asked.model_dump_json())
    elif asked is not None:
        _ = response_of(asked, refusal)


@lru_cache(maxsize=64)
def _check_written_format(text: str) -> None:
    _ = response_of(ResponseFormat.model_validate_json(text), refusal)


@dataclass(frozen=True, slots=True)
class Request:
    """A body that was read. `names`: the request field of each option. `response(id, model, completions)` returns the
    body of the response."""

    turn: Turn
    names: Mapping[str, str]
    response: Callable[[str, str, Sequence[Completion]], JsonObject]


def read_body(
    url: str, body: Mapping[str, Any], defaults: Mapping[str, Any], tools: Sequence[ToolLike] | None = None
) -> Request:
    """Read the body of a request to that endpoint. `defaults` are options, and `tools` tools, for a body without its
    own.

    A null counts as absent in any field, because Parquet gives each row the fields of all rows. Raises RequestError,
    naming the field, for what is not valid and for what this engine cannot do.
    """
    if (read := _READERS.get(url)) is None:
        raise RequestError(f'"url" is {url!r}; it must be one of {", ".join(ENDPOINTS)}.')
    known = as_tools(tools) if body.get("tools") is None else None
    given = {name: value for name, value in body.items() if value is not None}
    if known:
        given["tools"] = [tool.openai() for tool in known]
    try:
        if given.get("stream"):
            raise bad("stream is true, but a batch returns complete responses; remove it.", "stream")
        return read(given, defaults, known)
    except Problem as problem:
        raise RequestError(problem.message) from problem


def _chat(body: JsonObject, defaults: Mapping[str, Any], tools: Sequence[ToolLike] | None) -> Request:
    asked = read_chat(body)
    known = asked.tools if tools is None else tools
    return Request(
        turn(asked.messages, known, {**defaults, **asked.options}, asked.n),
        asked.names,
        partial(_chat_response, asked),
    )


def _chat_response(asked: ChatRequest, id_: str, model: str, completions: Sequence[Completion]) -> JsonObject:
    """Returns the `chat.completion` object, with every field of OpenAI's; null if there is no value."""
    whole = ChatAnswer(asked, model).whole(completions)
    choices = [{**choice, "message": {"refusal": None, **choice["message"]}} for choice in whole["choices"]]
    return {**whole, "id": f"chatcmpl-{id_}", "choices": choices, "timings": timings(completions)}


def _responses(body: JsonObject, defaults: Mapping[str, Any], tools: Sequence[ToolLike] | None) -> Request:
    asked = read_responses({**body, "store": False})  # only the output file stores it
    if asked.previous is not None:
        raise bad("previous_response_id is given, but rows are independent; send the earlier items as input.")
    messages = messages_of((), asked.items, asked.instructions)
    known = asked.tools if tools is None else tools
    return Request(
        turn(messages, known, {**defaults, **asked.options}), asked.names, partial(_responses_response, asked, defaults)
    )


def _responses_response(
    asked: ResponsesRequest, sampling: Mapping[str, Any], id_: str, model: str, completions: Sequence[Completion]
) -> JsonObject:
    whole = ResponsesAnswer(asked, model, sampling, lambda _: None).whole(completions)
    return {**whole, "id": f"resp_{id_}", "timings": timings(completions)}


_READERS = {"/v1/chat/completions": _chat, "/v1/responses": _responses}
ENDPOINTS = tuple(_READERS)
"""The valid values of a row's `url`."""


def timings(completions: Sequence[Completion]) -> JsonObject:
    """Returns the timings, in milliseconds, each of the answer that took longest."""
    usages = [completion.usage or Usage() for completion in completions]
    return {
        "prompt_ms": round(1000 * max((usage.prefill_seconds for usage in usages), default=0.0), 1),
        "predicted_ms": round(1000 * max((usage.decode_seconds for usage in usages), default=0.0), 1),
    }
