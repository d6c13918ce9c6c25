"""Responses: reads a request's body into engine options, and writes a turn as events or as one object."""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.events import ContentDelta, Event, Finished, ReasoningDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from engine.openai.fields import RESPONSES_FIELDS, engine_options, given_fields
from engine.openai.items import encoded, stored_items
from engine.openai.parameters import (
    Json,
    fields_of,
    merged,
    read_effort,
    read_response_format,
    read_tool_choice,
    read_tools,
)
from engine.openai.problems import Problem, bad
from engine.openai.projection import CallText, made_id
from engine.openai.servers import server_options
from engine.types import Completion, FinishReason, ReasoningPart, TextPart, TokenLogprob, Tool, ToolCall, Usage

_CUT: frozenset[FinishReason] = frozenset({"length", "deadline"})
_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
_ENCRYPTED = "reasoning.encrypted_content"


@dataclass(frozen=True, slots=True)
class ResponsesRequest:
    """A body that was read. `items` are the input's; `options` are the engine's options, `names` the request field that
    each came from; `echo` is the part of the request that the response repeats."""

    model: str | None
    items: list[Json]
    instructions: str | None
    previous: str | None
    tools: tuple[Tool, ...]
    options: Json
    names: dict[str, str]
    stream: bool
    store: bool
    encrypts: bool
    echo: Json
    ignored: tuple[str, ...]


def read_responses(body: Json) -> ResponsesRequest:
    """Read a body of `POST /responses`. Raises Problem for what is missing, not valid, or not supported."""
    given = given_fields(RESPONSES_FIELDS, body)
    values = given.values
    if "input" not in values and "previous_response_id" not in values:
        raise bad("input is missing; pass a string or a list of items.", "input", "missing_required_parameter")
    for name in values.get("include", ()):
        if name != _ENCRYPTED:
            raise bad(f"include={name!r} is not supported; {_ENCRYPTED!r} is.", "include", "unsupported_parameter")
    _check_stream_options(values)
    options, names, tools = _options(values)
    return ResponsesRequest(
        model=values.get("model"),
        items=stored_items(values.get("input", [])),
        instructions=values.get("instructions"),
        previous=values.get("previous_response_id"),
        tools=tools,
        options=options,
        names=names,
        stream=bool(values.get("stream", False)),
        store=body.get("store") is not False,
        encrypts=_ENCRYPTED in values.get("include", ()),
        echo=_echo(values, body),
        ignored=given.ignored,
    )


def _check_stream_options(values: Json) -> None:
    options = values.get("stream_options")
    if options is None:
        return
    if not values.get("stream"):
        raise bad("stream_options is for streams; leave it out, or set stream=true.", "stream_options")
    for name in options:
        if name != "include_obfuscation":
            raise bad(f"stream_options has no field {name!r}.", f"stream_options.{name}", "unknown_parameter")


def _options(values: Json) -> tuple[Json, dict[str, str], tuple[Tool, ...]]:
    """Returns the engine's options, the field that each came from, and the tools."""
    tools = read_tools(values.get("tools", []), "tools")
    found, names = merged((*_of_openai(values, tools), *server_options(values), *_of_engine(values)))
    return found, {"messages": "input", **names}, tools


def _of_openai(values: Json, tools: Sequence[Tool]) -> Iterator[tuple[str, str, object]]:
    """Yields an engine option, the OpenAI field that gave it, and its value."""
    if "max_output_tokens" in values:
        yield "max_tokens", "max_output_tokens", values["max_output_tokens"]
    if (effort := _effort(values.get("reasoning", {}))) is not None:
        yield "reasoning", "reasoning.effort", read_effort(effort, "reasoning.effort")
    if values.get("truncation") == "auto":
        yield "overflow", "truncation", "truncate_oldest"
    if (format_ := read_response_format(_text_format(values.get("text", {})), "text.format")) is not None:
        yield "response_format", "text.format", format_
    if "tool_choice" in values and (choice := read_tool_choice(values["tool_choice"], tools)) != "auto":
        yield "tool_choice", "tool_choice", choice
    if tools and "parallel_tool_calls" in values:
        yield "parallel_tool_calls", "parallel_tool_calls", values["parallel_tool_calls"]


def _of_engine(values: Json) -> Iterator[tuple[str, str, object]]:
    """Yields the same for the engine's options under their own names."""
    taken = {"max_tokens", "reasoning", "tool_choice", "response_format", "parallel_tool_calls", "logprobs"}
    taken |= {"overflow"} if values.get("truncation") == "auto" else set()
    for option, value in engine_options(values, dict.fromkeys(taken)).items():
        yield option, option, value


