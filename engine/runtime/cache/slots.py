"""What a sequence of the KV cache holds, and how much of a prompt that can give."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.runtime.adapters.adapters import BASE, Adapters
from engine.runtime.cache.state_store import Stored
from engine.runtime.loop.backend import ContextInfo
from engine.runtime.media.media import position, whole


class Checkpoint(NamedTuple):
    """The state that `Backend.checkpoint` returned when a sequence held its first `position` tokens; `made` numbers
    checkpoints in the order in which they were made."""

    position: int
    state: bytes
    made: int


@dataclass(slots=True)
class Slot:
    """One sequence. `cells[i]` is the cell of `tokens[i]`. `plan`: the tokens that its user is evaluating (None: the
    sequence is idle); the user will hold at most `limit` tokens and take checkpoints at `marks`. `adapters` compute
    both. A pinned sequence is copied from, never changed. `continued`: a conversation may go on from it, so that its
    state is worth keeping."""

    tokens: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list[Checkpoint])
    plan: Sequence[int] | None = None
    adapters: Adapters = BASE
    limit: int = 0
    marks: Sequence[int] = ()
    used: int = 0
    pinned: bool = False
    continued: bool = True

    @property
    def idle(self) -> bool:
        return self.plan is None

    @property
    def spare(self) -> bool:
        """Whether the sequence may be changed or forgotten."""
        return self.plan is None and not self.pinned


def shared(slot: Slot | Stored, held: Sequence[int], tokens: Sequence[int], adapters: Adapters) -> int:
    """Returns how much of a prompt a sequence or a state can give it: as far as `held`, what it holds or will hold, has
    the same tokens, computed by the same adapters, and no unit of media is cut. Whatever is reused is compared here."""
    return whole(tokens, common_prefix(held, tokens, min(len(tokens) - 1, slot.adapters.alike(adapters))))


def common_prefix(left: Sequence[int], right: Sequence[int], limit: int) -> int:
    """Returns how many leading items are equal, at most `limit`. Compares slices of growing size, which is fast at any
    length."""
    limit = min(limit, len(left), len(right))
    start, size = 0, 16
    while start < limit:
        stop = min(start + size, limit)
        if list(left[start:stop]) != list(right[start:stop]):
            break
        start, size = stop, size * 2
    stop = min(start + size, limit)
    while start < stop and left[start] == right[start]:
        start += 1
    return start


def place_of(tokens: Sequence[int], length: int, info: ContextInfo) -> int:
    """Returns how many positions the first `length` tokens take."""
    return position(tokens, length) if info.media else length
