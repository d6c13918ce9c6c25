"""Which sequence of the KV cache already holds which tokens, so that no prefix is evaluated twice; and the prefixes
that callers pinned.

Knows: the tokens and cells of each sequence, who is using it and what its user may still add; how to continue a
sequence (cut), to share one (copy), to pin one, to shift one, and to forget the least recently used. A memory that
cannot be cut (recurrent layers) is taken back to checkpoints instead. Does not know: requests, steps, llama.cpp, files.
A prompt is never reused whole: its last token is evaluated again, for its logits. A pinned prefix keeps a sequence for
itself, so that one must stay for requests.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from engine.errors import DecodeError, RequestError
from engine.runtime.backend import Backend
from engine.runtime.state_file import SavedState

_log = logging.getLogger("engine.runner")
_CUT = 256
"""Cells are taken from an idle sequence so many at a time, not one in every step."""
_CHECKPOINTS = 8
"""Of one conversation, at most."""


class Lease(NamedTuple):
    """A sequence to use, and how many of the prompt's leading tokens it already holds."""

    sequence: int
    reused: int


class Blocked(Enum):
    """Why a prompt cannot start now."""

    SEQUENCES = "every sequence is in use"
    CELLS = "the sequences in use leave too few cells"
    SHARED = "a sequence in use is about to hold a long prefix of it"


class Checkpoint(NamedTuple):
    """What `Backend.checkpoint` gave when a sequence held its first `position` tokens; `made` numbers them in time."""

    position: int
    state: bytes
    made: int


@dataclass(slots=True)
class _Slot:
    """`cells[i]` is the cell of `tokens[i]`; `plan` are the tokens that its user is evaluating (None: it is idle), who
    will hold `limit` of them at most and take checkpoints at `marks`. A pinned one is copied from, never changed."""

    tokens: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list[Checkpoint])
    plan: Sequence[int] | None = None
    limit: int = 0
    marks: Sequence[int] = ()
    used: int = 0
    pinned: bool = False

    @property
    def idle(self) -> bool:
        return self.plan is None

    @property
    def spare(self) -> bool:
        """Whether it may be changed or forgotten."""
        return self.plan is None and not self.pinned


