"""Limits, parallel calls, timeouts, approval and context of a run, from sync and from async code alike."""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from fakes.scripts import plain as engine
from fakes.scripts import said

from engine import AllowedTools, CallbackError, EngineError, RequestError, ToolCall, ToolContext, ToolName, as_tool
from engine.agent.run import Run, RunStream
from engine.testing import ScriptedEngine, call
from engine.tools import run as run_tool


async def both(replies: Sequence[str], tools: Sequence[Any], **options: Any) -> list[Run]:
    """The same run from sync code and from async code."""
    with engine(*replies) as llm:
        here = await asyncio.to_thread(lambda: llm.run("Go.", tools, **options))
    with engine(*replies) as llm:
        return [here, await llm.arun("Go.", tools, **options)]


def results(run: Run) -> list[str]:
    return [result.content for step in run.steps for result in step.results]


async def test_calls_run_at_once_up_to_the_limit() -> None:
    lock = threading.Lock()
    for most in (1, 3):
        running, peak = 0, 0

        def work(number: int) -> int:
            nonlocal running, peak
            with lock:
                running += 1
                peak = max(peak, running)
            time.sleep(0.03)
            with lock:
                running -= 1
            return number

        async def work_async(number: int) -> int:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(0.03)
            running -= 1
            return number

        for tool in (work, work_async):
            calls = [f'{tool.__name__} {{"number": {number}}}' for number in range(4)]
            for run in await both([said(*calls), "Done."], [tool], max_parallel_tools=most):
                assert results(run) == ["0", "1", "2", "3"]
                assert run.stopped == "stop"
            assert peak == most, f"{tool.__name__}: {peak} at once, asked for {most}"
            peak = 0


async def test_a_late_async_tool_is_cancelled_and_the_model_reads_that() -> None:
    ended: list[str] = []

    async def slow() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "never"

    for run in await both([said("slow", "slow"), "Sorry."], [slow], tool_timeout=0.05):
        assert results(run) == ["Error: the tool did not return within 0.05 seconds."] * 2
        assert all(result.error for result in run.steps[0].results)
        assert (run.stopped, run.running) == ("stop", ())
    assert ended == ["cancelled"] * 4


async def test_a_late_thread_is_told_so_and_named() -> None:
    go, told = threading.Event(), list[bool]()

    def slow(context: ToolContext[None]) -> str:
        assert go.wait(10)
        told.append(context.cancelled)
        return "late"

    runs = await both([said("slow"), "Sorry."], [slow], tool_timeout=0.05)
    go.set()
    for run in runs:
        assert results(run) == ["Error: the tool did not return within 0.05 seconds. It may still be running."]
        assert [call.name for call in run.running] == ["slow"]
    for _ in range(200):
        if len(told) == 2:
            break
        await asyncio.sleep(0.01)
    assert told == [True, True]


async def test_a_tool_that_returns_after_it_was_cancelled_is_late_all_the_same() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "late"
        return "never"

    for run in await both([said("stubborn"), "Sorry."], [stubborn], tool_timeout=0.05):
        assert results(run) == ["Error: the tool did not return within 0.05 seconds."]


async def test_a_call_within_its_time() -> None:
    for run in await both([said('add {"a": 1}'), "Done."], [lambda_free_add], tool_timeout=30.0):
        assert results(run) == ["Error: there is no tool 'add'. The tools are: lambda_free_add."]
    for run in await both([said('lambda_free_add {"a": 1}'), "Done."], [lambda_free_add], tool_timeout=30.0):
        assert results(run) == ["2"]


def lambda_free_add(a: int) -> int:
    return a + 1


async def test_the_token_budget_ends_the_run_before_the_next_turn() -> None:
    replies = [said('lambda_free_add {"a": 1}'), said('lambda_free_add {"a": 2}'), "Done."]
    first = (await both(replies, [lambda_free_add]))[0]
    used = [step.completion.usage.total_tokens for step in first.steps if step.completion.usage]
    for budget, turns, end in (
        (1, 1, "max_total_tokens"),
        (used[0], 1, "max_total_tokens"),
        (used[0] + 1, 2, "max_total_tokens"),
        (sum(used), 3, "stop"),
    ):
        for run in await both(replies, [lambda_free_add], max_total_tokens=budget):
            assert (len(run.steps), run.stopped) == (turns, end), budget
            assert run.transcript.total_tokens == sum(used[:turns])


