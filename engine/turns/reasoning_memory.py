"""`ReasoningMemory`: reasoning that a client dropped between turns, found again.

Reasoning that the caller sends always wins.
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from engine.types.messages import Message

CHARACTERS = 4_000_000
"""The default capacity, in characters of reasoning (plus 64 for each turn); the least recently used turns are dropped
first."""


class ReasoningMemory:
    """Remembers the reasoning of turns, and restores it in a conversation that lost it. Thread-safe."""

    def __init__(self, characters: int = CHARACTERS) -> None:
        self._room = characters
        self._turns: OrderedDict[bytes, str | None] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, conversation: Sequence[Message], turn: Message, salt: str | None = None) -> None:
        """Store the reasoning of `turn`, which followed `conversation`. Only conversations with the same `salt` find
        it.

        If two turns differ only in their reasoning, neither is restored.
        """
        if not turn.reasoning:
            return
        *_, key = digests([*conversation, turn], salt)
        with self._lock:
            known = self._turns.get(key, turn.reasoning)
            self._forget(key)
            self._turns[key] = turn.reasoning if known == turn.reasoning else None
            self._room -= _size(self._turns[key])
            while self._room < 0:
                self._forget(next(iter(self._turns)))

    def restore(
        self, conversation: Sequence[Message], salt: str | None = None
    ) -> tuple[tuple[Message, ...], tuple[int, ...]]:
        """Returns the conversation with the reasoning that its assistant messages lack, if it is known unambiguously
        under this salt; and the indices of the messages whose reasoning was restored."""
        messages = list(conversation)
        numbers: list[int] = []
        for number, (message, key) in enumerate(zip(conversation, digests(conversation, salt), strict=True)):
            if message.role != "assistant" or message.reasoning:
                continue
            with self._lock:
                reasoning = self._turns.get(key)
                if reasoning:
                    self._turns.move_to_end(key)
            if reasoning:
                messages[number] = message.model_copy(update={"reasoning": reasoning, "parts": ()})
                numbers.append(number)
        return tuple(messages), tuple(numbers)

    def _forget(self, key: bytes) -> None:
        if key in self._turns:
            self._room += _size(self._turns.pop(key))


def _size(reasoning: str | None) -> int:
    """Returns the size that an entry counts: its text, and 64 for its digest."""
    return 64 + len(reasoning or "")


def digests(conversation: Sequence[Message], salt: str | None) -> Iterator[bytes]:
    """Yields for each message a digest of the salt and all messages up to it: the fields that clients keep, ignoring
    white space at the edges."""
    running = hashlib.sha256(json.dumps(salt).encode())
    for message in conversation:
        calls = [(call.id, call.name, _canonical(call.arguments)) for call in message.tool_calls]
        media = [each.identity.hex() for each in message.media]
        kept = [message.role, (message.content or "").strip(), message.tool_call_id or "", calls, *media]
        running.update(json.dumps(kept, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
        yield running.digest()


def _canonical(arguments: str) -> str:
    """Returns arguments in one canonical JSON form, since clients parse and rewrite them."""
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
