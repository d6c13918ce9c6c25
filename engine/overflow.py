"""A conversation that does not fit: which of its messages go.

Knows: what may be left out (whole old turns; in the turn under way whole exchanges of calls and results, but the
newest) and what never is (system messages, the last question, half an exchange). Does not know: templates, tokens; it
is given a function that counts.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal, TypeAlias

from engine.types import Message

Overflow: TypeAlias = Literal["error", "truncate_oldest", "shift"]
_KEPT = ("system", "developer")


def kept(
    messages: Sequence[Message], count: Callable[[tuple[int, ...]], int], limit: int, step: int
) -> tuple[int, ...]:
    """The numbers of the messages to send, so that `count` of them is `limit` at most; of all, where nothing helps.

    What goes is rounded up to `step` tokens where there is as much: so the prompt's beginning stays the same for many
    turns, and with it what a prefix cache holds.
    """
    everything = tuple(range(len(messages)))
    total = count(everything)
    if total <= limit:
        return everything
    groups = _droppable(messages)

    def without(number: int) -> tuple[int, ...]:
        gone = {index for group in groups[:number] for index in group}
        return tuple(index for index in everything if index not in gone)

    @cache
    def saves(number: int) -> int:
        return total - count(without(number))

    excess = total - limit
    for wanted in (-(-excess // step) * step, excess):
        number = bisect_left(range(len(groups) + 1), wanted, key=saves)
        if number <= len(groups):
            return without(number)
    return without(len(groups))


def _droppable(messages: Sequence[Message]) -> list[list[int]]:
    """Groups of messages, the oldest first, each to be left out whole."""
    last = max((index for index, message in enumerate(messages) if message.role == "user"), default=-1)
    groups: list[list[int]] = []
    home: dict[str, int] = {}
    fresh = True
    for index, message in enumerate(messages):
        if message.role in _KEPT:
            continue
        if index == last:
            fresh = True
            continue
        if fresh or message.role == ("user" if index < last else "assistant"):
            groups.append([])
            fresh = False
        newest = len(groups) - 1
        if message.role == "tool" and (at := home.get(message.tool_call_id or "", newest)) < newest:
            groups[at:] = [[number for group in groups[at:] for number in group]]
        groups[-1].append(index)
        home.update({call.id: len(groups) - 1 for call in message.tool_calls})
    # What came last is what the model shall go on from.
    return groups[:-1] if groups and groups[-1][-1] > last else groups