async def test_stop_on_ends_the_run_once_the_tool_worked() -> None:
    def submit(text: str) -> str:
        if text == "bad":
            raise ValueError("try again")
        return f"got {text}"

    replies = [said('submit {"text": "bad"}'), said('submit {"text": "good"}'), "never"]
    for run in await both(replies, [submit], stop_on=["submit"]):
        assert (run.stopped, len(run.steps)) == ("stop_on", 2)
        assert results(run) == ["Error: ValueError: try again", "got good"]
    with engine() as llm, pytest.raises(RequestError, match=r"stop_on names 'sumbit'.*submit"):
        llm.run("Go.", [submit], stop_on=["sumbit"])


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("parallel", [None, 3])
async def test_approval(*, later: bool, parallel: int | None) -> None:
    made: list[int] = []
    asked: list[str] = []

    def pay(amount: int) -> str:
        made.append(amount)
        return f"paid {amount}"

    def decide(call: ToolCall) -> bool | str | dict[str, Any]:
        asked.append(call.arguments)
        return {1: True, 2: "too much", 3: {"amount": 30}, 4: False, 5: {"amount": "x"}}[call.parsed()["amount"]]

    async def decide_later(call: ToolCall) -> bool | str | dict[str, Any]:
        await asyncio.sleep(0)
        return decide(call)

    calls = [f'pay {{"amount": {amount}}}' for amount in range(1, 6)]
    replies = [said(*calls, 'pay {"sum": 1}'), "Done."]
    runs = await both(replies, [pay], approve=decide_later if later else decide, max_parallel_tools=parallel)
    for run in runs:
        paid, denied, edited, refused, unfit, never = results(run)
        assert (paid, edited) == ("paid 1", "paid 30")
        assert denied == "Error: the call was denied: too much"
        assert refused == "Error: the call was denied."
        assert unfit.startswith("Error: the arguments do not fit")
        assert never.startswith("Error: the arguments do not fit")
        written = [call.arguments for call in run.messages[1].tool_calls]
        assert written[0] == '{"amount": 1}'
        assert written[2] == '{"amount": 30}', "the history shows the arguments that gave the result"
        assert run.steps[0].completion.tool_calls[2].arguments == '{"amount": 3}', "the turn is what the model wrote"
    assert sorted(made) == [1, 1, 30, 30]
    assert asked == [f'{{"amount": {amount}}}' for amount in range(1, 6)] * 2, "in order, and never for a call at fault"


async def test_a_callback_that_fails_is_named() -> None:
    def broken(call: ToolCall) -> bool:
        raise KeyError("no such rule")

    def silent(call: ToolCall) -> Any:
        return None

    def odd(call: ToolCall) -> Any:
        return {"amount": float("nan")}

    for function, words in (
        (broken, "approve=.*broken raised KeyError: 'no such rule'"),
        (silent, "approve=.*silent returned None for the call of 'lambda_free_add'"),
        (odd, "approve=.*odd returned arguments that are not JSON"),
    ):
        for parallel in (None, 2):
            options: Any = {"approve": function, "max_parallel_tools": parallel}
            with engine(said('lambda_free_add {"a": 1}')) as llm:
                stream = llm.stream_run("Go.", [lambda_free_add], **options)
                with pytest.raises(CallbackError, match=words):
                    stream.result()
                assert (stream.run.stopped, results(stream.run)) == ("error", [])
            with engine(said('lambda_free_add {"a": 1}')) as llm, pytest.raises(CallbackError, match=words):
                await llm.arun("Go.", [lambda_free_add], **options)


class Database:
    name = "db"


async def test_context_is_given_to_tools_and_never_shown() -> None:
    seen: list[ToolContext[Database]] = []

    def look(key: str, context: ToolContext[Database]) -> str:
        """Looks.

        Args:
            key: What.
            context: Never shown.
        """
        seen.append(context)
        return f"{context.value.name}:{key}"

    async def look_async(context: ToolContext[Database] | None, key: str) -> str:
        assert context is not None
        return look(key, context)

    for tool in (look, look_async):
        assert list(as_tool(tool).parameters["properties"]) == ["key"]
        seen.clear()
        runs = await both([said(f'{tool.__name__} {{"key": "k"}}'), "Done."], [tool], context=Database())
        for run, context in zip(runs, seen, strict=True):
            assert results(run) == ["db:k"]
            assert context.call == run.steps[0].completion.tool_calls[0]
            assert (context.step, context.cancelled) == (0, False)
            assert context.messages == run.messages[:2]
        forged = said(f'{tool.__name__} {{"key": "k", "context": {{"value": 1}}}}')
        for run in await both([forged, "Done."], [tool], context=Database()):
            assert "'context' is not an argument of this tool" in results(run)[0]
    assert run_tool(as_tool(bare), '{"key": "k"}').content == "None k"


def bare(key: str, context: ToolContext[Any]) -> str:
    return f"{context.value} {key}"


def test_a_context_by_position_only_is_refused() -> None:
    def odd(context: ToolContext[Any], /) -> str:
        return ""

    with pytest.raises(RequestError, match="position only"):
        as_tool(odd)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_steps", 0),
        ("max_steps", True),
        ("max_parallel_tools", 0),
        ("max_parallel_tools", 1.5),
        ("max_total_tokens", -1),
        ("tool_timeout", 0),
        ("tool_timeout", float("nan")),
        ("tool_timeout", float("inf")),
        ("tool_timeout", "1"),
        ("stop_on", "lambda_free_add"),
        ("stop_on", [1]),
        ("approve", "yes"),
        ("save", 1),
        ("rerun", "no"),
        ("no_such_option", 1),
    ],
)
def test_options_are_refused_by_name(option: str, value: object) -> None:
    options: dict[str, Any] = {option: value}
    with engine() as llm, pytest.raises(RequestError, match=option):
        llm.run("Go.", [lambda_free_add], **options)


