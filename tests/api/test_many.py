"""Many conversations at once: order, errors of single rows, options of single rows, and how far an iterable is read."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fakes.inside import parts
from fakes.openai_clients import wait_until_idle

from engine import ChatTemplate, Completion, ContextOverflowError, Engine, EngineError, Message, RequestError, off_loop
from engine.runtime.loop.config import LoopOptions
from engine.testing.scripted import ByteVocab, ScriptedBackend


@pytest.fixture
def llm() -> Iterator[Engine]:
    vocab = ByteVocab(["<|im_start|>", "<|im_end|>"], end=["<|im_end|>"])
    template = ChatTemplate(None, family="qwen3", control_tokens=vocab.control_tokens)

    def echo(prompt: str) -> str:
        return "re: " + prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]

    with Engine.over(ScriptedBackend(echo, vocab=vocab, n_ctx=600, n_sequences=2), template) as engine:
        yield engine


LONG = "x" * 900


def test_an_error_stands_in_its_rows_place(llm: Engine) -> None:
    rows: list[Any] = ["one", LONG, [], "four"]
    answers = llm.generate(rows, on_error="return")
    assert [type(answer) for answer in answers] == [Completion, ContextOverflowError, RequestError, Completion]
    assert "row 1" in str(getattr(answers[1], "__notes__", ""))
    assert [answer.content for answer in answers if isinstance(answer, Completion)] == ["re: one", "re: four"]


def test_an_error_is_raised_with_its_row(llm: Engine) -> None:
    with pytest.raises(ContextOverflowError) as caught:
        llm.generate(["one", LONG, "three"])
    assert "This was row 1" in caught.value.__notes__[0]
    assert llm.generate(["again"])[0].content == "re: again"
    assert llm.metrics.running == 0


def test_a_row_brings_its_own_options(llm: Engine) -> None:
    answers = llm.generate(["abcdef", ("abcdef", {"max_tokens": 4})], max_tokens=6)
    assert [answer.usage and answer.usage.completion_tokens for answer in answers] == [6, 4]


@pytest.mark.parametrize(
    "rows",
    [
        "one prompt",
        {"role": "user", "content": "x"},
        [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
        [Message(role="user", content="x")],
        7,
    ],
)
def test_one_conversation_in_place_of_many_is_refused(llm: Engine, rows: Any) -> None:
    with pytest.raises(RequestError, match="conversations"):
        llm.generate(rows)
    with pytest.raises(RequestError, match="on_error"):
        llm.generate(["x"], on_error="ignore")  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_rows_are_taken_as_there_is_room(llm: Engine) -> None:
    taken: list[int] = []

    def rows() -> Iterator[str]:
        for number in range(50):
            taken.append(number)
            yield f"row {number}"

    seen: dict[int, str] = {}
    for number, answer in llm.generate_iter(rows()):
        assert isinstance(answer, Completion)
        seen[number] = answer.content
        assert len(taken) - len(seen) <= 4
    assert seen == {number: f"re: row {number}" for number in range(50)}


def test_errors_come_as_rows_too(llm: Engine) -> None:
    found = dict(llm.generate_iter(["one", LONG, "three"]))
    assert [isinstance(found[number], EngineError) for number in range(3)] == [False, True, False]


def test_leaving_the_loop_cancels_what_runs(llm: Engine) -> None:
    before = threading.active_count()
    for _ in llm.generate_iter(f"row {number}" for number in range(1000)):
        break
    assert llm.chat("after").content == "re: after"
    assert llm.metrics.running == 0
    assert threading.active_count() <= before + 1


def test_leaving_while_turns_begin_cancels_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last turn's start ends after the loop was left."""
    backend = ScriptedBackend(lambda _: "x" * 4000, vocab=ByteVocab(["<|im_start|>"]), delay=0.02)
    llm = Engine.over(backend, ChatTemplate(None, family="qwen3"))
    start, begun, may_go = parts(llm).turns.start, threading.Event(), threading.Event()  # pyright: ignore[reportPrivateUsage]

    def slow(messages: Any, *given: Any, **options: Any) -> Any:
        if messages == "slow":
            begun.set()
            assert may_go.wait(20)
        return start(messages, *given, **options)

    monkeypatch.setattr(parts(llm).turns, "start", slow)  # pyright: ignore[reportPrivateUsage]

    async def leave() -> None:
        reading = asyncio.create_task(off_loop(next, llm.generate_iter(["slow"])))
        assert await asyncio.to_thread(begun.wait, 20)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        may_go.set()

    began = time.monotonic()
    asyncio.run(leave())
    while llm.metrics.running and time.monotonic() < began + 20:
        time.sleep(0.01)
    assert time.monotonic() - began < 20, "an answer would take 80 seconds"
    llm.close()


@pytest.mark.parametrize("max_waiting", [0, 1])
def test_rows_fill_no_queue(max_waiting: int) -> None:
    """However short the engine's queue is, its own rows never overflow it."""
    options = LoopOptions(max_waiting=max_waiting)
    backend = ScriptedBackend(lambda _: "yes", vocab=ByteVocab(["<|im_start|>"]), n_sequences=3, delay=0.001)
    with Engine.over(backend, ChatTemplate(None, family="qwen3"), options=options) as llm:
        rows = [f"row {number}" for number in range(30)]
        answers = [*llm.generate(rows), *(answer for _, answer in llm.generate_iter(rows))]
    assert {type(answer) for answer in answers} == {Completion}


def test_in_an_event_loop(llm: Engine) -> None:
    answers = asyncio.run(llm.agenerate(["one", LONG], on_error="return"))
    assert [type(answer) for answer in answers] == [Completion, ContextOverflowError]


def test_a_cancelled_task_cancels_its_rows(llm: Engine) -> None:
    async def cancelled() -> None:
        task = asyncio.create_task(llm.agenerate([f"row {number}" for number in range(500)]))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert llm.chat("after").content == "re: after"
    wait_until_idle(llm)  # a row that began just then is cancelled a step later
    assert sum(llm.metrics.finished.values()) < 500
