"""Decodes chunks, and draws tokens from their logits, one more for each guess that was right."""

import logging
from collections.abc import Callable, Sequence
from math import isnan

from engine.runtime.adapters.active_adapters import LoadedAdapters
from engine.runtime.cache.prefix import PrefixCache
from engine.runtime.cache.slots import common_prefix
from engine.runtime.draft.drafter import Drafts
from engine.runtime.guidance.matcher import Mask, masks
from engine.runtime.loop.backend import Ahead, Backend, Row
from engine.runtime.loop.logprobs import TokenLogprobs
from engine.runtime.loop.replies import Replies
from engine.runtime.loop.scheduler import Chunk
from engine.runtime.loop.sequence import SequenceState
from engine.runtime.loop.weighing import Trial
from engine.support.errors import DecodeError
from engine.types.sampling import FinishReason

_log = logging.getLogger("engine.runner")


def evaluate(backend: Backend, adapters: LoadedAdapters, chunks: Sequence[Chunk]) -> None:
    """Evaluate these chunks, which the same adapters compute, in one decode. Raises DecodeError, or what
    kept the decode from being made."""
    first = chunks[0]
    adapters.use(first.scales)
    if first.part is not None:
        state, (unit, start, stop) = first.state, first.part
        assert state.rows is not None  # until they are encoded, it waits
        state.begun = 0  # nothing of the unit is left if this fails
        place = state.position(first.start)
        backend.decode_media(unit, state.sequence, place, state.rows, slice(start, stop))
        state.begun = stop
        return
    rows: list[Row] = []
    for chunk in chunks:
        rows += chunk.rows()
    backend.decode(rows)


def masks_together(due: Sequence[SequenceState]) -> "dict[SequenceState, Mask] | None":
    """Returns the masks; None if they must be computed one by one, since that of one request fails."""
    try:
        return masks_of(due)
    except BaseException as error:  # noqa: BLE001 - llguidance's panics too; the request at fault ends with its own
        _log.warning("The tokens that constraints allow could not be computed together: %r", error)
        return None


def masks_of(due: Sequence[SequenceState]) -> "dict[SequenceState, Mask]":
    """Returns the tokens that each of these may draw, if a grammar is in force: all computed at once, without the
    GIL."""
    awake = {state: matcher for state in due if (matcher := state.generation.matcher) is not None}
    return dict(zip(awake, masks(list(awake.values())), strict=True)) if awake else {}


def _check_number(entry: TokenLogprobs) -> None:
    if isnan(entry.drawn.logprob):
        raise DecodeError(
            "The model's logits are not numbers. Give adapters and control vectors smaller scales, if there are any; "
            "otherwise the file may be damaged.",
            "nan",
        )


