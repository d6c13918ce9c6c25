"""`ReasoningMemory`: reasoning that a client dropped between turns, found again.

Knows: a bounded number of turns, each under a digest of the conversation before it and of what it said and called;
never by a call's id alone, for some families number their calls alike in every conversation. Does not know: templates,
which decide what of it the model sees; models. What the caller sends always wins.
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine.types import Message

CHARACTERS = 4_000_000
"""Characters of reasoning (and 64 for each turn) that are kept unless told otherwise; the longest unused go first."""


class Restored(NamedTuple):
    """A conversation, and the numbers of the messages whose reasoning was put back."""

    messages: tuple[Message, ...]
    numbers: tuple[int, ...]


class ReasoningMemory:
    """Remembers the reasoning of turns, and puts it back into a conversation that lost it. Safe to use from any
    thread."""

    def __init__(self, characters: int = CHARACTERS) -> None:
        self._room = characters
        self._turns: OrderedDict[bytes, str | None] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, conversation: Sequence[Message], turn: Message) -> None:
        """Keep the reasoning of `turn`, which followed `conversation`.

        Two turns alike in everything but their reasoning make each other ambiguous: neither is restored then.
        """
        if not turn.reasoning:
            return
        *_, key = _digests([*conversation, turn])
        with self._lock:
            known = self._turns.get(key, turn.reasoning)
            self._forget(key)
            self._turns[key] = turn.reasoning if known == turn.reasoning else None
            self._room -= _size(self._turns[key])
            while self._room < 0:
                self._forget(next(iter(self._turns)))

    def restore(self, conversation: Sequence[Message]) -> Restored:
        """The conversation with the reasoning that its assistant messages lack, where it is known beyond doubt."""
        messages = list(conversation)
        numbers: list[int] = []
        for number, (message, key) in enumerate(zip(conversation, _digests(conversation), strict=True)):
            if message.role != "assistant" or message.reasoning:
                continue
            with self._lock:
                reasoning = self._turns.get(key)
                if reasoning:
                    self._turns.move_to_end(key)
            if reasoning:
                messages[number] = message.model_copy(update={"reasoning": reasoning, "parts": ()})
                numbers.append(number)
        return Restored(tuple(messages), tuple(numbers))

    def _forget(self, key: bytes) -> None:
        if key in self._turns:
            self._room += _size(self._turns.pop(key))


def _size(reasoning: str | None) -> int:
    """What an entry counts: its text, and about its digest's own size."""
    return 64 + len(reasoning or "")


def _digests(conversation: Sequence[Message]) -> Iterator[bytes]:
    """For each message the digest of all messages up to it: what clients keep of them, edges of white space aside."""
    running = hashlib.sha256()
    for message in conversation:
        calls = [(call.id, call.name, _canonical(call.arguments)) for call in message.tool_calls]
        kept = [message.role, (message.content or "").strip(), message.tool_call_id or "", calls]
        running.update(json.dumps(kept, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
        yield running.digest()


def _canonical(arguments: str) -> str:
    """Arguments as JSON of one spelling: clients parse them and write them again."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
