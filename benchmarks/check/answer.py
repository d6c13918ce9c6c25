"""Reads an answer strictly as clients do: one message, or the deltas of a stream put together. Nothing is mended.
Source: OpenAI API reference, "The chat completion object" and "The chat completion chunk object"."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from benchmarks.check.exchange import Reply
from engine.remote.wire import mapping_of, text_of
from engine.support.errors import shown

_REASONING = ("reasoning_content", "reasoning")


@dataclass(slots=True)
class Call:
    """A call as it was written."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Answer:
    """What a client sees of an answer. `faults`: what has not the form of one."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list[Call])
    finish: str = ""
    faults: list[str] = field(default_factory=list[str])


def read_answer(reply: Reply, *, streamed: bool) -> Answer:
    """Returns the answer in a reply of status 200."""
    answer = Answer()
    if reply.broken:
        answer.faults.append(f"answer: {reply.broken}")
    elif streamed:
        _read_stream(answer, reply)
    else:
        choice = _choice(reply.body)
        _read_message(answer, mapping_of(choice.get("message")))
        answer.finish = text_of(choice.get("finish_reason"))
        if not choice:
            answer.faults.append("answer: there are no choices in it")
    if not answer.finish and not answer.faults:
        answer.faults.append("finish_reason: there is none")
    return answer


def _read_stream(answer: Answer, reply: Reply) -> None:
    by_index: dict[int, Call] = {}
    for chunk in reply.data:
        if chunk.get("error"):
            answer.faults.append(f"stream: an error in it: {shown(chunk['error'])}")
        choice = _choice(chunk)
        if choice.get("message"):
            answer.faults.append("stream: a whole message came instead of deltas")
        delta = mapping_of(choice.get("delta"))
        _read_texts(answer, delta)
        for item in _objects(delta.get("tool_calls")):
            index: object = item.get("index")
            if isinstance(index, int):
                _add(by_index.setdefault(index, Call()), item)
            else:
                answer.faults.append("stream: a piece of a call has no index")
        answer.finish = text_of(choice.get("finish_reason")) or answer.finish
    answer.calls = [by_index[index] for index in sorted(by_index)]
    if reply.malformed:
        answer.faults.append(f"stream: {reply.malformed} events in it are no JSON objects")
    if not reply.done:
        answer.faults.append("stream: it does not end with [DONE]")


def _read_message(answer: Answer, message: Mapping[str, Any]) -> None:
    _read_texts(answer, message)
    for item in _objects(message.get("tool_calls")):
        _add(call := Call(), item)
        answer.calls.append(call)


def _read_texts(answer: Answer, part: Mapping[str, Any]) -> None:
    answer.content += text_of(part.get("content"))
    answer.reasoning += next(filter(None, (text_of(part.get(name)) for name in _REASONING)), "")


def _add(call: Call, item: Mapping[str, Any]) -> None:
    function = mapping_of(item.get("function"))
    call.id = call.id or text_of(item.get("id"))
    call.name = call.name or text_of(function.get("name"))
    call.arguments += text_of(function.get("arguments"))


def _choice(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(iter(_objects(body.get("choices"))), mapping_of(None))


def _objects(value: object) -> Sequence[Mapping[str, Any]]:
    items = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, Mapping)]
