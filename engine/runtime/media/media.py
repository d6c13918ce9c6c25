"""Pictures and sounds as units of a sequence: rows that are evaluated together, and kept or forgotten together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from engine.types.media import Media, MediaKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class MediaChunk:
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


_BITS = 20
MOST_ROWS = (1 << _BITS) - 1
"""The most rows of a unit."""
Embeddings: TypeAlias = "NDArray[np.float32]"
"""The rows of a unit, shape (rows, width)."""
PromptPart: TypeAlias = tuple[int, ...] | MediaChunk
"""Tokens that the projector puts around a unit, or a unit."""


class ChunkAt(NamedTuple):
    """A unit at its place in a prompt: the index of its first row among the tokens."""

    start: int
    unit: MediaChunk

    @property
    def stop(self) -> int:
        return self.start + self.unit.rows


TokensAndMedia: TypeAlias = tuple[tuple[int, ...], tuple[ChunkAt, ...]]
"""The tokens of a prompt, and the pictures and sounds among them."""


class Projector(Protocol):
    """What makes rows of pictures and sounds for one model."""

    @property
    def kinds(self) -> frozenset[MediaKind]: ...

    def read(self, media: Media) -> Sequence[PromptPart]:
        """Returns a picture or a sound of these kinds as the model reads it. May be called from any thread. Raises
        RequestError for what it cannot read."""
        ...

    def encode(self, unit: MediaChunk) -> Embeddings:
        """Returns the rows of a unit; computed once, then from a cache. May run beside the decode
        of a context, in one thread at a time. Raises DecodeError."""
        ...


def row_tokens(unit: MediaChunk) -> range:
    """Returns the numbers that stand for a unit's rows among tokens, in order: negative, and the same for the same row
    of the same unit, in every process, and for nothing else. They hold the unit's key, its rows and positions, and
    the index of the row."""
    number = int.from_bytes(unit.key)
    for part in (unit.rows, unit.positions, 0):
        number = number << _BITS | part
    return range(~number, ~number - unit.rows, -1)


def whole(tokens: Sequence[int], length: int) -> int:
    """Returns the greatest number of leading tokens, at most `length`, that does not cut a unit in two."""
    if 0 < length < len(tokens) and tokens[length] < 0:
        return length - (~tokens[length] & MOST_ROWS)
    return length


def position(tokens: Sequence[int], length: int) -> int:
    """Returns how many positions the first `length` tokens take."""
    held = tokens[:length]
    if not held or min(held) >= 0:
        return length
    firsts = (~token >> _BITS for token in held if token < 0 and not ~token & MOST_ROWS)
    return length - sum((first >> _BITS & MOST_ROWS) - (first & MOST_ROWS) for first in firsts)


def are_whole(tokens: Sequence[int]) -> bool:
    """Whether the rows among the tokens are those of whole units."""
    at = 0
    while at < len(tokens):
        first, rows = tokens[at], 1
        if first < 0:
            rows = ~first >> 2 * _BITS & MOST_ROWS
            if not rows or ~first & MOST_ROWS or tuple(tokens[at : at + rows]) != tuple(range(first, first - rows, -1)):
                return False
        at += rows
    return True


def has_media(tokens: Sequence[int]) -> bool:
    """Whether some of the tokens are rows of media."""
    return bool(tokens) and min(tokens) < 0
