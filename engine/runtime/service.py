"""Submit a prompt, get a stream of events; from any thread, and from asyncio. Also text and tokens as they are, with no
chat template between.

Knows: the border between the callers and the thread that owns the context, on the callers' side; that the writer of a
raw prompt is trusted with control tokens. Does not know: messages, templates, tools; it takes a rendered prompt and the
parser that its turn needs.
"""

import asyncio
import contextlib
import itertools
import logging
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import index
from pathlib import Path
from typing import Self

from engine.errors import EngineError, RequestError
from engine.events import Finished
from engine.parsing import Parser as TextParser
from engine.parsing.reader import Piece
from engine.runtime.backend import Backend, Vocab
from engine.runtime.control_tokens import ControlTokens
from engine.runtime.generation import Limits, Parser
from engine.runtime.metrics import Metrics, Tally
from engine.runtime.request import Reply, Request, check_fits
from engine.runtime.runner import RemoteContext, Runner
from engine.runtime.state_file import read_state, write_state
from engine.runtime.stream import Ended, Mailbox, Stream
from engine.runtime.token_memory import TurnMemory
from engine.template.prompt import Prompt
from engine.types import Progress, SamplingParams


@dataclass(frozen=True, slots=True)
class RawPrompt:
    """A prompt and the tokens that it is sent as: None where they are made of its text."""

    prompt: Prompt
    tokens: tuple[int, ...] | None


def raw_prompt(vocab: Vocab, given: str | Sequence[int]) -> RawPrompt:
    """A text, in which control-token text is control tokens, or the tokens themselves. Raises RequestError for a token
    that the vocabulary does not have."""
    if isinstance(given, str):
        return RawPrompt(Prompt(given, (Piece(given, True),)), None)
    tokens = _numbers(vocab, given)
    text = _text(vocab, tokens)
    return RawPrompt(Prompt(text, (Piece(text, True),)), tokens)


def raw_parser() -> TextParser:
    """Everything that is generated is content."""
    return TextParser("content-only")


def tokenize(vocab: Vocab, text: str, *, special: bool, add_bos: bool) -> list[int]:
    """The tokens of a text; `special`: control-token text becomes control tokens; `add_bos`: with the beginning token
    that prompts of this model have."""
    return vocab.encode([Piece(text, special)], add_bos=add_bos)


def detokenize(vocab: Vocab, tokens: Iterable[int]) -> str:
    """The text of tokens, control tokens as their texts; bytes that are no UTF-8 are U+FFFD. Raises RequestError for a
    token that the vocabulary does not have."""
    return _text(vocab, _numbers(vocab, tokens))


def _numbers(vocab: Vocab, tokens: Iterable[int]) -> tuple[int, ...]:
    try:
        known = tuple(map(index, tokens))
    except TypeError as error:
        raise RequestError(f"Tokens are whole numbers in a list ({error}); give those, or a text.") from error
    if wrong := [token for token in known if not 0 <= token < vocab.size]:
        raise RequestError(f"There is no token {wrong[0]}; this model has the tokens 0 to {vocab.size - 1}.")
    return known


def _text(vocab: Vocab, tokens: Iterable[int]) -> str:
    return b"".join(map(vocab.token_bytes, tokens)).decode(errors="replace")


_log = logging.getLogger("engine.service")


