"""Chat Completions: reads a request's body into engine options, and writes turns as chunks or as one object."""

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from pydantic import ValidationError

from engine.events import ContentDelta, Event, Finished, ReasoningDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from engine.openai.fields import CHAT_FIELDS, engine_options, given_fields
from engine.openai.parameters import REASONING, merged, read_response_format, read_tool_choice, read_tools
from engine.openai.problems import Problem, bad
from engine.openai.projection import FINGERPRINT, CallText, Json, made_id
from engine.openai.servers import server_options
from engine.types import Completion, FinishReason, Message, TokenLogprob, Tool, ToolCall, Usage

ReasoningField: TypeAlias = Literal["reasoning_content", "reasoning"]

MOST_CHOICES = 128
MOST_ALTERNATIVES = 20
FINISH: Mapping[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "deadline": "length",
}
"""OpenAI's finish reasons; any other end of a turn is an error."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A body that was read. `options` are the engine's options, `names` the request field that each came from. `begun`:
    the beginning of a constrained answer that the client wrote; the response repeats it, so that its content is the
    whole answer."""

    model: str | None
    messages: list[Json]
    tools: tuple[Tool, ...]
    n: int
    options: Json
    names: dict[str, str]
    stream: bool
    include_usage: bool
    logprobs: bool
    reasoning_field: ReasoningField
    begun: str
    ignored: tuple[str, ...]


def read_chat(body: Json) -> ChatRequest:
    """Read a body of `POST /chat/completions`. Raises Problem for what is missing, not valid, or not supported."""
    given = given_fields(CHAT_FIELDS, body)
    values = given.values
    if not values.get("messages"):
        raise bad("messages is missing; give at least one message.", "messages", "missing_required_parameter")
    stream = bool(values.get("stream", False))
    options, names, tools = _options(values)
    n = values.get("n", 1)
    if not 1 <= n <= MOST_CHOICES:
        raise bad(f"n={n} is not valid; ask for 1 to {MOST_CHOICES} choices.", "n")
    return ChatRequest(
        model=values.get("model"),
        messages=values["messages"],
        tools=tools,
        n=n,
        options=options,
        names=names,
        stream=stream,
        include_usage=include_usage(values.get("stream_options"), stream=stream),
        logprobs=bool(values.get("logprobs")),
        reasoning_field=values.get("reasoning_field", "reasoning_content"),
        begun=_begun(values["messages"][-1], options),
        ignored=given.ignored,
    )


def _begun(last: Json, options: Json) -> str:
    """Returns the text of the last message if the answer continues it and has a form."""
    if "response_format" not in options or not options.get("continue_final_message"):
        return ""
    try:
        return Message.model_validate(last).content or ""
    except ValidationError:
        return ""  # the engine refuses the message, with its number


def _options(values: Json) -> tuple[Json, dict[str, str], tuple[Tool, ...]]:
    """Returns the engine's options, the field that each came from, and the tools."""
    tools = read_tools(values.get("tools", []), "tools")
    found, names = merged((*_of_openai(values, tools), *server_options(values), *_of_engine(values)))
    return found, names, tools


def _of_openai(values: Json, tools: Sequence[Tool]) -> Iterator[tuple[str, str, object]]:
    """Yields an engine option, the OpenAI field that gave it, and its value."""
    for field in ("max_tokens", "max_completion_tokens"):
        if field in values:
            yield "max_tokens", field, values[field]
    if (effort := values.get("reasoning_effort")) is not None:
        yield "reasoning", "reasoning_effort", REASONING.get(effort, effort)
    if "logit_bias" in values:
        yield "logit_bias", "logit_bias", biases(values["logit_bias"])
    if (logprobs := _logprobs(values)) is not None:
        yield "logprobs", "top_logprobs" if "top_logprobs" in values else "logprobs", logprobs
    if (format_ := read_response_format(values.get("response_format"), "response_format")) is not None:
        yield "response_format", "response_format", format_
    if "tool_choice" in values and (choice := read_tool_choice(values["tool_choice"], tools)) != "auto":
        yield "tool_choice", "tool_choice", choice
    if tools and "parallel_tool_calls" in values:
        yield "parallel_tool_calls", "parallel_tool_calls", values["parallel_tool_calls"]


