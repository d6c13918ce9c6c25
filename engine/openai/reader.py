"""Reads one choice of a Chat Completions stream, chunk by chunk, into events.

Knows: the fields of chunks and of complete responses, and how servers vary them. Sources: OpenAI API reference ("The
chat completion chunk object", "The chat completion object"); README of llama.cpp's tools/server (`reasoning_content`,
`timings`, errors); the public API documentation of DeepSeek, OpenRouter and Mistral for the other spellings of
reasoning and of usage. Does not know: transports, event streams, how reasoning from two sources is merged, how calls
are put together.
"""

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from engine.errors import RemoteError, RequestError
from engine.events import Event, Finished
from engine.families import Family, Format, ReasoningSyntax, builtin_families
from engine.openai.calls import Calls, Parts
from engine.openai.inline import Inline
from engine.openai.wire import Chunk, Diagnostics
from engine.parsing import Parser
from engine.parsing.emitter import Kind
from engine.tools import ToolLike, as_tools
from engine.types import FinishReason, Usage


def usage_of(chunk: Chunk, known: Usage | None, diagnostics: Diagnostics) -> Usage | None:
    """Returns the usage known after this chunk. Its numbers replace earlier ones, since servers that report in each
    chunk report totals."""
    usage = _record(chunk, "usage", diagnostics)
    timings = _record(chunk, "timings", diagnostics)
    if not usage and not timings:
        return known
    found = {**_of_timings(timings), **_of_usage(usage)}
    numbers: dict[str, int | float] = {}
    for name, value in found.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            diagnostics.report(f"{name} that is not a count", value)
        else:
            numbers[name] = value / 1000 if name.endswith("seconds") else int(value)
    return (known or Usage()).model_copy(update=numbers)


def _of_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    prompt, answer = _inner(usage, "prompt_tokens_details"), _inner(usage, "completion_tokens_details")
    found = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": prompt.get("cached_tokens", usage.get("prompt_cache_hit_tokens")),
        "reasoning_tokens": answer.get("reasoning_tokens"),
    }
    accepted, rejected = answer.get("accepted_prediction_tokens"), answer.get("rejected_prediction_tokens")
    if isinstance(accepted, int) and isinstance(rejected, int) and accepted + rejected:
        found |= {"accepted_tokens": accepted, "drafted_tokens": accepted + rejected}
    return {name: value for name, value in found.items() if value is not None}


