"""Random walks through a grammar: texts that it accepts, drawn token by token as a model that knows nothing would."""

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from engine.constraint.matcher import Table, compiled, table

EOS = 256


@cache
def byte_table() -> Table:
    """The vocabulary of all bytes, and an end token: markers are plain text in it."""
    return table([*(bytes([value]) for value in range(256)), b"<end>"], [EOS], EOS, _bytes)


def _bytes(text: str) -> list[int]:
    return list(text.encode())


def as_text(marker: str) -> Sequence[str | int]:
    """Cuts markup for `byte_table`."""
    return [marker] if marker else []


def allowed(matcher: Any) -> list[int]:
    """The tokens that the grammar allows next."""
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def walk(grammar: str, rng: random.Random, longest: int = 4000) -> str | None:
    """One text that the grammar accepts; None where it grew too long."""
    matcher = compiled(byte_table(), grammar).deep_copy()
    written: list[int] = []
    while len(written) < longest:
        forced = matcher.compute_ff_bytes()
        if forced:
            tokens = list(forced)
        elif matcher.is_stopped():
            return bytes(written).decode()
        else:
            choices = allowed(matcher)
            assert choices, matcher.get_error()
            token = rng.choice(choices)
            if EOS in choices and (token == EOS or rng.random() < 0.3):
                return bytes(written).decode()
            tokens = [token]
        assert matcher.consume_tokens(tokens), matcher.get_error()
        written += tokens
    return None
