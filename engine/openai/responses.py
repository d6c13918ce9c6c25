"""Responses: reads a request's body into engine options, and writes a turn as events or as one object."""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from engine.openai.fields import RESPONSES_FIELDS
from engine.openai.parameters import Json, read_effort, read_response_format
from engine.openai.problems import Problem, bad
from engine.openai.request import Request, read_request
from engine.openai.response_items import encoded
from engine.openai.streaming import CallStart, ClientEvent, made_id
from engine.support.errors import shown
from engine.types.completion import Completion, Usage
from engine.types.events import ContentDelta, Finished, ReasoningDelta, ToolCallDelta, ToolCallEnd
from engine.types.parts import ReasoningPart, TextPart, ToolCall
from engine.types.sampling import FinishReason, TokenLogprob

_CUT: frozenset[FinishReason] = frozenset({"length", "deadline"})
_SAMPLING = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
_ENCRYPTED = "reasoning.encrypted_content"


def read_responses(body: Json) -> Request:
    """Read a body of `POST /responses`. Raises Problem for what is missing, not valid, or not supported."""
    request = read_request(RESPONSES_FIELDS, body, _options)
    request.names["messages"] = "input"
    return request


def _options(values: Json) -> Iterator[tuple[str, str, object]]:
    if "input" not in values and "previous_response_id" not in values:
        raise bad("input is missing; pass a string or a list of items.", "input", "missing_required_parameter")
    for name in values.get("include", ()):
        if name != _ENCRYPTED:
            raise bad(f"include={shown(name)} is not supported; {_ENCRYPTED!r} is.", "include", "unsupported_parameter")
    if (effort := _member(values, "reasoning", "effort", "summary", "generate_summary")) is not None:
        yield "reasoning", "reasoning.effort", read_effort(effort, "reasoning.effort")
    if values.get("truncation") == "auto":
        yield "overflow", "truncation", "truncate_oldest"
    form = _member(values, "text", "format", "verbosity")
    if form is not None and (format_ := read_response_format(form, "text.format")) is not None:
        yield "response_format", "text.format", format_


def _member(values: Json, field: str, name: str, *idle: str) -> object:
    """Returns a member of a field. Raises Problem for members other than it and those that do nothing."""
    members: Json = values.get(field, {})
    for each, value in members.items():
        if each not in (name, *idle) and value is not None:
            raise bad(f"{field} has no field {shown(each)} here.", f"{field}.{each}", "unknown_parameter")
    return members.get(name)


def _echo(request: Request) -> Json:
    """Returns the part of a request that its response repeats."""
    values = request.values
    same = ("instructions", "max_output_tokens", "previous_response_id")
    ignored = ("max_tool_calls", "prompt_cache_key", "safety_identifier", "user")
    return {
        **{name: values.get(name) for name in same},
        **{name: request.body.get(name) for name in ignored},
        "metadata": values.get("metadata", {}),
        "parallel_tool_calls": values.get("parallel_tool_calls", True),
        "reasoning": {"effort": values.get("reasoning", {}).get("effort"), "summary": None},
        "store": values.get("store", True),
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

    @property
    def place(self) -> Json:
        return {"item_id": self.item["id"], "output_index": self.index}


class ResponsesAnswer:
    """The projection of one request: a turn as events, or as one object.

    model: the name in the response. sampling: the options that the answer is drawn with, where the request has none.
    finished: called with the finished response, streamed or not.
    """

    def __init__(
        self, request: Request, model: str, sampling: Mapping[str, Any], finished: Callable[[Json], None]
    ) -> None:
        self._encrypts = _ENCRYPTED in request.values.get("include", ())
        self._finished = finished
        self._head: Json = {
            "id": _made("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "model": model,
            **_echo(request),
            **{name: request.options.get(name, sampling.get(name)) for name in _SAMPLING},
        }
        self._output: list[Json] = []
        self._open: _Open | None = None
        self._number = 0
        self._end: Finished | None = None

    def opening(self) -> Iterator[bytes]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, {"response": self._response("in_progress", None, [])})

    def event(self, choice: int, event: ClientEvent, logprobs: Sequence[TokenLogprob]) -> Iterator[bytes]:
        del choice, logprobs
        match event:
            case ReasoningDelta(text, part):
                yield from self._text(_reasoning_item(), part, text)
            case ContentDelta(text, part):
                yield from self._text(_message_item(), part, text)
            case CallStart(_, id_, name, part, arguments):
                yield from self._add(_call_item(name, id_), part)
                yield from self._arguments(arguments)
            case ToolCallDelta(text=text):
                yield from self._arguments(text)
            case ToolCallEnd(error=error):
                yield from self._close(_call_status(error))
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
            yield from self._add(item, part)
        now = self._open
        assert now is not None
        now.texts.append(text)
        kind, more = _TEXT_KINDS[now.item["type"]]
        yield self._event(f"response.{kind}.delta", {**now.place, "content_index": 0, "delta": text, **more})

    def _add(self, item: Json, part: int) -> Iterator[bytes]:
        yield from self._close("completed")
        self._open = now = _Open(item, len(self._output), part)
        yield self._event("response.output_item.added", {"output_index": now.index, "item": item})
        if item["type"] != "function_call":
            added = {**now.place, "content_index": 0, "part": _part(item, "")}
            yield self._event("response.content_part.added", added)

    def _arguments(self, text: str) -> Iterator[bytes]:
        if text and self._open is not None:
            self._open.texts.append(text)
            yield self._event("response.function_call_arguments.delta", {**self._open.place, "delta": text})

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
            kind, more = _TEXT_KINDS[done["type"]]
            yield self._event(f"response.{kind}.done", {**now.place, "content_index": 0, "text": text, **more})
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
            "usage": usage_object(usage) if usage else None,
        }


_TEXT_KINDS: Mapping[str, tuple[str, Json]] = {
    "reasoning": ("reasoning_text", {}),
    "message": ("output_text", {"logprobs": []}),
}
"""The kind of events of an item with text, and what else they hold."""


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
