"""Submit a prompt, get a stream of events; from any thread, and from asyncio.

Knows: the border between the callers and the thread that owns the context, on the callers' side. Does not know:
messages, templates, tools; it takes a rendered prompt and the parser that its turn needs.
"""

import asyncio
import contextlib
import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

from engine.errors import RequestError
from engine.events import Finished
from engine.parsing.piece import Piece
from engine.runtime.backend import Backend, Vocab
from engine.runtime.generation import Limits, Parser
from engine.runtime.metrics import Metrics, Tally
from engine.runtime.requests import Reply, Request, check_fits
from engine.runtime.runner import Runner
from engine.runtime.stream import Mailbox, Stream
from engine.runtime.turns import TurnMemory
from engine.template.prompt import Prompt
from engine.types import SamplingParams


class Service:
    """One model's context, shared by every caller of this process.

    `backend` is owned from now on: `close()` (or leaving a `with`, or the end of the interpreter) frees it.
    `longest_draft`: tokens guessed at once from what a conversation holds already and verified in one decode, for
    outputs that copy from their context; 0 for none. The outputs are the same with and without.
    """

    def __init__(self, backend: Backend, *, longest_draft: int = 0) -> None:
        self._vocab = backend.vocab
        self._n_ctx = backend.n_ctx_sequence
        self._ids = itertools.count(1)
        self._turns = TurnMemory(backend.vocab)
        self._post = _Post(self._turns)
        self._runner = Runner(backend, self._post.deliver, longest_draft=longest_draft)
        self._end = weakref.finalize(self, self._runner.close)

    @property
    def vocab(self) -> Vocab:
        return self._vocab

    @property
    def n_ctx(self) -> int:
        """Tokens that one conversation may have, its answer included."""
        return self._n_ctx

    @property
    def metrics(self) -> Metrics:
        """What was done so far, in numbers."""
        return self._post.metrics

    def tokens(self, prompt: Prompt) -> tuple[int, ...]:
        """The tokens that `submit` sends for a prompt: generated turns in it are those tokens that were generated."""
        return self._turns.splice(prompt.text, self._vocab.encode(prompt.pieces, add_bos=True))

    def submit(
        self,
        prompt: Prompt,
        parser: Callable[[], Parser],
        sampling: SamplingParams | None = None,
        *,
        markers: frozenset[str] = frozenset(),
        priority: int = 0,
        deadline: float | None = None,
        reasoning_budget: int | None = None,
        reasoning_close: Sequence[Piece] = (),
    ) -> Stream:
        """Generate the turn that the prompt asks for; returns at once.

        - `parser` makes the turn's parser, seeded with `prompt.prefix`; it is called in the engine's thread.
        - `markers`: texts that the parser reads as markers although they end the turn (gpt-oss's `<|call|>`).
        - `priority`: higher goes first. `deadline`: seconds until the turn ends with reason "deadline".
        - `reasoning_budget`: reasoning tokens at most; then `reasoning_close`, the text that closes reasoning, is
        forced.

        Raises ContextOverflowError when the prompt does not fit, RequestError for options that make no sense,
        EngineError when the engine is closed or broken.
        """
        _check(deadline, reasoning_budget, reasoning_close)
        sampling = SamplingParams() if sampling is None else sampling
        _check_tokens(sampling, self._vocab.size)
        tokens = self.tokens(prompt)
        if not tokens:
            raise RequestError("The prompt is empty; give the model at least one token to continue.")
        check_fits(len(tokens), self._n_ctx)
        checkpoint = max(0, len(tokens) - max(1, len(self._vocab.encode(prompt.prefix, add_bos=False))))
        ends, texts = self._single_tokens(prompt.stop)
        anywhere = sampling.stop_in == "all"
        limits = Limits(
            max_tokens=sampling.max_tokens,
            stop=texts if anywhere else (*sampling.stop, *texts),
            stop_anywhere=sampling.stop if anywhere else (),
            stop_tokens=frozenset(sampling.stop_tokens),
            ends=ends,
            markers=self._single_tokens(markers)[0],
            ignore_eos=sampling.ignore_eos,
            reasoning_budget=reasoning_budget,
            reasoning_close=tuple(self._vocab.encode(reasoning_close, add_bos=False)),
        )
        id_ = next(self._ids)
        mailbox = self._post.open(id_, Mailbox(prompt.text, tokens))
        stream = Stream(mailbox, lambda: self._runner.cancel(id_), lambda: self._runner.end_reasoning(id_))
        try:
            self._runner.submit(Request(id_, tokens, parser, sampling, limits, checkpoint, priority, deadline))
        except BaseException:
            self._post.shut(id_)
            raise
        return stream

    def close(self) -> None:
        """Cancel what runs and free the model's context. Streams that were running end with reason "cancelled"."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _single_tokens(self, texts: Sequence[str] | frozenset[str]) -> tuple[frozenset[int], tuple[str, ...]]:
        """Those texts that are one token of the vocabulary, as tokens; the others, as they are."""
        tokens: set[int] = set()
        others: list[str] = []
        for text in texts:
            ids = self._vocab.tokenize(text, special=True)
            if len(ids) == 1:
                tokens.add(ids[0])
            else:
                others.append(text)
        return frozenset(tokens), tuple(others)


class _Post:
    """Carries replies from the runner's thread to the mailboxes; wakes each event loop once per delivery."""

    def __init__(self, turns: TurnMemory) -> None:
        self._turns = turns
        self._tally = Tally()
        self._boxes: dict[int, Mailbox] = {}

    @property
    def metrics(self) -> Metrics:
        return replace(self._tally.sums, running=len(self._boxes))

    def open(self, id_: int, box: Mailbox) -> Mailbox:
        self._boxes[id_] = box
        return box

    def shut(self, id_: int) -> None:
        self._boxes.pop(id_, None)

    def deliver(self, replies: Sequence[Reply]) -> None:
        sleepers: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for reply in replies:
            box = self._boxes[reply.id]
            if reply.final:
                # Before the reader hears of the end: its next prompt may follow at once.
                self._settle(reply, box)
            box.queue.put(reply)
            if reply.final:
                box.over.set()
            if (future := box.future) is not None and (reply.final or not box.patient):
                sleepers.setdefault(future.get_loop(), []).append(future)
        for loop, futures in sleepers.items():
            # A closed event loop's readers went with it; their streams cancel themselves when they are collected.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_wake, futures)

    def _settle(self, reply: Reply, box: Mailbox) -> None:
        """A request is over."""
        finished = reply.events[-1]
        assert isinstance(finished, Finished), "the last event of a turn is Finished"
        self._tally.add(finished.reason, finished.usage)
        self._turns.remember(box.text, box.tokens, reply.output)
        self.shut(reply.id)


def _wake(futures: Sequence["asyncio.Future[None]"]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _check_tokens(sampling: SamplingParams, size: int) -> None:
    """Raise RequestError for a token that the vocabulary, of so many, does not have."""
    named = {"logit_bias": [token for token, _ in sampling.logit_bias], "stop_tokens": sampling.stop_tokens}
    for name, tokens in named.items():
        if wrong := [token for token in tokens if not 0 <= token < size]:
            raise RequestError(f"{name} names token {wrong[0]}; this model has the tokens 0 to {size - 1}.")


def _check(deadline: float | None, reasoning_budget: int | None, reasoning_close: Sequence[Piece]) -> None:
    if deadline is not None and deadline <= 0:
        raise RequestError(f"deadline={deadline} is over before it begins; give seconds from now, more than 0.")
    if reasoning_budget is None:
        return
    if reasoning_budget < 0:
        raise RequestError(f"reasoning_budget={reasoning_budget} makes no sense; give tokens, 0 or more.")
    if not any(piece.text for piece in reasoning_close):
        raise RequestError("A reasoning budget needs reasoning_close: the text that closes this family's reasoning.")
