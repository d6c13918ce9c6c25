"""Reads one choice of a Chat Completions stream, chunk by chunk, into events.

Sources: OpenAI API reference ("The chat completion chunk object", "The chat completion object"); README of llama.cpp's
tools/server (`reasoning_content`, `timings`, errors); the public API documentation of DeepSeek, OpenRouter and Mistral
for the other spellings of reasoning and of usage.
"""

import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypedDict, cast

from engine.formats.families import REASONING_FIELDS, Family, Format, ReasoningSyntax, builtin_families
from engine.formats.parsing import Parser
from engine.formats.parsing.emitter import Kind
from engine.remote.calls import Calls, Parts
from engine.remote.inline import Inline
from engine.remote.wire import Chunk, Diagnostics, Wire, mapping_of, text_of
from engine.support.errors import RemoteError, RequestError, shown
from engine.tools import ToolLike, as_tools
from engine.types.completion import Usage
from engine.types.events import Event, Finished
from engine.types.sampling import FinishReason


def usage_of(chunk: Chunk, before: Usage | None, diagnostics: Diagnostics) -> Usage | None:
    """Returns the usage known after this chunk. Its numbers replace earlier ones, since servers that report in each
    chunk report totals."""
    usage, timings = diagnostics.record(chunk, "usage"), diagnostics.record(chunk, "timings")
    if not usage and not timings:
        return before
    numbers: dict[str, int | float] = {}
    for name, value in (*_of_timings(timings).items(), *_of_usage(usage).items()):
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            diagnostics.report(f"{name} that is not a count", value)
        else:
            numbers[name] = value / 1000 if name.endswith("seconds") else int(value)
    return (before or Usage()).model_copy(update=numbers)


def _of_usage(usage: Chunk) -> Chunk:
    prompt = mapping_of(usage.get("prompt_tokens_details"))
    answer = mapping_of(usage.get("completion_tokens_details"))
    accepted, rejected = answer.get("accepted_prediction_tokens"), answer.get("rejected_prediction_tokens")
    drafted = accepted + rejected if isinstance(accepted, int) and isinstance(rejected, int) else 0
    return {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": prompt.get("cached_tokens", usage.get("prompt_cache_hit_tokens")),
        "reasoning_tokens": answer.get("reasoning_tokens"),
        "accepted_tokens": accepted if drafted else None,
        "drafted_tokens": drafted or None,
    }


def _of_timings(timings: Chunk) -> Chunk:
    """Returns the usage in `timings`, with times in milliseconds. The prompt's tokens are the evaluated and the cached
    ones."""
    cached, evaluated = timings.get("cache_n"), timings.get("prompt_n")
    return {
        "prompt_tokens": cached + evaluated if isinstance(cached, int) and isinstance(evaluated, int) else evaluated,
        "cached_tokens": cached,
        "completion_tokens": timings.get("predicted_n"),
        "prefill_seconds": timings.get("prompt_ms"),
        "decode_seconds": timings.get("predicted_ms"),
        "drafted_tokens": timings.get("draft_n"),
        "accepted_tokens": timings.get("draft_n_accepted"),
    }


INLINE_REASONING = Format(
    reasoning=ReasoningSyntax(
        open="<think>\n",
        close="\n</think>\n\n",
        also_open=("<thinking>\n", "<reasoning>\n", "<thought>\n"),
        also_close=("\n</thinking>\n\n", "\n</reasoning>\n\n", "\n</thought>\n\n"),
        where="start",
    )
)
_REASONING_FIELDS = (*REASONING_FIELDS, "reasoning_details")
_MOST_PIECES = 600_000
"""Chunks and events of one turn: more than the longest answers have, with a chunk and an event for each token."""
_KNOWN_FIELDS = frozenset({"choices", "usage", "timings"})
_REASONS: Mapping[str, FinishReason] = {
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence", "end_turn"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "model_length"), "length"),
    **dict.fromkeys(("tool_calls", "function_call", "tool_use"), "tool_calls"),
    **dict.fromkeys(("cancelled", "abort"), "cancelled"),
    **dict.fromkeys(("error", "content_filter"), "error"),
}


class ReadOptions(TypedDict, total=False):
    """How a response is read.

    - `tools`: the tools of the request, to check calls against (`unknown_tool`, `invalid_arguments`); None checks only
      that arguments are JSON.
    - `choice`: the index of the choice to read (`n` > 1).
    - `family`: parse the content as this family's raw output, calls included, for servers that parse nothing; None
      parses only `<think>` and similar markup at the start.
    - `in_reasoning`: the prompt ended inside reasoning, and the server sends the output without the opening marker.
    - `seconds`: for the whole response, whatever the transport waits for; a sync one is read in a thread then. None: as
      long as the transport waits.
    """

    tools: Sequence[ToolLike] | None
    choice: int
    family: str | Family | Format | None
    in_reasoning: bool
    seconds: float | None