class Service:
    """One model's context, shared by every caller of this process.

    `backend`, here or in a child process, is owned from now on: `close()` (or leaving a `with`, or the end of the
    interpreter) frees it. `longest_draft`: tokens guessed at once from what a conversation holds already and verified
    in one decode, for outputs that copy from their context; 0 for none. The outputs are the same with and without, but
    for the rounding of wider decodes.
    """

    def __init__(self, backend: Backend | RemoteContext, *, longest_draft: int = 0) -> None:
        self._vocab = backend.vocab
        self._n_ctx = backend.n_ctx_sequence
        self._ids = itertools.count(1)
        self._origin = lambda: backend.origin
        self._control = ControlTokens(backend.vocab)
        self._turns = TurnMemory(backend.vocab)
        self._post = _Post(self._turns)
        run = backend.runner if isinstance(backend, RemoteContext) else partial(Runner, backend)
        self._runner = run(self._post.deliver, longest_draft=longest_draft)
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
        """The tokens that `submit` sends for a prompt: generated turns in it are those tokens that were generated.
        Raises ForgedPromptError where callers' text has become a control token."""
        tokens = self._turns.splice(prompt.text, self._vocab.encode(prompt.pieces, add_bos=True))
        self._control.check(prompt.pieces, tokens)
        return tokens

    def submit(
        self,
        prompt: Prompt,
        parser: Callable[[], Parser],
        sampling: SamplingParams | None = None,
        *,
        markers: frozenset[str] = frozenset(),
        priority: int = 0,
        deadline: float | None = None,
        patient: bool = False,
        reasoning_budget: int | None = None,
        reasoning_close: Sequence[Piece] = (),
        keep: int | None = None,
        dropped: int = 0,
        progress: Progress | None = None,
        ended: Ended | None = None,
        tokens: Sequence[int] | None = None,
    ) -> Stream:
        """Generate the turn that the prompt asks for; returns at once.

        - `parser` makes the turn's parser, seeded with `prompt.prefix`; it is called in the engine's thread, or pickled
        and called in the child process.
        - `markers`: texts that the parser reads as markers although they end the turn (gpt-oss's `<|call|>`).
        - `priority`: higher goes first. `deadline`: seconds until the turn ends with reason "deadline".
        - `patient`: nobody reads along, so it may wait for prompts that can then be decoded together with it.
        - `reasoning_budget`: reasoning tokens at most; then `reasoning_close`, the text that closes reasoning, is
        forced.
        - `keep`: when the context is full, the older half of what stands behind the first `keep` tokens is given up and
        the turn goes on; None: it ends. `dropped`: messages that are not in the prompt, for the usage.
        - `progress` is called with the prompt's tokens evaluated so far and all of them, in the engine's thread: it
        must be quick, and not wait for this engine. It stops the turn by answering False; what it raises ends it too.
        - `ended` is called there with all events of a turn that was neither cut off nor cancelled; it must not raise.
        - `tokens`: those of the prompt, where they are not to be made of its text.

        Raises ContextOverflowError when the prompt does not fit, RequestError for options that make no sense,
        EngineError when the engine is closed or broken.
        """
        _check(deadline, reasoning_budget, reasoning_close)
        sampling = SamplingParams() if sampling is None else sampling
        _check_tokens(sampling, self._vocab.size)
        tokens = self.tokens(prompt) if tokens is None else tuple(tokens)
        if not tokens:
            raise RequestError("The prompt is empty; give the model at least one token to continue.")
        check_fits(len(tokens), self._n_ctx)
        checkpoint = max(0, len(tokens) - max(1, len(self._vocab.encode(prompt.prefix, add_bos=False))))
        limits = replace(
            self._limits(sampling, prompt.stop, markers),
            reasoning_budget=reasoning_budget,
            reasoning_close=tuple(self._vocab.encode(reasoning_close, add_bos=False)),
        )
        request = Request(next(self._ids), tokens, parser, sampling, limits, checkpoint, priority, deadline, patient)
        request = replace(request, keep=keep, dropped=dropped, reports=progress is not None)
        return self._start(request, Mailbox(prompt.text, tokens, progress, ended))

    def pin(self, tokens: Sequence[int], *, state: bytes = b"", progress: Progress | None = None) -> "PinnedPrefix":
        """Evaluate a prefix and keep it for prompts that begin with it; waits for it. It takes a sequence for itself.

        `state`: these tokens' own, as it was saved, in place of evaluating them. `progress`: as for `submit`. Raises
        ContextOverflowError when the prefix does not fit, RequestError when no sequence may be taken for it,
        EngineError when it was stopped.
        """
        if not tokens:
            raise RequestError("The prefix is empty; give it at least one token.")
        check_fits(len(tokens), self._n_ctx)
        id_, reports = next(self._ids), progress is not None
        request = Request(id_, tuple(tokens), _no_parser, pin=True, state=state, reports=reports)
        stream = self._start(request, Mailbox(None, request.tokens, progress))
        if stream.result().finish_reason != "stop":
            raise EngineError("The prefix was not pinned: it was stopped on the way, or the engine was closed.")
        runner = self._runner
        return PinnedPrefix(len(tokens), lambda path: self._save(id_, path), lambda: runner.unpin(id_))

    def restore(self, path: Path) -> "PinnedPrefix":
        """Pin a prefix that was saved. Raises RequestError for a file that is none, or that belongs to another model or
        other settings, and what `pin` raises."""
        saved = read_state(path, self._origin())
        return self.pin(saved.tokens, state=saved.state)

    def _save(self, pin: int, path: Path) -> None:
        id_ = next(self._ids)
        mailbox = self._post.open(id_, Mailbox(None, ()))
        try:
            self._runner.save(id_, pin)
        except BaseException:
            self._post.shut(id_)
            raise
        reply = mailbox.queue.get()
        if reply.saved is None:
            raise reply.error or EngineError("The prefix was not saved.")
        write_state(path, self._origin(), reply.saved)

    def _start(self, request: Request, mailbox: Mailbox) -> Stream:
        runner, id_ = self._runner, request.id
        self._post.open(id_, mailbox)
        mailbox.cancel = lambda: runner.cancel(id_)
        # A stream holds the service, so that what it reads goes on; a mailbox, which the service holds, must not.
        stream = Stream(mailbox, lambda: self._runner.cancel(id_), lambda: self._runner.end_reasoning(id_))
        try:
            runner.submit(request)
        except BaseException:
            self._post.shut(id_)
            runner.cancel(id_)
            raise
        return stream

    def _limits(self, sampling: SamplingParams, stop: Sequence[str], markers: frozenset[str]) -> Limits:
        """What ends the turn: by the caller's word, and by the template's `stop`."""
        ends, texts = self._single_tokens(stop)
        anywhere = sampling.stop_in == "all"
        return Limits(
            max_tokens=sampling.max_tokens,
            stop=texts if anywhere else (*sampling.stop, *texts),
            stop_anywhere=sampling.stop if anywhere else (),
            stop_tokens=frozenset(sampling.stop_tokens),
            ends=ends,
            markers=self._single_tokens(markers)[0],
            ignore_eos=sampling.ignore_eos,
        )

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


