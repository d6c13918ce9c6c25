"""Submit a turn, get a stream of events; from any thread, and from asyncio."""

import contextlib
import itertools
import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Self

from engine.runtime.adapters.adapters import AdapterInfo, AdapterNames, DropAdapter, LoadAdapter
from engine.runtime.cache.token_memory import TurnMemory
from engine.runtime.guidance.guide import check_constraint
from engine.runtime.loop.backend import Backend, ContextInfo, Vocab
from engine.runtime.loop.config import LoopOptions
from engine.runtime.loop.metrics import Metrics, Tally
from engine.runtime.loop.request import Reply, Request, TurnRequest, check_fits
from engine.runtime.loop.runner import LoopHandle, RemoteContext, Runner
from engine.runtime.media.media import ChunkAt, TokensAndMedia, has_media
from engine.runtime.stream.embed_queue import Embed
from engine.runtime.stream.pending import PendingVectors
from engine.runtime.stream.process import OwnerProcess
from engine.runtime.stream.prompt_tokens import PromptTokens
from engine.runtime.stream.raw import check_end, check_known, known_tokens, tokens_of
from engine.runtime.stream.stream import OutputQueue, Stream
from engine.support.display import counted
from engine.support.errors import EngineError, QueueFullError, RequestError, shown
from engine.support.nothing import nothing
from engine.support.offloop import belongs_to_call
from engine.types.events import Finished
from engine.types.prompt import Prompt
from engine.types.sampling import SamplingParams
from engine.types.turn_settings import PLAIN, TurnSettings

if TYPE_CHECKING:  # only readers in an event loop need it
    import asyncio

_log = logging.getLogger("engine.service")
NOT_CHAT = (
    "This is an embedding model or a reranker: it makes vectors or ranks (`embed`, `rerank`) and cannot continue a "
    "text; load a chat model for that."
)


def check_generates(info: ContextInfo) -> None:
    """Raise RequestError if the model makes vectors only."""
    if not info.generates:
        raise RequestError(NOT_CHAT)


