"""Tools that yield their results: read where they stop nobody, and no longer than their time."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest

from engine import Engine, Run
from engine.testing import ScriptedEngine, call


def lines(count: int) -> Generator[str]:
    """Read lines."""
    for number in range(count):
        yield f"line {number}"


async def later(count: int) -> AsyncGenerator[str]:
    """Read lines that come later."""
    for number in range(count):
        await asyncio.sleep(0)
        yield f"line {number}"


async def given(count: int) -> Generator[str]:
    """Return what yields lines."""
    await asyncio.sleep(0)
    return lines(count)


DOORS: dict[str, Callable[[Engine, Any], Run[Any]]] = {
    "run": lambda llm, tool: llm.run("x", [tool]),
    "run in time": lambda llm, tool: llm.run("x", [tool], tool_timeout=30),
    "arun": lambda llm, tool: asyncio.run(llm.arun("x", [tool])),
    "arun in time": lambda llm, tool: asyncio.run(llm.arun("x", [tool], tool_timeout=30)),
}


@pytest.mark.parametrize("tool", [lines, later, given])
@pytest.mark.parametrize("door", DOORS)
def test_what_a_tool_yields_is_its_result(door: str, tool: Any) -> None:
    with ScriptedEngine([call(tool.__name__, count=2), "Done."]) as llm:
        run = DOORS[door](llm, tool)
    assert [result.content for result in run.steps[0].results] == ['["line 0", "line 1"]']


class Endless:
    """A tool that yields for ever, and notes that it was ended."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def read(self) -> Generator[str]:
        """Read lines without an end."""
        try:
            while True:
                time.sleep(0.001)
                yield "line"
        finally:
            self.ended.set()

    async def read_later(self) -> AsyncGenerator[str]:
        """Read lines without an end."""
        try:
            while True:
                await asyncio.sleep(0.001)
                yield "line"
        finally:
            self.ended.set()


@pytest.mark.parametrize("name", ["read", "read_later"])
@pytest.mark.parametrize("door", ["run", "arun"])
def test_one_that_never_ends_has_its_time(door: str, name: str) -> None:
    tool = Endless()
    with ScriptedEngine([call(name), "Done."]) as llm:
        began = time.monotonic()
        if door == "run":
            run = llm.run("x", [getattr(tool, name)], tool_timeout=0.2)
        else:
            run = asyncio.run(llm.arun("x", [getattr(tool, name)], tool_timeout=0.2))
        assert time.monotonic() - began < 10
    assert "did not return within 0.2 seconds" in run.steps[0].results[0].content
    assert tool.ended.wait(5), "it goes on"


async def test_the_event_loop_goes_on_beside_one() -> None:
    tool, beats = Endless(), 0
    with ScriptedEngine([call("read"), "Done."]) as llm:
        task = asyncio.create_task(llm.arun("x", [tool.read], tool_timeout=0.5))
        while not task.done():
            await asyncio.sleep(0.01)
            beats += 1
        await task
    assert beats > 10