def _effort(given: Json) -> object:
    for name, value in given.items():
        if name not in ("effort", "summary", "generate_summary") and value is not None:
            raise bad(f"reasoning has no field {name!r} here.", f"reasoning.{name}", "unknown_parameter")
    return given.get("effort")


def _text_format(given: Json) -> Json | None:
    for name, value in given.items():
        if name not in ("format", "verbosity") and value is not None:
            raise bad(f"text has no field {name!r}.", f"text.{name}", "unknown_parameter")
    format_ = given.get("format")
    return None if format_ is None else fields_of(format_, "text.format")


def _echo(values: Json, body: Json) -> Json:
    return {
        "instructions": values.get("instructions"),
        "max_output_tokens": values.get("max_output_tokens"),
        **{name: body.get(name) for name in ("max_tool_calls", "prompt_cache_key", "safety_identifier", "user")},
        "metadata": values.get("metadata", {}),
        "parallel_tool_calls": values.get("parallel_tool_calls", True),
        "previous_response_id": values.get("previous_response_id"),
        "reasoning": {"effort": values.get("reasoning", {}).get("effort"), "summary": None},
        "store": body.get("store") is not False,
        "text": {"format": values.get("text", {}).get("format") or {"type": "text"}},
        "tool_choice": values.get("tool_choice", "auto"),
        "tools": [_tool(item) for item in values.get("tools", [])],
        "truncation": values.get("truncation", "disabled"),
    }


def _tool(item: Json) -> Json:
    inner = item.get("function", item)
    return {"type": "function", **{key: inner.get(key) for key in ("name", "description", "parameters", "strict")}}


class _Open:
    """The item that is being written. `part`: its index among the turn's parts."""

    def __init__(self, item: Json, index: int, part: int) -> None:
        self.item = item
        self.index = index
        self.part = part
        self.texts: list[str] = []
        self.arguments = CallText()

    @property
    def place(self) -> Json:
        return {"item_id": self.item["id"], "output_index": self.index}