class Service:
    """One model's context, shared by every caller in this process.

    The service owns `backend`, here or in a child process, from now on: `close()` (or leaving a `with`, or the end of
    the interpreter) frees it. So it owns `draft`, the context of the model that guesses ahead (in a child process, the
    child has it).
    """

    def __init__(
        self, backend: Backend | RemoteContext, options: LoopOptions | None = None, draft: Backend | None = None
    ) -> None:
        options = options or LoopOptions()
        self._home = OwnerProcess()
        self.vocab: Vocab = backend.vocab
        self.info = backend.info
        """The sizes of the context."""
        self._ids = itertools.count(1)
        self._turns = TurnMemory(backend.vocab)
        self._adapters = AdapterNames()
        self._post = _Deliveries(self._turns, backend.info, options.max_waiting)
        self._runner: LoopHandle
        if isinstance(backend, RemoteContext):
            self._runner = reader = backend.runner(self._post.deliver, options)
        else:
            self._runner, reader = Runner(backend, self._post.deliver, options, draft), backend.projector
        weakref.finalize(self, _close, self._home, self._runner.close)
        self._prompts = PromptTokens(
            backend.vocab,
            self._turns,
            reader.read if reader is not None and self.info.media else None,
            self.info.media,
        )

    @property
    def capacity(self) -> int:
        """Returns how many requests may be open at once: those that run, and `max_waiting`."""
        return self._post.most

    @property
    def room(self) -> int:
        """How many rows of many are started at a time: some wait, so that no sequence is ever idle."""
        return min(2 * self.info.n_sequences, self.capacity)

    @property
    def metrics(self) -> Metrics:
        """What the engine has done so far, in numbers."""
        return replace(self._post.metrics, restarts=self._runner.restarts)

    @property
    def closed(self) -> bool:
        """Whether the service refuses requests: it was closed, or its loop broke."""
        return self._runner.closed

    @property
    def running(self) -> int:
        """The requests that are not over."""
        return self._post.open_requests

    @property
    def pinned(self) -> int:
        """The prefixes that are pinned."""
        return len(self._post.pins)

    def when_idle(self, function: Callable[[], object]) -> None:
        """Call `function` whenever the last request is over or a pinned prefix is released: in any thread, so it must
        be quick and raise nothing. It must not refer to this service, which would then never be collected."""
        self._post.idle = function

    def check(self) -> None:
        """Raise EngineError in a fork of the process that the context belongs to."""
        self._home.check()

    def _check_wait(self) -> None:
        """Raise EngineError where waiting for a reply would never end: in a fork, and in the engine's own thread."""
        self.check()
        if self._runner.in_own_thread:
            raise EngineError(
                "A callback (progress, a logits processor, the end of a turn) asked the engine that it was called by, "
                "and would wait for itself for ever. Note what you need and ask after the turn, or ask another engine."
            )

    def check_open(self) -> None:
        """Raise EngineError in such a fork, and if the service is closed."""
        self.check()
        if self.closed:
            raise EngineError("The engine is closed; load it again.")

    def tokens(self, prompt: Prompt) -> tuple[int, ...]:
        """Returns the tokens that `submit` sends for a prompt; for turns generated here, the very tokens that were
        generated. Raises ForgedPromptError if callers' text became a control token, RequestError for media."""
        tokens, _ = self.tokenized(prompt)
        return tokens

    def tokenized(self, prompt: Prompt) -> TokensAndMedia:
        """Returns the tokens of a prompt, and the pictures and sounds among them. Raises what `tokens` raises."""
        self.check()
        return self._prompts.tokenized(prompt)

    def submit(self, turn: TurnRequest) -> Stream:
        """Generate a turn; returns its stream at once.

        Raises ContextOverflowError when the prompt does not fit, QueueFullError when too many requests wait already,
        RequestError for a value that is not valid, for tokens that the vocabulary does not have and for a constraint
        that cannot be enforced, EngineError when the engine is closed or broken.
        """
        turn.check()
        check_generates(self.info)
        settings = turn.settings
        _check_tokens(settings.sampling, self.vocab.size)
        tokens, media = (turn.tokens, ()) if turn.tokens else self.tokenized(turn.prompt)
        if not tokens:
            raise RequestError("The prompt is empty; give the model at least one token to continue.")
        check_end(tokens)
        check_fits(len(tokens), self.info.n_ctx)
        if turn.constraint is not None:
            turn = replace(turn, constraint=check_constraint(turn.constraint, self._prompts.vocabulary))
        limits = self._prompts.limits(turn, self.info.n_ctx - len(tokens))
        starts = self._prompts.turn_starts(tokens, turn.prompt)
        adapters = self._adapters.chosen(settings.adapters, tokens).salted(settings.cache_salt)
        request = turn.crossing(next(self._ids), tokens, limits, starts, adapters, media)
        claim = KeepAlive(partial(self._runner.unpin, request.id)) if turn.claims else None
        return self._start(request, OutputQueue(turn, tokens, settings.progress), claim)

    def pin(
        self,
        tokens: Sequence[int],
        settings: TurnSettings = PLAIN,
        media: tuple[ChunkAt, ...] = (),
    ) -> "PinnedPrefix":
        """Evaluate a prefix and keep it for prompts that begin with it; returns when it is evaluated. It occupies a
        sequence.

        The adapters of `settings` compute it, and the prompts that it is for, which have the same salt. Raises
        ContextOverflowError when the prefix does not fit, RequestError when no sequence is available for it,
        EngineError when it was stopped.
        """
        self.check()
        check_generates(self.info)
        tokens = tuple(tokens)
        if not tokens:
            raise RequestError("The prefix is empty; give it at least one token.")
        check_fits(len(tokens), self.info.n_ctx)
        id_, progress = next(self._ids), settings.progress
        chosen = self._adapters.chosen(settings.adapters, tokens).salted(settings.cache_salt)
        request = Request(id_, tokens, reports=progress is not None, adapters=chosen, media=media, pin=True)
        prefix = PinnedPrefix(len(tokens), partial(_unpin, self._runner, self._post, id_))
        try:
            self._post.pins.add(id_)
            if self._start(request, OutputQueue(None, tokens, progress)).result().finish_reason == "stop":
                return prefix
            raise EngineError(
                "The prefix was not pinned: progress() stopped it, or the engine was closed. Pin it again."
            )
        except BaseException:  # it may be evaluated all the same, or be about to be
            self._runner.cancel(id_)
            prefix.release()
            raise

    def score(
        self,
        tokens: tuple[int, ...],
        scored: tuple[int, ...],
        settings: TurnSettings = PLAIN,
        media: tuple[ChunkAt, ...] = (),
        top: int = 1,
        asked: tuple[int, ...] = (),
        turns: tuple[int, ...] = (),
    ) -> Stream:
        """Read `scored` after `tokens`: the stream's logprobs are those of its tokens, each with the `top` likeliest of
        its place, the first with the tokens `asked` instead. `settings`: the adapters that compute them, and whose they
        are. `turns`: where later prompts are likely to diverge. Raises what `submit` raises."""
        self.check()
        check_generates(self.info)
        if not tokens or not scored:
            raise RequestError("A score needs a token to score, and one before it: pass a prompt and a text.")
        check_end(tokens)
        check_known(self.vocab, tokens)
        known_tokens(self.vocab, scored)
        check_fits(len(tokens) + len(scored) - 1, self.info.n_ctx)
        chosen = self._adapters.chosen(settings.adapters, tokens).salted(settings.cache_salt)
        request = Request(
            next(self._ids),
            tokens,
            sampling=SamplingParams(logprobs=top),
            offline=True,
            adapters=chosen,
            media=media,
            scored=scored,
            asked=asked,
            turns=turns,
        )
        return self._start(request, OutputQueue(None, tokens))

    @property
    def adapters(self) -> dict[str, AdapterInfo]:
        """The adapters that turns may name, by name."""
        return self._adapters.known

    def load_adapter(self, adapter: AdapterInfo) -> None:
        """Load an adapter, in the engine's thread between two steps. Raises RequestError if its name is taken,
        EngineError if llama.cpp refuses its file."""
        self.check_open()
        check_generates(self.info)
        key, digest = next(self._ids), adapter.digest
        try:
            self._adapters.reserve(adapter.name, key)
            self._reply(lambda id_: self._runner.ask(LoadAdapter(id_, digest, adapter.path, key)))
            self._adapters.settle(adapter, key)
        except BaseException as error:
            self._adapters.remove(adapter.name, key)
            if not isinstance(error, Exception):  # an interrupt: it may be loaded all the same
                self._runner.ask(DropAdapter(next(self._ids), digest, key))
            raise

    def drop_adapter(self, name: str) -> None:
        """Refuse turns that name this adapter, wait for those that use it, and free it. Raises RequestError if there is
        none."""
        self.check_open()
        adapter, key = self._adapters.named(name)
        try:
            self._adapters.remove(name, key)
            self._reply(lambda id_: self._runner.ask(DropAdapter(id_, adapter.digest, key)))
        except QueueFullError:
            self._adapters.settle(adapter, key)
            raise
        except BaseException as error:
            if not isinstance(error, Exception):  # an interrupt: it is dropped all the same
                self._adapters.remove(name, key)
                self._runner.ask(DropAdapter(next(self._ids), adapter.digest, key))
            raise

    def embed(
        self, texts: Sequence[Sequence[int]], tail: int, head: int = 0, *, truncate: bool, ranks: bool
    ) -> PendingVectors:
        """Ask for the vectors of texts, given as tokens; see `Embed`. Raises QueueFullError when too many requests wait
        already, RequestError for a token that the vocabulary does not have, EngineError when the engine is closed."""
        self.check_open()
        id_ = next(self._ids)
        request = Embed(id_, tuple(tokens_of(self.vocab, text) for text in texts), tail, truncate, ranks, head)
        try:
            queue = self._post.open(id_, OutputQueue())
            pending = PendingVectors(queue, lambda: self._cancel(id_), self._check_wait)
            self._runner.ask(request)
            belongs_to_call(pending)
            return pending
        except BaseException:
            self._post.shut(id_)
            self._runner.cancel(id_)
            raise

    def _reply(self, send: Callable[[int], None]) -> None:
        """Wait for the only reply to what `send` sends under the id that it gets. Raises the error in it."""
        self._check_wait()
        id_ = next(self._ids)
        try:
            queue = self._post.open(id_, OutputQueue())
            send(id_)
            queue.over.wait()
        except BaseException:
            self._post.shut(id_)
            raise
        reply = queue.replies[-1]
        assert reply is not None, "no stream takes it"
        if reply.events[-1] != Finished("stop"):
            raise reply.error or EngineError("The engine was closed before this was done.")

    def _start(self, request: Request, queue: OutputQueue, claim: "KeepAlive | None" = None) -> Stream:
        """Send a request, and return its stream. An interrupt at any line leaves nothing open, also where its traceback
        keeps all objects: hence the one `try` around all that is done."""
        runner, id_ = self._runner, request.id
        try:
            self._post.open(id_, queue)
            queue.cancel = lambda: runner.cancel(id_)
            # A stream refers to the service, to keep it alive; a queue, to which the service refers, must not.
            stream = Stream(queue, lambda: self._cancel(id_), lambda: self._runner.end_reasoning(id_), self._check_wait)
            stream.claim = claim
            runner.submit(request)
            belongs_to_call(stream)
            return stream
        except BaseException:
            self._post.shut(id_)
            runner.cancel(id_)
            raise

    def _cancel(self, id_: int) -> None:
        if self._home.is_here:  # a fork must not end the streams of which it has copies
            self._runner.cancel(id_)

    def close(self) -> None:
        """Cancel what runs and free the model's context. Streams that were running end with reason "cancelled". Does
        nothing in a fork, which does not own the context."""
        if self._home.is_here:
            self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class KeepAlive:
    """What a turn held stays in the cache, as far as there is room, until `release` or garbage collection."""

    def __init__(self, release: Callable[[], None]) -> None:
        self.release = weakref.finalize(self, release)
        self.release.atexit = False