class TurnReader:
    """Takes the items of a stream, yields events, which `events` keeps; `close` ends the turn. `cancelled` is set from
    outside, and ends it at the next item."""

    def __init__(
        self,
        tools: Sequence[ToolLike] | None = None,
        choice: int = 0,
        family: str | Family | Format | None = None,
        in_reasoning: bool = False,
        seconds: float | None = None,
    ) -> None:
        records = None if tools is None else as_tools(tools)
        self.diagnostics = Diagnostics()
        self.events: list[Event] = []
        self.cancelled = False
        self.seconds = _checked_seconds(seconds)
        self._pieces = 0
        self._wire = Wire(self.diagnostics)
        self._choice = choice
        self._parts = Parts(None if records is None else {tool.name: tool for tool in records})
        self._calls = Calls(self._parts, self.diagnostics)
        format_ = _format_of(family)
        opened = _opening(format_) if in_reasoning else ""
        parser = Parser(format_, opened, tools=records, id_salt=_salt())
        self._inline = Inline(self._parts, parser, only_at_start=family is None)
        self._reasoning_field = ""
        self._some_delta = False
        self._reason: FinishReason | None = None
        self._usage: Usage | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more is read."""
        return self.cancelled or self._wire.done

    def feed(self, item: object) -> Iterator[Event]:
        """Yields the events of an item. Raises RemoteError if it is an error of the server."""
        if not self.cancelled:
            yield from self._read_chunks(self._wire.feed(item))

    def close(self) -> Iterator[Event]:
        """End the stream, and yield the last events. A stream that just ends without a finish reason is an error."""
        yield from self._read_chunks(self._wire.close())
        ended = self._reason or ("stop" if self._wire.done else "error")
        reason: FinishReason = "cancelled" if self.cancelled else ended
        whole = reason in ("stop", "tool_calls")
        self._inline.settle("stop" if reason == "tool_calls" else reason)
        self._calls.salt = self._calls.salt or _salt()
        self._calls.close(cut=not whole)
        if whole:
            reason = "tool_calls" if self._parts.calls else "stop"
        yield from self._kept([*self._parts.drain(), Finished(reason, self._usage)])

    def _kept(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            self._count()
            self.events.append(event)
            yield event

    def _count(self) -> None:
        """Raise RemoteError for too many pieces: events, chunks and deltas of calls, some of which wait here."""
        self._pieces += 1
        if self._pieces > _MOST_PIECES:
            raise RemoteError(
                f"The server sent more than {_MOST_PIECES:,} pieces of an answer. What came before is valid; give the "
                "request max_tokens, or check the server."
            )

    def _read_chunks(self, chunks: Iterator[Chunk]) -> Iterator[Event]:
        for chunk in chunks:
            self._read_chunk(chunk)
            yield from self._kept(self._parts.drain())

    def _read_chunk(self, chunk: Chunk) -> None:
        self._count()
        _raise_error(chunk)
        self._calls.salt = self._calls.salt or text_of(chunk.get("id"))
        self._usage = usage_of(chunk, self._usage, self.diagnostics)
        if not _KNOWN_FIELDS & chunk.keys():
            self.diagnostics.report("a chunk without choices", dict(chunk))
        for choice in self.diagnostics.items(chunk, "choices"):
            _raise_error(choice)
            if (choice.get("index") or 0) == self._choice:
                self._read(choice)

    def _read(self, choice: Chunk) -> None:
        delta = self.diagnostics.record(choice, "delta")
        if choice.get("delta") is None and not self._some_delta:
            # A complete response; or the last chunk of a server that repeats the whole message in it.
            delta = self.diagnostics.record(choice, "message")
        if delta:
            self._some_delta = True
            self._delta(delta)
        if reason := choice.get("finish_reason"):
            self._reason = _REASONS.get(str(reason))
            if self._reason is None:
                self.diagnostics.report("an unknown finish reason, treated as an error", str(reason))
                self._reason = "error"

    def _delta(self, delta: Chunk) -> None:
        for name in _REASONING_FIELDS:
            # Only one field is read for the whole turn, since some servers send the same text in two.
            if self._reasoning_field in ("", name) and (text := _reasoning_text(delta.get(name))):
                self._reasoning_field = name
                self._write("reasoning", text)
        for kind, text in self._content(delta.get("content")):
            self._write(kind, text)
        self._write("content", text_of(delta.get("refusal")))
        for call in self.diagnostics.items(delta, "tool_calls"):
            self._call(call)
        if legacy := self.diagnostics.record(delta, "function_call"):
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

    def _call(self, delta: Chunk) -> None:
        self._count()
        self._inline.settle()
        self._calls.delta(delta)

    def _content(self, value: object) -> Iterator[tuple[Kind, str]]:
        """Yields the kind and text of a content: a string, or parts, some of which may be reasoning (Mistral)."""
        if isinstance(value, str):
            yield "content", value
        elif isinstance(value, list):
            for item in cast("list[object]", value):
                part = mapping_of(item)
                if part.get("type") == "thinking":
                    yield "reasoning", _reasoning_text(part.get("thinking"))
                elif isinstance(text := part.get("text", part.get("refusal", item)), str):
                    yield "content", text
                else:
                    self.diagnostics.report("a part of the content that is not text", item)
        elif value is not None:
            self.diagnostics.report("content that is not text", value)


def _checked_seconds(seconds: float | None) -> float | None:
    if seconds is not None and not 0 < seconds < math.inf:
        raise RequestError(f"seconds={shown(seconds)} is not valid; give the seconds that a whole response may take.")
    return seconds


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


def _reasoning_text(value: object) -> str:
    """Returns the text of a reasoning field: a string, or joined from its parts (`reasoning_details`: text and
    summaries)."""
    if not isinstance(value, list):
        return text_of(value)
    parts = [mapping_of(item) for item in cast("list[object]", value)]
    return "".join(text_of(part.get("text")) or text_of(part.get("summary")) for part in parts)


def _raise_error(record: Chunk) -> None:
    error: object = record.get("error")
    if not error and record.get("object") == "error":
        error = record
    if not error:
        return
    fields = mapping_of(error) or {"message": str(error)}
    code, type_, message = fields.get("code"), fields.get("type"), fields.get("message")
    kind = ", ".join(str(item) for item in (code, type_) if item)
    text = str(message or dict(fields)).rstrip(".")
    raise RemoteError(
        f"The server answered with an error{f' ({kind})' if kind else ''}: {text}. What came before it is valid; "
        "correct the request, or send it again if the server was at fault.",
        code,
        type_,
    )
