"""Tracks which sequence of the KV cache already holds which tokens, so that no prefix is evaluated twice; also the
prefixes that callers pinned.

A memory that cannot be cut (recurrent layers) is taken back to checkpoints instead. One with sliding windows is cut
where it still can be. A prompt is never reused in full: its last token is evaluated again, for its logits. A pinned
prefix occupies a sequence, and at least one sequence must stay for requests.
"""

import logging
from bisect import bisect_right
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from engine.runtime.adapters.adapters import BASE, Adapters
from engine.runtime.cache.cells import Cells
from engine.runtime.cache.checkpoints import Checkpoints
from engine.runtime.cache.kept import KeptStates
from engine.runtime.cache.leaving import Leaving
from engine.runtime.cache.match import Match
from engine.runtime.cache.slots import Slot, place_of
from engine.runtime.cache.state_store import OriginStates, Stored
from engine.runtime.loop.backend import Backend
from engine.runtime.media.media import whole
from engine.support.errors import DecodeError, EngineError

_log = logging.getLogger("engine.runner")
_CUT = 256
"""Cells taken from an idle sequence at a time, rather than one in every step."""


class Lease(NamedTuple):
    """A sequence to use, and how many of the prompt's leading tokens it already holds."""

    sequence: int
    reused: int


class Blocked(Enum):
    """Why a prompt cannot start now."""

    SEQUENCES = "every sequence is in use"
    CELLS = "the sequences in use leave too few cells"
    SHARED = "a sequence in use is about to hold a long prefix of it"


class _Found(NamedTuple):
    """What of a prompt is reused, and from where: a sequence, which is copied or continued, or a kept state."""

    reuse: int
    source: int | None = None
    copies: bool = False
    stored: Stored | None = None


