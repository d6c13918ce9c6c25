"""The system starts no further thread, at any place where one is started: that call ends by name, and nothing half-made
stays behind."""

import asyncio
import threading
import time
from collections.abc import Callable, Collection

import pytest
from failures.failing_calls import Breaker, raising

from engine import Engine
from engine.agent.mcp import MCP
from engine.support import deadlines
from engine.support.errors import EngineError
from engine.support.offloop import off_loop_or_undo
from engine.testing.scripted import ScriptedEngine, call

NONE_LEFT = raising(RuntimeError("can't start new thread"))


def get_weather(city: str) -> str:
    """Get the weather.

    Args:
        city: The name of the city.
    """
    return f"rain in {city}"


def opened() -> Engine:
    return ScriptedEngine(lambda prompt: "fine" if "rain" in prompt or "Hello" in prompt else CALL, n_ctx=4096)


CALL = call("get_weather", city="Lima")
CALLS: dict[str, Callable[[Engine], object]] = {
    "chat": lambda llm: llm.chat("Hello", reasoning=False).content,
    "achat": lambda llm: asyncio.run(llm.achat("Hello", reasoning=False)).content,
    "run": lambda llm: llm.run("Weather?", [get_weather], reasoning=False, tool_timeout=20).completion.content,
    "arun": lambda llm: asyncio.run(llm.arun("Weather?", [get_weather], reasoning=False)).completion.content,
    "off_loop": lambda _llm: asyncio.run(off_loop_or_undo(lambda: "done", bool)),
}


def outcome(work: Callable[[Engine], object], llm: Engine) -> object:
    try:
        return work(llm)
    except EngineError as error:
        return error


def threads(before: Collection[threading.Thread]) -> int:
    """How many of the engine's threads have begun since and run, once those that end have had the time; that of
    deadlines stays."""
    until = time.monotonic() + 5
    while True:
        names = [each.name for each in threading.enumerate() if each not in before]
        count = sum(name.startswith("llama-engine") and name != "llama-engine-deadlines" for name in names)
        if count <= 1 or time.monotonic() > until:
            return count
        time.sleep(0.01)


@pytest.fixture
def breaker(monkeypatch: pytest.MonkeyPatch) -> Breaker:
    """Guards the start of every thread; nothing fails until its number is set."""
    breaker = Breaker(0)
    breaker.guard_method(monkeypatch, threading.Thread, "start", NONE_LEFT)
    monkeypatch.setattr(deadlines, "_clock", deadlines._Clock())  # pyright: ignore[reportPrivateUsage]
    return breaker


@pytest.mark.parametrize("name", CALLS)
def test_a_call_whose_thread_cannot_start(name: str, breaker: Breaker) -> None:
    before = threading.enumerate()  # an engine that another test left may be among them
    with opened() as llm:
        right = CALLS[name](llm)
        number = 0
        while True:
            number += 1
            breaker.number = breaker.calls + number
            reached = breaker.reached
            answer = outcome(CALLS[name], llm)
            breaker.number = 0
            assert answer == right or (isinstance(answer, EngineError) and "can't start new thread" in str(answer))
            assert CALLS[name](llm) == right
            if breaker.reached == reached:
                break
        assert threads(before) == 1


def test_an_engine_whose_thread_cannot_start(breaker: Breaker) -> None:
    before = threading.active_count()
    breaker.number = breaker.calls + 1
    with pytest.raises(EngineError, match=r"'llama-engine' cannot be started .*ulimit -u"):
        opened()
    assert threading.active_count() == before
    with opened() as llm:
        assert llm.chat("Hello", reasoning=False).content == "fine"


def test_a_deadline_whose_thread_cannot_start(breaker: Breaker) -> None:
    """It is not set; the next one is, and starts the thread."""
    done: list[str] = []
    both = threading.Event()
    breaker.number = breaker.calls + 1
    with pytest.raises(EngineError, match="'llama-engine-deadlines' cannot be started"):
        deadlines.call_later(0, lambda: done.append("first"))
    deadlines.call_later(0, lambda: (done.append("second"), both.set()))
    assert both.wait(20)
    assert done == ["second"]


def test_a_server_whose_thread_cannot_start(breaker: Breaker) -> None:
    pytest.importorskip("mcp")
    breaker.number = breaker.calls + 1
    with pytest.raises(EngineError, match="cannot be started"), MCP(["a-server-that-is-never-started"]):
        pass