class PrefixCache:
    """The books over a backend's sequences.

    `patience`: a prompt waits when another request is about to hold at least so many more of its tokens than can be
    reused now, and for the very same prompt in any case, unless copying it costs more. That is how requests with one
    system prompt, or several answers to one prompt, share its prefill.
    """

    def __init__(self, memory: Backend, *, patience: int = 32) -> None:
        self._memory = memory
        self._info = memory.info
        self._slots = [_Slot() for _ in range(self._info.n_sequences)]
        self._patience = patience
        self._whole_only = not self._info.can_share
        self._holders: list[int] = []
        self._unused: list[int] = []
        self._clock = 0
        self._capacity = self._info.cells

    @property
    def used(self) -> int:
        """Cells taken, those shared by several sequences counted once."""
        return len(self._holders) - len(self._unused)

    @property
    def whole_only(self) -> bool:
        """Whether the memory cannot be cut (recurrent layers), so that sequences are reused whole or not at all."""
        return self._whole_only

    @property
    def free(self) -> int:
        return self._capacity - self.used

    def held(self, sequence: int) -> Sequence[int]:
        """The tokens that a sequence holds."""
        return self._slots[sequence].tokens

    @property
    def checkpoints(self) -> tuple[int, int]:
        """How many there are, and the bytes that they take; copies of a sequence share those that it had."""
        states = {id(point.state): len(point.state) for slot in self._slots for point in slot.checkpoints}
        return len(states), sum(states.values())

    def acquire(
        self,
        tokens: Sequence[int],
        limit: int = 0,
        marks: Sequence[int] = (),
        *,
        anew: bool = False,
        waits: bool = True,
    ) -> Lease | Blocked:
        """A sequence for this prompt, holding as much of it as can be reused.

        `tokens` is kept, and read while the sequence is in use: the caller appends what it generates, `limit` tokens in
        all (0: one more). An idle sequence whose tokens are mostly a prefix of the prompt is continued in place; else
        the prefix is copied, if that is worth it or the caller pinned it, into an empty or the least recently used one.
        The user will call `checkpoint` when it holds as many tokens as one of `marks` says. `anew`: a sequence to
        `load` a state into, nothing is reused. `waits`: rather wait for a sequence that will soon hold much more of it.
        """
        spare = self._spare()
        if not spare:
            return Blocked.SEQUENCES
        limit = max(limit, len(tokens) + 1)
        source, reuse = (None, 0) if anew else self._best(tokens)
        copies = source is not None and (source not in spare or not self._in_place(source, reuse, spare))
        if copies and reuse < self._info.copy_cost:
            source, reuse = self._best(tokens, whole_pins=True)
            copies = source is not None
        if waits and not anew and self._worth_waiting(tokens, reuse):
            return Blocked.SHARED
        if not self._affordable(limit, source, reuse):
            return Blocked.CELLS
        if source is not None and copies:
            target = self._place([index for index in spare if index != source])
            self._forget(target)
            reuse = self._share(source, target, reuse)
        elif source is not None:
            target = source
            if reuse == len(self._slots[source].tokens):
                self.checkpoint(source)  # where a turn ended: the next prompt may part from this one there
            reuse = self._cut(source, reuse)
        else:
            target = self._place(spare)
            reuse = 0 if anew else common_prefix(self._slots[target].tokens, tokens, len(tokens) - 1)
            reuse = self._cut(target, reuse)  # its own beginning costs nothing
        slot = self._slots[target]
        slot.plan, slot.limit, slot.marks = tokens, limit, marks
        self._touch(target)
        return Lease(target, reuse)

    def cut(self, sequence: int, length: int) -> int:
        """Keep the first `length` tokens of a sequence in use; how many were kept: fewer, where its memory cannot be
        cut."""
        return self._cut(sequence, length)

    def extend(self, sequence: int, tokens: Sequence[int]) -> None:
        """These tokens were evaluated at the sequence's end."""
        slot = self._slots[sequence]
        slot.tokens.extend(tokens)
        for _ in tokens:
            slot.cells.append(self._new_cell())

    def checkpoint(self, sequence: int) -> None:
        """Remember the sequence as it is now, if its memory cannot be cut: it can be taken back to that. The oldest
        checkpoints go when there are too many, or they take too much."""
        slot, room = self._slots[sequence], self._info.checkpoint_bytes
        position = len(slot.tokens)
        if not (self._whole_only and room and position) or any(each.position == position for each in slot.checkpoints):
            return
        try:
            state = self._memory.checkpoint(sequence)
        except (DecodeError, MemoryError) as error:
            _log.info("no checkpoint of sequence %d at %d tokens: %s", sequence, position, error)
            return
        self._clock += 1
        slot.checkpoints.append(Checkpoint(position, state, self._clock))
        if len(slot.checkpoints) > _CHECKPOINTS:
            slot.checkpoints.remove(min(slot.checkpoints, key=_age))
        while self.checkpoints[1] > room:
            oldest = min((point for each in self._slots for point in each.checkpoints), key=_age)
            for each in self._slots:
                each.checkpoints = [point for point in each.checkpoints if point.made != oldest.made]

    def release(self, sequence: int) -> None:
        """Nobody uses the sequence any more; what it holds stays for others until its cells are needed."""
        self._slots[sequence].plan = None
        self._touch(sequence)

    def pin(self, sequence: int) -> None:
        """Nobody uses the sequence any more, and what it holds stays until `unpin`."""
        self._slots[sequence].pinned = True
        self.release(sequence)

    def unpin(self, sequence: int) -> None:
        """What it holds stays until its cells are needed."""
        self._slots[sequence].pinned = False

    def load(self, sequence: int, tokens: Sequence[int], state: bytes) -> bool:
        """Put a saved state of these tokens into a sequence in use; False if there is no room. Raises DecodeError when
        the memory refuses the state, or it is not that of as many tokens; the sequence is empty then."""
        self._forget(sequence)
        if not self.make_room(len(tokens)):
            return False
        self._memory.restore(sequence, state)
        held = self._memory.positions(sequence)
        if held != len(tokens):
            self._memory.trim(sequence, 0)
            raise DecodeError(
                f"The saved state holds {held:,} positions, and its file names {len(tokens):,} tokens: they do not "
                "belong together. Save the prefix again.",
                "invalid",
            )
        self.extend(sequence, tokens)
        return True

    def shift(self, sequence: int, start: int, stop: int) -> bool:
        """Forget tokens `start` to `stop` (exclusive) of a sequence in use, and move what lies behind them to their
        place; idle sequences that share it let go of it. False where the memory cannot, or another user shares it."""
        slot = self._slots[sequence]
        moving = set(slot.cells[stop:])
        others = [index for index in range(len(self._slots)) if index != sequence]
        sharing = [index for index in others if not moving.isdisjoint(self._slots[index].cells)]
        if self._whole_only or not all(self._slots[index].spare for index in sharing):
            return False
        for index in sharing:
            cells = self._slots[index].cells
            self._cut(index, next(place for place, cell in enumerate(cells) if cell in moving))
        if not self._memory.shift(sequence, start, stop):
            return False
        self._give_back(slot.cells[start:stop])
        del slot.cells[start:stop], slot.tokens[start:stop]
        return True

    def drop(self, sequence: int) -> None:
        """Release the sequence and forget what it holds."""
        self._forget(sequence)
        self._slots[sequence].plan = None

    def reconcile(self, sequence: int) -> int:
        """After a failed decode: how many tokens the sequence really holds; the books follow."""
        slot, true = self._slots[sequence], self._memory.positions(sequence)
        if true > len(slot.tokens):
            return self._cut(sequence, len(slot.tokens))
        self._release_cells(slot, true)
        return true

    def make_room(self, cells: int) -> bool:
        """Forget the ends of idle sequences, the least recently used first, until so many cells are free.

        False if that is not enough.
        """
        while self.free < cells:
            filled = [index for index in self._spare() if self._slots[index].tokens]
            if not filled:
                return False
            oldest = self._oldest(filled)
            self._cut(oldest, max(0, len(self._slots[oldest].tokens) - max(cells - self.free, _CUT)))
        return True

    def shrink(self, cells: int) -> None:
        """The memory refused so many more cells: it has fewer than it says, and is not asked for them again."""
        self._capacity = min(self._capacity, self.used + cells - 1)

    def clear(self) -> bool:
        """Forget every idle sequence that is not pinned; whether there was anything to forget."""
        filled = [index for index in self._spare() if self._slots[index].tokens]
        for index in filled:
            self._forget(index)
        return bool(filled)

    def check(self) -> None:
        """Raise AssertionError when the books contradict themselves or the memory. For tests; linear in all tokens."""
        holders = [0] * len(self._holders)
        for index, slot in enumerate(self._slots):
            held = self._memory.positions(index)
            assert len(slot.tokens) == held, f"sequence {index} holds {held} positions, not {len(slot.tokens)}"
            assert len(slot.cells) == len(slot.tokens), f"sequence {index} has {len(slot.cells)} cells"
            if slot.plan is not None:
                assert list(slot.plan[:held]) == slot.tokens, f"sequence {index} holds other tokens than its user's"
            for cell in slot.cells:
                holders[cell] += 1
        assert holders == self._holders, "cells are counted wrongly"
        assert sorted(self._unused) == [cell for cell, count in enumerate(holders) if not count], "a cell leaked"
        assert self.used <= self._info.cells, f"{self.used} cells of {self._info.cells} are in use"

    def _spare(self) -> list[int]:
        return [index for index, slot in enumerate(self._slots) if slot.spare]

    def _oldest(self, indices: Iterable[int]) -> int:
        return min(indices, key=lambda index: self._slots[index].used)

    def _place(self, spare: Sequence[int]) -> int:
        """Where a prompt goes that continues no sequence: to the least recently used.

        Between separate buffers rather beside busy ones, as far as an empty one or the older half of them allow:
        sequences whose numbers follow one another are evaluated in one pass.
        """
        by_age = sorted(spare, key=lambda index: self._slots[index].used)
        if not self._info.copy_cost:
            return by_age[0]
        empty = [index for index in by_age if not self._slots[index].tokens]
        return max(empty or by_age[: (len(by_age) + 1) // 2], key=self._busy_neighbours)

    def _busy_neighbours(self, index: int) -> int:
        beside = self._slots[max(index - 1, 0) : index] + self._slots[index + 1 : index + 2]
        return sum(not slot.idle for slot in beside)

    def _best(self, tokens: Sequence[int], *, whole_pins: bool = False) -> tuple[int | None, int]:
        """The sequence that shares most with the prompt (spare ones win ties), and how much can be reused of it.
        `whole_pins`: among the pinned ones that the prompt begins with."""
        best: tuple[int, bool, int] = (0, False, -1)
        for index, slot in enumerate(self._slots):
            shared = common_prefix(slot.tokens, tokens, len(tokens) - 1)
            reusable = self._reusable(slot, shared)
            if reusable and ((slot.pinned and shared == len(slot.tokens)) or not whole_pins):
                best = max(best, (reusable, slot.spare, index))
        return (None, 0) if best[2] < 0 else (best[2], best[0])

    def _reusable(self, slot: _Slot, shared: int) -> int:
        """How many of the first `shared` tokens of a sequence it can be taken back to."""
        if not self._whole_only or shared == len(slot.tokens):
            return shared
        return max((point.position for point in slot.checkpoints if point.position <= shared), default=0)

    def _worth_waiting(self, tokens: Sequence[int], reuse: int) -> bool:
        for slot in self._slots:
            if slot.plan is None or len(slot.plan) - len(slot.tokens) < 2:
                continue
            shared = common_prefix(slot.plan, tokens, len(tokens) - 1)
            if self._whole_only:
                shared = max((mark for mark in slot.marks if len(slot.tokens) < mark <= shared), default=0)
            # The same prompt once more costs nothing then, however short it is.
            same = shared == len(tokens) - 1 and len(slot.plan) > shared and slot.plan[shared] == tokens[shared]
            if shared - reuse >= max(2 if same else self._patience, self._info.copy_cost):
                return True
        return False

    def _affordable(self, limit: int, source: int | None, reuse: int) -> bool:
        """Whether so many tokens fit beside what the busy sequences hold and may come to hold: in a pool, nobody should
        have to give way later. A prompt alone always may start."""
        busy = [slot for slot in self._slots if slot.plan is not None]
        if not busy or not self._info.kv_tokens:
            return True
        promised = sum(max(slot.limit, len(slot.plan or ()) + 1) - len(slot.tokens) for slot in busy)
        needed = limit - reuse + promised
        if self.free >= needed:
            return True
        kept = {cell for slot in self._slots if not slot.spare for cell in slot.cells}
        if source is not None:
            kept.update(self._slots[source].cells[:reuse])
        return self._capacity - len(kept) >= needed

    def _in_place(self, source: int, reuse: int, spare: Sequence[int]) -> bool:
        """Continue the sequence itself, unless that loses more of it than is shared and another one is at hand."""
        tail = len(self._slots[source].tokens) - reuse
        return tail <= reuse or len(spare) == 1

    def _share(self, source: int, target: int, reuse: int) -> int:
        """Copy the whole, then cut it: so a memory that cannot be cut is found out before anybody relies on it."""
        held, into = self._slots[source], self._slots[target]
        self._memory.copy(source, target, len(held.tokens))
        into.tokens, into.cells, into.checkpoints = list(held.tokens), list(held.cells), list(held.checkpoints)
        for cell in into.cells:
            self._holders[cell] += 1
        return self._cut(target, reuse)

    def _cut(self, sequence: int, length: int) -> int:
        """Keep the first `length` tokens of a sequence; how many were kept. A memory that cannot be cut is taken back
        to the newest checkpoint within them, or forgets it all."""
        slot = self._slots[sequence]
        if length >= self._memory.positions(sequence):
            self._release_cells(slot, length)
            return length
        if self._whole_only or not self._memory.trim(sequence, length):
            self._whole_only = True
            length = self._rewound(sequence, length)
        self._release_cells(slot, length)
        return length

    def _rewound(self, sequence: int, length: int) -> int:
        """Take the sequence back to a checkpoint at `length` or before; to which."""
        slot = self._slots[sequence]
        point = max((point for point in slot.checkpoints if point.position <= length), default=None)
        if point is not None and self._memory.rewind(sequence, point.position, point.state):
            return point.position
        self._memory.trim(sequence, 0)
        return 0

    def _forget(self, sequence: int) -> None:
        slot = self._slots[sequence]
        if self._memory.positions(sequence):
            self._memory.trim(sequence, 0)
        self._release_cells(slot, 0)
        slot.used = 0

    def _release_cells(self, slot: _Slot, keep: int) -> None:
        self._give_back(slot.cells[keep:])
        del slot.cells[keep:], slot.tokens[keep:]
        slot.checkpoints = [point for point in slot.checkpoints if point.position <= keep]

    def _give_back(self, cells: Sequence[int]) -> None:
        for cell in cells:
            self._holders[cell] -= 1
            if not self._holders[cell]:
                self._unused.append(cell)

    def _new_cell(self) -> int:
        if self._unused:
            cell = self._unused.pop()
            self._holders[cell] = 1
            return cell
        self._holders.append(1)
        return len(self._holders) - 1

    def _touch(self, sequence: int) -> None:
        self._clock += 1
        self._slots[sequence].used = self._clock


def _age(point: Checkpoint) -> int:
    return point.made


def common_prefix(left: Sequence[int], right: Sequence[int], limit: int) -> int:
    """How many leading items are equal, at most `limit`. Slices of growing size are compared: fast at any length."""
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


class Pins:
    """Pinned prefixes, by the number of the request that evaluated each."""

    def __init__(self, backend: Backend, cache: PrefixCache) -> None:
        self._backend = backend
        self._cache = cache
        self._sequences: dict[int, int] = {}

    def check(self, coming: int) -> None:
        """Raise RequestError where one more would leave no sequence for requests, with so many under way."""
        taken = len(self._sequences) + coming
        n_sequences = self._backend.info.n_sequences
        if taken + 1 >= n_sequences:
            raise RequestError(
                f"A pinned prefix takes a sequence; of {n_sequences}, {taken} are taken so, and one must stay for "
                "requests. Release one, or load with a larger n_sequences."
            )

    def keep(self, id_: int, sequence: int) -> None:
        """What the sequence holds stays until `release`."""
        self._cache.pin(sequence)
        self._sequences[id_] = sequence

    def release(self, id_: int) -> bool:
        """It may be forgotten when its cells are needed. Whether it was pinned."""
        sequence = self._sequences.pop(id_, None)
        if sequence is not None:
            self._cache.unpin(sequence)
        return sequence is not None

    def state(self, id_: int) -> SavedState:
        """Its tokens and what they evaluate to. Raises RequestError when it was released."""
        sequence = self._sequences.get(id_)
        if sequence is None:
            raise RequestError("This prefix was released; pin it again.")
        return SavedState(tuple(self._cache.held(sequence)), self._backend.save(sequence))
