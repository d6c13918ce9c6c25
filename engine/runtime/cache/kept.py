"""The states of idle sequences, kept before they are forgotten, and found again; and what conversations claim."""

import logging
from collections.abc import Callable, Sequence

from engine.runtime.adapters.adapters import Adapters
from engine.runtime.cache.match import Match
from engine.runtime.cache.slots import Slot, common_prefix
from engine.runtime.cache.slots import shared as shared_length
from engine.runtime.cache.state_store import OriginStates, Stored
from engine.runtime.loop.backend import Backend
from engine.support.errors import EngineError

_log = logging.getLogger("engine.runner")
_WORTH = 16
"""Tokens for whose sake a state is kept, where idle sequences leave the pool."""


class KeptStates:
    """Keeps a state if that saves the evaluation of at least `worth` tokens. `states`: where; None: nowhere."""

    def __init__(self, match: Match, memory: Backend, states: OriginStates | None, worth: int) -> None:
        self._match = match
        self._memory = memory
        self._info = memory.info
        self._states = states
        # A CPU loads a state of some hundred tokens faster than it evaluates a few.
        self.worth = min(worth, _WORTH) if self._info.passes_idle else max(worth, self._info.copy_cost)
        self._claims: dict[int, Sequence[int]] = {}

    def claim(self, id_: int, tokens: Sequence[int]) -> None:
        """Keep these tokens in a sequence or as a state, until `disclaim`, as far as there is room."""
        self._claims[id_] = tokens

    def disclaim(self, id_: int) -> None:
        self._claims.pop(id_, None)

    def claimed(self, tokens: Sequence[int], left: int) -> bool:
        """Whether a conversation claims more than the first `left` of these tokens."""
        return any(common_prefix(claimed, tokens, len(tokens)) > left for claimed in self._claims.values())

    def find(self, tokens: Sequence[int], adapters: Adapters, least: int) -> tuple[Stored, int] | None:
        """Returns the kept state that holds most of the prompt, and how much, if that is at least `least` tokens."""
        if self._states is None or len(tokens) <= least:
            return None

        def shared(entry: Stored) -> int:
            fits = len(entry.tokens) <= self._info.n_ctx
            return shared_length(entry, entry.tokens, tokens, adapters) if fits else 0

        return self._states.find(shared, least, self._info.cut_states)

    def keep(self, sequence: int, left: int, cut: Callable[[int, int], object]) -> None:
        """Keep the state of an idle sequence that is about to lose all but `left` tokens, if much of it is lost or a
        conversation claims what is, and nothing else holds it. `cut` shortens the sequence."""
        slot = self._match.slots[sequence]
        tokens = slot.tokens
        lost = len(tokens) - left
        if self._states is None or not slot.continued or lost < self.worth:
            return
        if (lost <= left and not self.claimed(tokens, left)) or self._held_elsewhere(slot):
            return
        try:
            self._states.keep(tokens, slot.adapters, self._memory, sequence, self._info.cut_states)
            turn = max((point for point in slot.checkpoints if left < point.position < len(tokens)), default=None)
            if self._match.whole_only and turn is not None:
                cut(sequence, turn.position)  # where the last turn began, from which a prompt may go on
                if slot.tokens:
                    self._states.keep(slot.tokens, slot.adapters, self._memory, sequence, self._info.cut_states)
        except (EngineError, MemoryError, RuntimeError) as error:  # RuntimeError: no thread that writes can be started
            _log.warning("the state of %d tokens was not kept: %s", len(tokens), error)

    def has_room(self, sequences: Sequence[int]) -> bool:
        """Whether the store has room for the states of these sequences together, and for as many tokens as the pool."""
        if self._states is None or self._states.store.durable:  # a store on disk would write them at each turn
            return False
        try:
            size = sum(map(self._memory.state_size, sequences))
        except (EngineError, MemoryError) as error:
            _log.warning("the states of %d sequences were not kept: %s", len(sequences), error)
            return False
        tokens = sum(len(self._match.slots[sequence].tokens) for sequence in sequences)
        return size * max(self._info.cells, tokens) <= self._states.store.memory * tokens

    def keep_all_of(self, sequence: int) -> bool:
        """Keep the state of an idle sequence that is to be emptied. Returns whether that loses next to nothing: a state
        that cannot be cut would, beside the sequence, which can."""
        slot, longest = self._match.slots[sequence], self._info.cut_states
        if longest is not None and len(slot.tokens) > longest:
            return False
        if self._states is None or len(slot.tokens) < self.worth or self._held_elsewhere(slot):
            return self._states is not None
        try:
            self._states.keep(slot.tokens, slot.adapters, self._memory, sequence, longest)
        except (EngineError, MemoryError) as error:
            _log.warning("the state of %d tokens was not kept: %s", len(slot.tokens), error)
            return False
        return True

    def _held_elsewhere(self, slot: Slot) -> bool:
        """Whether another sequence holds nearly all that this one does."""
        least = len(slot.tokens) - self.worth
        others = (other for other in self._match.slots if other is not slot)
        return any(shared_length(other, other.tokens, slot.tokens, slot.adapters) > least for other in others)

    def read(self, entry: Stored) -> bytes | None:
        """Returns a state that `find` found; None if it is gone."""
        assert self._states is not None, "an entry comes from the states"
        return self._states.read(entry)

    def discard(self, entry: Stored) -> None:
        """Forget a state that the memory refused."""
        assert self._states is not None, "an entry comes from the states"
        self._states.discard(entry)
