"""Random walks through a grammar: texts that it accepts, drawn token by token as a model that knows nothing would."""

import random
from collections.abc import Sequence
from functools import cache

import numpy as np

from engine.constraint.matcher import Compiler, Matcher, masks

END = 256


class Bytes:
    """The vocabulary of all bytes, and an end token: markers are plain text in it."""

    size = 257

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return b"<end>" if token == END else bytes([token])

    def is_special(self, token: int) -> bool:
        return token == END

    is_end = is_special


@cache
def byte_compiler() -> Compiler:
    return Compiler(Bytes())


def as_text(marker: str) -> Sequence[str | int]:
    """Cuts markup for a vocabulary without control tokens."""
    return [marker] if marker else []


def allowed(matcher: Matcher) -> list[int]:
    """The tokens that the grammar allows next."""
    bits = np.unpackbits(masks([matcher])[0].view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def walk(grammar: str, rng: random.Random, longest: int = 4000) -> str | None:
    """One text that the grammar accepts; None where it grew too long."""
    matcher = byte_compiler().compiled(grammar)
    written: list[int] = []
    while len(written) < longest:
        written += matcher.forced()
        if matcher.is_over:
            return bytes(written).decode()
        choices = allowed(matcher)
        assert choices, matcher.error
        token = rng.choice(choices)
        if END in choices and (token == END or rng.random() < 0.3):
            return bytes(written).decode()
        assert matcher.consume(token), matcher.error
        written.append(token)
    return None
