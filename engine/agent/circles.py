"""Notices that a run goes in circles: the same calls with the same results, again and again."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from engine.types.messages import Message
from engine.types.parts import ToolCall

NOTE = (
    "(You have made the same calls with the same results three times. Making them again will end the run: do something "
    "else, or answer with what you have.)"
)
"""What the model reads once, behind the last result."""
TOLD, ENDED = 3, 4
"""The time at which the model is told so, and the time at which the run ends."""
_LONGEST = 4
"""In turns: a circle is one turn, or two to four that follow one another."""
_Turn: TypeAlias = tuple[tuple[str, str, object], ...]


@dataclass(frozen=True, slots=True)
class Circle:
    """`calls` that were made `times` times in a row, with the same results; `told`: the model has read so."""

    calls: tuple[ToolCall, ...]
    times: int
    told: bool

    def __str__(self) -> str:
        calls = ", then ".join(f"{call.name} {call.arguments or '{}'}" for call in self.calls)
        return f"{calls}: {self.times} times in a row, with the same results"


def circle(messages: Sequence[Message], repeating: Collection[str] = ()) -> Circle | None:
    """Returns the circle in which the last turns went; None without one. It begins behind what the user said last, and
    behind the last turn that calls a tool of `repeating`."""
    turns: list[tuple[_Turn, Sequence[ToolCall], bool]] = []  # the newest first
    results: dict[str, tuple[object, bool]] = {}
    for message in reversed(messages):
        if message.role == "tool":
            results[message.tool_call_id or ""] = _read(message)
            continue
        calls = message.tool_calls if message.role == "assistant" else ()
        if not calls or any(call.name in repeating for call in calls) or len(turns) == _LONGEST * ENDED:
            break
        made = [(call.name, _canonical(call.arguments), results.get(call.id, (None, False))[0]) for call in calls]
        turns.append((tuple(sorted(made, key=repr)), calls, any(told for _, told in results.values())))
        results = {}
    return _found(turns)


def _found(turns: Sequence[tuple[_Turn, Sequence[ToolCall], bool]]) -> Circle | None:
    for length in range(1, _LONGEST + 1):
        same = length
        while same < len(turns) and turns[same][0] == turns[same - length][0]:
            same += 1
        if (times := same // length) >= TOLD:
            calls = tuple(call for _, each, _ in reversed(turns[:length]) for call in each)
            return Circle(calls, times, any(told for _, _, told in turns[:same]))
    return None


def _read(message: Message) -> tuple[object, bool]:
    """Returns what a result says without the note, and whether it has the note."""
    text = message.content_with(lambda media: f"[{media.kind}]")
    media = tuple(part for part in message.parts if part.type != "text")
    return (text.removesuffix(NOTE).rstrip(), media), text.endswith(NOTE)


def _canonical(arguments: str) -> str:
    """Returns arguments in a form that is the same for equal ones."""
    try:
        return json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    except ValueError:
        return arguments