class PinnedPrefix:
    """A prefix of `tokens` tokens that stays in the KV cache until `release`, the end of a `with`, or garbage
    collection."""

    def __init__(self, tokens: int, release: Callable[[], None]) -> None:
        self.tokens = tokens
        self._unpin = release
        self._release = weakref.finalize(self, release)
        self._release.atexit = False

    def __repr__(self) -> str:
        return f"<PinnedPrefix: {counted(self.tokens, 'token')}{'' if self._release.alive else ', released'}>"

    def release(self) -> None:
        """Allow the prefix to be forgotten when its room is needed; may be called twice, and again after an
        interrupt."""
        self._unpin()
        self._release.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Deliveries:
    """Carries replies from the engine's thread to the output queues; wakes each event loop once per delivery."""

    def __init__(self, turns: TurnMemory, info: ContextInfo, max_waiting: int) -> None:
        self._turns = turns
        self._tally = Tally()
        self._queues: dict[int, OutputQueue] = {}
        self._offline: set[int] = set()
        self._n_ctx = info.n_ctx
        self._max_waiting = max_waiting
        self.most = info.n_sequences + max_waiting
        self.pins: set[int] = set()
        self.idle: Callable[[], object] = nothing
        self._checkpoints = self._threads = (0, 0)

    @property
    def open_requests(self) -> int:
        return len(self._queues)

    @property
    def metrics(self) -> Metrics:
        (count, size), (one, many) = self._checkpoints, self._threads
        return replace(
            self._tally.sums,
            running=self.open_requests,
            checkpoints=count,
            checkpoint_bytes=size,
            n_threads=one,
            n_threads_batch=many,
        )

    def open(self, id_: int, queue: OutputQueue) -> OutputQueue:
        """Register the queue of a request. Raises QueueFullError if too many are open; rows of many, which nobody reads
        as they come, are counted by themselves, so that neither takes the other's places."""
        offline = queue.turn is not None and queue.turn.offline
        before = len(self._offline) if offline else len(self._queues) - len(self._offline)
        if before >= self.most:
            raise QueueFullError(
                f"{before:,} requests run or wait already, and max_waiting={self._max_waiting:,} may wait; "
                "try again later, or load with a larger max_waiting=."
            )
        self._queues[id_] = queue
        if offline:
            self._offline.add(id_)
        return queue

    def shut(self, id_: int) -> None:
        self._queues.pop(id_, None)
        self._offline.discard(id_)
        if not self._queues:
            self.idle()

    def deliver(self, replies: Sequence[Reply]) -> None:
        waiting: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for reply in replies:
            self._threads = reply.threads or self._threads
            queue = self._queues.get(reply.id)
            if queue is None:
                continue  # its submission was interrupted, for example by Ctrl-C
            try:
                queue.note(reply)
                if reply.final:
                    # Before the reader learns of the end: its next prompt may follow at once.
                    self._settle(reply, queue)
            except Exception:  # noqa: BLE001 - whatever it is, this reader and the others are not kept waiting
                _log.exception("A reply was delivered, but not counted or remembered.")
            queue.replies.append(reply)
            queue.bell.put(None)
            if reply.final:
                queue.over.set()
            if queue.waits_for_end and not reply.final:
                continue
            if queue.arrived is not None:
                queue.arrived()
            if (future := queue.future) is not None:
                waiting.setdefault(future.get_loop(), []).append(future)
        for loop, futures in waiting.items():
            # A closed event loop has no readers any more; their streams are cancelled when they are collected.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_wake, futures)

    def _settle(self, reply: Reply, queue: OutputQueue) -> None:
        """Record the end of a request."""
        self.shut(reply.id)
        self._checkpoints = reply.checkpoints or self._checkpoints
        turn, finished = queue.turn, reply.events[-1]
        assert isinstance(finished, Finished), "the last event of a turn is Finished"
        if turn is not None or reply.logprobs:  # what was only read is counted too; a pin is no turn
            self._tally.add(finished.reason, finished.usage)
        if turn is None:
            return
        if not has_media(queue.tokens):
            self._turns.remember(turn.prompt.text, queue.tokens, reply.output)
        if finished.reason == "length" and finished.usage and finished.usage.total_tokens >= self._n_ctx:
            _log.warning(
                "An answer ended after %d tokens because its conversation reached n_ctx=%d; load with a larger n_ctx=.",
                finished.usage.completion_tokens,
                self._n_ctx,
            )
        if finished.usage and finished.usage.limit == "repetition":
            _log.warning(
                "An answer ended after %d tokens because the last %d were one text again and again; repeat_penalty=1.1 "
                "or dry_multiplier=0.8 makes that rarer, repetition_limit=0 lets it go on.",
                finished.usage.completion_tokens,
                turn.settings.sampling.repetition_limit,
            )
        if turn.ended is not None and finished.reason in ("stop", "tool_calls"):
            try:
                turn.ended(queue.received)
            except BaseException:  # noqa: BLE001 - an error in a callback must not break the loop
                _log.exception("The callback after a turn failed; the turn itself is complete.")
        queue.received.clear()
        if turn.over is not None:
            turn.over(finished, reply.error)


def _close(home: OwnerProcess, close: Callable[[], None]) -> None:
    """Close the service when it is collected or the interpreter ends. Whatever interrupts this, the engine's thread has
    ended when it returns, so that nothing is freed while that thread uses it. Only a fifth interrupt gets through."""
    for _ in range(5):
        try:
            return close() if home.is_here else None
        except BaseException as error:  # noqa: BLE001 - a signal handler's
            _log.debug("%r while the engine was closed", error)
    return None


def _unpin(runner: LoopHandle, post: _Deliveries, id_: int) -> None:
    if id_ not in post.pins:
        return
    runner.unpin(id_)
    post.pins.discard(id_)
    post.idle()


def _wake(futures: Sequence["asyncio.Future[None]"]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _check_tokens(sampling: SamplingParams, size: int) -> None:
    """Raise RequestError for a token that a vocabulary of `size` tokens does not have."""
    named = {"logit_bias": [token for token, _ in sampling.logit_bias], "stop_tokens": sampling.stop_tokens}
    for name, tokens in named.items():
        if wrong := [token for token in tokens if not 0 <= token < size]:
            raise RequestError(f"{name} names token {shown(wrong[0])}; this model has the tokens 0 to {size - 1}.")
