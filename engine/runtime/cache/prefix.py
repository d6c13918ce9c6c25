"""Tracks which sequence of the KV cache already holds which tokens, so that no prefix is evaluated twice; also the
prefixes that callers pinned.

A memory that cannot be cut (recurrent layers) is taken back to checkpoints instead. A prompt is never reused in full:
its last token is evaluated again, for its logits. A pinned prefix occupies a sequence, and at least one sequence must
stay for requests.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from engine.runtime.adapters.adapters import BASE, Adapters
from engine.runtime.cache.state_store import OriginStates, Stored
from engine.runtime.loop.backend import Backend
from engine.runtime.media.media import position, whole
from engine.support.errors import DecodeError, EngineError

_log = logging.getLogger("engine.runner")
_CUT = 256
"""Cells taken from an idle sequence at a time, rather than one in every step."""
_CHECKPOINTS = 8
"""Maximum number of checkpoints of one conversation."""


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
    """The state that `Backend.checkpoint` returned when a sequence held its first `position` tokens; `made` numbers
    checkpoints in the order in which they were made."""

    position: int
    state: bytes
    made: int


@dataclass(slots=True)
class _Slot:
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


class PrefixCache:
    """Tracks the contents of a backend's sequences.

    `patience`: a prompt waits if another request is about to hold at least `patience` more of its tokens than can be
    reused now, unless copying them costs more; for an identical prompt two tokens suffice. That is how requests with
    one system prompt, or several answers to one prompt, share its prefill.
    `shelf`: where the states of idle sequences are kept before they are forgotten, and found again, if that saves the
    evaluation of at least `worth` tokens.
    """

    def __init__(
        self, memory: Backend, *, patience: int = 32, shelf: OriginStates | None = None, worth: int = 64
    ) -> None:
        self._memory = memory
        self._info = memory.info
        self._slots = [_Slot() for _ in range(self._info.n_sequences)]
        self._patience = patience
        self._whole_only = not self._info.can_share
        self._holders: list[int] = []
        self._unused: list[int] = []
        self._clock = 0
        self._capacity = self._refused = self._info.cells
        self._shelf = shelf
        self._worth = max(worth, self._info.copy_cost)
        self._claims: dict[int, Sequence[int]] = {}

    @property
    def used(self) -> int:
        """Cells in use; a cell that several sequences share counts once."""
        return len(self._holders) - len(self._unused)

    @property
    def whole_only(self) -> bool:
        """Whether the memory cannot be cut (recurrent layers), so that a sequence is reused in full or not at all."""
        return self._whole_only

    @property
    def free(self) -> int:
        return self._capacity - self.used

    def held(self, sequence: int) -> Sequence[int]:
        """Returns the tokens that a sequence holds."""
        return self._slots[sequence].tokens

    def adapters(self, sequence: int) -> Adapters:
        """Returns what computed those tokens."""
        return self._slots[sequence].adapters

    @property
    def checkpoints(self) -> tuple[int, int]:
        """The number of checkpoints and their size in bytes; copies of a sequence share its checkpoints."""
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
        adapters: Adapters = BASE,
    ) -> Lease | Blocked:
        """Lease a sequence for this prompt that holds as much of it as can be reused.

        `tokens` is kept, and read while the sequence is in use: the caller appends what it generates, up to `limit`
        tokens in all (0: one more). An idle sequence whose tokens are mostly a prefix of the prompt is continued in
        place. Otherwise the prefix is copied, if that is worth it or the caller pinned it, into an empty or the least
        recently used sequence; or a kept state that holds more of the prompt is loaded there. The user will call
        `checkpoint` when the sequence holds as many tokens as one of `marks`. `anew`: return a sequence to `load` a
        state into; nothing is reused. `waits`: prefer to wait for a sequence that will soon hold much more of the
        prompt. `adapters` compute the prompt; what others computed is not reused.
        """
        spare = self._spare()
        if not spare:
            return Blocked.SEQUENCES
        limit = max(limit, len(tokens) + 1)
        source, reuse = (None, 0) if anew else self._best(tokens, adapters)
        copies = source is not None and (source not in spare or not self._in_place(source, reuse, spare))
        if copies and reuse < self._info.copy_cost:
            source, reuse = self._best(tokens, adapters, whole_pins=True)
            copies = source is not None
        stored = None if anew else self._kept(tokens, adapters, reuse + self._worth)
        if stored is not None:
            source, copies, reuse = None, False, stored[1]
        if waits and not anew and self._worth_waiting(tokens, adapters, reuse):
            return Blocked.SHARED
        if not self._affordable(limit, source, 0 if stored else reuse):
            return Blocked.CELLS
        if source is not None and copies:
            target = self._place([index for index in spare if index != source])
            reuse = self._shared_from(source, target, reuse)
        elif source is not None:
            target = source
            if reuse == len(self._slots[source].tokens):
                self.checkpoint(source)  # where a turn ended: the next prompt may part from this one there
            self._keep(source, reuse)
            reuse = self._cut(source, reuse)
        elif stored is not None:
            target = self._place(spare)
            reuse = self._loaded(target, *stored)
        else:
            target = self._place(spare)
            own = self._slots[target]
            reuse = 0 if anew else _shared(own, own.tokens, tokens, adapters)
            self._keep(target, reuse)
            reuse = self._cut(target, reuse)  # what the sequence already holds is not read again
        slot = self._slots[target]
        slot.plan, slot.limit, slot.marks, slot.adapters = tokens, limit, marks, adapters
        self._touch(target)
        return Lease(target, reuse)

    def cut(self, sequence: int, length: int) -> int:
        """Keep the first `length` tokens of a sequence in use. Returns how many were kept: fewer if its memory cannot
        be cut."""
        return self._cut(sequence, length)

    def extend(self, sequence: int, tokens: Sequence[int]) -> None:
        """Record that these tokens were evaluated at the end of the sequence."""
        slot = self._slots[sequence]
        slot.tokens.extend(tokens)
        for _ in tokens:
            if self._unused:
                cell = self._unused.pop()
                self._holders[cell] = 1
            else:
                cell = len(self._holders)
                self._holders.append(1)
            slot.cells.append(cell)
        if self.used > self._refused:
            self._refused = self._info.cells  # so the memory has as many after all

    def checkpoint(self, sequence: int) -> None:
        """Save a checkpoint of the sequence, to which it can be taken back, if its memory cannot be cut. Removes the
        oldest checkpoints when there are too many, or when they take too much memory."""
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

    def release(self, sequence: int, *, continued: bool = True) -> None:
        """Mark the sequence as idle; what it holds stays for others until its cells are needed, then its state is kept
        if it is likely to be `continued`."""
        slot = self._slots[sequence]
        if self._info.media:
            self._cut(sequence, len(slot.tokens))  # the rows of a picture of which others are missing
        slot.plan, slot.continued = None, continued
        self._touch(sequence)

    def claim(self, id_: int, tokens: Sequence[int]) -> None:
        """Keep these tokens in a sequence or as a state, until `disclaim`, as far as there is room."""
        self._claims[id_] = tokens

    def disclaim(self, id_: int) -> None:
        self._claims.pop(id_, None)

    def keep(self, sequence: int) -> None:
        """Keep the state of an idle sequence now, if it can be kept."""
        self._keep(sequence, 0)

    def keep_all(self) -> None:
        """Keep the states of all idle sequences, because the memory is about to be freed."""
        for index, slot in enumerate(self._slots):
            if slot.idle and slot.continued:
                self._keep(index, 0)

    def pin(self, sequence: int) -> None:
        """Mark the sequence as idle, and keep what it holds until `unpin`."""
        self._slots[sequence].pinned = True
        self.release(sequence)

    def unpin(self, sequence: int) -> None:
        """Allow what the sequence holds to be forgotten when its cells are needed."""
        self._slots[sequence].pinned = False

    def load(self, sequence: int, tokens: Sequence[int], state: bytes) -> bool:
        """Load a saved state of these tokens into a sequence in use. Returns False if there is no room. Raises
        DecodeError if the memory refuses the state, or if it holds another number of tokens; the sequence is then
        empty."""
        self._forget(sequence)
        if not self.make_room(len(tokens)):
            return False
        self._memory.restore(sequence, state)
        held, wanted = self._memory.positions(sequence), self._positions(tokens, len(tokens))
        if held != wanted:
            self._memory.trim(sequence, 0)
            raise DecodeError(
                f"The saved state holds {held:,} positions, but its file lists {len(tokens):,} tokens, which take "
                f"{wanted:,}: they do not belong together. Save the prefix again.",
                "invalid",
            )
        self.extend(sequence, tokens)
        return True

    def drop(self, sequence: int) -> None:
        """Release the sequence and forget what it holds."""
        self._forget(sequence)
        self._slots[sequence].plan = None

    def reconcile(self, sequence: int) -> int:
        """Correct the records of a sequence after a failed decode. Returns how many tokens it really holds."""
        slot, true = self._slots[sequence], self._memory.positions(sequence)
        tokens = slot.tokens
        if true > self._positions(tokens, len(tokens)):
            return self._cut(sequence, len(tokens))
        if self._info.media:
            lengths = range(len(tokens) + 1)
            true = bisect_right(lengths, true, key=lambda length: self._positions(tokens, length)) - 1
            return self._cut(sequence, true)  # of a unit that is there in part, nothing is kept
        self._release_cells(slot, true)
        return true

    def make_room(self, cells: int) -> bool:
        """Forget the ends of idle sequences, the least recently used first, until `cells` cells are free.

        Returns False if that is not enough.
        """
        while self._capacity - len(self._holders) + len(self._unused) < cells:
            filled = [index for index in self._spare() if self._slots[index].tokens]
            if not filled:
                return False
            oldest = self._oldest(filled)
            self._keep(oldest, 0)
            self._cut(oldest, max(0, len(self._slots[oldest].tokens) - max(cells - self.free, _CUT)))
        return True

    def shrink(self, cells: int) -> None:
        """Lower the capacity, after the memory refused `cells` more cells: it has fewer than it stated."""
        self._capacity = self._refused = min(self._refused, self.used + cells - 1)

    def widen(self) -> bool:
        """Count with all cells again, since a refusal may have had another reason. Returns whether there were
        fewer."""
        before, self._capacity = self._capacity, self._info.cells
        return before < self._capacity

    def clear(self) -> bool:
        """Forget every idle sequence that is not pinned. Returns whether there was anything to forget."""
        filled = [index for index in self._spare() if self._slots[index].tokens]
        for index in filled:
            self._forget(index)
        return bool(filled)

    def check(self) -> None:
        """Raise AssertionError if the records contradict themselves or the memory. For tests; linear in all tokens."""
        holders = [0] * len(self._holders)
        for index, slot in enumerate(self._slots):
            held = self._memory.positions(index)
            known = self._positions(slot.tokens, len(slot.tokens))
            assert known == held, f"sequence {index} holds {held} positions, not {known}"
            assert len(slot.cells) == len(slot.tokens), f"sequence {index} has {len(slot.cells)} cells"
            if slot.plan is not None:
                assert list(slot.plan[: len(slot.tokens)]) == slot.tokens, (
                    f"sequence {index} holds other tokens than its user's"
                )
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
        """Returns the sequence for a prompt that continues none: the least recently used.

        If sequences have separate buffers, prefers one next to busy ones, among the empty ones or else the older half:
        sequences with consecutive numbers are evaluated in one pass.
        """
        by_age = sorted(spare, key=lambda index: self._slots[index].used)
        if not self._info.copy_cost:
            return by_age[0]
        empty = [index for index in by_age if not self._slots[index].tokens]
        return max(empty or by_age[: (len(by_age) + 1) // 2], key=self._busy_neighbours)

    def _busy_neighbours(self, index: int) -> int:
        beside = self._slots[max(index - 1, 0) : index] + self._slots[index + 1 : index + 2]
        return sum(not slot.idle for slot in beside)

    def _kept(self, tokens: Sequence[int], adapters: Adapters, least: int) -> tuple[Stored, int] | None:
        """Returns the kept state that holds most of the prompt, and how much, if that is at least `least` tokens."""
        if self._shelf is None or len(tokens) <= least:
            return None

        def shared(entry: Stored) -> int:
            fits = len(entry.tokens) <= self._info.n_ctx
            return _shared(entry, entry.tokens, tokens, adapters) if fits else 0

        return self._shelf.find(shared, least, whole=self._whole_only)

    def _loaded(self, sequence: int, entry: Stored, length: int) -> int:
        """Load a kept state and cut it to `length` tokens; returns how many the sequence then holds, 0 if the state is
        gone or was refused."""
        assert self._shelf is not None, "an entry comes from the shelf"
        self._forget(sequence)
        try:
            state = self._shelf.read(entry)
            if state is None or not self.load(sequence, entry.tokens, state):
                return 0
            return self._cut(sequence, length)
        except (DecodeError, MemoryError) as error:
            _log.warning("A kept state of %d tokens was not loaded: %s", len(entry.tokens), error)
            self._forget(sequence)
            self._shelf.discard(entry)
            return 0

    def _keep(self, sequence: int, left: int) -> None:
        """Keep the state of an idle sequence that is about to lose all but `left` tokens, if much of it is lost or a
        conversation claims what is, and nothing else holds it."""
        slot = self._slots[sequence]
        tokens = slot.tokens
        lost = len(tokens) - left
        if self._shelf is None or not slot.continued or lost < self._worth:
            return
        if lost <= left and not self._claimed(tokens, left):
            return
        others = (other for other in self._slots if other is not slot)
        if any(_shared(other, other.tokens, tokens, slot.adapters) > len(tokens) - self._worth for other in others):
            return
        try:
            self._shelf.keep(tokens, slot.adapters, self._memory, sequence, whole=self._whole_only)
            turn = max((point for point in slot.checkpoints if left < point.position < len(tokens)), default=None)
            if self._whole_only and turn is not None:
                self._cut(sequence, turn.position)  # where the last turn began, from which a prompt may go on
                if slot.tokens:
                    self._shelf.keep(slot.tokens, slot.adapters, self._memory, sequence, whole=True)
        except (EngineError, MemoryError, RuntimeError) as error:  # RuntimeError: no thread that writes can be started
            _log.warning("the state of %d tokens was not kept: %s", len(tokens), error)

    def _claimed(self, tokens: Sequence[int], left: int) -> bool:
        """Whether a conversation claims more than the first `left` of these tokens."""
        return any(common_prefix(claimed, tokens, len(tokens)) > left for claimed in self._claims.values())

    def _best(self, tokens: Sequence[int], adapters: Adapters, *, whole_pins: bool = False) -> tuple[int | None, int]:
        """Returns the sequence that shares most with the prompt (spare ones win ties), and how many of its tokens can
        be reused. `whole_pins`: consider only pinned sequences that the prompt begins with."""
        best: tuple[int, bool, int] = (0, False, -1)
        for index, slot in enumerate(self._slots):
            shared = _shared(slot, slot.tokens, tokens, adapters)
            reusable = self._reusable(slot, shared) if self._whole_only else shared
            if reusable and ((slot.pinned and shared == len(slot.tokens)) or not whole_pins):
                best = max(best, (reusable, slot.spare, index))
        return (None, 0) if best[2] < 0 else (best[2], best[0])

    def _reusable(self, slot: _Slot, shared: int) -> int:
        """Returns how many of the first `shared` tokens of a sequence can be kept, if it cannot be cut but taken
        back."""
        if shared == len(slot.tokens):
            return shared
        return max((point.position for point in slot.checkpoints if point.position <= shared), default=0)

    def _worth_waiting(self, tokens: Sequence[int], adapters: Adapters, reuse: int) -> bool:
        for slot in self._slots:
            if slot.plan is None or len(slot.plan) - len(slot.tokens) < 2:
                continue
            shared = _shared(slot, slot.plan, tokens, adapters)
            if self._whole_only:
                shared = max((mark for mark in slot.marks if len(slot.tokens) < mark <= shared), default=0)
            # An identical prompt then costs nothing, however short it is.
            same = shared == len(tokens) - 1 and len(slot.plan) > shared and slot.plan[shared] == tokens[shared]
            if shared - reuse >= max(2 if same else self._patience, self._info.copy_cost):
                return True
        return False

    def _affordable(self, limit: int, source: int | None, reuse: int) -> bool:
        """Whether a request of `limit` tokens fits in addition to what the busy sequences hold and may still add: in a
        shared pool, no request should be preempted later. A prompt may always start if no sequence is busy."""
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
        """Whether to continue the sequence itself: not if that loses more tokens than are shared and another sequence
        is available."""
        held = self._slots[source].tokens
        return len(spare) == 1 or (len(held) - reuse <= reuse and not self._claimed(held, reuse))

    def _shared_from(self, source: int, target: int, reuse: int) -> int:
        """Let `target` hold the first `reuse` tokens of `source`; returns how many it then holds: none if the copy
        fails, which costs only their evaluation."""
        self._forget(target)
        try:
            return self._share(source, target, reuse)
        except (EngineError, MemoryError) as error:
            _log.warning("a prefix of %d tokens was not copied: %s", reuse, error)
            self._forget(target)
            return 0

    def _share(self, source: int, target: int, reuse: int) -> int:
        """Copy the whole sequence, then cut the copy: this finds out whether the memory can be cut before anything
        relies on it."""
        held, into = self._slots[source], self._slots[target]
        self._memory.copy(source, target, self._positions(held.tokens, len(held.tokens)))
        into.tokens, into.cells, into.checkpoints = list(held.tokens), list(held.cells), list(held.checkpoints)
        for cell in into.cells:
            self._holders[cell] += 1
        return self._cut(target, reuse)

    def _cut(self, sequence: int, length: int) -> int:
        """Keep the first `length` tokens of a sequence; returns how many were kept. A memory that cannot be cut is
        taken back to the newest checkpoint within them, or forgets everything."""
        slot = self._slots[sequence]
        length = whole(slot.tokens, length)
        place = self._positions(slot.tokens, length)
        if place >= self._memory.positions(sequence):
            self._release_cells(slot, length)
            return length
        if self._whole_only or not self._memory.trim(sequence, place):
            self._whole_only = True
            length = self._rewound(sequence, length)
        self._release_cells(slot, length)
        return length

    def _rewound(self, sequence: int, length: int) -> int:
        """Take the sequence back to a checkpoint at `length` or before; returns its position."""
        slot = self._slots[sequence]
        point = max((point for point in slot.checkpoints if point.position <= length), default=None)
        if point is not None:
            place = self._positions(slot.tokens, point.position)
            if self._memory.rewind(sequence, place, point.state):
                return point.position
        self._memory.trim(sequence, 0)
        return 0

    def _positions(self, tokens: Sequence[int], length: int) -> int:
        """Returns how many positions the first `length` tokens take."""
        return position(tokens, length) if self._info.media else length

    def _forget(self, sequence: int) -> None:
        slot = self._slots[sequence]
        if slot.idle:
            self._keep(sequence, 0)
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

    def _touch(self, sequence: int) -> None:
        self._clock += 1
        self._slots[sequence].used = self._clock


def _age(point: Checkpoint) -> int:
    return point.made


def _shared(slot: _Slot | Stored, held: Sequence[int], tokens: Sequence[int], adapters: Adapters) -> int:
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
