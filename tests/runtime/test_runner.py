"""engine.runtime.loop.runner: commands in, replies out, one thread; what the service's tests do not see."""

import threading
from collections.abc import Sequence
from queue import SimpleQueue

import pytest
from fakes.doubles import echo, plain

from engine.runtime.loop.backend import Row
from engine.runtime.loop.request import Reply, Request
from engine.runtime.loop.runner import Runner
from engine.support.errors import EngineError
from engine.testing.scripted import ScriptedBackend
from engine.types.events import fold


class Desk:
    """A runner, and the replies it delivers, in order."""

    def __init__(self, backend: ScriptedBackend) -> None:
        self.backend = backend
        self.deliveries: SimpleQueue[Sequence[Reply]] = SimpleQueue()
        self.runner = Runner(backend, self.deliveries.put)

    def submit(self, id_: int, text: str = "p") -> None:
        self.runner.submit(Request(id_, tuple(text.encode()), plain))

    def until_final(self, *ids: int) -> dict[int, list[Reply]]:
        """All replies up to the final ones of these requests."""
        got: dict[int, list[Reply]] = {}
        open_ = set(ids)
        while open_:
            for reply in self.deliveries.get(timeout=30):
                got.setdefault(reply.id, []).append(reply)
                if reply.final:
                    open_.discard(reply.id)
        return got


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "llama-engine"]


def test_a_step_is_one_delivery() -> None:
    hold = threading.Event()

    def wait(rows: Sequence[Row]) -> None:
        hold.wait()

    desk = Desk(ScriptedBackend(lambda _: "abc", before_decode=wait))
    for id_ in (1, 2, 3):
        desk.submit(id_)
    hold.set()
    got = desk.until_final(1, 2, 3)
    desk.runner.close()
    assert [fold(event for reply in got[id_] for event in reply.events).content for id_ in (1, 2, 3)] == ["abc"] * 3
    assert all(len(replies) <= 4 for replies in got.values())


def test_everything_accepted_gets_one_final_reply_also_at_the_close() -> None:
    desk = Desk(ScriptedBackend(lambda _: "x" * 1000, delay=0.0005, n_ctx=100_000))
    accepted: list[int] = []

    def submit_until_refused(first: int) -> None:
        for id_ in range(first, first + 500):
            try:
                desk.submit(id_)
            except EngineError:
                return
            accepted.append(id_)

    submitters = [threading.Thread(target=submit_until_refused, args=(10_000 * i,)) for i in range(3)]
    for thread in submitters:
        thread.start()
    desk.deliveries.get(timeout=30)
    desk.runner.close()
    for thread in submitters:
        thread.join()
    finals: list[int] = []
    while not desk.deliveries.empty():
        finals += [reply.id for reply in desk.deliveries.get() if reply.final]
    assert sorted(finals) == sorted(accepted)
    assert desk.backend.closed


def test_a_crash_answers_those_still_in_the_inbox() -> None:
    entered, hold = threading.Event(), threading.Event()

    def crash(rows: Sequence[Row]) -> None:
        entered.set()
        hold.wait()
        raise KeyError("bug")

    desk = Desk(ScriptedBackend(echo, before_decode=crash))
    desk.submit(1)
    entered.wait()
    desk.submit(2)
    desk.runner.cancel(77)
    desk.submit(3)
    hold.set()
    got = desk.until_final(1, 2, 3)
    assert {str(replies[-1].error) for replies in got.values()} == {
        "The engine's loop broke (KeyError: 'bug'); load the model again."
    }
    with pytest.raises(EngineError, match="loop broke"):
        desk.submit(4)
    desk.runner.close()


def test_idle_does_not_decode_and_close_ends_the_thread() -> None:
    before = len(threads())
    desk = Desk(ScriptedBackend(echo))
    assert len(threads()) == before + 1
    desk.submit(1)
    desk.until_final(1)
    count = desk.backend.decodes
    desk.runner.cancel(1)
    desk.runner.end_reasoning(1)
    desk.submit(2)
    desk.until_final(2)
    assert desk.backend.decodes > count
    desk.runner.close()
    assert len(threads()) == before


def test_close_from_its_own_thread_does_not_wait_for_itself() -> None:
    done = threading.Event()

    def deliver(replies: Sequence[Reply]) -> None:
        if any(reply.final for reply in replies):
            runner.close()
            done.set()

    backend = ScriptedBackend(echo)
    runner = Runner(backend, deliver)
    runner.submit(Request(1, (1,), plain))
    assert done.wait(30)
    runner.close()
    assert backend.closed


def test_who_cancels_hears_of_it_before_the_next_step() -> None:
    decoding, go, later = threading.Event(), threading.Event(), threading.Event()
    count = 0

    def hold(rows: Sequence[Row]) -> None:
        nonlocal count
        count += 1
        if count == 3:
            decoding.set()
            go.wait(30)
        if count > 3:
            later.wait(30)

    desk = Desk(ScriptedBackend(lambda _: "y" * 20, before_decode=hold, n_sequences=2))
    desk.submit(1)
    desk.submit(2)
    assert decoding.wait(30)
    desk.runner.cancel(2)
    go.set()
    try:
        assert desk.until_final(2)[2][-1].final
    finally:
        later.set()
        desk.runner.close()
