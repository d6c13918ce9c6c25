"""What the loop keeps of a request while it is under way.

Knows: its parts, and the figures that come of them. Does not know: what the loop does with them.
"""

from dataclasses import dataclass, field

from engine.events import Event
from engine.runtime.backend import Sampler
from engine.runtime.generation import Generation
from engine.runtime.logprobs import TokenLogprobs
from engine.runtime.ngram import Drafter
from engine.runtime.request import Request
from engine.runtime.scheduler import Job
from engine.types import Usage


@dataclass(slots=True, eq=False)
class Live:
    """A request under way. Times are the clock's; None until it happened. `outbox` are the events since the last
    reply, `prefilled` is what the next one tells. `shifted` tokens were given up for room."""

    request: Request
    job: Job
    generation: Generation
    submitted: float
    sampler: Sampler | None = None
    outbox: list[Event] = field(default_factory=list)
    cached: int = 0
    started: float | None = None
    first_token: float | None = None
    strikes: int = 0
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    drafter: Drafter | None = None
    prefilled: int = 0
    shifted: int = 0

    @property
    def output(self) -> tuple[int, ...]:
        """What was generated behind the prompt; nothing, once it does not stand behind the prompt any more."""
        return () if self.shifted else tuple(self.job.tokens[len(self.request.tokens) :])

    def take(self) -> tuple[tuple[Event, ...], tuple[TokenLogprobs, ...]]:
        """What came since the last reply."""
        taken = tuple(self.outbox), tuple(self.logprobs)
        self.outbox.clear()
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
            drafted_tokens=0 if self.drafter is None else self.drafter.drafted,
            accepted_tokens=0 if self.drafter is None else self.drafter.accepted,
            dropped_messages=self.request.dropped,
            shifted_tokens=self.shifted,
        )
