"""engine.llama.thread_rule: fewer threads while others hold the processors, on simulated machines and on this one."""

import time
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

import pytest
from failures.failing_calls import backend_of
from hypothesis import given
from hypothesis import strategies as st

from engine import ChatTemplate, Engine
from engine.llama.thread_rule import ContextThreads, ThreadRule, Use, processor_use
from engine.runtime.loop.config import ContextOptions
from engine.testing import ScriptedBackend


class Machine:
    """A machine of `processors`, of which other programs want some; who wants more than there is, gets a fair share."""

    def __init__(self, processors: int) -> None:
        self.processors = processors
        self.now = 0.0
        self.others = self.own = 0.0

    def use(self) -> Use:
        return Use(self.others + self.own, self.own, self.processors)

    def decode(self, rule: ThreadRule, wanted: float, seconds: float = 0.05) -> bool:
        """One decode beside programs that want so many processors. Returns whether the threads changed."""
        changed = rule.changed()
        threads = rule.threads[0]
        share = min(1.0, self.processors / (threads + wanted)) if threads + wanted else 1.0
        self.now += seconds
        self.own += threads * share * seconds
        self.others += wanted * share * seconds
        return changed


def rule_on(machine: Machine) -> ThreadRule:
    return ThreadRule((machine.processors, machine.processors), machine.use, lambda: machine.now)


def run(machine: Machine, rule: ThreadRule, wanted: float, seconds: float) -> int:
    """Decode for so long; returns how often the threads changed."""
    end, changes = machine.now + seconds, 0
    while machine.now < end:
        changes += machine.decode(rule, wanted)
    return changes


@pytest.mark.parametrize("processors", [2, 4, 8, 64])
def test_an_idle_machine_keeps_its_threads(processors: int) -> None:
    machine = Machine(processors)
    rule = rule_on(machine)
    assert run(machine, rule, 0.2, 60) == 0
    assert rule.threads == (processors, processors)


@pytest.mark.parametrize(("processors", "wanted", "threads"), [(2, 1, 1), (2, 2, 1), (2, 4, 1), (4, 1, 3), (8, 3, 5)])
def test_who_is_beside_others_uses_what_they_leave_and_comes_back(processors: int, wanted: int, threads: int) -> None:
    machine = Machine(processors)
    rule = rule_on(machine)
    assert run(machine, rule, wanted, 30) <= 4
    assert rule.threads[0] == threads
    assert run(machine, rule, wanted, 60) == 0, "it does not oscillate"
    assert run(machine, rule, 0.1, 10) >= 1
    assert rule.threads[0] == processors


@given(st.lists(st.tuples(st.floats(0, 6), st.floats(0.1, 8)), min_size=1, max_size=12), st.integers(2, 8))
def test_however_the_load_changes_the_threads_change_rarely(loads: list[tuple[float, float]], processors: int) -> None:
    machine = Machine(processors)
    rule = rule_on(machine)
    changes = sum(run(machine, rule, wanted, seconds) for wanted, seconds in loads)
    assert changes <= 2 + processors + machine.now * processors / 2
    assert 1 <= rule.threads[0] <= processors
    run(machine, rule, 0.0, 8)
    assert rule.threads[0] == processors, "all threads, once the machine is free"


def test_a_pause_says_nothing() -> None:
    machine = Machine(2)
    rule = rule_on(machine)
    machine.now, machine.others = 100.0, 200.0
    assert not rule.changed()
    assert rule.threads == (2, 2)


def test_decodes_that_take_long_are_no_pause() -> None:
    machine = Machine(2)
    rule = rule_on(machine)
    for _ in range(4):
        machine.decode(rule, 1.0, seconds=3.0)
    assert rule.threads == (1, 1)


def test_where_the_system_says_nothing_nothing_changes(tmp_path: Path) -> None:
    assert processor_use(tmp_path) is None
    now = iter(range(100))
    rule = ThreadRule((4, 8), lambda: None, lambda: float(next(now)))
    assert not any(rule.changed() for _ in range(20))
    assert rule.threads == (4, 8)


