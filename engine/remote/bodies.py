"""Builds the body of a Chat Completions request from our messages, tools and options.

Sources: OpenAI API reference ("Create chat completion"); README of llama.cpp's tools/server, for fields beyond it: the
samplers' names, `chat_template_kwargs`, `reasoning_effort`, `reasoning_content` in history.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, Unpack, cast

from engine.support.errors import RequestError, shown
from engine.tools import ToolLike, as_tools
from engine.tools.formats import USUAL
from engine.tools.subschemas import Schema, mapped
from engine.turns.options import SamplingOptions, refuse_unknown, sampling_params
from engine.types.answer_formats import ResponseFormat
from engine.types.conversation import as_mapping, conversation_of
from engine.types.messages import Message, MessagesLike
from engine.types.sampling import Reasoning, SamplingParams
from engine.types.tools import Tool, ToolChoice, ToolName

ReasoningField: TypeAlias = Literal["reasoning_content", "reasoning"]

_SERVER_NAMES = {
    "penalty_last_n": "repeat_last_n",
    "dry_last_n": "dry_penalty_last_n",
    "dry_breakers": "dry_sequence_breakers",
    "stop_tokens": "stop_token_ids",  # vLLM's and SGLang's name; llama-server knows none
}


class RequestOptions(SamplingOptions, total=False):
    """The options of a request in addition to messages and tools.

    - `model`: the server's name for the model; left out when None (llama-server has only one).
    - `tool_choice`: a `ToolName` goes out as OpenAI's object; llama-server knows only the three words.
    - `response_format`: a record, or OpenAI's dictionary, which is sent unchanged.
    - `reasoning`: True and False become `chat_template_kwargs: {"enable_thinking": ...}` (llama-server, vLLM, SGLang;
      OpenAI's own API refuses that field), "low", "medium" and "high" become `reasoning_effort`. None leaves it to the
      server.
    - `reasoning_field`: the field for earlier reasoning, by default "reasoning_content"; one field only, since
      servers and frameworks double it otherwise. None drops it, as OpenAI's own API requires.
    - `template_kwargs`: variables for the server's chat template, which override `reasoning`.
    - `stream`: by default True, which requests the usage too.
    - `extra`: fields of the body, sent unchanged; they override all others.
    """

    model: str | None
    tool_choice: ToolChoice
    parallel_tool_calls: bool | None
    response_format: ResponseFormat | Mapping[str, Any] | None
    reasoning: Reasoning | None
    reasoning_field: ReasoningField | None
    template_kwargs: Mapping[str, Any] | None
    stream: bool
    extra: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class _Settings:
    """`RequestOptions` beside those of sampling, with the default of each."""

    model: str | None = None
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | Mapping[str, Any] | None = None
    reasoning: Reasoning | None = None
    reasoning_field: ReasoningField | None = "reasoning_content"
    template_kwargs: Mapping[str, Any] | None = None
    stream: bool = True
    extra: Mapping[str, Any] | None = None


def request(
    messages: MessagesLike,
    tools: Sequence[ToolLike] | None = None,
    *,
    sampling: SamplingParams | None = None,
    **options: Unpack[RequestOptions],
) -> dict[str, Any]:
    """Returns the body of a request, for any OpenAI-compatible server: plain dictionaries, ready for JSON.

    messages: a user's text, one message, a list. tools: functions, pydantic models, `Tool`s, dictionaries. sampling: a
    record of sampling options, which single options override; only fields that were set are sent, under OpenAI's names
    where it has them, llama-server's for the rest.

    Arguments of earlier calls that are not a JSON object are sent as `{"arguments": "<what the model wrote>"}`, since
    servers would refuse the whole request. Raises RequestError for messages, tools or options that are not valid.
    """
    refuse_unknown(options, RequestOptions.__optional_keys__)
    own: dict[str, Any] = {name: value for name, value in options.items() if name not in SamplingParams.model_fields}
    records, settings = as_tools(tools), _Settings(**own)
    reasoning = settings.reasoning
    gate: dict[str, Any] = {"enable_thinking": reasoning} if isinstance(reasoning, bool) else {}
    body: dict[str, Any] = {
        "model": settings.model,
        "messages": [_message(message, settings.reasoning_field) for message in conversation_of(messages)],
        "tools": [_sent(tool) for tool in records] or None,
        "tool_choice": _choice(settings.tool_choice, [tool.name for tool in records]),
        "parallel_tool_calls": settings.parallel_tool_calls if records else None,
        "response_format": _response_format(settings.response_format),
        "reasoning_effort": None if isinstance(reasoning, bool) else reasoning,
        "chat_template_kwargs": {**gate, **(settings.template_kwargs or {})} or None,
        "stream": settings.stream,
        "stream_options": {"include_usage": True} if settings.stream else None,
        **_sampling(sampling, options),
        **(settings.extra or {}),
    }
    return {name: value for name, value in body.items() if value is not None}


def client_arguments(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a request's body as arguments of the `openai` client's `chat.completions.create`, which accepts fields
    that are not OpenAI's own only in `extra_body`."""
    named = {"model": "", **{name: body[name] for name in ("model", "messages", "stream") if name in body}}
    rest = {name: value for name, value in body.items() if name not in named}
    return {**named, "extra_body": rest} if rest else named


def _message(message: Message, reasoning_field: ReasoningField | None) -> dict[str, Any]:
    calls = tuple(call.model_copy(update={"arguments": _arguments(call.arguments)}) for call in message.tool_calls)
    return message.model_copy(update={"tool_calls": calls}).openai(reasoning_field)


def _arguments(text: str) -> str:
    try:
        fits = as_mapping(json.loads(text)) is not None
    except (ValueError, RecursionError):
        fits = False
    return text if fits else json.dumps({"arguments": text} if text.strip() else {}, ensure_ascii=False)


def _choice(choice: ToolChoice, names: Sequence[str]) -> str | dict[str, Any] | None:
    name = choice.name if isinstance(choice, ToolName) else None
    if name is None and choice not in ("auto", "none", "required"):
        raise RequestError(f'tool_choice={shown(choice)} must be "auto", "none", "required" or ToolName(name="...").')
    missing = name not in names if name is not None else choice == "required" and not names
    if missing:
        raise RequestError(
            f"tool_choice={shown(choice)} asks for a tool that the request does not have; its tools: "
            f"{', '.join(names) or 'none'}."
        )
    if name is not None:
        return {"type": "function", "function": {"name": name}}
    return None if choice == "auto" or not names else str(choice)


def _sent(tool: Tool) -> dict[str, Any]:
    """Returns a tool as other servers know it: some refuse the whole request for a key or a format that they do not."""
    return tool.model_copy(update={"returns": None, "parameters": _usual(tool.parameters)}).openai()


def _usual(schema: Schema) -> dict[str, Any]:
    copy = mapped(schema, lambda _, child: _usual(child), "$")
    name = copy.get("format")
    return {**copy, "format": USUAL[name]} if isinstance(name, str) and name in USUAL else copy


def _response_format(format_: ResponseFormat | Mapping[str, Any] | None) -> dict[str, Any] | None:
    if format_ is None or isinstance(format_, Mapping):
        return None if format_ is None else dict(format_)
    if format_.type == "text":
        return None
    if format_.type == "json_object":
        return {"type": "json_object"}
    schema = {"name": "answer", "strict": True, "schema": format_.json_schema or {}}
    return {"type": "json_schema", "json_schema": schema}


def _sampling(sampling: SamplingParams | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields that the caller set; the server chooses the defaults."""
    body: dict[str, Any] = {}
    for record in (sampling, sampling_params(options)):
        for name in record.model_fields_set if record else ():
            if (value := getattr(record, name)) is not None:
                body |= _server_fields(name, value)
    return body


def _server_fields(name: str, value: Any) -> dict[str, Any]:
    match name:
        case "logits_processors" if value:
            raise RequestError("logits_processors are functions and cannot be sent; use logit_bias, or a local Engine.")
        case "logits_processors":
            return {}
        case "samplers":
            return {"samplers": ["typ_p" if sampler == "typical_p" else sampler for sampler in value]}
        case "logit_bias":
            return {"logit_bias": {str(token): bias for token, bias in value}}
        case "logprobs":
            return {"logprobs": True, "top_logprobs": value}
        case _:
            return {
                _SERVER_NAMES.get(name, name): list(cast("tuple[object, ...]", value))
                if isinstance(value, tuple)
                else value
            }
