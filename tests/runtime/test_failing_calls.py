"""Each call below the loop fails once, at every place of a whole work: the request that met it ends by name, all others
give their right answers."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from failures.failing_calls import Breaker
from failures.failing_loop import KINDS, Work, failing, told
from fakes.doubles import plain

from engine.runtime.loop.request import Reply, Request
from engine.runtime.loop.runner import Runner
from engine.support.errors import EngineError
from engine.testing.scripted import ScriptedBackend


@pytest.mark.parametrize("kind", KINDS)
def test_one_call_fails(kind: str) -> None:
    """Of the calls that are many, every second: the kinds of one call have all of its places between them."""
    install, may_end = KINDS[kind]
    first, every = ([*KINDS].index(kind) % 2 + 1, 2) if kind.startswith(("decode", "draw")) else (1, 1)
    series = failing(Work(), install, may_end=may_end, first=first, every=every)
    assert series.failed
    assert not series.faults, "\n".join(series.faults[:5])


@pytest.mark.parametrize("kind", ["decode: aborted", "decode: fatal", "draw: memory", "copy", "save", "restore"])
def test_all_calls_fail_from_one_on(kind: str) -> None:
    """Requests end by name, none hangs; when the calls work again, so does everything."""
    series = failing(Work(), KINDS[kind][0], lasting=True, every=7)
    assert series.failed
    assert not series.faults, "\n".join(series.faults[:5])


@pytest.mark.parametrize(("number", "of_last"), [(1, False), (2, False), (1, True)])
def test_a_delivery_fails(number: int, of_last: bool) -> None:
    """The loop is broken then, and everybody hears of it: one last reply each, also for what was in that delivery."""
    breaker, finals = Breaker(number), Counter[int]()

    def deliver(replies: Sequence[Reply]) -> None:
        if (not of_last or any(reply.final for reply in replies)) and breaker.fails():
            raise MemoryError
        finals.update(reply.id for reply in replies if reply.final)

    runner: Any = Runner(ScriptedBackend(told, n_sequences=2), deliver)
    accepted = 0
    with suppress(EngineError):  # it may be broken already
        for id_ in (1, 2, 3):
            runner.submit(Request(id_, (65, id_), plain))
            accepted += 1
    assert runner._ended.wait(20)
    runner.close()
    assert finals == dict.fromkeys(range(1, accepted + 1), 1)
