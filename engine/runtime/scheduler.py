"""What the next step evaluates: decodes first, then prefill in chunks, under one budget of rows.

Knows: the order of requests (priority, then first come first served), which of them holds a sequence, and how many
prefill rows a step may take, learnt from the time that batches took. Does not know: threads, memory, llama.cpp; it is
told who may start. A request that is evaluated again after it lost its sequence is a prompt like any other, so
preemption needs no case of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.runtime.backend import TILE, Row

_SMALLEST = 8
_TILE_WORTH = 3
"""Times `seconds` that a whole tile of rows may take; where smaller batches are a waste, times the target."""
_OVERSHOOT = 1.5
"""Times the target that it may take: half of it takes about two thirds as long."""
_CROWD_WORTH = 5
"""Times `seconds` that prefill may take while more wait for their first token than for their next."""
_AGAIN = 16
"""Smaller batches after which a tile that took too long is tried again, unless half of its rows' time would be too long
too; and batches of decodes and prefill together after which decodes are timed alone again."""


class Pace:
    """Sizes prefill so that what it adds to a step takes about `seconds`, in at most `n_batch` rows.

    Longer where less would be waste: as long as two decodes, where those take long already (a large model
    reads all its weights for a single token); and a whole tile of rows may take half as long again, or three times
    `seconds`. Longer too, up to five times `seconds`, where more prompts are being read than there are streams to hold
    up: then prompts and streams share the time by their number, as the readers of either wait.
    """

    def __init__(self, n_batch: int, seconds: float) -> None:
        self._n_batch = n_batch
        self._seconds = seconds
        self._tile = min(TILE, n_batch)
        self._since_tile = 0
        # The last two of each: one that was held up does not count.
        self._tiles = self._decodes = self._pieces = (0.0, 0.0)
        self._width = self._timed = self._mixed = 0
        self._prompts_a_stream = 0.0
        self.rows = self._tile

    def serve(self, prompts: int, streams: int) -> None:
        """So many prompts are being read, while so many streams wait for their next token."""
        self._prompts_a_stream = prompts / streams if streams else 0.0

    def unsure(self, streams: int) -> bool:
        """Whether decodes of so many streams should be timed alone, to tell what prefill adds to them."""
        if self._mixed >= _AGAIN:
            return True
        return self.rows < self._tile and (streams != self._width or self._timed < 2)  # as many as are kept

    def took(self, rows: int, streams: int, seconds: float) -> None:
        """A batch of so many rows of prefill, and decodes of so many streams, took so long."""
        if not rows:
            self._timed = self._timed + 1 if streams == self._width else 1
            self._width, self._mixed = streams, 0
            self._decodes = (self._decodes[1], seconds)
            return
        if streams:
            self._mixed += 1
            seconds -= min(self._decodes)
        self._size(rows, seconds)

    def _size(self, rows: int, seconds: float) -> None:
        """So many rows of prefill took, or added, so long."""
        target = self._target()
        possible = int(target * rows / seconds) if seconds > 0 else self._n_batch
        if rows < self.rows and seconds < target:
            possible = max(possible, self.rows)  # the end of a prompt: so few rows cost more, each, than many
        self._see_tile(rows, seconds)
        if possible < self._tile and self._worth_a_tile(target):
            possible = self._tile
        found = max(min(possible, 2 * max(rows, self.rows), self._n_batch), _SMALLEST)
        # From a tile of rows on, whole ones: one that is half empty costs as much as a full one.
        self.rows = min(round(found / TILE) * TILE, self._n_batch) if found > TILE else found

    def _target(self) -> float:
        """Seconds that prefill may add to a step."""
        decode = min(self._decodes)
        fair = min(self._prompts_a_stream * decode, _CROWD_WORTH * self._seconds)
        return max(self._seconds, 2 * decode, fair)

    def _worth_a_tile(self, target: float) -> bool:
        """Whether a tile of rows may take longer than the target: somewhat, or up to three times `seconds`; up to three
        times the target where its rows take twice as long in smaller batches (a CPU's flash attention, behind many
        cells)."""
        tile = min(self._tiles)
        if tile <= max(_TILE_WORTH * self._seconds, _OVERSHOOT * target):
            return True
        return tile <= min(_TILE_WORTH * target, min(self._pieces) / 2)

    def _see_tile(self, rows: int, seconds: float) -> None:
        """What a whole tile takes, and what its rows take in smaller batches, as far as this batch tells."""
        found = seconds * self._tile / rows
        if rows >= self._tile:
            self._tiles, self._since_tile = (self._tiles[1], found), 0
            return
        if rows >= self.rows:
            self._pieces = (self._pieces[1], found)
        self._since_tile += 1
        if self._since_tile >= _AGAIN:
            self._tiles = (self._tiles[1], min(self._tiles[1], found / 2))


_PATIENCE = 16
"""One in so many steps takes patient jobs along, whoever else is to be brought up to them."""


@dataclass(slots=True, eq=False)
class Job:
    """One request's tokens (the prompt, then what was generated) and how many of them are evaluated.

    At least one is always left to evaluate: the next token is drawn from the logits of the last one. `sequence` is -1
    while the job waits. No chunk crosses `checkpoint`, so that the state there can be kept (0: nowhere). `draft` are
    guesses at the tokens that will be drawn next, evaluated along with the last one. `patient`: only its end is waited
    for.
    """

    tokens: list[int]
    priority: int = 0
    sequence: int = -1
    evaluated: int = 0
    checkpoint: int = 0
    draft: tuple[int, ...] = ()
    patient: bool = False
    arrival: int = field(default=0, init=False)

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.evaluated


class Chunk(NamedTuple):
    """Tokens `start` to `stop` (exclusive) of a job, to be evaluated together, and a draft behind them."""

    job: Job
    start: int
    stop: int
    draft: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Rows that it takes."""
        return self.stop - self.start + len(self.draft)

    @property
    def single(self) -> bool:
        """Whether it is the one token that the next will be drawn behind, and guesses at that; else prefill."""
        return self.stop - self.start == 1 and self.output

    @property
    def output(self) -> bool:
        """Whether the last of the job's tokens is among them, whose logits are wanted."""
        return self.stop == len(self.job.tokens)

    def rows(self) -> list[Row]:
        job, last = self.job, self.stop - 1
        output = self.output
        rows = [
            Row(job.tokens[position], position, job.sequence, output and position == last)
            for position in range(self.start, self.stop)
        ]
        if self.draft:
            rows += [Row(token, position, job.sequence, True) for position, token in enumerate(self.draft, self.stop)]
        return rows


