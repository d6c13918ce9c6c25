"""Finds the sequence that gives most of a prompt, or the place for a new one."""

from collections.abc import Iterable, Sequence

from engine.runtime.adapters.adapters import Adapters
from engine.runtime.cache.cells import Cells
from engine.runtime.cache.slots import Slot, place_of
from engine.runtime.cache.slots import shared as shared_length
from engine.runtime.loop.backend import Backend

_OFFLINE = 4
"""Tokens that a neighbour must be about to hold more, for a prompt to wait whose answer nobody waits for."""


class Match:
    """Compares prompts with the sequences of a context. `whole_only`: the memory can never be cut (recurrent layers),
    so that a sequence is reused in full, or up to a checkpoint. `patience`: see `PrefixCache`."""

    def __init__(self, memory: Backend, patience: int) -> None:
        self._memory = memory
        self._info = memory.info
        self._patience = patience
        self.slots = [Slot() for _ in range(memory.info.n_sequences)]
        self.whole_only = not memory.info.can_share

    def spare(self) -> list[int]:
        """Returns the sequences that may be changed or forgotten."""
        return [index for index, slot in enumerate(self.slots) if slot.spare]

    def oldest(self, indices: Iterable[int]) -> int:
        """Returns the least recently used of these sequences."""
        return min(indices, key=lambda index: self.slots[index].used)

    def place(self, spare: Sequence[int]) -> int:
        """Returns the sequence for a prompt that continues none: the least recently used.

        If sequences have separate buffers, prefers one next to busy ones, among the empty ones or else the older half:
        sequences with consecutive numbers are evaluated in one pass.
        """
        by_age = sorted(spare, key=lambda index: self.slots[index].used)
        if not self._info.copy_cost:
            return by_age[0]
        empty = [index for index in by_age if not self.slots[index].tokens]
        return max(empty or by_age[: (len(by_age) + 1) // 2], key=self._busy_neighbours)

    def _busy_neighbours(self, index: int) -> int:
        beside = self.slots[max(index - 1, 0) : index] + self.slots[index + 1 : index + 2]
        return sum(not slot.idle for slot in beside)

    def best(self, tokens: Sequence[int], adapters: Adapters, *, whole_pins: bool = False) -> tuple[int | None, int]:
        """Returns the sequence that shares most with the prompt (spare ones win ties), and how many of its tokens can
        be reused. `whole_pins`: consider only pinned sequences that the prompt begins with."""
        best: tuple[int, bool, int] = (0, False, -1)
        for index, slot in enumerate(self.slots):
            reusable = self.reusable(index, tokens, adapters)
            if reusable and ((slot.pinned and reusable == len(slot.tokens)) or not whole_pins):
                best = max(best, (reusable, slot.spare, index))
        return (None, 0) if best[2] < 0 else (best[2], best[0])

    def reusable(self, index: int, tokens: Sequence[int], adapters: Adapters) -> int:
        """Returns how many of its tokens a sequence can give a prompt: those that both begin with, or fewer if it
        cannot be cut there but taken back, or none."""
        slot = self.slots[index]
        shared = shared_length(slot, slot.tokens, tokens, adapters)
        if shared in (0, len(slot.tokens)) or self._memory.can_trim(index, place_of(slot.tokens, shared, self._info)):
            return shared
        return max((point.position for point in slot.checkpoints if point.position <= shared), default=0)

    def worth_waiting(self, tokens: Sequence[int], adapters: Adapters, reuse: int, *, offline: bool) -> bool:
        """Whether a sequence in use is about to hold much more of the prompt than the `reuse` tokens of now; for an
        `offline` prompt, whose answer nobody waits for, a few more."""
        patience = min(self._patience, _OFFLINE) if offline else self._patience
        for slot in self.slots:
            if slot.plan is None or len(slot.plan) - len(slot.tokens) < 2:
                continue
            shared = shared_length(slot, slot.plan, tokens, adapters)
            if self.whole_only:
                shared = max((mark for mark in slot.marks if len(slot.tokens) < mark <= shared), default=0)
            # An identical prompt then costs nothing, however short it is.
            same = shared == len(tokens) - 1 and len(slot.plan) > shared and slot.plan[shared] == tokens[shared]
            if shared - reuse >= max(2 if same else patience, self._info.copy_cost):
                return True
        return False

    def affordable(self, cells: Cells, limit: int, source: int | None, reuse: int) -> bool:
        """Whether a request of `limit` tokens fits in addition to what the busy sequences hold and may still add: in a
        shared pool, no request should be preempted later. A prompt may always start if no sequence is busy."""
        busy = [slot for slot in self.slots if slot.plan is not None]
        if not busy or not self._info.kv_tokens:
            return True
        promised = sum(max(slot.limit, len(slot.plan or ()) + 1) - len(slot.tokens) for slot in busy)
        needed = limit - reuse + promised
        if cells.free >= needed:
            return True
        held = {cell for slot in self.slots if not slot.spare for cell in slot.cells}
        if source is not None:
            held.update(self.slots[source].cells[:reuse])
        return cells.capacity - len(held) >= needed