class ResponsesAnswer:
    """The projection of one request: a turn as events, or as one object.

    model: the name in the response. sampling: the options that the answer is drawn with, where the request has none.
    finished: called with the finished response, streamed or not.
    """

    def __init__(
        self,
        request: ResponsesRequest,
        model: str,
        sampling: Mapping[str, float],
        finished: Callable[[Json], None],
    ) -> None:
        self._encrypts = request.encrypts
        self._finished = finished
        self._head: Json = {
            "id": f"resp_{secrets.token_hex(24)}",
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            **request.echo,
            **{name: request.options.get(name, sampling.get(name)) for name in _SAMPLING},
        }
        self._output: list[Json] = []
        self._open: _Open | None = None
        self._late: ToolCallStart | None = None
        self._number = 0
        self._end: Finished | None = None

    def opening(self) -> Iterator[bytes]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, {"response": self._response("in_progress", None, [])})

    def event(self, choice: int, event: Event, logprobs: Sequence[TokenLogprob]) -> Iterator[bytes]:
        del choice, logprobs
        match event:
            case ReasoningDelta(text, part):
                yield from self._text(_reasoning_item(), part, text)
            case ContentDelta(text, part):
                yield from self._text(_message_item(), part, text)
            case ToolCallStart(id=id_):
                yield from self._close("completed")
                self._late = None if id_ else event
                if id_:
                    yield from self._add(_call_item(event.name, id_), event.part)
            case ToolCallDelta(text=text):
                if self._open is not None:
                    yield from self._arguments(self._open, self._open.arguments.more(text))
            case ToolCallEnd():
                yield from self._call_end(event)
            case Finished(reason):
                self._end = event
                unended = self._open is not None and self._open.item["type"] == "function_call"
                yield from self._close("incomplete" if unended or reason in _CUT else "completed")
            case _:
                pass

    def closing(self) -> Iterator[bytes]:
        assert self._end is not None  # `Reading` calls this only after `Finished`
        status = _status(self._end.reason)
        response = self._response(status, self._end.usage, self._output)
        self._finished(response)
        yield self._event(f"response.{status}", {"response": response})

    def failed(self, problem: Problem) -> Iterator[bytes]:
        yield from self._close("incomplete")
        response = self._response("failed", None, self._output)
        response["error"] = {"code": "server_error", "message": problem.message}
        yield self._event("response.failed", {"response": response})

    def whole(self, completions: Sequence[Completion]) -> Json:
        (completion,) = completions
        cut = completion.finish_reason in _CUT
        last = len(completion.parts) - 1
        output = [self._item(part, cut=cut and number == last) for number, part in enumerate(completion.parts)]
        response = self._response(_status(completion.finish_reason), completion.usage, output)
        self._finished(response)
        return response

    def _item(self, part: ReasoningPart | TextPart | ToolCall, *, cut: bool) -> Json:
        if isinstance(part, ToolCall):
            item = _call_item(part.name, part.id or made_id())
            return _ended(item, part.arguments.strip(), _call_status(part.error))
        item = _reasoning_item() if isinstance(part, ReasoningPart) else _message_item()
        return _ended(item, part.text, "incomplete" if cut else "completed", encrypts=self._encrypts)

    def _text(self, item: Json, part: int, text: str) -> Iterator[bytes]:
        if self._open is None or self._open.part != part:
            yield from self._close("completed")
            yield from self._add(item, part)
        now = self._open
        assert now is not None
        now.texts.append(text)
        if now.item["type"] == "reasoning":
            yield self._event("response.reasoning_text.delta", {**now.place, "content_index": 0, "delta": text})
        else:
            logprobs: Json = {"logprobs": []}
            yield self._event(
                "response.output_text.delta", {**now.place, "content_index": 0, "delta": text, **logprobs}
            )

    def _add(self, item: Json, part: int) -> Iterator[bytes]:
        self._open = now = _Open(item, len(self._output), part)
        yield self._event("response.output_item.added", {"output_index": now.index, "item": item})
        if item["type"] != "function_call":
            added = {**now.place, "content_index": 0, "part": _part(item, "")}
            yield self._event("response.content_part.added", added)

    def _arguments(self, now: _Open, text: str) -> Iterator[bytes]:
        if text:
            now.texts.append(text)
            yield self._event("response.function_call_arguments.delta", {**now.place, "delta": text})

    def _call_end(self, event: ToolCallEnd) -> Iterator[bytes]:
        """End a call. A call whose id comes at its end begins here, since an item's ids are sent when it begins."""
        if self._late is not None:
            yield from self._add(_call_item(self._late.name, event.id or made_id()), event.part)
            self._late = None
        if self._open is not None:
            yield from self._arguments(self._open, self._open.arguments.rest(event.arguments))
            yield from self._close(_call_status(event.error))

    def _close(self, status: str) -> Iterator[bytes]:
        """End the open item."""
        now, self._open = self._open, None
        if now is None:
            return
        text = "".join(now.texts)
        done = _ended(now.item, text, status, encrypts=self._encrypts)
        self._output.append(done)
        if done["type"] == "function_call":
            data = {**now.place, "name": done["name"], "arguments": text}
            yield self._event("response.function_call_arguments.done", data)
        else:
            reasoning = done["type"] == "reasoning"
            logprobs: Json = {} if reasoning else {"logprobs": []}
            data = {**now.place, "content_index": 0, "text": text, **logprobs}
            yield self._event(f"response.{'reasoning_text' if reasoning else 'output_text'}.done", data)
            part = {**now.place, "content_index": 0, "part": _part(done, text)}
            yield self._event("response.content_part.done", part)
        yield self._event("response.output_item.done", {"output_index": now.index, "item": done})

    def _event(self, kind: str, data: Mapping[str, Any]) -> bytes:
        body = {"type": kind, "sequence_number": self._number, **data}
        self._number += 1
        # ASCII only: some clients split lines at every separator that Unicode has.
        return f"event: {kind}\ndata: {json.dumps(body)}\n\n".encode()

    def _response(self, status: str, usage: Usage | None, output: Sequence[Json]) -> Json:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._head,
            "status": status,
            "background": False,
            "completed_at": int(time.time()) if status == "completed" else None,
            "error": None,
            "incomplete_details": cut,
            "output": list(output),
            "service_tier": "default",
            "top_logprobs": 0,
            "usage": None if usage is None else usage_object(usage),
        }


def _status(reason: FinishReason) -> str:
    return "incomplete" if reason in _CUT else "completed"


def _call_status(error: str | None) -> str:
    return "incomplete" if error == "truncated" else "completed"


def _reasoning_item() -> Json:
    return {"id": _made("rs"), "type": "reasoning", "status": "in_progress", "summary": [], "content": []}


def _message_item() -> Json:
    return {"id": _made("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": []}


def _call_item(name: str, call_id: str) -> Json:
    kind = {"id": _made("fc"), "type": "function_call", "status": "in_progress"}
    return {**kind, "call_id": call_id, "name": name, "arguments": ""}


def _made(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(24)}"


def _part(item: Json, text: str) -> Json:
    if item["type"] == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _ended(item: Json, text: str, status: str, *, encrypts: bool = False) -> Json:
    """Returns a finished item."""
    if item["type"] == "function_call":
        return {**item, "status": status, "arguments": text}
    more = {"encrypted_content": encoded(text)} if encrypts and item["type"] == "reasoning" else {}
    return {**item, "status": status, "content": [_part(item, text)], **more}


def usage_object(usage: Usage) -> Json:
    """Returns OpenAI's usage of a response."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
