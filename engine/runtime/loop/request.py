"""What crosses the border to the thread that owns the context: requests one way, replies the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from engine.runtime.adapters.adapters import BASE, Adapters, DropAdapter, LoadAdapter
from engine.runtime.loop.generation import Limits, NoParser, Parser
from engine.runtime.loop.logprobs import TokenLogprobs
from engine.runtime.media.media import ChunkAt
from engine.runtime.stream.embed_queue import Embed, Vectors
from engine.support.errors import ContextOverflowError, RequestError
from engine.types.completion import Usage
from engine.types.constraint import Constraint
from engine.types.events import Event, Finished
from engine.types.prompt import Piece, Prompt
from engine.types.sampling import SamplingParams
from engine.types.turn_settings import PLAIN, TurnSettings

Ended: TypeAlias = Callable[[Sequence[Event]], None]
"""Called with all events of a turn that ended by itself, neither cut off nor cancelled."""
Over: TypeAlias = Callable[[Finished, Exception | None], None]
"""Called with the last event of a turn, however it ended, and the error that ended it."""


_UNUSED = Usage()


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """A turn to generate, as `Service.submit` takes it.

    - `prompt` and `parser`: `parser` makes the turn's parser, seeded with `prompt.prefix`; it is called in the engine's
      thread, or pickled and called in the child process. `tokens`: the prompt's tokens, if they are not to be made from
      its text.
    - `markers`: texts that the parser reads as markers although they end the turn (gpt-oss's `<|call|>`).
    - `settings`: how its tokens are drawn, its priority, deadline, adapters and cache salt. Its `progress` is called
      with the number of prompt tokens evaluated so far and the number of all, in the engine's thread: it must be quick,
      and must not wait for this engine. If it returns False the turn stops; an exception ends the turn too.
    - `offline`: nobody reads the tokens as they come, so the turn may wait for prompts that can then be decoded
      together with it.
    - `reasoning_close`: the text that closes reasoning, forced once there are as many of its tokens as
      `settings.reasoning_budget`.
    - `usage`: how its usage begins: the messages left out of the prompt, the results cut in it, and what its tokens are
      drawn with and who said so.
    - `before`: events that its stream begins with, of what was done for it.
    - `claims`: what the turn held stays in the cache, or is kept as a state, until `Unpin` with the request's id.
    - `constraint`: the grammar that the answer, or the calls, must match. `reads` reads the finished answer.
    - `ended` is called in the engine's thread with all events of a turn that was neither cut off nor cancelled, and
      `over` with the last event of each turn.
    """

    prompt: Prompt
    parser: Callable[[], Parser]
    settings: TurnSettings = PLAIN
    markers: frozenset[str] = frozenset()
    offline: bool = False
    reasoning_close: tuple[Piece, ...] = ()
    usage: Usage = _UNUSED
    before: tuple[Event, ...] = ()
    ended: Ended | None = None
    over: Over | None = None
    claims: bool = False
    constraint: Constraint | None = None
    reads: Callable[[str], object] | None = None
    tokens: tuple[int, ...] = ()

    def check(self) -> None:
        """Raise RequestError for a budget that nothing could close."""
        if self.settings.reasoning_budget is not None and not any(piece.text for piece in self.reasoning_close):
            raise RequestError(
                "A reasoning budget needs reasoning_close: the text that closes this family's reasoning."
            )

    def crossing(
        self,
        id_: int,
        tokens: tuple[int, ...],
        limits: Limits,
        turns: tuple[int, ...],
        adapters: Adapters = BASE,
        media: tuple[ChunkAt, ...] = (),
    ) -> "Request":
        """Returns the request that the loop gets: without what only concerns the reader."""
        return Request(
            id_,
            tokens,
            self.parser,
            self.settings.sampling,
            limits,
            self.settings.priority,
            self.settings.deadline,
            self.offline,
            self.claims,
            self.constraint,
            turns,
            self.settings.progress is not None,
            adapters,
            media,
            self.usage,
        )


@dataclass(frozen=True, slots=True)
class Request:
    """What the loop gets, in whichever process it runs: a turn, or a prompt to pin or to score.

    - `tokens` are the prompt's, with the pictures and sounds `media` among them; `adapters` compute it, from where on
      they apply.
    - `limits` have the `max_tokens` and `stop` of `sampling`. `turns`: where the last messages begin in the prompt,
      ascending; later prompts are likely to diverge there. `reports`: replies report the progress of the prefill.
    - `pin`: nothing is drawn; the prompt is evaluated, and its sequence pinned under the request's id.
    - `scored`: nothing is drawn; the reply has the log-probabilities of these tokens after the prompt. `asked`: beside
      the first of them, not the likeliest tokens, but these.
    - The others are those of `TurnRequest`.
    """

    id: int
    tokens: tuple[int, ...]
    parser: Callable[[], Parser] = NoParser
    sampling: SamplingParams = field(default_factory=SamplingParams)
    limits: Limits = field(default_factory=Limits)
    priority: int = 0
    deadline: float | None = None
    offline: bool = False
    claims: bool = False
    constraint: Constraint | None = None
    turns: tuple[int, ...] = ()
    reports: bool = False
    adapters: Adapters = BASE
    media: tuple[ChunkAt, ...] = ()
    usage: Usage = _UNUSED
    pin: bool = False
    scored: tuple[int, ...] = ()
    asked: tuple[int, ...] = ()


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
    without the end token. `logprobs` are those of the tokens since the last reply, if requested. `prefilled`:
    number of prompt tokens evaluated so far, if requested. `vectors` are the reply to an `Embed`.
    `checkpoints`, of a turn that is over: number and size in bytes of the checkpoints of recurrent memories.
    `threads`: those that decode from now on, for a token and for a batch; None: as before.
    """

    id: int
    events: tuple[Event, ...]
    final: bool = False
    error: Exception | None = None
    output: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    prefilled: int = 0
    checkpoints: tuple[int, int] | None = None
    vectors: Vectors | None = None
    threads: tuple[int, int] | None = None


class Cancel(NamedTuple):
    """End this request with reason "cancelled"."""

    id: int


class EndReasoning(NamedTuple):
    """Close the reasoning of this request, if it is open."""

    id: int


class Unpin(NamedTuple):
    """Allow what this request pinned or claimed to be forgotten."""

    id: int


class Encoded(NamedTuple):
    """Look for a picture or a sound that was encoded."""


class Close(NamedTuple):
    """Cancel everything and stop."""


Command: TypeAlias = Request | Cancel | EndReasoning | Unpin | Embed | LoadAdapter | DropAdapter | Encoded | Close
