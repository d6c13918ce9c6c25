"""A callback in the engine's own thread that asks that engine raises where it would wait for itself; others go on."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import Engine
from engine.support.errors import EngineError

ASKS: dict[str, Callable[[Any], object]] = {
    "chat": lambda llm: llm.chat("y"),
    "stream": lambda llm: list(llm.stream("y")),
    "result": lambda llm: llm.stream("y").result(1),
    "generate": lambda llm: llm.generate(["y"]),
    "complete": lambda llm: llm.complete("y"),
    "pin": lambda llm: llm.pin("y"),
    "embed": lambda llm: llm.embed(["y"]),
    "score": lambda llm: llm.score("y", ["z"]),
}


@pytest.fixture(params=[False, True], ids=["here", "isolated"])
def llm(request: pytest.FixtureRequest, builtin_model_path: Path) -> Engine:
    return Engine.load(builtin_model_path, n_ctx=512, n_sequences=2, n_threads=1, isolated=request.param)


def within(seconds: float, call: Callable[[], object]) -> object:
    """What the call returns, in a thread of its own: a hang is a failure, not a hang of the tests."""
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert found, "it hangs"
    return found[0]


@pytest.mark.parametrize("ask", ASKS)
def test_progress_may_not_ask(llm: Engine, ask: str) -> None:
    told: list[BaseException] = []

    def progress(done: int, total: int) -> bool:
        try:
            ASKS[ask](llm)
        except BaseException as error:
            told.append(error)
            raise
        return done <= total

    def chat() -> object:
        try:
            return llm.chat("Hello! " * 20, max_tokens=3, progress=progress)
        except EngineError as error:
            return error

    assert isinstance(within(30, chat), EngineError)
    assert isinstance(told[0], EngineError)
    assert within(30, lambda: llm.chat("Hi", max_tokens=3).content) is not None
    within(30, lambda: [llm.close()])


def test_a_processor_may_not_ask(builtin_model_path: Path) -> None:
    llm = Engine.load(builtin_model_path, n_ctx=512, n_sequences=2, n_threads=1)

    def processor(_: object, logits: Any) -> Any:
        llm.chat("y")
        return logits

    def chat() -> object:
        try:
            return llm.chat("Hello!", max_tokens=3, logits_processors=[processor])
        except Exception as error:  # noqa: BLE001 - looked at below
            return error

    error = within(30, chat)
    assert "wait for itself" in str(error)
    assert within(30, lambda: llm.chat("Hi", max_tokens=3).content) is not None
    within(30, lambda: [llm.close()])
