"""Each call below the loop fails once, at every place of a whole work: the request that met it ends by name, all others
give their right answers."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from doubles import plain, prompt
from failing_calls import MEMORY, Breaker, Failure, decode_error, raising
from failing_loop import Work, failing, told

from engine.errors import EngineError
from engine.runtime.request import Reply, TurnRequest
from engine.runtime.runner import Runner
from engine.testing import ScriptedBackend

Install = Callable[[Work, Breaker, pytest.MonkeyPatch], None]


def backend(name: str, failure: Failure) -> Install:
    def install(work: Work, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
        breaker.guard_method(patch, work.bench.backend, name, failure)

    return install


def vectors(name: str, failure: Failure) -> Install:
    def install(work: Work, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
        breaker.guard_method(patch, work.bench.backend.vectors(), name, failure)

    return install


def vocab(name: str, failure: Failure) -> Install:
    def install(work: Work, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
        loop: Any = work.bench.loop
        loop._tokens.clear()
        breaker.guard_method(patch, work.bench.backend.vocab, name, failure)

    return install


def trim(work: Work, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
    """A sequence cannot be cut; to be emptied never fails."""
    usual = work.bench.backend.trim

    def cut(sequence: int, position: int) -> bool:
        return usual(sequence, position) if not position else not breaker.fails() and usual(sequence, position)

    patch.setattr(work.bench.backend, "trim", cut)


KINDS: dict[str, tuple[Install, int]] = {
    "decode: no room": (backend("decode", decode_error("no_slot")), 1),
    "decode: aborted": (backend("decode", decode_error("aborted")), 0),
    "decode: bad batch": (backend("decode", decode_error("invalid")), 0),
    "decode: fatal": (backend("decode", decode_error("failed")), 0),
    "decode: memory": (backend("decode", raising(MEMORY)), 0),
    "draw: logits": (backend("sample", decode_error("nan")), 1),
    "draw: memory": (backend("sample", raising(MEMORY)), 1),
    "log-probabilities": (backend("logprobs", raising(MEMORY)), 1),
    "sampler": (backend("sampler", raising(MEMORY)), 1),
    "copy": (backend("copy", decode_error("invalid")), 0),
    "copy: memory": (backend("copy", raising(MEMORY)), 0),
    "trim": (trim, 0),
    "save": (backend("save", decode_error("failed")), 1),
    "save: memory": (backend("save", raising(MEMORY)), 1),
    "restore": (backend("restore", decode_error("invalid")), 0),
    "restore: memory": (backend("restore", raising(MEMORY)), 0),
    "vectors": (vectors("embed", decode_error("failed")), 1),
    "vectors: memory": (vectors("embed", raising(MEMORY)), 1),
    "piece of a token": (vocab("token_bytes", raising(MEMORY)), 1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_one_call_fails(kind: str) -> None:
    install, may_end = KINDS[kind]
    series = failing(Work(), install, may_end=may_end)
    assert series.failed
    assert not series.faults, "\n".join(series.faults[:5])


@pytest.mark.parametrize("kind", ["decode: aborted", "decode: fatal", "draw: memory", "copy", "save", "restore"])
def test_all_calls_fail_from_one_on(kind: str) -> None:
    """Requests end by name, none hangs; when the calls work again, so does everything."""
    series = failing(Work(), KINDS[kind][0], lasting=True, every=7)
    assert series.failed
    assert not series.faults, "\n".join(series.faults[:5])


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_delivery_fails(number: int) -> None:
    """The loop is broken then, and everybody hears of it: one last reply each, also for what was in that delivery."""
    breaker, finals = Breaker(number), Counter[int]()

    def deliver(replies: Sequence[Reply]) -> None:
        if breaker.fails():
            raise MemoryError
        finals.update(reply.id for reply in replies if reply.final)

    runner: Any = Runner(ScriptedBackend(told, n_sequences=2), deliver)
    accepted = 0
    with suppress(EngineError):  # it may be broken already
        for id_ in (1, 2, 3):
            runner.submit(TurnRequest(prompt(""), plain, id=id_, tokens=(65, id_)))
            accepted += 1
    assert runner._ended.wait(20)
    runner.close()
    assert finals == dict.fromkeys(range(1, accepted + 1), 1)
