"""Idle sequences leave a pool over whose cells attention passes, whoever holds them."""

from collections.abc import Callable

from engine.runtime.cache.cells import Cells
from engine.runtime.cache.kept import KeptStates
from engine.runtime.cache.match import Match
from engine.runtime.loop.backend import Backend


class Leaving:
    """Lets idle sequences leave the cells of a pool for the kept states. `cut` shortens a sequence."""

    def __init__(
        self, match: Match, memory: Backend, cells: Cells, kept: KeptStates, cut: Callable[[int, int], object]
    ) -> None:
        self._match = match
        self._memory = memory
        self._cells = cells
        self._kept = kept
        self._cut = cut

    def leave(self) -> None:
        """Keep the states of idle sequences and empty them, since requests have started.

        Those stay of which sequences in use hold more than half. Of a row of a batch only the beginning is kept that
        others hold too. All stay if the store of states has less room than the pool, or than all of them need: what was
        idle is then not forgotten sooner than in the pool.
        """
        if not self._memory.info.passes_idle:
            return
        slots = self._match.slots
        spare = [index for index, slot in enumerate(slots) if slot.tokens and slot.spare]
        if not spare or not self._kept.has_room(spare):
            return
        for index in spare:
            if not slots[index].continued:
                self._cut(index, self._cells.shared(slots[index].cells))
                slots[index].continued = True
        used = {cell for slot in slots if slot.tokens and not slot.spare for cell in slot.cells}
        for index in spare:
            cells = slots[index].cells
            if 2 * len(used.intersection(cells)) <= len(cells) and self._kept.keep_all_of(index):
                self._cut(index, 0)
                slots[index].used = 0
