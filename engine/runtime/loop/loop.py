"""The engine's loop without its thread: each call of `step` advances all requests that can run by one batch. It
collects the replies, at most one for each request.

Whatever a request brings along (a parser, a logits processor) and whatever that raises, even SystemExit,
ends only that request: hence the handlers of BaseException here.
"""

import logging
from collections.abc import Callable, Sequence
from time import perf_counter

from engine.runtime.adapters.active_adapters import LoadedAdapters
from engine.runtime.adapters.adapters import DropAdapter, LoadAdapter
from engine.runtime.cache.pins import Pins
from engine.runtime.cache.prefix import Blocked, PrefixCache
from engine.runtime.cache.state_store import OriginStates, StateStore
from engine.runtime.draft.drafter import drafter_for
from engine.runtime.guidance.guide import Guide
from engine.runtime.guidance.matcher import Compiler
from engine.runtime.loop.backend import Backend
from engine.runtime.loop.config import KEPT_STATES, LoopOptions
from engine.runtime.loop.drawing import Draws, evaluate, masks_together
from engine.runtime.loop.generation import Generation, TokenTable
from engine.runtime.loop.replies import Replies, contained
from engine.runtime.loop.request import Request, check_fits
from engine.runtime.loop.scheduler import Chunk, Scheduler
from engine.runtime.loop.sequence import SequenceState, longest
from engine.runtime.media.encoder import Encoder
from engine.runtime.media.media import whole
from engine.runtime.stream.embed_queue import Embed, VectorQueue, Vectors
from engine.support.errors import ContextOverflowError, DecodeError, EngineError
from engine.support.nothing import nothing
from engine.types.events import Finished
from engine.types.sampling import FinishReason

_log = logging.getLogger("engine.runner")
_STRIKES = 3
"""Failed decodes in a row after which a request ends with the error."""
_DOUBTS = 20
"""How often logits may be no numbers where no request is to blame for it, before that ends those that have them."""
_ABORTS = 20
"""Aborted decodes in a row after which a request ends: a cancellation aborts one."""