def _of_timings(timings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the usage in `timings`, with times in milliseconds. The prompt's tokens are the evaluated and the cached
    ones."""
    cached, evaluated = timings.get("cache_n"), timings.get("prompt_n")
    both = cached + evaluated if isinstance(cached, int) and isinstance(evaluated, int) else evaluated
    return {
        "prompt_tokens": both,
        "cached_tokens": cached,
        "completion_tokens": timings.get("predicted_n"),
        "prefill_seconds": timings.get("prompt_ms"),
        "decode_seconds": timings.get("predicted_ms"),
        "drafted_tokens": timings.get("draft_n"),
        "accepted_tokens": timings.get("draft_n_accepted"),
    }


def _record(chunk: Chunk, name: str, diagnostics: Diagnostics) -> Mapping[str, Any]:
    value: object = chunk.get(name)
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    if value is not None:
        diagnostics.report(f"{name} that is not an object", value)
    return {}


def _inner(usage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value: object = usage.get(name)
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


INLINE_REASONING = Format(
    reasoning=ReasoningSyntax(
        open="<think>\n",
        close="\n</think>\n\n",
        also_open=("<thinking>\n", "<reasoning>\n", "<thought>\n"),
        also_close=("\n</thinking>\n\n", "\n</reasoning>\n\n", "\n</thought>\n\n"),
        where="start",
    )
)
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking", "reasoning_details")
_KNOWN_FIELDS = frozenset({"choices", "usage", "timings"})
_REASONS: Mapping[str, FinishReason] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence", "end_turn"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "model_length"), "length"),
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), "tool_calls"),
    **dict.fromkeys(("cancelled", "abort"), "cancelled"),
    **dict.fromkeys(("error", "content_filter"), "error"),
}


class TurnReader:
    """Takes chunks, returns events; `close` ends the turn."""

    def __init__(
        self,
        diagnostics: Diagnostics,
        *,
        tools: Sequence[ToolLike] | None = None,
        choice: int = 0,
        family: str | Family | Format | None = None,
        in_reasoning: bool = False,
    ) -> None:
        known = None if tools is None else as_tools(tools)
        self._diagnostics = diagnostics
        self._choice = choice
        self._parts = Parts(None if known is None else {tool.name: tool for tool in known})
        self._calls = Calls(self._parts, diagnostics)
        format_ = _format_of(family)
        parser = Parser(format_, _opening(format_) if in_reasoning else "", tools=known, id_salt=_salt())
        self._inline = Inline(self._parts, parser, only_at_start=family is None)
        self._reasoning_field = ""
        self._some_delta = False
        self._reason: FinishReason | None = None
        self._usage: Usage | None = None

    def feed(self, chunk: Chunk) -> list[Event]:
        """Read a chunk and return its events. Raises RemoteError if the chunk is an error of the server."""
        _raise_error(chunk)
        self._calls.salt = self._calls.salt or _text(chunk.get("id"))
        self._usage = usage_of(chunk, self._usage, self._diagnostics)
        if not _KNOWN_FIELDS & chunk.keys():
            self._diagnostics.report("a chunk without choices", dict(chunk))
        for choice in self._items(chunk, "choices"):
            _raise_error(choice)
            if (choice.get("index") or 0) == self._choice:
                self._read(choice)
        return self._parts.drain()

    def close(self, *, done: bool = False, cancelled: bool = False) -> list[Event]:
        """End the stream. `done`: the server sent `[DONE]`; a stream that just ends without a finish reason is an
        error."""
        reason: FinishReason = "cancelled" if cancelled else self._reason or ("stop" if done else "error")
        whole = reason in ("stop", "tool_calls")
        self._inline.settle("stop" if reason == "tool_calls" else reason)
        self._calls.salt = self._calls.salt or _salt()
        self._calls.close(cut=not whole)
        if whole:
            reason = "tool_calls" if self._parts.calls else "stop"
        return [*self._parts.drain(), Finished(reason, self._usage)]

    def _read(self, choice: Mapping[str, Any]) -> None:
        delta = self._record(choice, "delta")
        if delta is None and not self._some_delta:
            # A complete response; or the last chunk of a server that repeats the whole message in it.
            delta = self._record(choice, "message")
        if delta:
            self._some_delta = True
            self._delta(delta)
        if reason := choice.get("finish_reason"):
            self._reason = _REASONS.get(str(reason))
            if self._reason is None:
                self._diagnostics.report("an unknown finish reason, treated as an error", str(reason))
                self._reason = "error"

    def _delta(self, delta: Mapping[str, Any]) -> None:
        for name in _REASONING_FIELDS:
            # Only one field is read for the whole turn, since some servers send the same text in two.
            if self._reasoning_field in ("", name) and (text := _reasoning_text(delta.get(name))):
                self._reasoning_field = name
                self._write("reasoning", text)
        for kind, text in self._content(delta.get("content")):
            self._write(kind, text)
        self._write("content", _text(delta.get("refusal")))
        for call in self._items(delta, "tool_calls"):
            self._call(call)
        if legacy := self._record(delta, "function_call"):
            self._call({"index": 0, "function": legacy})

    def _write(self, kind: Kind, text: str) -> None:
        if not text:
            return
        if self._calls.open:
            self._calls.text(kind, text)
        elif kind == "reasoning":
            self._inline.reasoning(text)
        else:
            self._inline.content(text)

    def _call(self, delta: Mapping[str, Any]) -> None:
        self._inline.settle()
        self._calls.delta(delta)

    def _content(self, value: object) -> Iterator[tuple[Kind, str]]:
        """Yields the kind and text of a content: a string, or parts, some of which may be reasoning (Mistral)."""
        if isinstance(value, str):
            yield "content", value
        elif isinstance(value, list):
            for item in cast("list[object]", value):
                part = _mapping(item)
                if part.get("type") == "thinking":
                    yield "reasoning", _reasoning_text(part.get("thinking"))
                elif isinstance(item, str):
                    yield "content", item
                elif isinstance(text := part.get("text", part.get("refusal")), str):
                    yield "content", text
                else:
                    self._diagnostics.report("a part of the content that is not text", item)
        elif value is not None:
            self._diagnostics.report("content that is not text", value)

    def _items(self, record: Mapping[str, Any], name: str) -> Iterator[Mapping[str, Any]]:
        """Yields the items of a list of objects; nothing if it is absent or null."""
        value: object = record.get(name)
        items = cast("list[object]", value) if isinstance(value, list) else [] if value is None else [str(value)]
        for item in items:
            if isinstance(item, Mapping):
                yield _mapping(cast("object", item))
            else:
                self._diagnostics.report(f"{name} that are not a list of objects", item)

    def _record(self, record: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
        value: object = record.get(name)
        if isinstance(value, Mapping):
            return _mapping(cast("object", value))
        if value is not None:
            self._diagnostics.report(f"{name} that is not an object", value)
        return None


def _mapping(value: object) -> Mapping[str, Any]:
    """Returns the fields of an object; an empty mapping for anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def _format_of(family: str | Family | Format | None) -> Format:
    if isinstance(family, str):
        family = builtin_families().get(family)
    return family.format if isinstance(family, Family) else family or INLINE_REASONING


def _opening(format_: Format) -> str:
    if format_.reasoning is None:
        raise RequestError("in_reasoning=True, but this family has no reasoning in its content: leave the option out.")
    return format_.reasoning.open


def _salt() -> str:
    """Returns a random salt: made ids must differ between turns even if the server gives its responses no id."""
    return secrets.token_hex(8)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _reasoning_text(value: object) -> str:
    """Returns the text of a reasoning field: a string, or joined from its parts (`reasoning_details`: text and
    summaries)."""
    if not isinstance(value, list):
        return _text(value)
    found: list[str] = []
    for item in cast("list[object]", value):
        part = _mapping(item)
        found.append(_text(part.get("text")) or _text(part.get("summary")))
    return "".join(found)


def _raise_error(record: Mapping[str, Any]) -> None:
    error: object = record.get("error")
    if not error and record.get("object") == "error":
        error = record
    if not error:
        return
    fields = _mapping(error) or {"message": str(error)}
    code, type_, message = fields.get("code"), fields.get("type"), fields.get("message")
    kind = ", ".join(str(item) for item in (code, type_) if item)
    text = str(message or dict(fields)).rstrip(".")
    raise RemoteError(
        f"The server answered with an error{f' ({kind})' if kind else ''}: {text}. What came before it is valid; "
        "correct the request, or send it again if the server was at fault.",
        code,
        type_,
    )
