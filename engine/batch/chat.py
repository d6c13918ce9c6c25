"""The body of a Chat Completions request as a turn, and finished turns as the body of a response in a file.

Knows: what a batch adds to `engine.openai.completions`, which reads and writes the fields: defaults for all rows, and
`timings`, as llama.cpp's server has them. Does not know: batches, files, engines.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, cast

from engine.constraint.matcher import refusal
from engine.constraint.response import response_of
from engine.errors import RequestError
from engine.openai.completions import FINISH, logprobs_object, message_object, read_chat, usage_object
from engine.openai.problems import Problem
from engine.options import TurnOptions, checked, prompt_options, sampling_params
from engine.template.conversation import check_last, conversation_of
from engine.tools import ToolLike, as_tools
from engine.types import Completion, Message, MessagesLike, ResponseFormat, Tool, Usage

JsonObject: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """What one request asks for: `n` answers to `messages`. `options` are those of `Engine.stream`."""

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
    """A turn, checked as far as that is possible without a model. Raises RequestError for what is not valid."""
    given = {name: value for name, value in (options or {}).items() if value is not None}
    _ = sampling_params(given), prompt_options(checked(cast("TurnOptions", given), TurnOptions))
    _check_format(given.get("response_format"))
    conversation = conversation_of(messages)
    check_last(conversation, generates=True, continues=bool(given.get("continue_final_message", False)))
    return Turn(conversation, as_tools(tools), given, n)


def _check_format(asked: object) -> None:
    """Raises RequestError for a `response_format` that cannot be held."""
    if isinstance(asked, ResponseFormat):  # most rows of a batch have the same
        _check_written_format(asked.model_dump_json())
    elif asked is not None:
        _ = response_of(asked, refusal)


@lru_cache(maxsize=64)
def _check_written_format(text: str) -> None:
    _ = response_of(ResponseFormat.model_validate_json(text), refusal)


def read_body(body: Mapping[str, Any], defaults: Mapping[str, Any], tools: Sequence[ToolLike] | None = None) -> Turn:
    """What a body asks for. `defaults` are options, and `tools` tools, for a body that names none.

    A null counts as absent. Raises RequestError, naming the field, for what is not valid and for what this engine
    cannot do.
    """
    known = as_tools(tools) if body.get("tools") is None else None
    given = {**body, "tools": [tool.openai() for tool in known]} if known else dict(body)
    try:
        asked = read_chat(given)
    except Problem as problem:
        raise RequestError(problem.message) from problem
    if asked.stream:
        raise RequestError("stream is true; a batch returns whole responses: remove it.")
    return turn(asked.messages, asked.tools if known is None else known, {**defaults, **asked.options}, asked.n)


def response_body(id_: str, model: str, completions: Sequence[Completion]) -> JsonObject:
    """The `chat.completion` object of finished turns. Every field of OpenAI's is there, null where there is nothing;
    `reasoning_content` and `timings` are llama.cpp's server's."""
    usages = [completion.usage or Usage() for completion in completions]
    return {
        "id": f"chatcmpl-{id_}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [_choice(index, completion) for index, completion in enumerate(completions)],
        "usage": usage_object(usages),
        "service_tier": None,
        "system_fingerprint": None,
        "timings": _timings(usages),
    }


def _choice(index: int, completion: Completion) -> JsonObject:
    return {
        "index": index,
        "message": {"refusal": None, **message_object(completion, "reasoning_content")},
        "logprobs": logprobs_object(completion.logprobs),
        "finish_reason": FINISH.get(completion.finish_reason, completion.finish_reason),
    }


def _timings(usages: Sequence[Usage]) -> JsonObject:
    """Milliseconds, of the answer that took longest."""
    return {
        "prompt_ms": round(1000 * max((usage.prefill_seconds for usage in usages), default=0.0), 1),
        "predicted_ms": round(1000 * max((usage.decode_seconds for usage in usages), default=0.0), 1),
    }
