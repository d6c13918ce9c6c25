"""Chat Completions: reads a request's body into engine options, and writes turns as chunks or as one object."""

from collections.abc import Iterator, Sequence
from typing import cast

from pydantic import ValidationError

from engine.openai.choices import (
    FINISH,
    LEAST_LOGPROB,
    MOST_ALTERNATIVES,
    MOST_CHOICES,
    ChoicesAnswer,
    answer_id,
    usage_object,
)
from engine.openai.fields import CHAT_FIELDS
from engine.openai.parameters import Json
from engine.openai.problems import bad
from engine.openai.request import Request, read_request
from engine.openai.streaming import CallStart, ClientEvent, made_id
from engine.types.completion import Completion
from engine.types.events import ContentDelta, Finished, ReasoningDelta, ToolCallDelta
from engine.types.messages import Message
from engine.types.parts import ToolCall
from engine.types.sampling import TokenLogprob


def read_chat(body: Json) -> Request:
    """Read a body of `POST /chat/completions`. Raises Problem for what is missing, not valid, or not supported."""
    return read_request(CHAT_FIELDS, body, _options)


def _options(values: Json) -> Iterator[tuple[str, str, object]]:
    if not values.get("messages"):
        raise bad("messages is missing; give at least one message.", "messages", "missing_required_parameter")
    if not 1 <= (n := values.get("n", 1)) <= MOST_CHOICES:
        raise bad(f"n={n} is not valid; ask for 1 to {MOST_CHOICES} choices.", "n")
    count = cast("int", values.get("top_logprobs", 0))
    if values.get("logprobs"):
        if not 0 <= count <= MOST_ALTERNATIVES:
            raise bad(f"top_logprobs={count} is not valid; ask for 0 to {MOST_ALTERNATIVES}.", "top_logprobs")
        yield "logprobs", "top_logprobs" if "top_logprobs" in values else "logprobs", count
    elif "top_logprobs" in values:
        raise bad("top_logprobs needs logprobs=true.", "top_logprobs")


def chat_answer(request: Request, model: str) -> ChoicesAnswer:
    """Returns the projection of one request. `model`: the name in the response."""
    fields = {"id": answer_id("chatcmpl"), "model": model, "service_tier": "default"}
    field, begun = request.values.get("reasoning_field", "reasoning_content"), _begun(request)
    choices = [_Choice(number, field, begun) for number in range(request.n)]
    return ChoicesAnswer(request, choices, usage_object, "chat.completion.chunk", fields)


def _begun(request: Request) -> str:
    """Returns the beginning of a constrained answer, if the client wrote one: the response repeats it, so that its
    content is the whole answer."""
    options = request.options
    if "response_format" not in options or not options.get("continue_final_message"):
        return ""
    try:
        return Message.model_validate(request.values["messages"][-1]).content or ""
    except ValidationError:
        return ""  # the engine refuses the message, with its number


class _Choice:
    """One choice. `field`: where its reasoning goes; `begun`: what stands before its content."""

    def __init__(self, index: int, field: str, begun: str) -> None:
        self._index = index
        self._field = field
        self._begun = begun
        self._reasoning_part: int | None = None
        self._empty = True

    def opening(self) -> Json:
        return self._chunk({"role": "assistant", "content": None})

    def event(self, event: ClientEvent, logprobs: Sequence[TokenLogprob]) -> Json | None:
        if isinstance(event, Finished):  # an empty answer has the content ""
            return self._chunk({"content": ""} if self._empty else {}, logprobs, FINISH[event.reason])
        delta = self._delta(event)
        return self._chunk(delta, logprobs) if delta or logprobs else None

    def _delta(self, event: ClientEvent) -> Json:
        """Returns what an event adds to the message."""
        match event:
            case ReasoningDelta(text, part):
                between = "\n" if self._reasoning_part not in (None, part) else ""
                self._reasoning_part = part
                return {self._field: between + text} if between + text else {}
            case ContentDelta(text) if text:
                text, self._begun, self._empty = self._begun + text, "", False
                return {"content": text}
            case CallStart(index, id_, name):
                self._empty = False
                function = {"name": name, "arguments": event.arguments}
                return {"tool_calls": [{"index": index, "id": id_, "type": "function", "function": function}]}
            case ToolCallDelta(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case _:
                return {}

    def _chunk(self, delta: Json, logprobs: Sequence[TokenLogprob] = (), finish: str | None = None) -> Json:
        return {
            "index": self._index,
            "delta": delta,
            "logprobs": logprobs_object(logprobs),
            "finish_reason": finish,
        }

    def whole(self, completion: Completion) -> Json:
        return {
            "index": self._index,
            "message": self._message(completion),
            "logprobs": logprobs_object(completion.logprobs),
            "finish_reason": FINISH[completion.finish_reason],
        }

    def _message(self, completion: Completion) -> Json:
        content = self._begun + completion.content if completion.content else None
        message: Json = {"role": "assistant", "content": content}
        if completion.reasoning:
            message[self._field] = completion.reasoning
        if completion.tool_calls:
            message["tool_calls"] = [_call_object(call) for call in completion.tool_calls]
        elif not completion.content:
            message["content"] = ""
        return message


def _call_object(call: ToolCall) -> Json:
    """Returns OpenAI's call, with an id and no white space around its arguments."""
    return call.model_copy(update={"id": call.id or made_id(), "arguments": call.arguments.strip()}).openai()


def logprobs_object(entries: Sequence[TokenLogprob]) -> Json | None:
    """Returns OpenAI's log-probabilities of the tokens."""
    if not entries:
        return None
    return {
        "content": [{**_logprob(entry), "top_logprobs": [_logprob(top) for top in entry.top]} for entry in entries],
        "refusal": None,
    }


def _logprob(entry: TokenLogprob) -> Json:
    return {"token": entry.text, "bytes": list(entry.bytes), "logprob": max(entry.logprob, LEAST_LOGPROB)}