class Loop:
    """Takes requests and produces replies, over one backend. `draft`: the context of a smaller model, or of the model's
    own head, which guesses for it. `clock`: seconds, monotonic. `encoded`: called in another thread when a picture was
    encoded, for which a step may have waited."""

    def __init__(
        self,
        backend: Backend,
        options: LoopOptions | None = None,
        *,
        draft: Backend | None = None,
        clock: Callable[[], float] = perf_counter,
        encoded: Callable[[], object] = nothing,
    ) -> None:
        options = options or LoopOptions()
        self._backend = backend
        self.compiler = Compiler(backend.vocab)
        """Compiles grammars; may be used from any thread."""
        self._n_ctx, self._certain = backend.info.n_ctx, backend.info.certain
        self._tokens = TokenTable(backend.vocab)
        self._store = options.states
        self.cache = PrefixCache(
            backend, states=OriginStates(options.states or StateStore(KEPT_STATES), lambda: backend.origin)
        )
        self._pins = Pins(backend, self.cache)
        self._adapters = LoadedAdapters(backend)
        self._scheduler = Scheduler(backend.info, options.prefill_seconds)
        self._drafts = drafter_for(backend, draft, options.draft_max, options.prefill_seconds, clock)
        self._draft_follows = draft is not None  # it holds what each sequence holds, so that none may move
        self._clock = clock
        self._states: dict[int, SequenceState] = {}
        self._deadlines: dict[int, float] = {}
        self._vectors = VectorQueue()
        projector = backend.projector
        self._encoder = None if projector is None else Encoder(projector.encode, encoded)
        self._scoring = 0  # requests whose tokens are scored
        self._seeing = 0  # requests with media
        self._replies = Replies()
        self._draws = Draws(backend, self.cache, self._replies, self._drafts, clock)
        self.drain = self._replies.drain
        self._decoding: Sequence[Chunk] = []
        self._admit_again = False
        self._spoiled = False  # whether cells may hold numbers that are none, which spoil what is computed beside them

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do: not while all that runs waits for a picture to be encoded."""
        if not self._states or self._vectors.jobs or self._encoder is None:
            return bool(self._states or self._vectors.jobs)
        return self._admit_again or not (self._encoder.is_busy and self._scheduler.waits)

    @property
    def patience(self) -> float | None:
        """Seconds until the next deadline of a request; None without one."""
        return max(0.0, min(self._deadlines.values()) - self._clock()) if self._deadlines else None

    def submit(self, request: Request) -> None:
        """Accept a request. If making its parser or its options fails, the request ends with that error."""
        now = self._clock()
        try:
            parser, constraint = request.parser(), request.constraint
            guide = Guide(constraint, self.compiler, parser) if constraint is not None else None
            generation = Generation(self._tokens, parser, request.limits, guide)
            opening = generation.start()
            check_fits(len(request.tokens) + len(opening.forced), self._n_ctx)
            self._adapters.check(request.adapters)
            if request.pin:
                self._pins.check(sum(state.request.pin for state in self._states.values()))
        except BaseException as error:  # noqa: BLE001 - a parser is the caller's code; what it raises is this request's
            self._replies.refuse(request.id, contained(error))
            return
        state = SequenceState(request, generation, [*request.tokens, *opening.forced], now)
        state.weighs = not (self._certain or request.media)
        self._states[request.id] = state
        self._scoring += bool(request.scored)
        self._seeing += bool(request.media)
        self._replies.emit(state, opening.events)
        if request.deadline is not None:
            self._deadlines[request.id] = now + request.deadline
        self._scheduler.add(state)
        self._admit_again = True

    def unpin(self, id_: int) -> None:
        """Allow the cache to forget what this request pinned or claimed when it needs the cells."""
        self.cache.kept.disclaim(id_)
        self._admit_again |= self._pins.release(id_)

    def embed(self, request: Embed) -> None:
        """Accept a request for vectors, which are made between the steps of turns."""
        try:
            self._vectors.add(request, self._backend.vectors().info)
        except BaseException as error:  # noqa: BLE001 - a context that cannot be made ends this request only
            self._replies.refuse(request.id, contained(error))

    def change_adapters(self, order: LoadAdapter | DropAdapter) -> None:
        """Load an adapter, or free one as soon as no request uses it; replies when that is done."""
        if isinstance(order, DropAdapter):
            self._adapters.drop(order.id, order.digest, order.key)
            self._settle_adapters()
            return
        try:
            self._adapters.load(order.digest, order.path, order.key)
        except BaseException as error:  # noqa: BLE001 - a file that cannot be loaded ends this request only
            self._replies.refuse(order.id, contained(error))
        else:
            self._replies.done(order.id)

    def _settle_adapters(self) -> None:
        if self._adapters.leaving:
            used = {digest for state in self._states.values() for digest, _ in state.request.adapters.scales}
            for id_ in self._adapters.settle(used):
                self._replies.done(id_)

    def cancel(self, id_: int) -> None:
        """End a request with reason "cancelled"; does nothing if it is over or unknown."""
        if self._vectors.cancel(id_):
            self._replies.refuse(id_, EngineError("The request for vectors was cancelled."))
        if (state := self._states.get(id_)) is not None:
            self._finish(state, "cancelled")

    def interrupt(self, id_: int | None = None) -> None:
        """Stop the decode that is running, if it is for this request alone (None: in any case). May be called from any
        thread. It is only a hint: the request goes on unless it is cancelled too."""
        chunks = self._decoding
        if chunks and (id_ is None or all(chunk.state.request.id == id_ for chunk in chunks)):
            self._backend.abort()
        embedding = self._vectors.running
        if embedding and (id_ is None or embedding == frozenset((id_,))):
            self._backend.vectors().abort()

    def end_reasoning(self, id_: int) -> None:
        """Close a request's reasoning after its next token."""
        if (state := self._states.get(id_)) is not None:
            state.generation.end_reasoning()

    def cancel_all(self) -> None:
        for state in list(self._states.values()):
            self._finish(state, "cancelled")
        for id_ in self._vectors.clear():
            self._replies.refuse(id_, EngineError("The engine was closed before the vectors were made."))

    def close(self) -> None:
        """Wait for the picture that is being encoded. The backend may then be closed."""
        if self._encoder is not None:
            self._encoder.close()

    def keep_states(self) -> None:
        """Keep the states of all sequences in the caller's store, if there is one, because the context is closed."""
        if self._store is not None:
            self.cache.keep_all()
            self._store.flush()

    def abandon(self, error: Exception) -> None:
        """End every request with this error, because the loop is broken. Uses neither the backend nor the cache."""
        for state in self._states.values():
            self._replies.abandon(state, error)
        self._states.clear()
        for id_ in (*self._vectors.clear(), *self._adapters.abandon()):
            self._replies.refuse(id_, error)

    def step(self) -> None:
        """Evaluate the next tokens of all running requests, and advance those that have a token to draw."""
        for batch in self._plan():
            if not self._decode(batch):
                break
            self._advance(batch)
        self._replies.threads = self._backend.threads
        if not self._vectors.jobs:
            return
        rows = self._scheduler.budget.rows if self._states else None  # beside turns, as many as prompts may take
        for id_, result in self._vectors.step(self._backend.vectors(), rows):
            if isinstance(result, Vectors):
                self._replies.give(id_, result)
            else:
                self._replies.refuse(id_, contained(result))
        self._replies.threads = self._backend.threads

    def _plan(self) -> list[list[Chunk]]:
        """Returns the next batches, after making room for them: idle prefixes are forgotten first, then the least
        urgent requests are preempted."""
        if self._deadlines:
            self._expire()
        if self._spoiled:
            self._wipe()
        if self._admit_again:
            self._admit()
        if self._seeing and self._encoder is not None:
            for state, error in self._encoder.serve(self._scheduler.running):
                self._finish(state, "error", contained(error))
        if self._drafts is not None or self._scoring:
            self._guess()
        while batches := self._scheduler.plan(self._adapters.in_force):
            needed, guesses = 0, 0
            for batch in batches:
                for chunk in batch:
                    needed += chunk.stop - chunk.start
                    guesses += len(chunk.draft)
            if self.cache.make_room(needed + guesses):
                break
            if guesses:
                for state in self._scheduler.running:
                    _guess_no_more(state)
            else:
                self._give_way()
        return batches

    def _wipe(self) -> None:
        """Overwrite all that the context holds. Whatever runs begins again behind those that are computed alone: nobody
        waits for the end of an answer."""
        _log.warning("logits were not numbers: all that the context held is overwritten, so that it spoils nothing")
        for state in self._scheduler.running:
            self.cache.drop(state.sequence)
            self._scheduler.preempt(state)
        self.cache.wipe()
        self._spoiled, self._admit_again = False, True

    def _decode(self, chunks: Sequence[Chunk]) -> bool:
        """Evaluate these chunks in one batch. Returns False if that failed, after handling the failure."""
        began = self._clock()
        self._decoding = chunks
        try:
            evaluate(self._backend, self._adapters, chunks)
        except (EngineError, MemoryError) as error:  # also no memory for the rows, adapters that cannot be set
            self._recover(chunks, error)
            return False
        finally:
            self._decoding = ()
        prefill = 0
        for state, start, stop, draft, part in chunks:
            if part is not None:
                prefill += part.stop - part.start
            elif stop - start > 1 or stop < len(state.tokens):  # not the one token after which the next is drawn
                prefill += stop - start + len(draft)
        if prefill:
            self._scheduler.budget.took(prefill, self._clock() - began)
        elif self._drafts is not None:
            self._drafts.rule.decoded(sum(chunk.size for chunk in chunks), self._clock() - began)
        return True

    def _advance(self, chunks: Sequence[Chunk]) -> None:
        """Record that these chunks were decoded, then draw a token for each chunk with output."""
        due: list[tuple[SequenceState, int, tuple[int, ...]]] = []
        row, constrained = 0, False
        for state, start, stop, draft, part in chunks:
            if part is not None:
                if part.stop < part.unit.rows:
                    return  # it is the only chunk of its batch
                state.rows, state.begun = None, 0
            self.cache.extend(state.sequence, state.tokens[start:stop])
            state.evaluated = stop
            state.strikes = state.aborts = 0
            if draft:
                self.cache.extend(state.sequence, draft)
            if stop in state.marks:
                self.cache.checkpoint(state.sequence)
            if state.first_token is None:
                self._replies.prefilled(state)
            if stop == len(state.tokens) or (state.unsaid is not None and stop > state.first_output):
                due.append((state, row + stop - start - 1, draft))
                constrained = constrained or state.request.constraint is not None
            row += stop - start + len(draft)
        doubtful = self._draw(due, constrained=constrained)
        if self._drafts is not None and self._drafts.follow is not None:
            self._drafts.follow(chunks)
        for state in doubtful:  # again, alone and in memory that is overwritten: others may have spoiled it
            state.alone = self._spoiled = True
            state.doubts += 1

    def _draw(
        self, due: Sequence[tuple[SequenceState, int, tuple[int, ...]]], *, constrained: bool
    ) -> list[SequenceState]:
        """Draw tokens for these requests, each with its row and the guesses behind it. Returns those whose logits were
        not numbers, for the first time."""
        doubtful: list[SequenceState] = []
        masks = masks_together([state for state, _, _ in due if state.draws]) if constrained else {}
        for state, at, draft in due:
            try:
                finish = self._draws.advance(state, at, draft, masks)
                if finish is not None:
                    self._finish(state, finish)
                elif state.alone:
                    self._cleared(state)
            except BaseException as error:  # noqa: BLE001 - a draw's failure (logits, parser) is this request's alone
                if _is_nan(error) and not state.alone and state.doubts < _DOUBTS:
                    doubtful.append(state)
                else:
                    self._finish(state, "error", contained(error))
                    if _is_nan(error):
                        self._convicted()
        return doubtful

    def _cleared(self, state: SequenceState) -> None:
        """It is not to blame: others go on, and it does as soon as all that are in doubt were computed alone."""
        state.alone = False
        self._admit_again = True
        if self._scheduler.doubts:
            self.cache.release(state.sequence)
            self._scheduler.preempt(state)

    def _convicted(self) -> None:
        """A request that was alone is to blame: what it computed is overwritten, and the others were in doubt for its
        sake."""
        self._spoiled = True
        for state in self._states.values():
            state.doubts = 0

    def _guess(self) -> None:
        """Let the requests that decode guess their next tokens. Wrong guesses are cut off again, so there are none for
        a memory that cannot be. Tokens that are scored are no guesses: all of them are right."""
        for state in self._scheduler.running:
            if state.trial is not None:
                continue
            scored = state.request.scored if state.pending == 1 else ()
            state.draft = scored[len(state.tokens) - len(state.request.tokens) : -1] if scored else ()
        if self._drafts is not None and self.cache.takes_guesses:
            due, rows = self._scheduler.guessing
            guessing = (each for each in due if not (each.request.scored or each.request.media or each.opens))
            self._drafts.guess(list(guessing), rows)

    def _expire(self) -> None:
        now = self._clock()
        for id_ in [id_ for id_, at in self._deadlines.items() if now >= at]:
            self._finish(self._states[id_], "deadline")

    def _admit(self) -> None:
        """Start waiting requests while there are sequences and cells, in order; but one that waits for a prefix that is
        being evaluated does not hold up the others."""
        self._admit_again = started = False
        for state in self._scheduler.waiting:
            request = state.request
            marks = request.turns if self.cache.whole_only else ()
            if request.adapters.start > 0:  # no chunk is computed partly with adapters
                marks = tuple(sorted({*marks, request.adapters.start}))
            if request.media:  # nor are text and media in one
                ends = (end for each in request.media for end in (each.start, each.stop))
                marks = tuple(sorted({*ends, *(whole(state.tokens, mark) for mark in marks)}))
            # A less urgent request may take long to evaluate the prefix that both share.
            waits = all(other.request.priority >= request.priority for other in self._scheduler.running)
            lease = self.cache.acquire(
                state.tokens,
                longest(state, self._n_ctx),
                marks,
                waits=waits,
                offline=request.offline,
                adapters=request.adapters,
                needed=state.unsaid,
            )
            if lease is Blocked.SHARED:
                self._admit_again = True
                continue
            if isinstance(lease, Blocked):
                break
            state.marks = marks
            self._scheduler.start(state, lease.sequence, lease.reused)
            started = True
            try:
                self._begin(state, lease.reused)
            except BaseException as error:  # noqa: BLE001 - options that fail end this request only
                self._finish(state, "error", contained(error))
        if started and not self._draft_follows:
            self.cache.idle.leave()

    def _begin(self, state: SequenceState, reused: int) -> None:
        """Set up a request that has just got its sequence."""
        if state.sampler is None:
            state.started, state.cached = self._clock(), reused
            if state.request.scored:
                return
            text = [token for token in state.tokens if token >= 0] if state.request.media else state.tokens
            state.sampler = self._backend.sampler(state.request.sampling, text)

    def _give_way(self) -> None:
        """Preempt the least urgent request: it loses its sequence and resumes later where it was; nothing is emitted
        twice."""
        victim = self._scheduler.victim()
        if victim is None:
            if self.cache.cells.widen():  # was there too little room, or only beside others?
                return
            self._outgrown(self._scheduler.running[0])
            return
        self.cache.release(victim.sequence)
        self._scheduler.preempt(victim)
        self._admit_again = True

    def _outgrown(self, state: SequenceState) -> None:
        """End a request that needs more cells, by itself, than are left beside pinned prefixes (or than the context
        really has)."""
        if state.first_token is not None:
            self._finish(state, "length")
            return
        left = self.cache.cells.free + state.evaluated
        error = ContextOverflowError(
            f"The prompt has {len(state.tokens):,} tokens, but the KV cache has room for {left:,} beside pinned "
            "prefixes; release one, or load with a larger kv_tokens= (n_ctx= without a shared pool)."
        )
        self._finish(state, "error", error)

    def _finish(self, state: SequenceState, reason: FinishReason, error: Exception | None = None) -> None:
        """End the request; what it evaluated stays in the cache for others, unless it failed."""
        id_ = state.request.id
        reason = reason if state.ending is None or error is not None else state.ending
        self._scheduler.remove(state)
        if state.sequence >= 0:
            self._leave(state, reason, error)
        if state.sampler is not None:
            state.sampler.close()
        del self._states[id_]
        self._scoring -= bool(state.request.scored)
        self._seeing -= bool(state.request.media)
        self._deadlines.pop(id_, None)
        self._settle_adapters()
        self._admit_again = True
        try:
            closing = state.generation.close(reason)
        except BaseException as fault:  # noqa: BLE001 - the parser's failure is reported to its own reader
            closing, error = [Finished("error")], error or contained(fault)
        self._replies.end(state, closing, error, self._clock(), self.cache.checkpoints)

    def _leave(self, state: SequenceState, reason: FinishReason, error: Exception | None) -> None:
        """Give back the sequence of a request that is over."""
        if error is not None:
            self.cache.drop(state.sequence)
        elif state.request.pin and reason == "stop":
            self._pins.keep(state.request.id, state.sequence)
            if self._store is not None and self._store.durable:
                self.cache.keep(state.sequence)
        else:
            if state.request.claims:
                self.cache.kept.claim(state.request.id, tuple(self.cache.held(state.sequence)))
            self.cache.release(state.sequence, continued=not state.request.offline)

    def _recover(self, chunks: Sequence[Chunk], error: Exception) -> None:
        """Handle a failed decode: read back what the sequences hold, then find the request that caused it."""
        for chunk in chunks:
            chunk.state.evaluated = self.cache.reconcile(chunk.state.sequence)
        reason = error.reason if isinstance(error, DecodeError) else "failed"
        if reason == "aborted":
            for state in [chunk.state for chunk in chunks]:
                state.aborts += 1
                if state.aborts > _ABORTS:
                    self._finish(state, "error", error)
            return
        if reason == "no_slot":
            running = self._scheduler.running
            self.cache.cells.shrink(sum(chunk.size for chunk in chunks) + sum(state.begun for state in running))
            if self.cache.clear() or len(running) > 1:
                return
        for chunk in chunks:
            self._retry(chunk, error)

    def _retry(self, chunk: Chunk, error: Exception) -> None:
        """Decode one chunk of a failed batch alone; if that fails again, its request is the cause.

        A chunk whose sequence has lost tokens is planned again instead, at most `_STRIKES` times.
        """
        state = chunk.state
        state.strikes += 1
        if state.strikes > _STRIKES:
            self._finish(state, "error", contained(error))
            return
        if state.evaluated != chunk.start or (chunk.part is not None and chunk.part.start):
            return
        if state.trial is not None:
            _guess_no_more(state)
            chunk = chunk._replace(draft=())
        try:
            evaluate(self._backend, self._adapters, [chunk])
        except (EngineError, MemoryError) as again:
            state.evaluated = self.cache.reconcile(state.sequence)
            reason = again.reason if isinstance(again, DecodeError) else "failed"
            if reason == "aborted":
                state.strikes -= 1
            elif reason == "no_slot" and len(self._scheduler.running) == 1:
                self._outgrown(state)
            else:
                self._finish(state, "error", contained(again))
        else:
            self.cache.cells.widen()  # if it was refused, then for another reason than its room
            self._advance([chunk])


def _guess_no_more(state: SequenceState) -> None:
    """Let nothing follow what is certain: guesses now, and texts that are tried for the rest of its turn."""
    state.weighs = state.weighs and state.trial is None
    state.trial, state.draft = None, ()


def _is_nan(error: BaseException | None) -> bool:
    return isinstance(error, DecodeError) and error.reason == "nan"
