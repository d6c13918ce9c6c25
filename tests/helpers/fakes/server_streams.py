"""What the tests of engine.remote share: chunks as servers send them, and the rules that any events must keep."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from engine import remote
from engine.types.completion import Completion
from engine.types.events import (
    ContentDelta,
    Event,
    Finished,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    fold,
)
from engine.types.parts import ToolCall

Json = dict[str, Any]
HI: Json = {"content": "Hi there."}


def chunk(delta: Json | None = None, finish: str | None = None, index: int = 0, **more: Any) -> Json:
    choice = {"index": index, "delta": delta or {}, "logprobs": None, "finish_reason": finish}
    return {
        "id": "chatcmpl-7",
        "object": "chat.completion.chunk",
        "created": 1757141666,
        "model": "some-model",
        "choices": [choice],
        **more,
    }


def stream(*deltas: Json, finish: str | None = "stop") -> list[Json]:
    """A whole stream: the role first, an empty delta with the finish reason last."""
    chunks = [chunk({"role": "assistant", "content": None}), *map(chunk, deltas)]
    return chunks if finish is None else [*chunks, chunk({}, finish)]


def call(index: int | None, arguments: str | None = None, name: str | None = None, id_: str | None = None) -> Json:
    """A delta with one piece of one call."""
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    item: Json = {"function": function}
    if index is not None:
        item["index"] = index
    if id_ is not None:
        item |= {"id": id_, "type": "function"}
    return {"tool_calls": [item]}


def sse(chunks: Iterable[Json], end: str = "\n") -> str:
    events = [json.dumps(item, ensure_ascii=False) for item in chunks] + ["[DONE]"]
    return "".join(f"data: {event}{end}{end}" for event in events)


def in_order(events: Iterable[Event]) -> list[Event]:
    """The events, once they keep the contract: parts counted from 0, each over before the next; a call's fragments
    concatenate to its arguments; `Finished` once and last."""
    seen = list(events)
    assert [isinstance(event, Finished) for event in seen] == [False] * (len(seen) - 1) + [True]
    part, calls, open_ = -1, 0, False
    kind: object = None
    fragments: list[str] = []
    for event in seen[:-1]:
        assert not isinstance(event, Finished)
        if isinstance(event, ToolCallStart):
            assert (event.index, event.part, open_) == (calls, part + 1, False)
            calls, part, open_, kind, fragments = calls + 1, part + 1, True, "call", []
        elif isinstance(event, ToolCallDelta):
            assert (event.index, event.part, open_) == (calls - 1, part, True)
            fragments.append(event.text)
        elif isinstance(event, ToolCallEnd):
            assert (event.index, event.part, open_) == (calls - 1, part, True)
            assert "".join(fragments).strip() == event.arguments.strip()
            open_ = False
        else:
            assert isinstance(event, ReasoningDelta | ContentDelta)
            assert event.text
            assert not open_
            assert event.part == (part if kind is type(event) else part + 1)
            kind, part = type(event), event.part
    assert not open_
    return seen


def pieces(text: str, cuts: Sequence[int]) -> Iterator[str]:
    """The text cut at these places, none of the pieces empty."""
    places = sorted({cut % len(text) for cut in cuts} - {0}) if text else []
    for start, end in zip([0, *places], [*places, len(text)], strict=True):
        yield text[start:end]


def split_delta(delta: Json, cuts: Sequence[int]) -> list[Json]:
    """A delta as several, its texts cut: the header of a call stays whole, its name and arguments come in pieces."""
    for field in ("content", "reasoning_content", "reasoning", "refusal"):
        if isinstance(delta.get(field), str) and len(delta) == 1:
            return [{field: piece} for piece in pieces(delta[field], cuts)]
    if "tool_calls" not in delta:
        return [delta]
    (item,) = delta["tool_calls"]
    function = item["function"]
    header = {key: value for key, value in item.items() if key != "function"}
    names = list(pieces(function.get("name", ""), cuts))
    split = [{**header, "function": {"name": names[0], "arguments": ""}}]
    bare = {"index": item["index"]}
    split += [{**bare, "function": {"name": name}} for name in names[1:]]
    split += [{**bare, "function": {"arguments": piece}} for piece in pieces(function.get("arguments", ""), cuts)]
    return [{"tool_calls": [part]} for part in split]


def whole(*deltas: Json, finish: str | None = "stop", **options: Any) -> Completion:
    return fold(in_order(remote.events(stream(*deltas, finish=finish), **options)))


def shown(completion: Completion) -> list[tuple[str, str]]:
    """The parts in order; a call as its name and arguments."""
    return [
        (part.name, part.arguments) if isinstance(part, ToolCall) else (part.type, part.text)
        for part in completion.parts
    ]