def _of_engine(values: Json) -> Iterator[tuple[str, str, object]]:
    """Yields the same for the engine's options under their own names."""
    taken = {"logprobs", "logit_bias", "max_tokens", "tool_choice", "response_format", "parallel_tool_calls"}
    for option, value in engine_options(values, dict.fromkeys(taken)).items():
        yield option, option, value


def include_usage(options: Json | None, *, stream: bool) -> bool:
    if options is None:
        return False
    if not stream:
        raise bad("stream_options is for streams; leave it out, or set stream=true.", "stream_options")
    for name, value in options.items():
        if name not in ("include_usage", "include_obfuscation"):
            raise bad(f"stream_options has no field {name!r}.", f"stream_options.{name}", "unknown_parameter")
        if not isinstance(value, bool | None):
            raise bad(
                f"stream_options.{name} must be true or false, not {value!r}.", f"stream_options.{name}", "invalid_type"
            )
    return bool(options.get("include_usage"))


def biases(given: Mapping[str, float]) -> dict[int, float]:
    try:
        return {int(token): bias for token, bias in given.items()}
    except ValueError as error:
        raise bad(f"The keys of logit_bias must be token numbers: {error}.", "logit_bias") from error


def _logprobs(values: Json) -> int | None:
    if values.get("logprobs"):
        count = cast("int", values.get("top_logprobs", 0))
        if not 0 <= count <= MOST_ALTERNATIVES:
            raise bad(f"top_logprobs={count} is not valid; ask for 0 to {MOST_ALTERNATIVES}.", "top_logprobs")
        return count
    if "top_logprobs" in values:
        raise bad("top_logprobs needs logprobs=true.", "top_logprobs")
    return None


class _Call:
    """The state of one call in a stream."""

    def __init__(self, start: ToolCallStart) -> None:
        self._start = start
        self._text = CallText()

    def begin(self, id_: str, arguments: str = "") -> Json:
        function = {"name": self._start.name, "arguments": arguments}
        return _calls({"index": self._start.index, "id": id_, "type": "function", "function": function})

    def more(self, text: str) -> Json | None:
        """Returns the delta for a fragment. A call without an id at its start is sent at its end, since id and name go
        together."""
        return self._fragment(self._text.more(text)) if self._start.id else None

    def end(self, event: ToolCallEnd) -> Json | None:
        rest = self._text.rest(event.arguments)
        return self._fragment(rest) if self._start.id else self.begin(event.id or made_id(), rest)

    def _fragment(self, text: str) -> Json | None:
        return _calls({"index": self._start.index, "function": {"arguments": text}}) if text else None


def _calls(item: Json) -> Json:
    return {"tool_calls": [item]}


class _Choice:
    """The state of one choice in a stream."""

    def __init__(self, index: int, field: ReasoningField, begun: str) -> None:
        self._begun = begun
        self._index = index
        self._field = field
        self._reasoning_part: int | None = None
        self._empty = True
        self._calls: dict[int, _Call] = {}

    def chunk(self, delta: Json, finish: str | None = None, logprobs: Sequence[TokenLogprob] = ()) -> Json:
        found = logprobs_object(logprobs)
        return {"index": self._index, "delta": delta, "logprobs": found, "finish_reason": finish}

    def delta(self, event: Event) -> Json | None:
        """Returns what an event adds to the message; None for nothing."""
        match event:
            case ReasoningDelta(text, part):
                between = "\n" if self._reasoning_part not in (None, part) else ""
                self._reasoning_part = part
                return {self._field: between + text} if between + text else None
            case ContentDelta(text):
                self._empty = self._empty and not text
                text, self._begun = (self._begun + text, "") if text else ("", self._begun)
                return {"content": text} if text else None
            case ToolCallStart(index, id_):
                self._empty = False
                self._calls[index] = _Call(event)
                return self._calls[index].begin(id_) if id_ else None
            case ToolCallDelta(index, text):
                return self._calls[index].more(text)
            case ToolCallEnd(index):
                return self._calls[index].end(event)
            case _:
                return None

    def last(self, finish: str, logprobs: Sequence[TokenLogprob]) -> Json:
        """Returns the chunk that ends the choice; an empty answer has the content ""."""
        return self.chunk({"content": ""} if self._empty else {}, finish, logprobs)


