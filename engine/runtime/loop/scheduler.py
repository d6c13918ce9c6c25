"""Decides what the next step evaluates: decodes first, then prefill in chunks, under one budget of rows.

A preempted request is evaluated again like any prompt, so preemption needs no code of its own.
"""

from collections.abc import Sequence
from itertools import chain, repeat
from operator import attrgetter
from typing import NamedTuple

from engine.runtime.adapters.adapters import Scales
from engine.runtime.loop.backend import ContextInfo, Row
from engine.runtime.loop.sequence import SequenceState
from engine.runtime.media.media import MediaChunk

_TILE = 64
"""Rows that kernels take together: the budget is a multiple of it, and at least that many."""
_ALONE = 5
_DRAFTING_ROWS = 32
"""Up to this many rows in a decode, another row costs little; beyond it, guesses do not pay."""
_OFFLINE_EVERY = 16
"""While prompts are evaluated and only offline requests decode, every 16th step decodes them too."""
_SEQUENCE = attrgetter("state.sequence")
_BEGUN = attrgetter("begun")


class PrefillBudget:
    """How many prompt rows a step may take: as many as take about `seconds`, by the rate of the last ones. `alone`: as
    many as take `_ALONE` times as long, for a step in which no answer waits: more rows at once cost less each."""

    def __init__(self, n_batch: int, seconds: float) -> None:
        self._most = n_batch
        self._least = min(_TILE, n_batch)
        self._seconds = seconds
        self._rate = 0.0
        self.rows = self.alone = self._least

    def took(self, rows: int, seconds: float) -> None:
        """Record that a batch with `rows` prompt rows took `seconds`."""
        if rows < self._least:
            return  # the end of a prompt: in a small batch each row costs more
        rate = rows / max(seconds, 1e-9)
        self._rate = (self._rate + rate) / 2 if self._rate else rate
        self.rows = self._as_many(self._seconds, self.rows)
        self.alone = self._as_many(self._seconds * _ALONE, self.alone)

    def _as_many(self, seconds: float, before: int) -> int:
        wanted = min(int(self._rate * seconds), 2 * before, self._most)
        return max(wanted // _TILE * _TILE, self._least)


class UnitPart(NamedTuple):
    """Rows `start` to `stop` (exclusive) of a unit of media."""

    unit: MediaChunk
    start: int
    stop: int


class Chunk(NamedTuple):
    """Tokens `start` to `stop` (exclusive) of a request, to be evaluated together, followed by a draft. If these are
    the rows of a unit of media, `part` of them; they count as evaluated once the last part is."""

    state: SequenceState
    start: int
    stop: int
    draft: tuple[int, ...] = ()
    part: UnitPart | None = None

    @property
    def size(self) -> int:
        """Rows of this chunk, its draft included."""
        return self.stop - self.start + len(self.draft)

    @property
    def output(self) -> bool:
        """Whether the chunk contains the request's last token, whose logits are needed."""
        return self.stop == len(self.state.tokens)

    @property
    def scales(self) -> Scales:
        """The adapters that compute the chunk."""
        return self.state.request.adapters.at(self.start)

    def rows(self) -> list[Row]:
        state, start, stop, draft, _ = self
        tokens, sequence = state.tokens, state.sequence
        first = state.position(start) if state.request.media else start
        last = first + stop - start
        silent = (len(tokens) - 1 if state.unsaid is None else state.first_output) - start
        outputs = chain(repeat(False, max(0, silent)), repeat(True))
        rows = list(map(Row, tokens[start:stop], range(first, last), repeat(sequence), outputs))
        if draft:
            rows += [Row(token, position, sequence, True) for position, token in enumerate(draft, last)]
        return rows


class Scheduler:
    """Turns waiting and running requests into the batches of the next step, at most `n_batch` rows together.

    `budget` bounds the prompt rows of one step, so that a step stays short: running answers go on beside a long prompt,
    and cancellations and new requests wait little.
    """

    def __init__(self, info: ContextInfo, prefill_seconds: float) -> None:
        self.budget = PrefillBudget(info.n_batch, prefill_seconds)
        self._n_batch = info.n_batch
        self._draft_rows = min(info.n_outputs, _DRAFTING_ROWS)
        self._n_outputs = min(info.n_outputs, info.n_batch)
        self._separate = info.separate_prefill
        self._parts = info.can_share
        self._waiting: list[SequenceState] = []
        self._running: list[SequenceState] = []
        self._arrivals = 0
        self._turn = 0
        self._left_out = 0  # steps without offline requests since the last step with them

    @property
    def waiting(self) -> tuple[SequenceState, ...]:
        """Those that may start, in this order: one that is computed alone before all others, and none beside it."""
        if any(state.alone for state in self._running):
            return ()
        if self.doubts:
            return () if self._running else (next(state for state in self._waiting if state.alone),)
        return tuple(self._waiting)

    @property
    def doubts(self) -> bool:
        """Whether one waits that is computed alone."""
        return any(state.alone for state in self._waiting)

    @property
    def running(self) -> tuple[SequenceState, ...]:
        """In the order of urgency: by priority, then by arrival."""
        return tuple(self._running)

    @property
    def guessing(self) -> tuple[list[SequenceState], int]:
        """The requests for whose next tokens guesses are useful, and how many guesses the next step has room for."""
        due = [state for state in self._running if state.pending == 1 and not state.request.pin]
        beside_prompts = len(due) < sum(not state.waits for state in self._running)
        if beside_prompts and all(state.request.offline for state in due):
            return [], 0  # they wait for the prompts of others in most steps
        return due, self._draft_room(len(due), beside_prompts=beside_prompts)

    @property
    def waits(self) -> bool:
        """Whether all that runs waits for a picture or a sound to be encoded."""
        return bool(self._running) and all(state.waits for state in self._running)

    def add(self, state: SequenceState) -> None:
        """Add a new request to the queue, behind those of its priority."""
        self._arrivals += 1
        state.arrival = self._arrivals
        _insert(self._waiting, state)

    def start(self, state: SequenceState, sequence: int, evaluated: int) -> None:
        """Move the request to the running ones, with a sequence that already holds its first `evaluated` tokens."""
        self._waiting.remove(state)
        state.sequence, state.evaluated = sequence, evaluated
        _insert(self._running, state)

    def preempt(self, state: SequenceState) -> None:
        """Take the request's sequence; it waits again, at the place of its arrival."""
        self._running.remove(state)
        state.sequence, state.evaluated, state.begun = -1, 0, 0
        _insert(self._waiting, state)

    def remove(self, state: SequenceState) -> None:
        """Remove a request that is over, whether it waited or ran."""
        (self._waiting if state.sequence < 0 else self._running).remove(state)

    def victim(self) -> SequenceState | None:
        """Returns the request to preempt when memory runs out: the least urgent, and of those the youngest. None if
        only one request runs."""
        return self._running[-1] if len(self._running) > 1 else None

    def plan(self, in_force: Scales = ()) -> list[list[Chunk]]:
        """Returns the next step's batches, to be evaluated one after the other; empty when nothing can. A batch is
        computed with one set of adapters; first come those with the set `in_force`, which costs no change.

        Requests with one token left to evaluate come first (in turns, if there are more than rows), then prompts in
        order. If all of the former are offline, they wait while prompts catch up, because a decode of many tokens costs
        less per token.

        Sequences are in ascending order: if each has a buffer of its own, llama.cpp evaluates only sequences together
        whose numbers are consecutive in the batch (llama-batch.cpp, `split_equal`).
        """
        decoding: list[SequenceState] = []
        prompts: list[SequenceState] = []
        for state in self._running:
            if not state.waits:
                (decoding if len(state.tokens) - state.evaluated == 1 else prompts).append(state)
        if decoding and prompts and self._may_wait(decoding, prompts[0].request.priority):
            decoding = []
        decodes, apart = self._decodes(decoding, beside_prompts=bool(prompts)) if decoding else ([], [])
        if prompts:
            rows = self.budget.rows if decodes else self.budget.alone
            outputs = self._n_outputs - len(self._running) - sum(len(chunk.draft) for chunk in decodes)
            room = min(rows, self._n_batch - sum(chunk.size for chunk in decodes))
            prefill = self._prefill(prompts, room, max(0, outputs))
            batches = [decodes, prefill] if self._separate else [decodes + prefill]
        else:
            batches = [decodes]
        return _by_adapters([*batches, apart] if apart else batches, in_force)

    def _may_wait(self, decoding: Sequence[SequenceState], priority: int) -> bool:
        """Whether these requests leave the step to prompts of this priority."""
        if any(not state.request.offline or state.request.priority > priority for state in decoding):
            return False
        self._left_out = (self._left_out + 1) % _OFFLINE_EVERY
        return self._left_out > 0

    def _decodes(self, decoding: list[SequenceState], *, beside_prompts: bool) -> tuple[list[Chunk], list[Chunk]]:
        """Returns a chunk of one token for each request, with guesses after it as far as there is room; and a batch of
        those that try a text for which there is none, as many as have room there."""
        if len(decoding) > self._n_batch:
            first = self._turn % len(decoding)
            decoding = (decoding[first:] + decoding[:first])[: self._n_batch]
            self._turn = first + self._n_batch
        room = self._draft_room(len(decoding), beside_prompts=beside_prompts)
        chunks, apart = list[Chunk](), list[Chunk]()
        rows, rows_apart = self._n_outputs - len(self._running), self._n_outputs
        for state in decoding:
            draft = state.draft[: max(0, rows if state.request.scored or state.trial else min(room, rows))]
            if state.trial is not None and draft != state.draft:  # a text is tried as a whole
                chunk = Chunk(state, state.evaluated, state.evaluated + 1, state.draft)
                if chunk.size <= rows_apart:
                    rows_apart -= chunk.size
                    apart.append(chunk)
                continue
            room, rows = room - len(draft), rows - len(draft)
            chunks.append(Chunk(state, state.evaluated, state.evaluated + 1, draft))
        return chunks, apart

    def _draft_room(self, decoding: int, *, beside_prompts: bool) -> int:
        room = min(self._n_batch, self._draft_rows) - len(self._running)
        # Guesses leave prompts their share of a small batch.
        return min(room, self._n_batch // 2 - decoding) if beside_prompts else room

    def _prefill(self, prompts: Sequence[SequenceState], room: int, outputs: int) -> list[Chunk]:
        """Returns at most `room` rows of prefill, for the first prompts. No chunk crosses a mark. A unit
        of media that was begun goes on first, since its rows are in the memory; one whose rows see one another, and any
        in a memory that cannot be cut, is evaluated in full, however many rows it has. Beside the logits of one row for
        each request, at most `outputs` rows have some."""
        chunks: list[Chunk] = []
        for state in sorted(prompts, key=_BEGUN, reverse=True):
            if room <= 0:
                break
            if (unit := state.unit if state.request.media else None) is None:
                stop = min(state.evaluated + room, state.next_mark)
                if state.unsaid is not None and stop > (first := max(state.evaluated, state.first_output)):
                    stop = min(stop, first + 1 + outputs)
                    outputs -= stop - first - 1
                chunks.append(Chunk(state, state.evaluated, stop))
                room -= chunks[-1].size
                continue
            rows = min(unit.rows - state.begun, room if self._parts and unit.is_causal else unit.rows)
            part = UnitPart(unit, state.begun, state.begun + rows)
            chunks.append(Chunk(state, state.evaluated, state.evaluated + unit.rows, part=part))
            room -= rows
        return chunks


def _by_adapters(batches: Sequence[Sequence[Chunk]], in_force: Scales) -> list[list[Chunk]]:
    """Split the batches by the adapters of their chunks, all batches of one set after one another; each in ascending
    order of sequences. A unit of media is a batch of its own."""
    if len(batches) == 1 and len(batches[0]) == 1:  # one stream's token
        return [[batches[0][0]]]
    groups: dict[Scales, list[list[Chunk]]] = {in_force: []}
    for batch in batches:
        parts: dict[Scales, list[Chunk]] = {}
        for chunk in batch:
            parts.setdefault(chunk.scales, []).append(chunk)
        for scales, chunks in parts.items():
            texts = sorted((chunk for chunk in chunks if chunk.part is None), key=_SEQUENCE)
            alone = [[chunk] for chunk in chunks if chunk.part is not None]
            groups.setdefault(scales, []).extend([texts, *alone] if texts else alone)
    return [chunks for group in groups.values() for chunks in group]


def _insert(states: list[SequenceState], state: SequenceState) -> None:
    """Insert in order of urgency; the usual case is the end of the list."""
    index = len(states)
    while index and states[index - 1].urgency > state.urgency:
        index -= 1
    states.insert(index, state)
