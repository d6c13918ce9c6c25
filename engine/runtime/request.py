"""What crosses the border to the thread that owns the context: requests one way, replies the other.

Knows: plain picklable records. Does not know: who reads them; the loop may as well run in another process.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from engine.constraint.guide import Constraint
from engine.errors import ContextOverflowError
from engine.events import Event
from engine.runtime.generation import Limits, Parser
from engine.runtime.logprobs import TokenLogprobs
from engine.runtime.state_file import SavedState
from engine.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Request:
    """One turn to generate.

    `tokens`: the prompt. `parser` makes the parser of the turn (picklable where the loop is to run in another
    process). `turns`: where the last messages begin in the prompt, ascending; later prompts are likely to part from it
    there. Of `limits`, `max_tokens` and `stop` are those of `sampling`. `priority`: higher goes first. `deadline`:
    seconds from submission after which it ends with reason "deadline". `offline`: nobody reads its tokens as they come.

    `keep`: when the context is full, tokens behind the first `keep` are given up and the turn goes on; None: it ends.
    `pin`: nothing is drawn; the prompt is evaluated, and its sequence pinned under the request's id. `state`: what
    `Backend.save` gave for these tokens, to be put in place of evaluating them. `reports`: replies tell how far the
    prefill is. `dropped`: messages that were left out of the prompt, `shortened`: results in it that were cut, for
    the usage.
    `constraint`: the grammar that its answer, or its calls, are held to.
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
    keep: int | None = None
    pin: bool = False
    state: bytes = b""
    reports: bool = False
    dropped: int = 0
    shortened: int = 0
    constraint: Constraint | None = None


def check_fits(tokens: int, n_ctx: int) -> None:
    """Raise ContextOverflowError when a prompt of so many tokens does not fit into one conversation."""
    if tokens > n_ctx:
        raise ContextOverflowError(
            f"The prompt has {tokens:,} tokens, and a conversation may hold n_ctx={n_ctx:,}. Shorten it, or load with "
            "a larger n_ctx=."
        )


class Reply(NamedTuple):
    """The events of one step for one request.

    A `final` one is the last; `error` says why it failed, if it did; `output` are the tokens that were generated, the
    end token left out (none, where the context was shifted: they do not follow the prompt). `logprobs` are those of the
    tokens drawn since the last reply, if they were asked for. `prefilled`: tokens of the prompt that are evaluated, if
    that was asked for. `saved` is what a `Save` asked for. `checkpoints`, of a turn that is over: how many there are of
    recurrent memories, and the bytes that they take.
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


class Submit(NamedTuple):
    """Start this."""

    request: Request


class Cancel(NamedTuple):
    """End this with reason "cancelled"."""

    id: int


class EndReasoning(NamedTuple):
    """Close this one's reasoning, if it is open."""

    id: int


class Unpin(NamedTuple):
    """What this request pinned need not stay."""

    id: int


class Save(NamedTuple):
    """Answer, under `id`, with the state of what request `pin` pinned."""

    id: int
    pin: int


class Close(NamedTuple):
    """Cancel everything and stop."""


Command: TypeAlias = Submit | Cancel | EndReasoning | Unpin | Save | Close
