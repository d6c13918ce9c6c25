"""The coroutine twins: each blocking method has one, an event loop goes on meanwhile, cancelling stops the work."""

import asyncio
import contextlib
import copy
import inspect
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fakes.scripts import plain as scripted

from engine import ChatTemplate, Engine, Stream, fold, off_loop
from engine.support.offloop import off_loop_or_undo

BLOCKING = {"chat", "run", "close", "load", "stream"}


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does; fails after a long time."""
    give_up = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.002)


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def parameters(function: Any) -> list[str]:
    return [name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind != 4]


@pytest.mark.parametrize("name", sorted(BLOCKING))
def test_a_blocking_method_has_a_twin_with_the_same_parameters(name: str) -> None:
    twin = getattr(Engine, f"a{name}")
    assert inspect.iscoroutinefunction(twin) or name == "stream"  # what it returns is a coroutine and a stream
    if name != "load":
        assert parameters(twin) == parameters(getattr(Engine, name))


async def test_the_twins_give_what_the_methods_give() -> None:
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    async with scripted("Hi.", *["Hello."] * 3, " time", call, "Three.") as llm:
        assert (await llm.achat("Hello")).content == "Hi."
        assert fold([event async for event in await llm.astream("Hello")]).content == "Hello."
        assert fold([event async for event in llm.astream("Hello")]).content == "Hello."
        assert fold([event async for event in llm.conversation().astream("Hello")]).content == "Hello."
        assert (await off_loop(llm.complete, "Once upon a")).content == " time"
        assert (await llm.arun("1 + 2?", [add])).completion.content == "Three."
    with pytest.raises(Exception, match="closed"):
        llm.chat("Hello")


async def test_an_engine_is_loaded_beside_the_loop_and_pins() -> None:
    async with await Engine.aload(n_sequences=2) as llm:
        with await off_loop(llm.pin, [{"role": "system", "content": "Be brief."}]) as prefix:
            assert prefix.tokens > 0


async def test_rendering_does_not_hold_the_loop_up(monkeypatch: pytest.MonkeyPatch) -> None:
    llm, threads = scripted("Hi.", "Hi."), set[int]()
    render = ChatTemplate.render

    def slow(self: ChatTemplate, *args: Any, **named: Any) -> Any:
        threads.add(threading.get_ident())
        return render(self, *args, **named)

    monkeypatch.setattr(ChatTemplate, "render", slow)
    with llm:
        await llm.achat("Hello")
        await llm.arun("Hello")
    assert threads
    assert threading.get_ident() not in threads


async def test_a_cancelled_task_stops_its_turn() -> None:
    async with scripted("".join(map(str, range(22_000))), n_ctx=200_000, delay=0.001) as llm:
        task = asyncio.create_task(llm.achat("Hello"))
        await until(lambda: llm.metrics.running == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: llm.metrics.running == 0)


BLOCKED: dict[str, Callable[[Engine], object]] = {
    "complete": lambda llm: llm.complete("Hello"),
    "generate": lambda llm: llm.generate(["Hello"] * 9, on_error="return"),
    "generate_iter": lambda llm: next(llm.generate_iter(["Hello"] * 9)),
    "stream": lambda llm: list(llm.stream("Hello")),
    "run": lambda llm: llm.run("Hello"),
}


@pytest.mark.parametrize("name", BLOCKED)
async def test_a_cancelled_task_ends_what_its_call_has_started(name: str) -> None:
    ended = threading.Event()

    def call(llm: Engine) -> None:
        with contextlib.suppress(Exception):
            BLOCKED[name](llm)
        ended.set()

    async with scripted(*["".join(map(str, range(22_000)))] * 9, n_ctx=200_000, delay=0.001) as llm:
        task = asyncio.create_task(off_loop(call, llm))
        await until(lambda: llm.metrics.running > 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: llm.metrics.running == 0)
        await until(ended.is_set)
        assert set(llm.metrics.finished) <= {"cancelled"}


async def test_rows_of_a_cancelled_call_are_not_begun() -> None:
    taken, ended = list[int](), threading.Event()

    def rows() -> Iterator[str]:
        for number in range(500):
            taken.append(number)
            yield "Hello"

    def call(llm: Engine) -> None:
        list(llm.generate_iter(rows()))
        ended.set()

    async with scripted(*["".join(map(str, range(22_000)))] * 500, n_ctx=200_000, delay=0.001) as llm:
        task = asyncio.create_task(off_loop(call, llm))
        await until(lambda: llm.metrics.running > 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(ended.is_set)
    assert len(taken) < 50


async def test_what_a_cancelled_call_still_starts_ends_at_once() -> None:
    rendering, may_go_on, streams = threading.Event(), threading.Event(), list[Stream]()

    def late(llm: Engine) -> None:
        rendering.set()
        may_go_on.wait()
        streams.append(llm.stream("Hello"))

    async with scripted("".join(map(str, range(22_000))), n_ctx=200_000, delay=0.001) as llm:
        task = asyncio.create_task(off_loop(late, llm))
        await asyncio.to_thread(rendering.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go_on.set()
        await until(lambda: bool(streams))
        assert (await streams[0]).finish_reason == "cancelled"


async def test_what_is_made_too_late_is_undone() -> None:
    began, may_end, undone = threading.Event(), threading.Event(), asyncio.Event()

    def work() -> str:
        began.set()
        may_end.wait()
        return "made"

    made: list[str] = []

    def undo(what: str) -> None:
        made.append(what)
        undone.set()

    task = asyncio.create_task(off_loop_or_undo(work, undo))
    await asyncio.to_thread(began.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_end.set()
    await asyncio.wait_for(undone.wait(), 20)
    assert made == ["made"]


async def test_an_error_of_late_work_is_dropped() -> None:
    began, may_end = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        may_end.wait()
        raise ValueError("late")

    task = asyncio.create_task(off_loop_or_undo(work, lambda _: None))
    await asyncio.to_thread(began.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    may_end.set()
    await asyncio.sleep(0.05)


async def test_a_starting_stream_is_a_coroutine() -> None:
    with scripted(*["Hello."] * 3) as llm:
        async with asyncio.TaskGroup() as group:  # takes coroutines only
            task = group.create_task(llm.astream("Hello"))
        assert (await task.result()).content == "Hello."
        first, second = await asyncio.gather(llm.astream("Hello"), asyncio.wait_for(llm.astream("Hello"), 30))
        assert (await first).content == (await second).content == "Hello."
        never = llm.astream("Hello")
        with pytest.warns(RuntimeWarning, match="never awaited"):
            del never


async def test_leaving_a_starting_stream_cancels_it() -> None:
    async with scripted(*["".join(map(str, range(22_000)))] * 2, n_ctx=200_000, delay=0.001) as llm:
        async for _ in llm.astream("Hello"):
            break
        await until(lambda: llm.metrics.finished == {"cancelled": 1})
        async with llm.astream("Hello") as stream:
            assert llm.metrics.running == 1
        assert stream.result().finish_reason == "cancelled"


def test_what_lives_in_this_process_is_not_copied() -> None:
    with scripted("Hello.") as llm:
        talk = llm.conversation()
        for held, way_out in (
            (llm, r"Engine\.load"),
            (talk, "fork"),
            (llm.stream_run("Hello"), "result"),
            (llm.stream("Hello"), "result"),
        ):
            for copying in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match=f"^{type(held).__name__} objects cannot be .*{way_out}"):
                    copying(held)