async def test_leaving_a_run_leaves_no_async_tool_and_names_the_threads() -> None:
    """Left at a random moment in eight ways, every async tool has ended, and a thread that has not is named."""
    go = threading.Event()
    running: set[str] = set()

    async def wait() -> str:
        running.add("async")
        try:
            await asyncio.sleep(60)
        finally:
            running.discard("async")
        return ""

    def block(context: ToolContext[None]) -> str:
        while not (context.cancelled or go.is_set()):
            time.sleep(0.002)
        return ""

    for moment in range(8):
        with engine(said("wait", "block"), "never") as llm:
            stream = llm.stream_run("Go.", [wait, block], max_parallel_tools=4)

            async def read(stream: Any = stream) -> None:
                await stream

            task = asyncio.create_task(read())
            await asyncio.sleep(0.01 * moment)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert running == set()
            for _ in range(500):
                if not stream.run.running:
                    break
                await asyncio.sleep(0.002)
            assert stream.run.running == (), "a tool that looks at `cancelled` comes back"
            assert stream.run.stopped == "cancelled"
    assert not [thread for thread in threading.enumerate() if thread.name == "llama-engine tool"]


def test_leaving_sync_code_early_ends_the_tools_too() -> None:
    running: set[str] = set()

    def quick() -> str:
        return "quick"

    async def wait() -> str:
        running.add("wait")
        try:
            await asyncio.sleep(60)
        finally:
            running.discard("wait")
        return ""

    with engine(said("quick", "wait"), "never") as llm:
        with llm.stream_run("Go.", [quick, wait], max_parallel_tools=2) as stream:
            for event in stream:
                if type(event).__name__ == "ToolResult":
                    break
        assert running == set()
        assert stream.run.stopped == "cancelled"
        assert [record.state for record in stream.run.transcript.calls] == ["done", "started"]


def test_no_further_call_begins_after_cancel() -> None:
    made: list[int] = []
    streams: list[RunStream] = []

    def stop(number: int) -> str:
        made.append(number)
        streams[-1].cancel()
        return "stopped"

    for parallel in (None, 2):
        made.clear()
        calls = [f'stop {{"number": {number}}}' for number in range(6)]
        with engine(said(*calls), "never") as llm:
            streams.append(llm.stream_run("Go.", [stop], max_parallel_tools=parallel))
            run = streams[-1].result()
        assert run.stopped == "cancelled"
        assert 1 <= len(made) <= (parallel or 1)
        assert len(results(run)) == len(made)
        assert [record.state for record in run.transcript.calls].count("waiting") == 6 - len(made)


def test_a_budget_needs_usage() -> None:
    from engine.agent.limits import RunOptions
    from engine.agent.run import stream_run
    from engine.types.events import Finished, ToolCallEnd, ToolCallStart, fold
    from engine.types.messages import Message

    events = [ToolCallStart(0, "id0", "lambda_free_add"), ToolCallEnd(0, '{"a": 1}'), Finished("tool_calls")]

    class Turn:
        completion = fold(events)

        def __iter__(self) -> Any:
            return iter(events)

        def cancel(self) -> None:
            pass

    turn: Any = Turn()
    ask = [Message(role="user", content="Go.")]
    stream = stream_run(lambda _: turn, ask, [as_tool(lambda_free_add)], RunOptions(max_total_tokens=100))
    with pytest.raises(EngineError, match="without usage"):
        stream.result()


@pytest.mark.parametrize("choice", ["required", ToolName(name="look_up"), AllowedTools(names=("look_up",))])
def test_a_run_with_a_demanded_call_answers_after_it(choice: Any) -> None:
    def look_up(word: str) -> str:
        """Look a word up."""
        return f"{word}: found"

    replies = [call("look_up", word="sky"), "It is found."]
    with ScriptedEngine(replies) as llm:
        run = llm.run("What is the sky?", tools=[look_up], tool_choice=choice)
    assert [len(step.completion.tool_calls) for step in run.steps] == [1, 0]
    assert run.completion.content == "It is found."


def test_a_demanded_call_is_one_call_unless_several_are_asked_for() -> None:
    def look_up(word: str) -> str:
        """Look a word up."""
        return word

    with ScriptedEngine(["{}"], rewrite=True) as llm:
        one = llm.explain("Hi", tools=[look_up], tool_choice="required").constraint
        many = llm.explain("Hi", tools=[look_up], tool_choice="required", parallel_tool_calls=True).constraint
    assert one is not None
    assert many is not None
    assert one.grammar != many.grammar
    with ScriptedEngine([[call("look_up", word="a"), call("look_up", word="b")]], rewrite=True) as llm:
        assert len(llm.chat("Hi", tools=[look_up], tool_choice="required").tool_calls) == 1
