"""What crosses the border to the thread that owns the context: requests one way, replies the other."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from engine.constraint.guide import Constraint
from engine.errors import ContextOverflowError
from engine.events import Event
from engine.runtime.generation import Limits, Parser
from engine.runtime.logprobs import TokenLogprobs
from engine.runtime.state_file import SavedState
from engine.runtime.vectors import Embed, Vectors
from engine.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Request:
    """One turn to generate.

    `tokens`: the prompt. `parser` makes the parser of the turn (picklable if the loop runs in another process).
    `turns`: where the last messages begin in the prompt, ascending; later prompts are likely to diverge there. `limits`
    include the `max_tokens` and `stop` of `sampling`. `priority`: higher goes first. `deadline`: seconds from
    submission after which the turn ends with reason "deadline". `offline`: nobody reads its tokens as they come.

    `scored`: nothing is drawn; the reply has the log-probabilities of these tokens after the prompt.
    `pin`: nothing is drawn; the prompt is evaluated, and its sequence pinned under the request's id. `state`: what
    `Backend.save` returned for these tokens, to be loaded instead of evaluating them. `reports`: replies report the
    progress of the prefill. `dropped`: number of messages left out of the prompt, `shortened`: number of results in it
    that were cut, for the usage. `constraint`: the grammar that the answer, or its calls, must match.
    """

    id: int
    tokens: tuple[int, ...]
    parser: Callable[[], Parser]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    limits: Limits = field(default_factory=Limits)
    turns: tuple[int, ...] = ()
    priority: int = 0
    deadline: float | None = None
    offline: bool = False
    scored: tuple[int, ...] = ()
    pin: bool = False
    state: bytes = b""
    reports: bool = False
    dropped: int = 0
    shortened: int = 0
    constraint: Constraint | None = None


def check_fits(tokens: int, n_ctx: int) -> None:
    """Raise ContextOverflowError if a prompt of `tokens` tokens does not fit into one conversation."""
    if tokens > n_ctx:
        raise ContextOverflowError(
            f"The prompt has {tokens:,} tokens, and a conversation may hold n_ctx={n_ctx:,}. Shorten it, or load with "
            "a larger n_ctx=."
        )


class Reply(NamedTuple):
    """The events of one step for one request.

    `final`: this is the last reply; `error` says why the request failed, if it did; `output` are the generated tokens
    without the end token. `logprobs` are those of the tokens drawn since the last reply, if requested. `prefilled`:
    number of prompt tokens evaluated so far, if requested. `saved` is the reply to a `Save`, `vectors` to an `Embed`.
    `checkpoints`, of a turn that is over: number and size in bytes of the checkpoints of recurrent memories.
    """

    id: int
    events: tuple[Event, ...]
    final: bool = False
    error: Exception | None = None
    output: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prefilled: int = 0
    saved: SavedState | None = None
    checkpoints: tuple[int, int] | None = None
    vectors: Vectors | None = None


class Submit(NamedTuple):
    """Start this request."""

    request: Request


class Cancel(NamedTuple):
    """End this request with reason "cancelled"."""

    id: int


class EndReasoning(NamedTuple):
    """Close the reasoning of this request, if it is open."""

    id: int


class Unpin(NamedTuple):
    """Allow what this request pinned to be forgotten."""

    id: int


class Save(NamedTuple):
    """Reply, under `id`, with the state of the prefix that request `pin` pinned."""

    id: int
    pin: int


class Close(NamedTuple):
    """Cancel everything and stop."""


Command: TypeAlias = Submit | Cancel | EndReasoning | Unpin | Save | Embed | Close