class PrefixCache:
    """Tracks the contents of a backend's sequences.

    `patience`: a prompt waits if another request is about to hold at least `patience` more of its tokens than can be
    reused now, unless copying them costs more; for an identical prompt two tokens suffice. That is how requests with
    one system prompt, or several answers to one prompt, share its prefill.
    `states`: where the states of idle sequences are kept before they are forgotten, and found again, if that saves the
    evaluation of at least `worth` tokens.
    """

    def __init__(
        self, memory: Backend, *, patience: int = 32, states: OriginStates | None = None, worth: int = 64
    ) -> None:
        self._memory = memory
        self._info = memory.info
        self._match = Match(memory, patience)
        self._slots = self._match.slots
        self._points = Checkpoints(self._match, memory)
        self._clock = 0
        self.cells = Cells(memory.info.cells)
        self.takes_guesses = memory.info.can_share
        self.kept = KeptStates(self._match, memory, states, worth)
        self.idle = Leaving(self._match, memory, self.cells, self.kept, self._cut)

    @property
    def whole_only(self) -> bool:
        """Whether the memory can never be cut (recurrent layers): a sequence is reused in full or not at all."""
        return self._match.whole_only

    def held(self, sequence: int) -> Sequence[int]:
        """Returns the tokens that a sequence holds."""
        return self._slots[sequence].tokens

    def adapters(self, sequence: int) -> Adapters:
        """Returns what computed those tokens."""
        return self._slots[sequence].adapters

    def acquire(
        self,
        tokens: Sequence[int],
        limit: int = 0,
        marks: Sequence[int] = (),
        *,
        waits: bool = True,
        offline: bool = False,
        adapters: Adapters = BASE,
        needed: int | None = None,
    ) -> Lease | Blocked:
        """Lease a sequence for this prompt that holds as much of it as can be reused.

        `tokens` is kept, and read while the sequence is in use: the caller appends what it generates, up to `limit`
        tokens in all (0: one more). An idle sequence whose tokens are mostly a prefix of the prompt is continued in
        place. Otherwise the prefix is copied, if that is worth it or the caller pinned it, into an empty or the least
        recently used sequence; or a kept state that holds more of the prompt is loaded there. The user will call
        `checkpoint` when the sequence holds as many tokens as one of `marks`. `waits`: prefer to wait for a sequence
        that will soon hold much more of the prompt; `offline`: or a few tokens more, since nobody waits for the answer.
        `adapters` compute the prompt; what others computed is not reused. `needed`: the tokens from the one before this
        index on are to be evaluated, for their logits; None: the last one.
        """
        plan, tokens = tokens, tokens if needed is None else tokens[:needed]
        spare = self._match.spare()
        if not spare:
            return Blocked.SEQUENCES
        limit = max(limit, len(plan) + 1)
        found = self._found(tokens, adapters, spare)
        if waits and self._match.worth_waiting(tokens, adapters, found.reuse, offline=offline):
            return Blocked.SHARED
        if not self._match.affordable(self.cells, limit, found.source, 0 if found.stored else found.reuse):
            return Blocked.CELLS
        target, reuse = self._taken(found, tokens, adapters, spare)
        slot = self._slots[target]
        slot.plan, slot.limit, slot.marks, slot.adapters = plan, limit, marks, adapters
        self._touch(target)
        return Lease(target, reuse)

    def _found(self, tokens: Sequence[int], adapters: Adapters, spare: Sequence[int]) -> _Found:
        """Returns what holds most of a prompt that is worth reusing."""
        source, reuse = self._match.best(tokens, adapters)
        copies = source is not None and (source not in spare or not self._in_place(source, reuse, spare))
        if copies and reuse < self._info.copy_cost:
            source, reuse = self._match.best(tokens, adapters, whole_pins=True)
            copies = source is not None
        stored = self.kept.find(tokens, adapters, reuse + self.kept.worth)
        if stored is not None:
            return _Found(stored[1], stored=stored[0])
        return _Found(reuse, source, copies=copies)

    def _taken(self, found: _Found, tokens: Sequence[int], adapters: Adapters, spare: Sequence[int]) -> tuple[int, int]:
        """Returns the sequence for a prompt, and how many of its tokens that holds now."""
        if found.source is not None and not found.copies:
            if found.reuse == len(self._slots[found.source].tokens):
                self.checkpoint(found.source)  # where a turn ended: the next prompt may part from this one there
            return found.source, self._shortened(found.source, found.reuse)
        target = self._match.place([index for index in spare if index != found.source])
        if found.source is not None:
            return target, self._shared_from(found.source, target, found.reuse)
        if found.stored is not None:
            return target, self._loaded(target, found.stored, found.reuse)
        # What the sequence already holds is not read again.
        return target, self._shortened(target, self._match.reusable(target, tokens, adapters))

    def _shortened(self, sequence: int, length: int) -> int:
        """Cut an idle sequence whose state is kept if that is worth it; returns how many tokens it then holds."""
        self.kept.keep(sequence, length, self._cut)
        return self._cut(sequence, length)

    def cut(self, sequence: int, length: int) -> int:
        """Keep the first `length` tokens of a sequence in use, without the guesses that were wrong. Returns how many
        were kept: fewer if its memory cannot be cut, which then takes no more guesses."""
        kept = self._cut(sequence, length)
        self.takes_guesses = self.takes_guesses and kept == length
        return kept

    def extend(self, sequence: int, tokens: Sequence[int]) -> None:
        """Record that these tokens were evaluated at the end of the sequence."""
        slot = self._slots[sequence]
        slot.tokens.extend(tokens)
        slot.cells += self.cells.add(len(tokens))

    def checkpoint(self, sequence: int) -> None:
        """Save a checkpoint of the sequence, to which it can be taken back, if its memory cannot be cut."""
        self._points.save(sequence)

    @property
    def checkpoints(self) -> tuple[int, int]:
        """The number of checkpoints and their size in bytes; copies of a sequence share its checkpoints."""
        return self._points.size

    def release(self, sequence: int, *, continued: bool = True) -> None:
        """Mark the sequence as idle; what it holds stays for others until its cells are needed, then its state is kept
        if it is likely to be `continued`."""
        slot = self._slots[sequence]
        if self._info.media:
            self._cut(sequence, len(slot.tokens))  # the rows of a picture of which others are missing
        slot.plan, slot.continued = None, continued
        self._touch(sequence)

    def keep(self, sequence: int) -> None:
        """Keep the state of an idle sequence now, if it can be kept."""
        self.kept.keep(sequence, 0, self._cut)

    def keep_all(self) -> None:
        """Keep the states of all idle sequences, because the memory is about to be freed."""
        for index, slot in enumerate(self._slots):
            if slot.idle and slot.continued:
                self.kept.keep(index, 0, self._cut)

    def pin(self, sequence: int) -> None:
        """Mark the sequence as idle, and keep what it holds until `unpin`."""
        self._slots[sequence].pinned = True
        self.release(sequence)

    def unpin(self, sequence: int) -> None:
        """Allow what the sequence holds to be forgotten when its cells are needed."""
        self._slots[sequence].pinned = False

    def load(self, sequence: int, tokens: Sequence[int], state: bytes) -> bool:
        """Load a kept state of these tokens into a sequence in use. Returns False if there is no room. Raises
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
                f"{wanted:,}: they do not belong together.",
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
        while self.cells.free < cells:
            filled = [index for index in self._match.spare() if self._slots[index].tokens]
            if not filled:
                return False
            oldest = self._match.oldest(filled)
            self.kept.keep(oldest, 0, self._cut)
            self._cut(oldest, max(0, len(self._slots[oldest].tokens) - max(cells - self.cells.free, _CUT)))
        return True

    def clear(self) -> bool:
        """Forget every idle sequence that is not pinned. Returns whether there was anything to forget."""
        filled = [index for index in self._match.spare() if self._slots[index].tokens]
        for index in filled:
            self._forget(index)
        return bool(filled)

    def wipe(self) -> None:
        """Forget every sequence, pinned ones too, and overwrite what they held. None may be in use."""
        self._memory.clear()
        for slot in self._slots:
            self._release_cells(slot, 0)
            slot.used = 0

    def check(self) -> None:
        """Raise AssertionError if the records contradict themselves or the memory. For tests; linear in all tokens."""
        for index, slot in enumerate(self._slots):
            held = self._memory.positions(index)
            known = self._positions(slot.tokens, len(slot.tokens))
            assert known == held, f"sequence {index} holds {held} positions, not {known}"
            assert len(slot.cells) == len(slot.tokens), f"sequence {index} has {len(slot.cells)} cells"
            if slot.plan is not None:
                assert list(slot.plan[: len(slot.tokens)]) == slot.tokens, (
                    f"sequence {index} holds other tokens than its user's"
                )
        self.cells.check([slot.cells for slot in self._slots])

    def _loaded(self, sequence: int, entry: Stored, length: int) -> int:
        """Load a kept state and cut it to `length` tokens; returns how many the sequence then holds, 0 if the state is
        gone or was refused."""
        self._forget(sequence)
        try:
            state = self.kept.read(entry)
            if state is None or not self.load(sequence, entry.tokens, state):
                return 0
            return self._cut(sequence, length)
        except (DecodeError, MemoryError) as error:
            _log.warning("A kept state of %d tokens was not loaded: %s", len(entry.tokens), error)
            self._forget(sequence)
            self.kept.discard(entry)
            return 0

    def _in_place(self, source: int, reuse: int, spare: Sequence[int]) -> bool:
        """Whether to continue the sequence itself: not if that loses more tokens than are shared and another sequence
        is available."""
        held = self._slots[source].tokens
        return len(spare) == 1 or (len(held) - reuse <= reuse and not self.kept.claimed(held, reuse))

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
        self.cells.share(into.cells)
        return self._cut(target, reuse)

    def _cut(self, sequence: int, length: int) -> int:
        """Keep the first `length` tokens of a sequence; returns how many were kept. A memory that cannot be cut
        there is taken back to the newest checkpoint within them, or forgets everything."""
        slot = self._slots[sequence]
        length = whole(slot.tokens, length)
        place = self._positions(slot.tokens, length)
        if place >= self._memory.positions(sequence):
            self._release_cells(slot, length)
            return length
        if not self._memory.trim(sequence, place):
            length = self._points.rewind(sequence, length)
        self._release_cells(slot, length)
        return length

    def _positions(self, tokens: Sequence[int], length: int) -> int:
        """Returns how many positions the first `length` tokens take."""
        return place_of(tokens, length, self._info)

    def _forget(self, sequence: int) -> None:
        slot = self._slots[sequence]
        if slot.idle:
            self.kept.keep(sequence, 0, self._cut)
        if self._memory.positions(sequence):
            self._memory.trim(sequence, 0)
        self._release_cells(slot, 0)
        slot.used = 0

    def _release_cells(self, slot: Slot, keep: int) -> None:
        self.cells.give_back(slot.cells[keep:])
        del slot.cells[keep:], slot.tokens[keep:]
        slot.checkpoints = [point for point in slot.checkpoints if point.position <= keep]

    def _touch(self, sequence: int) -> None:
        self._clock += 1
        self._slots[sequence].used = self._clock
