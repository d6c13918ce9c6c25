"""Work on an isolated engine, whose n-th frame is lost, unreadable or cannot be written, or whose process does not
start.

Each request gives its right answer, or ends by one of the errors that a dead process has; then a further request is
answered by the next process.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from failures.failing_calls import Breaker, raising, runner_of

from engine import Engine
from engine.isolated import link, protocol
from engine.support.child import ChildNotStartedError
from engine.support.errors import EngineError

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 16}
OPTIONS: dict[str, Any] = {"n_ctx": 1024, "n_sequences": 4, "n_threads": 1, "preflight": False}
QUESTIONS = ("Hello!", "Who are you?", "Thank you.")
SYSTEM = [{"role": "system", "content": "You are a helpful assistant."}]
PATIENCE = 60.0
ENDS = ("while it wrote this answer", "twice over this request")


def work(llm: Engine) -> dict[str, object]:
    """Three turns at once and one that is cancelled, then a pinned prefix; returns what each request gave."""
    streams = {question: llm.stream(question, **GREEDY) for question in QUESTIONS}
    left = llm.stream("Say one two three.", ignore_eos=True)
    left.cancel()
    told: dict[str, object] = {name: outcome(lambda s=s: s.result(PATIENCE).parts) for name, s in streams.items()}
    told["left"] = outcome(lambda: left.result(PATIENCE).finish_reason)
    told["pinned"] = outcome(lambda: pinned(llm))
    return told


def pinned(llm: Engine) -> object:
    with llm.pin(SYSTEM):
        asked: Any = [*SYSTEM, {"role": "user", "content": "Hello!"}]
        return llm.chat(asked, **GREEDY).parts


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except EngineError as error:
        return error


Install = Callable[[Engine, Breaker, pytest.MonkeyPatch], None]


def _killed(llm: Engine, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
    own: Any = runner_of(llm)._link
    receive = own.receive

    def received() -> Any:
        if breaker.fails():
            own.child.process.kill()
        return receive()

    patch.setattr(own, "receive", received)


def _unreadable(_llm: Engine, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
    breaker.guard_method(patch, link, "decoded", raising(ValueError("not a reply")))


def _unwritten(_llm: Engine, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
    breaker.guard_method(patch, protocol, "write_frame", raising(BrokenPipeError("broken")))


def _not_started(llm: Engine, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
    """The process is killed, and `breaker.number` starts of the next one fail."""
    failures = Breaker(1, lasting=True)
    connect = runner_of(llm)._link._connect

    def start() -> None:
        if failures.calls < breaker.number:
            _ = failures.fails()
            raise ChildNotStartedError("The model's process cannot be started (no memory).")
        connect()

    patch.setattr(runner_of(llm)._link, "_connect", start)
    breaker.reached = 1
    runner_of(llm)._link.child.process.kill()


KINDS: Mapping[str, Install] = {
    "the process is killed before its n-th frame": _killed,
    "the n-th frame cannot be read": _unreadable,
    "the n-th order cannot be written": _unwritten,
    "the next process does not start, n times": _not_started,
}
STARTS = "the next process does not start, n times"


@dataclass
class Failed:
    """What came of one failure. `reached`: whether the work had so many calls."""

    reached: bool
    ended: int = 0
    faults: list[str] = field(default_factory=list[str])


def expected(llm: Engine) -> dict[str, object]:
    return work(llm) | {"left": "cancelled"}


def failing(llm: Engine, right: Mapping[str, object], install: Install, number: int) -> Failed:
    """Let the n-th call fail while the work is done, then ask once more."""
    breaker = Breaker(number)
    with pytest.MonkeyPatch.context() as patch:
        install(llm, breaker, patch)
        told = work(llm)
    result = Failed(breaker.reached > 0)
    for name, value in told.items():
        if isinstance(value, EngineError) and any(words in str(value) for words in ENDS):
            result.ended += 1
        elif value != right[name]:
            result.faults.append(f"{number}: {name}: {value!r}")
    again = outcome(lambda: llm.stream("Hello!", **GREEDY).result(PATIENCE).parts)
    if again != right["Hello!"]:
        result.faults.append(f"{number}: afterwards: {again!r}")
    return result
