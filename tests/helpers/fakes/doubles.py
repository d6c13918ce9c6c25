"""What tests of the loop, the runner and the service share: prompts, parsers, and a loop stepped to its end."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine.formats.parsing import Parser
from engine.runtime.adapters.adapters import BASE, Adapters
from engine.runtime.cache.state_store import StateStore
from engine.runtime.draft.draft_rule import DraftRecord, DraftRule
from engine.runtime.loop.config import LoopOptions
from engine.runtime.loop.generation import Limits
from engine.runtime.loop.loop import Loop
from engine.runtime.loop.request import Reply, TurnRequest
from engine.runtime.loop.scheduler import Scheduler
from engine.runtime.loop.sequence import SequenceState
from engine.testing.scripted import ScriptedBackend
from engine.types.completion import Completion
from engine.types.events import fold
from engine.types.prompt import Piece, Prompt
from engine.types.turn_settings import TurnSettings


def prompt(text: str, stop: tuple[str, ...] = ()) -> Prompt:
    return Prompt(text, (Piece(text, trusted=True),), stop=stop)


def plain() -> Parser:
    return Parser("content-only")


def preempted_states(patch: pytest.MonkeyPatch) -> list[SequenceState]:
    """Returns a list to which every sequence that is preempted from now on is added."""
    gone: list[SequenceState] = []
    preempt = Scheduler.preempt

    def watched(scheduler: Scheduler, state: SequenceState) -> None:
        gone.append(state)
        preempt(scheduler, state)

    patch.setattr(Scheduler, "preempt", watched)
    return gone


def guess_always(patch: pytest.MonkeyPatch) -> None:
    """Let every draft be as long as it may, whatever decodes take on this machine."""

    def size(rule: DraftRule, _record: DraftRecord, room: int, _sequences: int, _cost: float) -> int:
        return max((size for size in rule.sizes if size <= room), default=0)

    patch.setattr(DraftRule, "size", size)


def echo(text: str) -> str:
    """A reply that tells whose prompt it answers."""
    return f"re: {text}"


class Bench:
    """A loop over a scripted backend, stepped by hand; its books are checked after every step. `info`: what the backend
    says of itself beside its sizes. `draft`: the script of a second backend, which guesses ahead. `states`: as the
    loop's option."""

    def __init__(
        self,
        replies: Sequence[str] | Callable[[str], str] = echo,
        *,
        draft_max: int = 0,
        draft: Callable[[str], str] | None = None,
        info: dict[str, Any] | None = None,
        states: StateStore | None = None,
        **options: Any,
    ) -> None:
        self.backend = ScriptedBackend(replies, **options)
        self.backend.info = replace(self.backend.info, **(info or {}))
        self.now = 0.0
        sizes = {name: value for name, value in options.items() if name in ("vocab", "n_ctx", "n_batch", "n_sequences")}
        self.draft = ScriptedBackend(draft, **sizes) if draft is not None else None
        loop = LoopOptions(draft_max=draft_max, states=states)
        self.loop = Loop(self.backend, loop, draft=self.draft, clock=lambda: self.now)
        self.replies: dict[int, list[Reply]] = {}
        self._next = 0

    def submit(
        self,
        text: str,
        limits: Limits | None = None,
        *,
        priority: int = 0,
        deadline: float | None = None,
        turns: tuple[int, ...] = (),
        parser: Callable[[], Parser] = plain,
        offline: bool = False,
        adapters: Adapters = BASE,
    ) -> int:
        self._next += 1
        tokens = tuple(self.backend.vocab.tokenize(text, special=True))
        turn = TurnRequest(prompt(""), parser, TurnSettings(priority=priority, deadline=deadline), offline=offline)
        self.loop.submit(turn.crossing(self._next, tokens, limits or Limits(), turns, adapters))
        return self._next

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.loop.step()
            self.collect()
            self.loop.cache.check()
            assert self.loop.cache.cells.used == self.backend.used

    def collect(self) -> None:
        for reply in self.loop.drain():
            self.replies.setdefault(reply.id, []).append(reply)

    def run(self, limit: int = 10_000) -> None:
        while self.loop.busy:
            limit -= 1
            assert limit, "the loop does not come to an end"
            self.step()
        self.collect()

    def completion(self, id_: int) -> Completion:
        """The fold of a request's events; it must have ended, once, without error."""
        assert [reply.final for reply in self.replies[id_]].count(True) == 1
        assert self.replies[id_][-1].final
        assert self.replies[id_][-1].error is None, self.replies[id_][-1].error
        return self.partial(id_)

    def partial(self, id_: int) -> Completion:
        return fold(event for reply in self.replies.get(id_, ()) for event in reply.events)

    def error(self, id_: int) -> Exception:
        """What ended a request, which must have been an error."""
        last = self.replies[id_][-1]
        assert last.final
        assert last.error is not None
        assert self.partial(id_).finish_reason == "error"
        return last.error
