"""The body of a Chat Completions request read as a turn, and a finished turn as the body of its response.

Knows: OpenAI's fields (API reference, "Create chat completion" and "The chat completion object"), and the names that
llama.cpp's server (README of tools/server) and vLLM give to what OpenAI's API lacks: samplers, `chat_template_kwargs`,
`reasoning_content`, `timings`. Does not know: batches, files, engines.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, cast

from engine.constraint.matcher import refusal
from engine.constraint.response import response_of
from engine.errors import RequestError
from engine.options import TurnOptions, checked, prompt_options, sampling_params
from engine.template.conversation import check_last, conversation_of
from engine.tools import ToolLike, as_tools
from engine.types import Completion, Message, MessagesLike, Tool, Usage

JsonObject: TypeAlias = dict[str, Any]

_MOST_CHOICES = 128
_OPTIONS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "seed": "seed",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "top_n_sigma": "top_n_sigma",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "repeat_penalty": "repeat_penalty",
    "repetition_penalty": "repeat_penalty",
    "repeat_last_n": "penalty_last_n",
    "dry_multiplier": "dry_multiplier",
    "dry_base": "dry_base",
    "dry_allowed_length": "dry_allowed_length",
    "dry_penalty_last_n": "dry_last_n",
    "dry_sequence_breakers": "dry_breakers",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
    "ignore_eos": "ignore_eos",
    "stop_token_ids": "stop_tokens",
    "tool_choice": "tool_choice",
    "parallel_tool_calls": "parallel_tool_calls",
    "response_format": "response_format",
}
_WITHOUT_EFFECT = frozenset(
    {"model", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "stream_options"}
)
_EFFORTS = {"none": False, "low": "low", "medium": "medium", "high": "high"}


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
    if isinstance(asked, Mapping):  # most rows of a batch have the same
        _check_written_format(json.dumps(asked, sort_keys=True))
    elif asked is not None:
        _ = response_of(asked, refusal)


@lru_cache(maxsize=64)
def _check_written_format(text: str) -> None:
    _ = response_of(json.loads(text), refusal)


def read_body(body: Mapping[str, Any], defaults: Mapping[str, Any], tools: Sequence[ToolLike] | None = None) -> Turn:
    """What a body asks for. `defaults` are options, and `tools` tools, for a body that names none.

    A null counts as absent. Raises RequestError, naming the field, for what is not valid and for what this engine
    cannot do.
    """
    given = {name: value for name, value in body.items() if value is not None and name not in _WITHOUT_EFFECT}
    messages = _take(given, "messages", list)
    if messages is None:
        raise RequestError('The body has no "messages"; give a list of messages.')
    n = _take(given, "n", int)
    n = 1 if n is None else n
    if not 1 <= n <= _MOST_CHOICES:
        raise RequestError(f'"n" is {n}; ask for 1 to {_MOST_CHOICES} answers.')
    own = _take(given, "tools", list)
    options = {**defaults, **_options(given)}
    if given:
        raise RequestError(f'The body has a field "{next(iter(given))}", which this engine does not know; remove it.')
    return turn(messages, tools if own is None else own, options, n)


def _options(given: JsonObject) -> JsonObject:
    """Take the options out of the fields that are left."""
    if given.pop("stream", False):
        raise RequestError('"stream" is true; a batch returns whole responses: remove it.')
    options: JsonObject = {_OPTIONS[name]: given.pop(name) for name in list(given) if name in _OPTIONS}
    for name, read in _READ.items():
        if name in given:
            options |= read(given.pop(name))
    top = _take(given, "top_logprobs", int)
    if options.pop("logprobs", False):
        options["logprobs"] = top or 0
    elif top is not None:
        raise RequestError('"top_logprobs" is given without "logprobs": true; add that, or remove it.')
    return options


def _take(given: JsonObject, name: str, kind: type[Any]) -> Any:
    value = given.pop(name, None)
    if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
        raise _wrong(name, value, {list: "a list", int: "a whole number"}[kind])
    return value


def _wrong(name: str, value: object, wanted: str) -> RequestError:
    shown = repr(value)
    return RequestError(f'"{name}" is {shown if len(shown) <= 80 else f"{shown[:77]}..."}; it must be {wanted}.')


def _stop(value: object) -> JsonObject:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in cast("list[object]", texts)):
        raise _wrong("stop", value, "a text, or a list of texts")
    return {"stop": texts}


def _logit_bias(value: object) -> JsonObject:
    try:
        return {"logit_bias": {int(token): float(bias) for token, bias in cast("Mapping[str, Any]", value).items()}}
    except (AttributeError, TypeError, ValueError) as error:
        raise _wrong("logit_bias", value, 'an object of token numbers and numbers, such as {"42": -100}') from error


def _logprobs(value: object) -> JsonObject:
    if not isinstance(value, bool):
        raise _wrong("logprobs", value, 'true or false ("top_logprobs" says how many)')
    return {"logprobs": value}


def _effort(value: object) -> JsonObject:
    if not isinstance(value, str) or value not in _EFFORTS:
        raise _wrong("reasoning_effort", value, f"one of {', '.join(map(repr, _EFFORTS))}")
    return {"reasoning": _EFFORTS[value]}


def _template_kwargs(value: object) -> JsonObject:
    if not isinstance(value, Mapping):
        raise _wrong("chat_template_kwargs", value, "an object")
    variables = dict(cast("Mapping[str, Any]", value))
    switch = variables.pop("enable_thinking", None)
    found: JsonObject = {"reasoning": switch} if isinstance(switch, bool) else {}
    return {**found, "template_kwargs": variables} if variables else found


def _samplers(value: object) -> JsonObject:
    if not isinstance(value, list):
        raise _wrong("samplers", value, "a list of names")
    return {"samplers": ["typical_p" if name == "typ_p" else name for name in cast("list[object]", value)]}


_READ: Mapping[str, Callable[[object], JsonObject]] = {
    "stop": _stop,
    "logit_bias": _logit_bias,
    "logprobs": _logprobs,
    "reasoning_effort": _effort,
    "chat_template_kwargs": _template_kwargs,
    "samplers": _samplers,
}


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
        "usage": usage_body(usages),
        "service_tier": None,
        "system_fingerprint": None,
        "timings": _timings(usages),
    }


def _choice(index: int, completion: Completion) -> JsonObject:
    message: JsonObject = {"role": "assistant", "content": completion.content or None, "refusal": None}
    if completion.reasoning:
        message["reasoning_content"] = completion.reasoning
    if completion.tool_calls:
        message["tool_calls"] = [call.openai() for call in completion.tool_calls]
    else:
        message["content"] = completion.content
    # OpenAI has no word for a deadline: the answer is cut off, as it is by a limit of tokens.
    reason = "length" if completion.finish_reason == "deadline" else completion.finish_reason
    return {"index": index, "message": message, "logprobs": _logprobs_body(completion), "finish_reason": reason}


def _logprobs_body(completion: Completion) -> JsonObject | None:
    if not completion.logprobs:
        return None

    def entry(token: Any) -> JsonObject:
        return {"token": token.text, "logprob": token.logprob, "bytes": list(token.bytes)}

    content = [{**entry(token), "top_logprobs": [entry(other) for other in token.top]} for token in completion.logprobs]
    return {"content": content, "refusal": None}


def usage_body(usages: Sequence[Usage]) -> JsonObject:
    """The `usage` of one request; several answers to one prompt count it once."""
    prompt, cached = (usages[0].prompt_tokens, usages[0].cached_tokens) if usages else (0, 0)
    written = sum(usage.completion_tokens for usage in usages)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "total_tokens": prompt + written,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": sum(usage.reasoning_tokens for usage in usages)},
    }


def _timings(usages: Sequence[Usage]) -> JsonObject:
    """Milliseconds, of the answer that took longest."""
    return {
        "prompt_ms": round(1000 * max((usage.prefill_seconds for usage in usages), default=0.0), 1),
        "predicted_ms": round(1000 * max((usage.decode_seconds for usage in usages), default=0.0), 1),
    }
