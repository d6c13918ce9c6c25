"""A request under way, as the loop keeps it: its tokens, how many of them are evaluated, and what the next reply
contains.
"""

from dataclasses import dataclass, field
from typing import Any

from engine.runtime.draft.draft_rule import DraftRecord
from engine.runtime.draft.ngram import Ngrams
from engine.runtime.loop.backend import Sampler
from engine.runtime.loop.config import ANSWER
from engine.runtime.loop.generation import Generation
from engine.runtime.loop.logprobs import TokenLogprobs
from engine.runtime.loop.request import Request
from engine.runtime.loop.weighing import Trial
from engine.runtime.media.media import MediaChunk
from engine.types.completion import Usage
from engine.types.events import Event
from engine.types.sampling import FinishReason


@dataclass(slots=True, eq=False)
class SequenceState:
    """One request from its submission to its end. Times are the clock's; None until the event happened.

    `tokens` are the prompt, then what was generated; the first `evaluated` of them are in sequence `sequence` (-1 while
    the request waits). At least one token is always left to evaluate: the next token is drawn from the logits of the
    last one. `marks`: the positions for checkpoints, ascending. `draft`: guesses at the next tokens, evaluated along
    with the last one; `drafts`: what earlier ones came to. `events` and `logprobs` came since the last reply, `later`
    are events of tokens whose log-probabilities are yet to come, `prefilled` is the progress that the next reply
    reports. `rows`: those of `next_unit`, once it is encoded; the first `begun` of them are evaluated. `alone`: its
    logits were not numbers, so nothing runs beside it until they are; `doubts`: how often that was. `unsaid`: the index
    of the first token whose log-probability is yet to come, if the request asked for them; else None. `ending`: why the
    turn is over, once `goal` tokens are evaluated for that. `weighs`: texts are weighed whole; `trial`: those that are
    being tried, of which `draft` is one; `weighed`: the tokens that were evaluated for that.
    """

    request: Request
    generation: Generation
    tokens: list[int]
    submitted: float = 0.0
    arrival: int = 0
    sequence: int = -1
    evaluated: int = 0
    sampler: Sampler | None = None
    drafts: DraftRecord = field(default_factory=DraftRecord)
    ngrams: Ngrams | None = None
    marks: tuple[int, ...] = ()
    draft: tuple[int, ...] = ()
    events: list[Event] = field(default_factory=list[Event])
    later: list[Event] = field(default_factory=list[Event])
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    prefilled: int = 0
    rows: Any = None
    begun: int = 0
    cached: int = 0
    started: float | None = None
    first_token: float | None = None
    strikes: int = 0
    aborts: int = 0
    alone: bool = False
    doubts: int = 0
    weighs: bool = True
    trial: Trial | None = None
    weighed: int = 0
    unsaid: int | None = None
    ending: FinishReason | None = None
    goal: int = 0

    def __post_init__(self) -> None:
        request = self.request
        if request.sampling.logprobs is not None and not (request.pin or request.scored):
            self.unsaid = len(request.tokens)

    @property
    def pending(self) -> int:
        """Tokens left to evaluate."""
        return len(self.tokens) - self.evaluated

    @property
    def next_unit(self) -> MediaChunk | None:
        """The first picture or sound that is not evaluated yet."""
        return next((unit for start, unit in self.request.media if start >= self.evaluated), None)

    @property
    def unit(self) -> MediaChunk | None:
        """The picture or sound whose first row is evaluated next."""
        return next((unit for start, unit in self.request.media if start == self.evaluated), None)

    @property
    def waits(self) -> bool:
        """Whether what is evaluated next is not encoded yet."""
        return self.rows is None and bool(self.request.media) and self.unit is not None

    def position(self, index: int) -> int:
        """Returns the position of the token at an index."""
        before = (placed.unit for placed in self.request.media if placed.stop <= index)
        return index - sum(unit.rows - unit.positions for unit in before)

    @property
    def next_mark(self) -> int:
        """The position up to which the tokens may be evaluated in one chunk."""
        return next((mark for mark in self.marks if mark > self.evaluated), self.goal or len(self.tokens))

    @property
    def draws(self) -> bool:
        """Whether the next token is drawn: all are evaluated."""
        return self.evaluated == len(self.tokens) and self.ending is None

    @property
    def opens(self) -> bool:
        """Whether a text opens of which a form may leave only a few: these are weighed before the next draw."""
        matcher = self.generation.matcher if self.weighs and self.request.constraint is not None else None
        return matcher is not None and matcher.opens_text

    @property
    def first_output(self) -> int:
        """The index of the first token whose logits are needed: the last one's, from which the next is drawn, and those
        that say how likely a forced token was."""
        return (len(self.tokens) if self.unsaid is None else self.unsaid) - 1

    @property
    def urgency(self) -> tuple[int, int]:
        """Sort key: the smaller one goes first (by priority, then by arrival)."""
        return -self.request.priority, self.arrival

    def ends_later(self, reason: FinishReason, n_ctx: int) -> bool:
        """Whether the turn, which is complete, ends only once forced tokens at its end are evaluated: their
        log-probabilities are wanted."""
        goal = min(len(self.tokens) - 1, n_ctx)
        if self.unsaid is None or self.unsaid > goal:
            return False
        self.ending, self.goal = reason, goal
        return True

    @property
    def output(self) -> tuple[int, ...]:
        """The tokens generated after the prompt."""
        return tuple(self.tokens[len(self.request.tokens) :])

    def take(self) -> tuple[tuple[Event, ...], tuple[TokenLogprobs, ...]]:
        """Returns and clears the events and logprobs since the last reply."""
        taken = tuple(self.events), tuple(self.logprobs)
        self.events.clear()
        self.logprobs.clear()
        return taken

    def usage(self, now: float) -> Usage:
        started = now if self.started is None else self.started
        first = self.first_token
        return Usage(
            prompt_tokens=len(self.request.tokens),
            cached_tokens=self.cached,
            completion_tokens=self.generation.tokens,
            reasoning_tokens=self.generation.reasoning_tokens,
            time_to_first_token=None if first is None else first - self.submitted,
            prefill_seconds=(now if first is None else first) - started,
            decode_seconds=0.0 if first is None else now - first,
            drafted_tokens=self.drafts.drafted,
            accepted_tokens=self.drafts.accepted,
            undrafted_tokens=self.drafts.undrafted,
            dropped_messages=self.request.usage.dropped_messages,
            shortened_results=self.request.usage.shortened_results,
            summarised_messages=self.request.usage.summarised_messages,
            summarising_tokens=self.request.usage.summarising_tokens,
            dropped_calls=self.generation.dropped_calls,
            sampling=self.request.usage.sampling,
            closed_characters=self.generation.closed_characters,
            weighed_tokens=self.weighed,
        )


def longest(state: SequenceState, n_ctx: int) -> int:
    """Returns how many tokens the request is expected to hold: few answers are as long as they may be, so no more than
    `ANSWER` further ones count."""
    limits = state.request.limits
    if state.request.pin:
        return 0
    most = len(state.request.tokens) + (limits.max_tokens or 0) + len(limits.reasoning_close)
    further = ANSWER if limits.max_tokens is None else min(ANSWER, max(0, most - len(state.tokens)))
    return min(len(state.tokens) + further, n_ctx)
