"""Pictures and sounds as units of a sequence: rows that are evaluated together, and kept or forgotten together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

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


Part: TypeAlias = tuple[int, ...] | Unit
"""Tokens that the projector puts around a unit, or a unit."""


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