def test_what_this_process_computes_is_read_as_its_own() -> None:
    before = processor_use()
    if before is None:
        pytest.skip("this system does not say what was used")
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    after = processor_use()
    assert after is not None
    assert after.own - before.own >= 0.3
    assert after.all - before.all >= 0.2
    assert after.processors >= 1


def test_a_callers_number_of_threads_stays(builtin_model_path: Path) -> None:
    with Engine.load(builtin_model_path, n_ctx=64, n_threads=2, preflight=False) as llm:
        assert backend_of(llm)._threads.rule is None
        assert (llm.metrics.n_threads, llm.metrics.n_threads_batch) == (0, 0), "nothing was decoded yet"
        llm.chat("Hi", max_tokens=2)
        assert (llm.metrics.n_threads, llm.metrics.n_threads_batch) == (2, 2)


def test_the_context_takes_the_threads_of_the_rule(builtin_model_path: Path) -> None:
    machine = Machine(4)
    with Engine.load(builtin_model_path, n_ctx=64, n_threads=2, preflight=False) as llm:
        backend = backend_of(llm)
        backend._threads.rule = rule = rule_on(machine)
        machine.now, machine.others = 1.0, 3.0
        llm.chat("Hi", max_tokens=2)
        assert rule.threads == (1, 1)
        assert backend._lib.llama_n_threads(backend.handle) == 1


class Told:
    """A library that notes the threads that it is told."""

    def __init__(self) -> None:
        self.threads: list[tuple[int, int]] = []

    def llama_set_n_threads(self, _context: int, one: int, many: int) -> None:
        self.threads.append((one, many))


class Params(NamedTuple):
    """The part of llama.cpp's parameters of a context that says its threads."""

    n_threads: int = 2
    n_threads_batch: int = 2


@pytest.mark.parametrize("isolated", [False, True])
def test_the_threads_that_decode_now_are_in_the_metrics(isolated: bool, builtin_model_path: Path) -> None:
    with Engine.load(builtin_model_path, n_ctx=64, n_threads=1, n_threads_batch=3, isolated=isolated) as llm:
        llm.chat("Hi", max_tokens=2)
        assert (llm.metrics.n_threads, llm.metrics.n_threads_batch) == (1, 3)
        assert "\nllama_engine_threads 1\n" in llm.metrics.prometheus()


def test_a_change_of_threads_is_told_while_an_answer_is_written() -> None:
    backend = ScriptedBackend(["a long answer"], before_decode=lambda _: setattr(backend, "threads", next(changes)))
    changes = chain([(4, 8), (4, 8), (1, 1)], repeat((2, 2)))
    with Engine.over(backend, ChatTemplate(None, family="qwen3")) as llm, llm.stream("Hi") as stream:
        seen = [(llm.metrics.n_threads, llm.metrics.n_threads_batch) for _ in stream]
    assert seen[0] in ((4, 8), (1, 1), (2, 2))
    assert seen[-1] == (2, 2)


@pytest.mark.parametrize("vectors", [False, True])
def test_every_context_asks_the_rule_before_it_decodes(vectors: bool, builtin_model_path: Path) -> None:
    with Engine.load(builtin_model_path, n_ctx=64, preflight=False) as llm:
        backend = backend_of(llm)
        threads = backend.vectors()._threads if vectors else backend._threads
        asked: list[int] = []
        threads.follow = lambda: asked.append(1)  # pyright: ignore[reportAttributeAccessIssue]
        _ = llm.embed("Hi") if vectors else llm.chat("Hi", max_tokens=2)
        assert asked


def test_a_context_is_told_when_its_threads_change() -> None:
    library, machine = Told(), Machine(2)
    threads = ContextThreads(library, 1, ContextOptions(), Params())
    assert threads.now == (2, 2)
    threads.rule = rule_on(machine)
    for _ in range(4):
        threads.follow()
        machine.decode(ThreadRule((2, 2), lambda: None), 1.0, seconds=1.0)
    assert threads.now == (1, 1)
    assert library.threads == [(1, 1)]