class Draws:
    """Draws the tokens of one loop. Only this class draws tokens, or appends tokens that were not drawn."""

    def __init__(
        self,
        backend: Backend,
        cache: PrefixCache,
        replies: Replies,
        drafts: "Drafts | None",
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._cache = cache
        self._replies = replies
        self._drafts = drafts
        self._clock = clock

    def advance(
        self, state: SequenceState, row: int, draft: tuple[int, ...], masks: "dict[SequenceState, Mask] | None"
    ) -> FinishReason | None:
        """Say how likely forced tokens were, and draw if all are evaluated; `masks`: see `masks_together`. Returns why
        the turn is over, if it is, and nothing is left to say of it."""
        finish, says, n_ctx = None, state.unsaid is not None, self._backend.info.n_ctx
        if says:
            self._say(state, row, state.evaluated)
            finish = state.ending if state.evaluated == state.goal else None
        if state.draws:
            mask = (masks_of([state]) if masks is None else masks).get(state)
            finish = self._next(state, row, draft, mask)
            if finish is None and len(state.tokens) > n_ctx:
                finish = "length"
        is_open = finish is not None and says and state.ends_later(finish, n_ctx)
        return None if is_open else finish

    def _next(self, state: SequenceState, row: int, draft: tuple[int, ...], mask: "Mask | None") -> FinishReason | None:
        """Draw a token, and one more for each guess that was right; returns why the turn ended, if it did. Nothing is
        drawn while texts are tried that may follow."""
        if state.trial is not None and draft:
            return self._tried(state, row, mask)
        state.trial = None
        if draft:
            return self._along(state, row, draft, mask)
        return None if mask is not None and self._tries(state, row) else self._draw(state, row, mask)

    def _tries(self, state: SequenceState, row: int) -> bool:
        """Whether texts are tried before the next draw: one opens, a form leaves only a few, and there is room. They
        then follow the last token in the next steps."""
        matcher = state.generation.matcher
        if matcher is None or not state.opens or not self._cache.takes_guesses:
            return False
        texts = matcher.values
        longest, info = max(map(len, texts), default=0), self._backend.info
        fits = longest <= min(info.n_outputs, info.n_batch) and len(state.tokens) + longest <= info.n_ctx
        if not texts or not fits or not self._cache.make_room(longest):
            return False
        trial = Trial(self._backend, row, state.tokens[-1], texts)
        if not trial.is_choice or not trial.next:
            return False
        self._follow(state, trial)
        return True

    def _follow(self, state: SequenceState, trial: Trial) -> None:
        """Let the next text of a trial follow the last token, which is evaluated again."""
        state.trial, state.draft = trial, trial.next
        state.evaluated = self._cache.cut(state.sequence, len(state.tokens) - 1)

    def _tried(self, state: SequenceState, row: int, mask: "Mask | None") -> FinishReason | None:
        """Record how likely the text is that followed; draw if it was the last, a first token as likely as all of the
        texts that it begins."""
        trial = state.trial
        assert trial is not None, "only a text that is tried follows"
        state.weighed += len(trial.next)
        trial.tried(row)
        if trial.next:
            self._follow(state, trial)
            return None
        state.trial, state.draft = None, ()
        state.evaluated = self._cache.cut(state.sequence, state.evaluated)
        return self._draw(state, row, mask, trial.ahead)

    def _draw(
        self, state: SequenceState, row: int, mask: "Mask | None" = None, ahead: Ahead | None = None
    ) -> FinishReason | None:
        """Draw a token and process it; returns why the turn ended, if it did."""
        if state.request.pin:
            return "stop"
        if state.request.scored:
            return self._score(state, row)
        sampler = state.sampler
        assert sampler is not None, "a running request has a sampler"
        ends = opening = None
        if state.request.constraint is not None and (matcher := state.generation.matcher) is not None:
            matcher.check()
            ends, opening = matcher.ends, matcher.opening
        token = self._backend.sample(sampler, row, mask, ends, opening, ahead)
        if state.first_token is None:
            state.first_token = self._clock()
        events, forced, finish, dropped = state.generation.advance(token)
        if state.unsaid is not None:
            state.logprobs.append(self._logprobs(state, row, forced[0] if dropped and forced else token))
            state.unsaid += not dropped or bool(forced)
        if not dropped:
            state.tokens.append(token)
        for token in forced:
            sampler.accept(token)
            state.tokens.append(token)
        if events:
            self._replies.emit(state, events)
        return finish

    def _logprobs(self, state: SequenceState, row: int, token: int) -> TokenLogprobs:
        return self._backend.logprobs(row, token, state.request.sampling.logprobs or 0)

    def _say(self, state: SequenceState, row: int, evaluated: int) -> None:
        """Record the log-probabilities of the forced tokens that follow the first `evaluated` tokens, or stand among
        them. `row` is that of the last of these."""
        if state.unsaid is None or state.unsaid > evaluated or state.unsaid == len(state.tokens):
            return
        for index in range(state.unsaid, min(evaluated + 1, len(state.tokens))):
            entry = self._logprobs(state, row + index - evaluated, state.tokens[index])
            _check_number(entry)
            state.logprobs.append(entry)
            state.unsaid = index + 1
        if state.unsaid == len(state.tokens):
            self._replies.said(state)

    def _along(
        self, state: SequenceState, row: int, draft: tuple[int, ...], mask: "Mask | None"
    ) -> FinishReason | None:
        """Draw one token, and one more for each guess that was right. Each is drawn from the logits after the previous
        token, by the grammar's mask there, so the output is the same as without guesses."""
        right = 0
        while True:
            finish = self._draw(state, row + right, mask)
            new = state.tokens[state.evaluated + right :]  # the drawn token, and those that it forced
            same = common_prefix(new, draft[right:], len(new))
            right += same
            self._say(state, row + right, state.evaluated + right)
            if finish is not None or same < len(new):
                break
            if state.opens:
                right -= 1  # the last token is evaluated again, and what may follow tried
                break
            mask = masks_of([state]).get(state)
        if self._drafts is not None and not state.request.scored:
            self._drafts.judged(state, len(draft), right)
        state.evaluated = self._cache.cut(state.sequence, state.evaluated + right)
        return finish

    def _score(self, state: SequenceState, row: int) -> FinishReason | None:
        """Record the log-probability of the next token that is to be scored, and let it follow."""
        scored, done = state.request.scored, len(state.tokens) - len(state.request.tokens)
        beside = state.request.asked if not done else ()
        entry = self._backend.logprobs(row, scored[done], beside or state.request.sampling.logprobs or 1)
        _check_number(entry)
        state.logprobs.append(entry)
        self._replies.touch(state)
        state.tokens.append(scored[done])
        return "stop" if done + 1 == len(scored) else None
