"""Which sequence of the KV cache already holds which tokens, so that no prefix is evaluated twice; and the prefixes
that callers pinned.

Knows: the tokens and cells of each sequence, who is using it, what its user is about to add; how to continue a
sequence (trim), to share one (copy), to pin one, to shift one, and to forget the least recently used. Does not know:
requests, steps, llama.cpp, files. A prompt is never reused whole: its last token is evaluated again, for its logits. A
pinned prefix keeps a sequence for itself, so that one must stay for requests.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

from engine.errors import RequestError
from engine.runtime.backend import Backend
from engine.runtime.state_file import SavedState

_CUT = 256
"""Cells are taken from an idle sequence so many at a time, not one in every step."""


class Memory(Protocol):
    """The part of a backend that holds sequences; see `engine.runtime.backend.Backend`."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def n_sequences(self) -> int: ...

    @property
    def can_share(self) -> bool: ...

    @property
    def copy_cost(self) -> int: ...

    def positions(self, sequence: int) -> int: ...

    def trim(self, sequence: int, position: int) -> bool: ...

    def copy(self, source: int, target: int, positions: int) -> None: ...

    def shift(self, sequence: int, start: int, stop: int) -> bool: ...

    def restore(self, sequence: int, state: bytes) -> None: ...


class Lease(NamedTuple):
    """A sequence to use, and how many of the prompt's leading tokens it already holds."""

    sequence: int
    reused: int


class Blocked(Enum):
    """Why a prompt cannot start now."""

    SEQUENCES = "every sequence is in use"
    CELLS = "the sequences in use leave too few cells"
    SHARED = "a sequence in use is about to hold a long prefix of it"