class PinnedPrefix:
    """A prefix that stays in the KV cache, of `tokens` tokens, until `release` (or the end of a `with`, or until nobody
    holds it any more)."""

    def __init__(self, tokens: int, save: Callable[[Path], None], release: Callable[[], None]) -> None:
        self.tokens = tokens
        self._save = save
        self._release = weakref.finalize(self, release)
        self._release.atexit = False

    def save(self, path: str | Path) -> None:
        """Write it to a file, for `Engine.restore` with the same model and settings. Raises RequestError for a place
        that cannot be written and for a prefix that was released, EngineError when the engine is closed."""
        self._save(Path(path))

    def release(self) -> None:
        """What is held stays until its room is needed; twice is fine."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _no_parser() -> TextParser:
    """For a prompt that nothing is drawn after."""
    return TextParser("content-only")


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
            box = self._boxes.get(reply.id)
            if box is None:
                continue  # its submission was broken off, by Ctrl-C for one
            if box.progress is not None and reply.prefilled > box.prefilled:
                _report(reply, box, box.progress)
            if box.ended is not None:
                box.heard += reply.events
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
        self.shut(reply.id)
        if box.text is None:
            return
        finished = reply.events[-1]
        assert isinstance(finished, Finished), "the last event of a turn is Finished"
        self._tally.add(finished.reason, finished.usage)
        self._turns.remember(box.text, box.tokens, reply.output)
        if box.ended is not None and finished.reason in ("stop", "tool_calls"):
            try:
                box.ended(box.heard)
            except Exception:  # noqa: BLE001 - whoever is told: the loop must not break by it
                _log.exception("What a turn's end was to be followed by failed; the turn itself is whole.")
        box.heard.clear()


def _report(reply: Reply, box: Mailbox, progress: Progress) -> None:
    """Tell how far the prefill is."""
    box.prefilled = reply.prefilled
    try:
        stopped = progress(reply.prefilled, len(box.tokens)) is False
    except Exception as error:  # noqa: BLE001 - the caller's code; the turn's reader hears of it
        box.fault, stopped = error, True
    if stopped:
        box.progress = None
        box.cancel()


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
