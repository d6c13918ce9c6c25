"""Checkpoints of sequences whose memory cannot be cut (recurrent layers): they are taken back to one instead."""

import logging

from engine.runtime.cache.match import Match
from engine.runtime.cache.slots import Checkpoint, place_of
from engine.runtime.loop.backend import Backend
from engine.runtime.loop.config import MOST_CHECKPOINTS
from engine.support.errors import DecodeError

_log = logging.getLogger("engine.runner")


class Checkpoints:
    """Saves checkpoints, forgets the oldest when there are too many, and takes sequences back to them."""

    def __init__(self, match: Match, memory: Backend) -> None:
        self._match = match
        self._memory = memory
        self._info = memory.info
        self._made = 0

    @property
    def size(self) -> tuple[int, int]:
        """The number of checkpoints and their size in bytes; copies of a sequence share its checkpoints."""
        states = {id(point.state): len(point.state) for slot in self._match.slots for point in slot.checkpoints}
        return len(states), sum(states.values())

    def save(self, sequence: int) -> None:
        """Save a checkpoint of the sequence, to which it can be taken back, if its memory cannot be cut. Removes the
        oldest checkpoints when there are too many, or when they take too much memory."""
        slot, room = self._match.slots[sequence], self._info.checkpoint_bytes
        position = len(slot.tokens)
        if not (self._match.whole_only and room and position) or any(
            each.position == position for each in slot.checkpoints
        ):
            return
        try:
            state = self._memory.checkpoint(sequence)
        except (DecodeError, MemoryError) as error:
            _log.info("no checkpoint of sequence %d at %d tokens: %s", sequence, position, error)
            return
        self._made += 1
        slot.checkpoints.append(Checkpoint(position, state, self._made))
        if len(slot.checkpoints) > MOST_CHECKPOINTS:
            slot.checkpoints.remove(min(slot.checkpoints, key=_age))
        while self.size[1] > room:
            oldest = min((point for each in self._match.slots for point in each.checkpoints), key=_age)
            for each in self._match.slots:
                each.checkpoints = [point for point in each.checkpoints if point.made != oldest.made]

    def rewind(self, sequence: int, length: int) -> int:
        """Take the sequence back to a checkpoint at `length` or before; returns its position."""
        slot = self._match.slots[sequence]
        point = max((point for point in slot.checkpoints if point.position <= length), default=None)
        if point is not None:
            place = place_of(slot.tokens, point.position, self._info)
            if self._memory.rewind(sequence, place, point.state):
                return point.position
        self._memory.trim(sequence, 0)
        return 0


def _age(point: Checkpoint) -> int:
    return point.made
