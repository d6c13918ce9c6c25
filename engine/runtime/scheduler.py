"""What the next step evaluates: decodes first, then prefill in chunks, under one budget of rows.

Knows: the order of requests (priority, then first come first served), which of them holds a sequence, and how many
prompt rows a step may take. Does not know: threads, memory, llama.cpp; it is told who may start. A request that is
evaluated again after it lost its sequence is a prompt like any other, so preemption needs no case of its own.
"""

from collections.abc import Sequence
from typing import NamedTuple

from engine.runtime.backend import ContextInfo, Row
from engine.runtime.sequence import SequenceState

_TILE = 64
"""Rows that kernels take together: the budget is a multiple of it, and at least one."""
_DRAFTING_ROWS = 32
"""Rows of a decode up to which more rows cost little; beyond, guesses do not pay."""
_OFFLINE_EVERY = 16
"""Every 16th step also takes offline requests along while prompts are read."""


class PrefillBudget:
    """How many prompt rows a step may take: as many as about `seconds` are enough for, by the rate of the last ones."""

    def __init__(self, n_batch: int, seconds: float) -> None:
        self._most = n_batch
        self._least = min(_TILE, n_batch)
        self._seconds = seconds
        self._rate = 0.0
        self.rows = self._least

    def took(self, rows: int, seconds: float) -> None:
        """A batch with so many prompt rows took so long."""
        if rows < self._least:
            return  # the end of a prompt: few rows cost more, each, than many
        rate = rows / max(seconds, 1e-9)
        self._rate = (self._rate + rate) / 2 if self._rate else rate
        wanted = min(int(self._rate * self._seconds), 2 * self.rows, self._most)
        self.rows = max(wanted // _TILE * _TILE, self._least)


class Chunk(NamedTuple):
    """Tokens `start` to `stop` (exclusive) of a request, to be evaluated together, and a draft behind them."""

    state: SequenceState
    start: int
    stop: int
    draft: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Rows that it takes."""
        return self.stop - self.start + len(self.draft)

    @property
    def output(self) -> bool:
        """Whether the last of the request's tokens is among them, whose logits are wanted."""
        return self.stop == len(self.state.tokens)

    @property
    def is_decode(self) -> bool:
        """Whether it is the one token that the next will be drawn behind, and guesses at that; else prefill."""
        return self.stop - self.start == 1 and self.output

    def rows(self) -> list[Row]:
        state, last, output = self.state, self.stop - 1, self.output
        rows = [
            Row(state.tokens[position], position, state.sequence, output and position == last)
            for position in range(self.start, self.stop)
        ]
        if self.draft:
            rows += [Row(token, position, state.sequence, True) for position, token in enumerate(self.draft, self.stop)]
        return rows


class Scheduler:
    """Waiting and running requests -> the batches of the next step, at most `n_batch` rows together.

    `budget` bounds the prompt rows of one step, so that a step stays short: running answers go on beside a long prompt,
    and a cancellation takes effect soon.
    """

    def __init__(self, info: ContextInfo, prefill_seconds: float) -> None:
        self.budget = PrefillBudget(info.n_batch, prefill_seconds)
        self._n_batch = info.n_batch
        self._draft_rows = min(info.n_outputs, _DRAFTING_ROWS)
        self._separate = info.separate_prefill
        self._waiting: list[SequenceState] = []
        self._running: list[SequenceState] = []
        self._arrivals = 0
        self._turn = 0
        self._left_out = 0  # steps that offline requests were left out of, since they were last taken along

    @property
    def waiting(self) -> tuple[SequenceState, ...]:
        """In the order in which they may start."""
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[SequenceState, ...]:
        """In the order of their arrival, the more urgent first."""
        return tuple(self._running)

    def add(self, state: SequenceState) -> None:
        """A new request joins the queue behind those of its priority."""
        self._arrivals += 1
        state.arrival = self._arrivals
        _insert(self._waiting, state)

    def start(self, state: SequenceState, sequence: int, evaluated: int) -> None:
        """The request got a sequence that already holds its first `evaluated` tokens."""
        self._waiting.remove(state)
        state.sequence, state.evaluated = sequence, evaluated
        _insert(self._running, state)

    def preempt(self, state: SequenceState) -> None:
        """The request lost its sequence; it waits again, at the place its arrival gives it."""
        self._running.remove(state)
        state.sequence, state.evaluated = -1, 0
        _insert(self._waiting, state)

    def remove(self, state: SequenceState) -> None:
        """The request is over, wherever it was."""
        (self._waiting if state.sequence < 0 else self._running).remove(state)

    def victim(self) -> SequenceState | None:
        """Who gives way when memory runs out: the least urgent, and of those the youngest. None: nobody else runs."""
        return self._running[-1] if len(self._running) > 1 else None

    def plan(self) -> list[list[Chunk]]:
        """The next step's batches, to be evaluated one after the other; empty when nothing runs.

        Requests with one token to go come first (in turns, should there be more than rows), then prompts in order.
        Where all of the former are offline, prompts are brought up to them first, as many tokens at once cost less than
        few.

        Sequences stand in ascending order: where each has a buffer of its own, llama.cpp evaluates together only those
        whose numbers follow one another in the batch (llama-batch.cpp, `split_equal`).
        """
        decoding = [state for state in self._running if state.pending == 1]
        prompts = [state for state in self._running if state.pending > 1]
        if decoding and prompts and self._may_wait(decoding, prompts[0].request.priority):
            decoding = []
        decodes = self._decodes(decoding, beside_prompts=bool(prompts))
        prefill = self._prefill(prompts, self._n_batch - sum(chunk.size for chunk in decodes))
        batches = [decodes, prefill] if self._separate else [decodes + prefill]
        return [sorted(batch, key=lambda chunk: chunk.state.sequence) for batch in batches if batch]

    def _may_wait(self, decoding: Sequence[SequenceState], priority: int) -> bool:
        """Whether these leave the step to prompts of such a priority."""
        if any(not state.request.offline or state.request.priority > priority for state in decoding):
            return False
        self._left_out = (self._left_out + 1) % _OFFLINE_EVERY
        return self._left_out > 0

    def _decodes(self, decoding: list[SequenceState], *, beside_prompts: bool) -> list[Chunk]:
        """A token of each, and guesses behind it as far as there is room for them."""
        if len(decoding) > self._n_batch:
            first = self._turn % len(decoding)
            decoding = (decoding[first:] + decoding[:first])[: self._n_batch]
            self._turn = first + self._n_batch
        room = min(self._n_batch, self._draft_rows) - len(self._running)
        if beside_prompts:
            room = min(room, self._n_batch // 2 - len(decoding))  # guesses leave prompts their share of a small batch
        chunks: list[Chunk] = []
        for state in decoding:
            draft = state.draft[:room] if room > 0 else ()
            room -= len(draft)
            chunks.append(Chunk(state, state.evaluated, state.evaluated + 1, draft))
        return chunks

    def _prefill(self, prompts: Sequence[SequenceState], room: int) -> list[Chunk]:
        """The budget's rows of prefill, at most `room`, for the first of these. No chunk crosses a mark."""
        chunks: list[Chunk] = []
        room = min(room, self.budget.rows)
        for state in prompts:
            if room <= 0:
                break
            stop = min(state.evaluated + room, state.next_mark)
            chunks.append(Chunk(state, state.evaluated, stop))
            room -= stop - state.evaluated
        return chunks


def _insert(states: list[SequenceState], state: SequenceState) -> None:
    """Insert in order of urgency; the usual case is the end of the list."""
    index = len(states)
    while index and states[index - 1].urgency > state.urgency:
        index -= 1
    states.insert(index, state)
