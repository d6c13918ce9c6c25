"""Pictures and sounds as units of a sequence: rows that are evaluated together, and kept or forgotten together."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from engine.media import Media, MediaKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A picture or a sound, or a part of one, as a projector makes it.

    `key`: the SHA-256 of its content and of what makes rows of it; units of one key have the same rows. `rows`: how
    many cells it takes. `positions`: how many positions (with M-RoPE fewer than rows). `is_causal`: each row sees only
    those before it; else all of them are evaluated at once. `source`: the projector's own.
    """

    key: bytes
    rows: int
    positions: int
    is_causal: bool
    source: Any = None


_MOST = 1 << 20
"""Rows that a unit may have."""
Part: TypeAlias = tuple[int, ...] | Unit
"""Tokens that the projector puts around a unit, or a unit."""


class Placed(NamedTuple):
    """A unit at its place in a prompt: the index of its first row among the tokens."""

    start: int
    unit: Unit

    @property
    def stop(self) -> int:
        return self.start + self.unit.rows


class Projector(Protocol):
    """What makes rows of pictures and sounds for one model."""

    @property
    def kinds(self) -> frozenset[MediaKind]: ...

    def read(self, media: Media) -> Sequence[Part]:
        """Returns a picture or a sound as the model reads it. May be called from any thread. Raises RequestError for a
        kind that this projector does not take, and for what it cannot read."""
        ...

    def encode(self, unit: Unit) -> "NDArray[np.float32]":
        """Returns the rows of a unit, shape (rows, width); computed once, then from a cache. Only in the engine's
        thread. Raises DecodeError."""
        ...


class RowTokens:
    """The numbers that stand for rows of media among a sequence's tokens: negative, the same for the same row of the
    same unit, and for nothing else."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def of(self, unit: Unit) -> range:
        """Returns the numbers of a unit's rows, in order."""
        with self._lock:
            number = self._numbers.setdefault(unit.key, len(self._numbers))
        first = -((number * _MOST + unit.rows - unit.positions) * _MOST) - 1
        return range(first, first - unit.rows, -1)


def whole(tokens: Sequence[int], length: int) -> int:
    """Returns the greatest number of leading tokens, at most `length`, that does not cut a unit in two."""
    if 0 < length < len(tokens) and tokens[length] < 0:
        return length - (-tokens[length] - 1) % _MOST
    return length


def position(tokens: Sequence[int], length: int) -> int:
    """Returns how many positions the first `length` tokens take."""
    held = tokens[:length]
    if not held or min(held) >= 0:
        return length
    firsts = (-token - 1 for token in held if token < 0 and (-token - 1) % _MOST == 0)
    return length - sum(first // _MOST % _MOST for first in firsts)


def has_media(tokens: Sequence[int]) -> bool:
    """Whether some of the tokens are rows of media."""
    return bool(tokens) and min(tokens) < 0
