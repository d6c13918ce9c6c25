"""The engine's loop without its thread: one call of `step` takes all requests that can run one batch further; where
that is faster, single tokens and long prefill apart. Its replies are gathered, one for each request that has something
to say.

Knows: how scheduler, prefix cache, backend and generations work together, what becomes of each when a decode fails,
and that nothing follows a final reply. Does not know: threads, queues, who reads the replies.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

from engine.errors import ContextOverflowError, DecodeError, RequestError
from engine.events import Event, Finished
from engine.runtime.backend import TILE, Backend
from engine.runtime.generation import Generation
from engine.runtime.layout import Layout, packs
from engine.runtime.ngram import Drafter
from engine.runtime.prefix import Blocked, Pins, PrefixCache
from engine.runtime.request import Reply, Request, check_fits
from engine.runtime.scheduler import Chunk, Job, Pace, Scheduler
from engine.runtime.sequence import Live
from engine.runtime.state_file import SavedState
from engine.types import FinishReason


class Outbox:
    """What was said since the last `drain`."""

    def __init__(self) -> None:
        self._touched: dict[Live, None] = {}
        self._replies: list[Reply] = []

    def emit(self, live: Live, events: Sequence[Event]) -> None:
        """These happened."""
        if events:
            live.outbox += events
            self._touched[live] = None

    def prefilled(self, live: Live) -> None:
        """More of its prompt is evaluated, if it is to tell of that."""
        if live.request.reports:
            live.prefilled = live.job.evaluated
            self._touched[live] = None

    def refuse(self, id_: int, error: Exception) -> None:
        """A request ends with an error before it started."""
        self._replies.append(Reply(id_, (Finished("error"),), final=True, error=error))

    def hand_over(self, id_: int, saved: SavedState) -> None:
        """What was asked for under this number."""
        self._replies.append(Reply(id_, (Finished("stop"),), final=True, saved=saved))

    def end(self, live: Live, closing: Sequence[Event], error: Exception | None, now: float) -> None:
        """The request is over; the last of the closing events is its `Finished`."""
        self._touched.pop(live, None)
        *closing, last = closing
        assert isinstance(last, Finished), "a parser's last event is Finished"
        events, logprobs = live.take()
        events = (*events, *closing, replace(last, usage=live.usage(now)))
        self._replies.append(
            Reply(live.request.id, events, True, error, live.output, logprobs=logprobs, prefilled=live.prefilled)
        )

    def abandon(self, live: Live, error: Exception) -> None:
        """The request ends with this error, and nothing that it holds is looked at."""
        self._touched.pop(live, None)
        self._replies.append(Reply(live.request.id, (*live.outbox, Finished("error")), final=True, error=error))

    def drain(self) -> list[Reply]:
        """The replies since the last drain, one for each request that has any."""
        replies, self._replies = self._replies, []
        for live in self._touched:
            events, logprobs = live.take()
            replies.append(Reply(live.request.id, events, logprobs=logprobs, prefilled=live.prefilled))
        self._touched.clear()
        return replies


_DRAFTING_ROWS = 32
"""Rows of a decode up to which more rows cost little; beyond, guesses do not pay."""
_STRIKES = 3
"""Failed decodes in a row after which a request is given up, even if it seems to get further."""


class Loop:
    """Requests in, replies out, over one backend.

    `longest_draft`: tokens that are guessed at once from what a sequence holds already, and verified in one decode; 0
    for none. `chunk_seconds`: prefill is cut into chunks that take about so long (longer where less would be
    waste), so that neighbours and cancellations wait no longer. `clock`: seconds, monotonic.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        longest_draft: int = 0,
        chunk_seconds: float = 0.1,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._backend = backend
        self._cache = PrefixCache(backend)
        self._scheduler = Scheduler(backend.n_batch)
        self._pace = Pace(backend.n_batch, chunk_seconds)
        self._scheduler.prefill_limit = self._pace.rows
        self._scheduler.draft_limit = min(backend.n_outputs, _DRAFTING_ROWS)
        self._longest_draft = longest_draft
        self._scheduler.alone_limit = TILE  # an abort ends it early
        self._scheduler.packs = packs(backend)
        self._decoding: Sequence[Chunk] = []
        self._longest = backend.n_ctx_sequence
        self._clock = clock
        self._lives: dict[int, Live] = {}
        self._of_job: dict[Job, Live] = {}
        self._outbox = Outbox()
        self._deadlines: dict[int, float] = {}
        self._pins = Pins(backend, self._cache)
        self._layout = Layout(backend)
        self._admit_again = False

    @property
    def backend(self) -> Backend:
        """The one that the loop began with, or what became of it when its cells were laid out anew."""
        return self._backend

    @property
    def cache(self) -> PrefixCache:
        return self._cache

    @property
    def busy(self) -> bool:
        """Whether a step would have anything to do."""
        return bool(self._lives)

    def submit(self, request: Request) -> None:
        """Take in a request; a parser or options that fail end it with that error."""
        now = self._clock()
        try:
            generation = Generation(self._backend.vocab, request.parser(), request.limits)
            opening = generation.start()
            check_fits(len(request.tokens) + len(opening.forced), self._longest)
            if request.pin:
                self._pins.check(sum(live.request.pin for live in self._lives.values()))
        except Exception as error:  # noqa: BLE001 - a parser is the caller's code; what it raises is this request's
            self._outbox.refuse(request.id, error)
            return
        job = Job([*request.tokens, *opening.forced], request.priority, patient=request.patient)
        live = Live(request, job, generation, now)
        self._lives[request.id] = self._of_job[job] = live
        self._outbox.emit(live, opening.events)
        if request.deadline is not None:
            self._deadlines[request.id] = now + request.deadline
        self._scheduler.add(job)
        self._admit_again = True

    def refuse(self, id_: int, error: Exception) -> None:
        """Answer with an error, without starting anything."""
        self._outbox.refuse(id_, error)

    def unpin(self, id_: int) -> None:
        """What this request pinned may be forgotten when its cells are needed."""
        self._admit_again |= self._pins.release(id_)

    def save(self, id_: int, pin: int) -> None:
        """Answer, under `id_`, with the state of what request `pin` pinned."""
        try:
            self._outbox.hand_over(id_, self._pins.state(pin))
        except RequestError as error:
            self._outbox.refuse(id_, error)

    def cancel(self, id_: int) -> None:
        """End a request with reason "cancelled"; one that is over or unknown is left alone."""
        if (live := self._lives.get(id_)) is not None:
            self._finish(live, "cancelled")

    def interrupt(self, id_: int | None = None) -> None:
        """Stop the decode that is running, if it is for this request alone (None: in any case). For any thread, and
        only a hint: the request goes on unless it is cancelled too."""
        chunks = self._decoding
        lives = [self._of_job.get(chunk.job) for chunk in chunks]
        if chunks and (id_ is None or all(live is None or live.request.id == id_ for live in lives)):
            self._backend.abort()

    def end_reasoning(self, id_: int) -> None:
        """Close a request's reasoning after its next token."""
        if (live := self._lives.get(id_)) is not None:
            live.generation.end_reasoning()

    def cancel_all(self) -> None:
        for live in list(self._lives.values()):
            self._finish(live, "cancelled")

    def abandon(self, error: Exception) -> None:
        """The loop is broken: every request ends with this error. Touches neither backend nor books."""
        for live in self._lives.values():
            self._outbox.abandon(live, error)
        self._lives.clear()

    def drain(self) -> list[Reply]:
        """The replies since the last drain, one for each request that has any."""
        return self._outbox.drain()

    def step(self) -> None:
        """Evaluate the next tokens of all that run, and advance the requests that have a token to draw."""
        if self._deadlines:
            self._expire()
        if self._admit_again:
            self._admit()
        planned, mixed_rows = self._plan(), self._backend.mixed_rows
        streams = sum(chunk.single for chunk in planned)
        self._pace.serve(self._scheduler.prompts, streams)
        if streams <= mixed_rows and self._pace.unsure(streams):
            mixed_rows = 0
        for chunks in self._scheduler.apart(planned, mixed_rows):
            if not self._decode(chunks):
                break
        self._scheduler.prefill_limit = self._pace.rows

    def _decode(self, chunks: Sequence[Chunk]) -> bool:
        """Evaluate these chunks in one batch; False if that failed, and what follows from it is done."""
        rows = [row for chunk in chunks for row in chunk.rows()]
        streams = sum(chunk.single for chunk in chunks)
        prefill = sum(chunk.size for chunk in chunks if not chunk.single)
        began = self._clock()
        self._backend.resume()
        self._decoding = chunks
        try:
            self._backend.decode(rows)
        except DecodeError as error:
            self._recover(chunks, error)
            return False
        finally:
            self._decoding = []
        self._evaluated(chunks)
        self._pace.took(prefill, streams, self._clock() - began)
        return True

    def _expire(self) -> None:
        now = self._clock()
        for id_ in [id_ for id_, at in self._deadlines.items() if now >= at]:
            self._finish(self._lives[id_], "deadline")

    def _admit(self) -> None:
        """Let waiting requests start while there are sequences and cells; in order, but one that waits for a prefix
        that is being evaluated does not hold up the others."""
        self._admit_again = False
        if not self._pins and self._layout.parts(self._lives.values(), self._cache.used):
            self._lay_out_anew()
        for job in self._scheduler.waiting:
            live = self._of_job[job]
            if not self._layout.suits(live):
                if self._scheduler.running:
                    break
                self._lay_out_anew()
            if len(job.tokens) > self._longest:  # one buffer for all could not be made again
                self._outgrown(live)
                continue
            checkpoint = live.request.checkpoint if self._cache.whole_only else 0
            # Who is less urgent may be long in evaluating what they share.
            waits = all(other.priority >= job.priority for other in self._scheduler.running)
            lease = self._cache.acquire(job.tokens, checkpoint, anew=bool(live.request.state), waits=waits)
            if lease is Blocked.SHARED:
                self._admit_again = True
                continue
            if isinstance(lease, Blocked):
                break
            job.checkpoint = checkpoint
            self._scheduler.start(job, lease.sequence, lease.reused)
            if live.sampler is not None:
                self._backend.attach(live.sampler, lease.sequence)
                continue
            live.started, live.cached = self._clock(), lease.reused
            try:
                if live.request.state and self._load(live):
                    self._finish(live, "stop")
                    continue
                live.sampler = self._backend.sampler(live.request.sampling, job.tokens)
                self._backend.attach(live.sampler, lease.sequence)
            except Exception as error:  # noqa: BLE001 - whatever these options led to, it concerns this request only
                self._finish(live, "error", error)

    def _lay_out_anew(self) -> None:
        """Change the layout of the cells: what they hold is forgotten, and who runs is evaluated again."""
        for job in self._scheduler.running:
            self._withdraw(job)
        self._backend = self._backend.relaid()
        self._cache = PrefixCache(self._backend)
        self._pins = Pins(self._backend, self._cache)
        self._layout.changed(self._backend)
        self._longest = max(self._backend.n_ctx_sequence, self._backend.n_ctx_other)
        self._scheduler.packs = packs(self._backend)

    def _load(self, live: Live) -> bool:
        """Put a saved state in place of evaluating the tokens; False if there is no room for it, so that they are
        evaluated, which makes room."""
        job = live.job
        loaded = self._cache.load(job.sequence, job.tokens, live.request.state)
        job.evaluated = live.cached = len(job.tokens) if loaded else 0
        return loaded

    def _plan(self) -> list[Chunk]:
        """The next chunks, with room for them: idle prefixes are forgotten first, then the youngest request gives
        way."""
        if self._longest_draft:
            self._guess()
        while chunks := self._scheduler.plan():
            if self._cache.make_room(sum(chunk.size for chunk in chunks)):
                break
            if any(chunk.draft for chunk in chunks):
                for job in self._scheduler.running:
                    job.draft = ()
            else:
                self._give_way()
        return chunks

    def _guess(self) -> None:
        """Let every request that decodes guess its next tokens, as far as they would fit. Wrong guesses are cut off
        again, so a memory that cannot be cut takes none."""
        for job in self._scheduler.running:
            job.draft = ()
            live = self._of_job[job]
            if job.pending != 1 or self._cache.whole_only or live.request.pin:
                continue
            if live.drafter is None:
                live.drafter = Drafter(job.tokens, self._longest_draft)
            job.draft = live.drafter.propose(self._backend.n_ctx_sequence - len(job.tokens))

    def _give_way(self) -> None:
        """The youngest request loses its sequence, and will be resumed where it was; nothing is emitted twice."""
        if victim := self._scheduler.victim():
            self._withdraw(victim)
        else:
            self._outgrown(self._of_job[self._scheduler.running[0]])

    def _withdraw(self, job: Job) -> None:
        """Take a request's sequence away, until it is admitted again."""
        self._backend.detach(job.sequence)
        self._cache.release(job.sequence)
        self._scheduler.preempt(job)
        self._admit_again = True

    def _outgrown(self, live: Live) -> None:
        """A request alone needs more cells than there are (a context that holds less than it says, or did before)."""
        if live.first_token is not None:
            self._finish(live, "length")
            return
        try:
            check_fits(len(live.job.tokens), min(self._longest, self._cache.free + live.job.evaluated))
        except ContextOverflowError as error:
            self._finish(live, "error", error)

    def _evaluated(self, chunks: Sequence[Chunk]) -> None:
        """The batch of these chunks was decoded: write the books, then draw where a token is due."""
        due: list[tuple[Live, int, tuple[int, ...]]] = []
        row = 0
        for chunk in chunks:
            job = chunk.job
            self._cache.extend(job.sequence, job.tokens[chunk.start : chunk.stop])
            job.evaluated = chunk.stop
            live = self._of_job[job]
            live.strikes = 0
            if chunk.draft:
                self._cache.extend(job.sequence, chunk.draft)
            if job.evaluated == job.checkpoint:
                self._cache.keep(job.sequence)
            if live.first_token is None:
                self._outbox.prefilled(live)
            if chunk.output:
                due.append((live, row + chunk.stop - chunk.start - 1, chunk.draft))
            row += chunk.size
        for live, at, draft in due:
            try:
                if live.request.pin:
                    finish = "stop"
                else:
                    finish = self._draw_along(live, at, draft) if draft else self._draw(live, at)
                if finish is None and len(live.job.tokens) > self._longest and not self._shift(live):
                    finish = "length"
                if finish is not None:
                    self._finish(live, finish)
            except Exception as error:  # noqa: BLE001 - a draw's failure (logits, parser) is this request's alone
                self._finish(live, "error", error)

    def _draw_along(self, live: Live, row: int, draft: tuple[int, ...]) -> FinishReason | None:
        """Draw one token, and one more for each guess that came true: each from the logits behind what was drawn
        before, so that the output is what it would be without guesses."""
        job, drafter = live.job, live.drafter
        assert drafter is not None, "who drafts has a drafter"
        true = 0
        while (finish := self._draw(live, row + true)) is None and true < len(draft):
            if job.pending > true + 1 or job.tokens[-1] != draft[true]:
                break
            true += 1
        drafter.judged(len(draft), true)
        job.evaluated = self._cache.cut(job.sequence, job.evaluated + true)
        return finish

    def _draw(self, live: Live, row: int) -> FinishReason | None:
        """Draw a token and take in what follows from it; how the turn ends, if it does."""
        sampler, job = live.sampler, live.job
        assert sampler is not None, "a running request has a sampler"
        token = self._backend.sample(sampler, row)
        if (top := live.request.sampling.logprobs) is not None:
            live.logprobs.append(self._backend.logprobs(row, token, top))
        if live.first_token is None:
            live.first_token = self._clock()
        events, forced, finish = live.generation.advance(token)
        self._outbox.emit(live, events)
        if finish in (None, "length"):
            job.tokens.append(token)
        for token in forced:
            sampler.accept(token)
            job.tokens.append(token)
        return finish

    def _shift(self, live: Live) -> bool:
        """The context is full: give up the older half of what stands behind the kept tokens, where the request allows.

        Where the memory cannot move what is left (or others share it), that is evaluated again.
        """
        job, keep = live.job, live.request.keep
        if keep is None:
            return False
        stop = keep + (len(job.tokens) - keep) // 2
        given_up = stop - keep
        if len(job.tokens) - given_up > self._longest or stop > job.evaluated:
            return False
        del job.tokens[keep:stop]
        if self._cache.shift(job.sequence, keep, stop):
            job.evaluated -= given_up
        else:
            job.evaluated = self._cache.cut(job.sequence, keep)
        job.checkpoint = 0
        live.shifted += given_up
        if live.drafter is not None:
            live.drafter.restart()
        return True

    def _finish(self, live: Live, reason: FinishReason, error: Exception | None = None) -> None:
        """The request is over; what it evaluated stays for others, unless it failed."""
        job = live.job
        self._scheduler.remove(job)
        if job.sequence >= 0:
            self._leave(live, reason, error)
        if live.sampler is not None:
            live.sampler.close()
        del self._lives[live.request.id], self._of_job[job]
        self._deadlines.pop(live.request.id, None)
        self._admit_again = True
        try:
            closing = live.generation.close(reason)
        except Exception as fault:  # noqa: BLE001 - the parser's failure is reported to its own reader
            closing, error = [Finished("error")], error or fault
        self._outbox.end(live, closing, error, self._clock())

    def _leave(self, live: Live, reason: FinishReason, error: Exception | None) -> None:
        """The request needs its sequence no longer."""
        sequence = live.job.sequence
        self._backend.detach(sequence)
        if error is not None:
            self._cache.drop(sequence)
        elif live.request.pin and reason == "stop":
            self._pins.keep(live.request.id, sequence)
        else:
            self._cache.release(sequence)

    def _recover(self, chunks: Sequence[Chunk], error: DecodeError) -> None:
        """A decode failed: read back what the sequences hold, then find out whose fault it was."""
        for chunk in chunks:
            chunk.job.evaluated = self._cache.reconcile(chunk.job.sequence)
        if error.reason == "aborted":
            return
        if error.reason == "no_slot":
            self._cache.shrink(sum(chunk.size for chunk in chunks))
            if self._cache.clear() or len(self._scheduler.running) > 1:
                return
        for chunk in chunks:
            self._retry(chunk, error)

    def _retry(self, chunk: Chunk, error: DecodeError) -> None:
        """Decode one chunk of a failed batch alone; what fails again is the culprit.

        One whose sequence is not where it was is planned anew instead, a few times.
        """
        live = self._of_job[chunk.job]
        live.strikes += 1
        moved = chunk.job.evaluated != chunk.start
        if live.strikes > _STRIKES:
            self._finish(live, "error", error)
            return
        if moved:
            return
        try:
            self._backend.decode(chunk.rows())
        except DecodeError as again:
            chunk.job.evaluated = self._cache.reconcile(chunk.job.sequence)
            if again.reason == "aborted":
                live.strikes -= 1
            else:
                self._finish(live, "error", again)
        else:
            self._evaluated([chunk])