class Scheduler:
    """Waiting and running jobs -> the chunks of the next step, at most `n_batch` rows together.

    `prefill_limit` bounds the prefill rows of one step (but for half a tile more at a prompt's end), so that a step
    stays short: running streams go on beside a long prompt, and a cancellation takes effect soon; a step that holds up
    nobody may have `alone_limit`.
    `packs`: several jobs' prefill goes into one batch as well as one job's, so that no row of a tile need be empty.
    `prompts` is the number of jobs that the last plan found with more than one token to go.
    `draft_limit` is the number of rows with logits up to which drafts are evaluated along: beyond it they would cost
    more than they save.
    """

    def __init__(self, n_batch: int) -> None:
        self.n_batch = n_batch
        self.prefill_limit = n_batch
        self.draft_limit = n_batch
        self.alone_limit = 0
        self.packs = False
        self._waiting: list[Job] = []
        self._running: list[Job] = []
        self.prompts = 0
        self._arrivals = 0
        self._turn = 0
        self._held_up = 0  # steps that patient jobs were left out of, since they were last taken along

    @property
    def waiting(self) -> tuple[Job, ...]:
        """In the order in which they may start."""
        return tuple(self._waiting)

    @property
    def running(self) -> tuple[Job, ...]:
        """In the order of their arrival, the more urgent first."""
        return tuple(self._running)

    def add(self, job: Job) -> None:
        """A new job joins the queue behind those of its priority."""
        self._arrivals += 1
        job.arrival = self._arrivals
        _insert(self._waiting, job)

    def start(self, job: Job, sequence: int, evaluated: int) -> None:
        """The job got a sequence that already holds its first `evaluated` tokens."""
        self._waiting.remove(job)
        job.sequence, job.evaluated = sequence, evaluated
        _insert(self._running, job)

    def preempt(self, job: Job) -> None:
        """The job lost its sequence; it waits again, at the place its arrival gives it."""
        self._running.remove(job)
        job.sequence, job.evaluated = -1, 0
        _insert(self._waiting, job)

    def remove(self, job: Job) -> None:
        """The job is over, wherever it was."""
        (self._waiting if job.sequence < 0 else self._running).remove(job)

    def victim(self) -> Job | None:
        """Who gives way when memory runs out: the least urgent, and of those the youngest. None: nobody else runs."""
        return self._running[-1] if len(self._running) > 1 else None

    def plan(self) -> list[Chunk]:
        """The next step's chunks; empty when nothing runs.

        Jobs with one token to go come first (in turns, should there be more than rows), then the others in order. Where
        all of the former are patient, the others are brought up to them first, as many tokens at once cost less than
        few; but not for ever: now and then a step takes the patient along.
        """
        decodes: list[Job] = []
        behind: list[Job] = []
        for job in self._running:
            (decodes if job.pending == 1 else behind).append(job)
        self.prompts = len(behind)
        if decodes and behind and all(job.patient and job.priority <= behind[0].priority for job in decodes):
            self._held_up = (self._held_up + 1) % _PATIENCE
            if self._held_up:
                decodes = []
        if len(decodes) > self.n_batch:
            first = self._turn % len(decodes)
            decodes = (decodes[first:] + decodes[:first])[: self.n_batch]
            self._turn = first + self.n_batch
        room = min(self.n_batch, self.draft_limit) - len(self._running)
        if behind:
            room = min(room, self.n_batch // 2 - len(decodes))  # guesses leave prompts their share of a small batch
        chunks: list[Chunk] = []
        for job in decodes:
            draft = job.draft[:room] if room > 0 else ()
            room -= len(draft)
            chunks.append(Chunk(job, job.evaluated, job.evaluated + 1, draft))
        if behind:
            limit = self.prefill_limit if chunks else max(self.prefill_limit, self.alone_limit)
            room = self.n_batch - sum(chunk.size for chunk in chunks)
            chunks += self._prefill(behind, room, min(room, max(limit, 1)))
        return chunks

    def _prefill(self, jobs: Sequence[Job], room: int, limit: int) -> list[Chunk]:
        """About `limit` rows of prefill, at most `room`, for the first of these jobs.

        Where a tile of rows is allowed, none is left for the next step but a fragment, unless another job's rows fill
        its tile; and where sequences have buffers of their own, none is begun for a fragment behind another job's
        chunk. Either would take a pass of its own later.
        """
        chunks: list[Chunk] = []
        budget = limit
        for job in jobs:
            if budget <= 0:
                break
            wanted = job.pending
            if job.evaluated < job.checkpoint:
                wanted = min(wanted, job.checkpoint - job.evaluated)
            size = min(wanted, budget)
            if limit >= TILE:
                if chunks and size < min(wanted, TILE) and not self.packs:
                    break
                if wanted - size <= TILE // 2 and (not self.packs or job is jobs[-1]):
                    size = min(wanted, room)
            chunks.append(Chunk(job, job.evaluated, job.evaluated + size))
            budget -= size
            room -= size
        return chunks

    @staticmethod
    def apart(chunks: Sequence[Chunk], mixed_rows: int) -> list[Sequence[Chunk]]:
        """The chunks of a step as the batches to evaluate one after the other.

        All in one where they are no more than `mixed_rows` rows. Else single tokens come first, no more than so many
        rows at once (0: all), then the rest.

        Sequences in ascending order: where each has a buffer of its own, llama.cpp evaluates together only those whose
        numbers follow one another in the batch (llama-batch.cpp, `split_equal`).
        """
        if len(chunks) <= 1:
            return [chunks] if chunks else []
        chunks = sorted(chunks, key=lambda chunk: chunk.job.sequence)
        total = sum(chunk.size for chunk in chunks)
        if total <= mixed_rows:
            return [chunks]
        at_once = mixed_rows or total
        batches: list[Sequence[Chunk]] = []
        batch: list[Chunk] = []
        rows = 0
        for chunk in (chunk for chunk in chunks if chunk.single):
            if batch and rows + chunk.size > at_once:
                batches.append(batch)
                batch, rows = [], 0
            batch.append(chunk)
            rows += chunk.size
        longer = [chunk for chunk in chunks if not chunk.single]
        return [each for each in (*batches, batch, longer) if each]


def _insert(jobs: list[Job], job: Job) -> None:
    """Insert in order of urgency, then arrival; the usual case is the end of the list."""
    key = (-job.priority, job.arrival)
    index = len(jobs)
    while index and (-jobs[index - 1].priority, jobs[index - 1].arrival) > key:
        index -= 1
    jobs.insert(index, job)