@dataclass(slots=True)
class _Slot:
    """`cells[i]` is the cell of `tokens[i]`; `plan` are the tokens that its user is evaluating (None: it is idle), of
    which the first `checkpoint` will be kept apart on the way. A pinned one is copied from, never changed."""

    tokens: list[int] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    plan: Sequence[int] | None = None
    checkpoint: int = 0
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

    def __init__(self, memory: Memory, *, patience: int = 32) -> None:
        self._memory = memory
        self._slots = [_Slot() for _ in range(memory.n_sequences)]
        self._patience = patience
        self._whole_only = not memory.can_share
        self._holders: list[int] = []
        self._unused: list[int] = []
        self._clock = 0
        self._capacity = memory.n_ctx

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

    def acquire(
        self, tokens: Sequence[int], checkpoint: int = 0, *, anew: bool = False, waits: bool = True
    ) -> Lease | Blocked:
        """A sequence for this prompt, holding as much of it as can be reused.

        `tokens` is kept, and read while the sequence is in use: the caller appends what it generates. An idle sequence
        whose tokens are mostly a prefix of the prompt is continued in place; else the prefix is copied, if that is
        worth it or the caller pinned it, into an empty or the least recently used one. The user will call `keep` when
        `checkpoint` tokens are evaluated (0: never). `anew`: a sequence to `load` a state into, nothing is reused.
        `waits`: rather wait for a sequence that will soon hold much more of it.
        """
        spare = self._spare()
        if not spare:
            return Blocked.SEQUENCES
        source, reuse = (None, 0) if anew else self._best(tokens)
        copies = source is not None and (source not in spare or not self._in_place(source, reuse, spare))
        if copies and reuse < self._memory.copy_cost:
            source, reuse = self._best(tokens, whole_pins=True)
            copies = source is not None
        if waits and not anew and self._worth_waiting(tokens, reuse):
            return Blocked.SHARED
        if not self._affordable(tokens, source, reuse):
            return Blocked.CELLS
        if source is not None and copies:
            target = self._place([index for index in spare if index != source])
            self._forget(target)
            reuse = self._share(source, target, reuse)
        elif source is not None:
            target, reuse = source, self._cut(source, reuse)
        else:
            target = self._place(spare)
            reuse = 0 if anew else common_prefix(self._slots[target].tokens, tokens, len(tokens) - 1)
            reuse = self._cut(target, reuse)  # its own beginning costs nothing
        self._slots[target].plan, self._slots[target].checkpoint = tokens, checkpoint
        self._touch(target)
        return Lease(target, reuse)

    def cut(self, sequence: int, length: int) -> int:
        """Keep the first `length` tokens of a sequence in use; how many were kept: none, where its memory cannot be
        cut."""
        return self._cut(sequence, length)

    def extend(self, sequence: int, tokens: Sequence[int]) -> None:
        """These tokens were evaluated at the sequence's end."""
        slot = self._slots[sequence]
        slot.tokens.extend(tokens)
        for _ in tokens:
            slot.cells.append(self._new_cell())

    def keep(self, sequence: int) -> bool:
        """Keep what the sequence holds now as an idle sequence of its own, for prompts that part from it later.

        That is how a memory that cannot be cut serves a conversation whose last turn changes when it becomes history.
        False if no sequence is to spare, or one holds the same already.
        """
        held, spare = self._slots[sequence].tokens, self._spare()
        if not spare or any(slot.idle and slot.tokens == held for slot in self._slots):
            return False
        target = self._oldest(spare)
        self._forget(target)
        self._share(sequence, target, len(held))
        self._touch(target)
        return True

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
        the memory refuses the state; the sequence is empty then."""
        self._forget(sequence)
        if not self.make_room(len(tokens)):
            return False
        self._memory.restore(sequence, state)
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
        assert self.used <= self._memory.n_ctx, f"{self.used} cells of {self._memory.n_ctx} are in use"

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
        if not self._memory.copy_cost:
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
            whole = shared == len(slot.tokens)
            if shared and (whole or not self._whole_only) and ((slot.pinned and whole) or not whole_pins):
                best = max(best, (shared, slot.spare, index))
        return (None, 0) if best[2] < 0 else (best[2], best[0])

    def _worth_waiting(self, tokens: Sequence[int], reuse: int) -> bool:
        for slot in self._slots:
            if slot.plan is None or len(slot.plan) - len(slot.tokens) < 2:
                continue
            shared = common_prefix(slot.plan, tokens, len(tokens) - 1)
            if self._whole_only:
                shared = slot.checkpoint if shared >= slot.checkpoint > len(slot.tokens) else 0
            # The same prompt once more costs nothing then, however short it is.
            same = shared == len(tokens) - 1 and len(slot.plan) > shared and slot.plan[shared] == tokens[shared]
            if shared - reuse >= max(2 if same else self._patience, self._memory.copy_cost):
                return True
        return False

    def _affordable(self, tokens: Sequence[int], source: int | None, reuse: int) -> bool:
        """Whether the rest of the prompt fits beside what the busy sequences hold and are about to hold.

        One cell more for each of them, so that nobody has to give way in the very next step. A prompt alone always may.
        """
        busy = [slot for slot in self._slots if slot.plan is not None]
        if not busy:
            return True
        promised = sum(len(slot.plan or ()) - len(slot.tokens) + 1 for slot in busy)
        needed = len(tokens) - reuse + 1 + promised
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
        whole = len(self._slots[source].tokens)
        self._memory.copy(source, target, whole)
        into = self._slots[target]
        into.tokens = list(self._slots[source].tokens)
        into.cells = list(self._slots[source].cells)
        for cell in into.cells:
            self._holders[cell] += 1
        return self._cut(target, reuse)

    def _cut(self, sequence: int, length: int) -> int:
        """Keep the first `length` tokens of a sequence, or none where its memory cannot be cut; how many were kept."""
        slot = self._slots[sequence]
        if length < self._memory.positions(sequence) and not self._memory.trim(sequence, length):
            self._whole_only = True
            length = 0
            self._memory.trim(sequence, 0)
        self._release_cells(slot, length)
        return length

    def _forget(self, sequence: int) -> None:
        slot = self._slots[sequence]
        if self._memory.positions(sequence):
            self._memory.trim(sequence, 0)
        self._release_cells(slot, 0)
        slot.used = 0

    def _release_cells(self, slot: _Slot, keep: int) -> None:
        self._give_back(slot.cells[keep:])
        del slot.cells[keep:], slot.tokens[keep:]

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

    def __bool__(self) -> bool:
        """Whether any prefix is pinned."""
        return bool(self._sequences)

    def check(self, coming: int) -> None:
        """Raise RequestError where one more would leave no sequence for requests, with so many under way."""
        taken = len(self._sequences) + coming
        if taken + 1 >= self._backend.n_sequences:
            raise RequestError(
                f"A pinned prefix takes a sequence; of {self._backend.n_sequences}, {taken} are taken so, and one must "
                "stay for requests. Release one, or load with a larger n_sequences."
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