class ChatAnswer:
    """The projection of one request: turns as chunks, or as one object. `model`: the name in the response."""

    def __init__(self, request: ChatRequest, model: str) -> None:
        self._request = request
        self._head: Json = {
            "id": f"chatcmpl-{secrets.token_hex(14)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": FINGERPRINT,
            "service_tier": "default",
        }
        self._choices = [_Choice(number, request.reasoning_field, request.begun) for number in range(request.n)]
        self._usages: list[Usage | None] = []

    def opening(self) -> Iterator[bytes]:
        for choice in self._choices:
            yield self._chunk(choice.chunk({"role": "assistant", "content": None}))

    def event(self, choice: int, event: Event, logprobs: Sequence[TokenLogprob]) -> Iterator[bytes]:
        state = self._choices[choice]
        if isinstance(event, Finished):
            self._usages.append(event.usage)
            yield self._chunk(state.last(FINISH[event.reason], logprobs))
            return
        delta = state.delta(event)
        if delta is not None or logprobs:
            yield self._chunk(state.chunk(delta or {}, None, logprobs))

    def closing(self) -> Iterator[bytes]:
        if self._request.include_usage:
            yield self._line({**self._chunk_head, "choices": [], "usage": usage_object(self._usages)})
        yield b"data: [DONE]\n\n"

    def failed(self, problem: Problem) -> Iterator[bytes]:
        yield self._line(problem.body())

    def whole(self, completions: Sequence[Completion]) -> Json:
        return {
            **self._head,
            "object": "chat.completion",
            "choices": [
                {
                    "index": number,
                    "message": message_object(completion, self._request.reasoning_field, self._request.begun),
                    "logprobs": logprobs_object(completion.logprobs),
                    "finish_reason": FINISH[completion.finish_reason],
                }
                for number, completion in enumerate(completions)
            ],
            "usage": usage_object([completion.usage for completion in completions]),
        }

    @property
    def _chunk_head(self) -> Json:
        return {**self._head, "object": "chat.completion.chunk"}

    def _chunk(self, choice: Json) -> bytes:
        usage: Json = {"usage": None} if self._request.include_usage else {}
        return self._line({**self._chunk_head, "choices": [choice], **usage})

    @staticmethod
    def _line(data: Json) -> bytes:
        # ASCII only: some clients split lines at every separator that Unicode has.
        return f"data: {json.dumps(data)}\n\n".encode()


def message_object(completion: Completion, reasoning_field: ReasoningField, begun: str = "") -> Json:
    """Returns OpenAI's message of a turn, with the reasoning in the requested field, and `begun` before its content."""
    message: Json = {"role": "assistant", "content": begun + completion.content if completion.content else None}
    if completion.reasoning:
        message[reasoning_field] = completion.reasoning
    if completion.tool_calls:
        message["tool_calls"] = [call_object(call) for call in completion.tool_calls]
    elif not completion.content:
        message["content"] = ""
    return message


def call_object(call: ToolCall) -> Json:
    """Returns OpenAI's call, with an id and no white space around its arguments."""
    return call.model_copy(update={"id": call.id or made_id(), "arguments": call.arguments.strip()}).openai()


def logprobs_object(entries: Sequence[TokenLogprob]) -> Json | None:
    """Returns OpenAI's log-probabilities of the tokens drawn."""
    if not entries:
        return None
    return {
        "content": [{**_logprob(entry), "top_logprobs": [_logprob(top) for top in entry.top]} for entry in entries],
        "refusal": None,
    }


def _logprob(entry: TokenLogprob) -> Json:
    # JSON has no infinity; OpenAI uses -9999 for a probability of 0.
    return {"token": entry.text, "bytes": list(entry.bytes), "logprob": max(entry.logprob, -9999.0)}


def usage_object(usages: Iterable[Usage | None]) -> Json:
    """Returns OpenAI's usage of all choices of a request; the prompt counts once."""
    known = [usage for usage in usages if usage is not None]
    prompt = max((usage.prompt_tokens for usage in known), default=0)
    drawn = sum(usage.completion_tokens for usage in known)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": drawn,
        "total_tokens": prompt + drawn,
        "prompt_tokens_details": {"cached_tokens": known[0].cached_tokens if known else 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": sum(usage.reasoning_tokens for usage in known),
            "audio_tokens": 0,
            "accepted_prediction_tokens": sum(usage.accepted_tokens for usage in known),
            "rejected_prediction_tokens": sum(usage.drafted_tokens - usage.accepted_tokens for usage in known),
        },
    }
