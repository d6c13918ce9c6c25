"""Remembers what was generated as tokens, so that the next prompt continues in the KV cache instead of diverging from
it.

A model's output may retokenise to other tokens. If a later prompt begins with the text of an earlier prompt and its
output, the very tokens of that turn replace the retokenised ones. This may only change how ordinary text is cut into
tokens, never where control tokens are: a caller's text that looks like an earlier turn stays text.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from engine.runtime.cache.control_tokens import ControlTokens
from engine.runtime.loop.backend import Vocab


@dataclass(slots=True)
class _Turn:
    """`text`: prompt and output together, None until first needed. Bytes that are not UTF-8 are U+FFFD in it, as in the
    text that the caller got and sends back."""

    prompt: str
    output: tuple[int, ...]
    text: str | None = None


class TurnMemory:
    """Remembers the last turns. Its methods may be called from any thread.

    `capacity`: maximum number of turns; `max_tokens`: maximum number of tokens in all of them. The oldest turn goes
    first.
    """

    def __init__(self, vocab: Vocab, *, capacity: int = 256, max_tokens: int = 1_000_000) -> None:
        self._vocab = vocab
        self._control = ControlTokens(vocab)
        self._capacity = capacity
        self._max_tokens = max_tokens
        self._turns: OrderedDict[tuple[int, ...], _Turn] = OrderedDict()
        self._tokens = 0
        self._lock = threading.Lock()

    def remember(self, prompt: str, prompt_tokens: tuple[int, ...], output_tokens: tuple[int, ...]) -> None:
        """Remember a finished turn; its output comes without the end token."""
        if not output_tokens:
            return
        known = prompt_tokens + output_tokens
        with self._lock:
            self._forget(known)
            self._turns[known] = _Turn(prompt, output_tokens)
            self._tokens += len(known)
            while len(self._turns) > self._capacity or (self._tokens > self._max_tokens and len(self._turns) > 1):
                self._forget(next(iter(self._turns)))

    def splice(self, text: str, tokens: Sequence[int]) -> tuple[int, ...]:
        """Returns the tokens to send for a prompt, given its text and its tokens: those of the longest remembered turn
        that it continues, followed by the rest of its own; or only its own."""
        own = tuple(tokens)
        with self._lock:
            turns = list(self._turns.items())
        # The prompt is compared first, so that an output's text is made only once it may be needed.
        begun = [(known, self._text(turn)) for known, turn in turns if text.startswith(turn.prompt)]
        continued = [(known, len(whole)) for known, whole in begun if len(text) > len(whole) and text.startswith(whole)]
        # Two turns may have the same text and differ in which parts of it are control tokens.
        for known, length in sorted(continued, key=lambda turn: turn[1], reverse=True):
            if own[: len(known)] == known:
                return own
            joined = self._joined(known, own, len(text[length:].encode(errors="replace")))
            if joined is not None:
                return joined
        return own

    def _joined(self, known: tuple[int, ...], own: tuple[int, ...], rest: int) -> tuple[int, ...] | None:
        """Returns `known`, followed by the prompt's own tokens that make up its last `rest` bytes. None if no token
        begins there, or if the control tokens would differ from the prompt's own."""
        vocab = self._vocab
        start = len(own)
        while rest > 0 and start:
            start -= 1
            rest -= len(vocab.token_bytes(own[start]))
        if rest:
            return None
        same = next((index for index, (one, other) in enumerate(zip(known, own, strict=False)) if one != other), 0)
        if list(self._control.standing(known[same:])) != list(self._control.standing(own[same:start])):
            return None
        return known + own[start:]

    def _text(self, turn: _Turn) -> str:
        if turn.text is None:
            data = b"".join(map(self._vocab.token_bytes, turn.output))
            turn.text = turn.prompt + data.decode(errors="replace")
        return turn.text

    def _forget(self, key: tuple[int, ...]) -> None:
        if self._turns.pop(key, None) is not None:
            self._tokens -= len(key)
