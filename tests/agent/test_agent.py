"""The agent loop, over generations written in advance."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from engine.agent.limits import RunOptions
from engine.agent.run import Run, RunStream, stream_run
from engine.support.errors import ContextOverflowError, DecodeError, RequestError
from engine.tools import ToolLike, as_tools
from engine.types.completion import Completion
from engine.types.events import (
    ContentDelta,
    Event,
    Finished,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
    fold,
)
from engine.types.messages import Message
from engine.types.parts import CallError
from engine.types.sampling import FinishReason


class ScriptedTurn:
    """A generation whose events are known; `cancel` ends it before its next event."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.events = events
        self.given: list[Event] = []
        self.cancelled = False

    def __iter__(self) -> Iterator[Event]:
        for event in self.events:
            if self.cancelled:
                event = Finished("cancelled")
            self.given.append(event)
            yield event
            if isinstance(event, Finished):
                return

    async def __aiter__(self) -> AsyncIterator[Event]:
        for event in self:
            await asyncio.sleep(0)
            yield event

    def cancel(self) -> None:
        self.cancelled = True

    @property
    def completion(self) -> Completion:
        return fold(self.given)


class Script:
    """A `Generate` that gives the turns in order and keeps what it was asked."""

    def __init__(self, *turns: Sequence[Event] | Exception) -> None:
        self.turns = list(turns)
        self.asked: list[Sequence[Message]] = []
        self.given: list[ScriptedTurn] = []

    def __call__(self, messages: Sequence[Message]) -> ScriptedTurn:
        self.asked.append(messages)
        turn = self.turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        self.given.append(ScriptedTurn(turn))
        return self.given[-1]


def call(index: int, name: str, arguments: str, error: CallError | None = None, part: int | None = None) -> list[Event]:
    part = index if part is None else part
    return [
        ToolCallStart(index, f"id{index}", name, part),
        ToolCallDelta(index, arguments, part),
        ToolCallEnd(index, arguments, error, part),
    ]


def turn(*parts: list[Event], reason: FinishReason = "tool_calls") -> list[Event]:
    return [event for part in parts for event in part] + [Finished(reason)]


def answer(text: str = "Done.") -> list[Event]:
    return [ContentDelta(text), Finished("stop")]


ASK = [Message(role="user", content="Do it.")]


def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


def fail() -> None:
    raise ValueError("no luck")


LOOKUP = {
    "name": "lookup",
    "parameters": {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]},
}


def start(script: Script, tools: Sequence[ToolLike] = (add,), max_steps: int = 8) -> RunStream:
    return stream_run(script, ASK, as_tools(tools), RunOptions(max_steps))


def results(run: Run) -> list[str]:
    return [result.content for step in run.steps for result in step.results]


def test_call_result_answer() -> None:
    reasoning: list[Event] = [ReasoningDelta("Add them.")]
    script = Script(turn(reasoning, call(0, "add", '{"a": 1, "b": 2}', part=1)), answer("It is 3."))
    stream = start(script)
    events = list(stream)
    run = stream.run
    assert [event.step for event in events] == [0, 0, 0, 0, 0, 0, 1, 1]
    assert events[5] == ToolResult(0, "id0", "3", part=1, step=0, name="add")
    assert run.stopped == "stop"
    assert run.completion.content == "It is 3."
    assert [message.role for message in run.messages] == ["user", "assistant", "tool", "assistant"]
    assert run.messages[1].reasoning == "Add them."
    assert run.messages[2] == Message(role="tool", tool_call_id="id0", name="add", content="3")
    assert script.asked[1] == run.messages[:3]
    assert [len(step.results) for step in run.steps] == [1, 0]
    assert run.pending == ()


def test_several_calls_run_in_order() -> None:
    order: list[str] = []

    def note(text: str) -> str:
        order.append(text)
        return text

    calls = [call(0, "note", '{"text": "first"}'), call(1, "note", '{"text": "second"}')]
    run = start(Script(turn(*calls), answer()), [note]).result()
    assert order == results(run) == ["first", "second"]


@pytest.mark.parametrize(
    ("name", "arguments", "error", "words"),
    [
        ("subtract", "{}", "unknown_tool", "there is no tool 'subtract'. The tools are: add, lookup."),
        ("subtract", "{}", None, "there is no tool 'subtract'"),
        ("add", '{"a": 1', "truncated", "cut off"),
        ("add", "{a: 1}", "malformed", "not valid JSON"),
        ("add", '{"a": 1}', "invalid_arguments", "'b' is missing"),
        ("add", '{"a": "x", "b": 1}', None, "'a': Input should be a valid integer"),
        ("lookup", '{"key": 1}', "invalid_arguments", "'key': 1 is not of type 'string'"),
        ("lookup", '{"key', "truncated", "cut off"),
    ],
)
def test_the_models_mistakes_are_told_to_it(name: str, arguments: str, error: CallError | None, words: str) -> None:
    script = Script(turn(call(0, name, arguments, error)), answer())
    run = start(script, [add, LOOKUP]).result()
    assert run.stopped == "stop"
    (told,) = results(run)
    assert told.startswith("Error: ")
    assert words in told
    assert run.steps[0].results[0].error
    assert script.asked[1][-1].content == told


def test_a_tool_that_raises() -> None:
    run = start(Script(turn(call(0, "fail", "{}")), answer()), [fail]).result()
    assert results(run) == ["Error: ValueError: no luck"]


def test_max_steps() -> None:
    turns = [turn(call(0, "add", f'{{"a": {n}, "b": 0}}')) for n in range(3)]
    run = start(Script(*turns), max_steps=2).result()
    assert run.stopped == "max_steps"
    assert results(run) == ["0", "1"]
    assert run.completion.tool_calls[0].arguments == '{"a": 1, "b": 0}'
    assert run.messages[-1].role == "tool"
    with pytest.raises(RequestError, match="at least 1"):
        start(Script(), max_steps=0)


def test_calls_without_a_function_go_to_the_caller() -> None:
    calls = [call(0, "lookup", '{"key": "k"}'), call(1, "add", '{"a": 1, "b": 1}')]
    run = start(Script(turn(*calls)), [add, LOOKUP]).result()
    assert run.stopped == "pending"
    assert [item.id for item in run.pending] == ["id0"]
    assert results(run) == ["2"]
    assert [message.tool_call_id for message in run.messages] == [None, None, "id1"]


@pytest.mark.parametrize("reason", ["length", "cancelled", "deadline", "error"])
def test_the_turns_own_end_is_the_runs(reason: FinishReason) -> None:
    run = start(Script([ContentDelta("I am"), Finished(reason)])).result()
    assert run.stopped == reason
    assert run.completion.content == "I am"


def test_calls_of_a_cancelled_turn_are_not_run() -> None:
    run = start(Script(turn(call(0, "add", '{"a": 1, "b": 1}'), reason="cancelled"))).result()
    assert (run.stopped, results(run)) == ("cancelled", [])


def test_a_call_before_the_token_limit_is_run() -> None:
    run = start(Script(turn(call(0, "add", '{"a": 1, "b": 1}'), reason="length"), answer())).result()
    assert (run.stopped, results(run)) == ("stop", ["2"])


def test_leaving_a_loop_early_cancels() -> None:
    script = Script(answer("one two"))
    for _ in start(script):
        break
    assert script.given[0].cancelled


def test_leaving_a_with_early_cancels() -> None:
    script = Script(answer("one two"))
    with start(script) as stream:
        next(iter(stream))
        assert not script.given[0].cancelled
    assert script.given[0].cancelled
    assert stream.run.stopped == "cancelled"
    assert stream.run.completion == Completion(finish_reason="cancelled")
    with start(script):
        pass


def test_cancel_lets_the_turn_end() -> None:
    stream = start(Script([ContentDelta("a"), ContentDelta("b"), ContentDelta("c"), Finished("stop")]))
    for event in stream:
        if event == ContentDelta("a"):
            stream.cancel()
    assert (stream.run.stopped, stream.run.completion.content) == ("cancelled", "a")


def test_cancel_during_a_tool_ends_the_run_after_it() -> None:
    def stop() -> str:
        stream.cancel()
        return "stopped"

    stream = start(Script(turn(call(0, "stop", "{}")), answer()), [stop])
    run = stream.result()
    assert (run.stopped, results(run)) == ("cancelled", ["stopped"])


def test_cancel_while_a_generation_begins() -> None:
    script = Script(answer())

    def generate(messages: Sequence[Message]) -> ScriptedTurn:
        stream.cancel()
        return script(messages)

    stream = stream_run(generate, ASK, ())
    assert stream.result().stopped == "cancelled"


def test_iteration_goes_on_where_it_was() -> None:
    stream = start(Script(turn(call(0, "add", '{"a": 1, "b": 1}')), answer()))
    first = [next(iter(stream)), next(iter(stream))]
    rest = list(stream)
    assert len(first) + len(rest) == 7
    assert stream.result() == stream.run


async def test_one_kind_of_iteration_at_a_time() -> None:
    stream = start(Script(answer()))
    next(iter(stream))
    with pytest.raises(RequestError, match="with `for`"):
        await stream
    other = start(Script(answer()))
    await anext(aiter(other))
    with pytest.raises(RequestError, match="with `async for`"):
        other.result()


def test_an_error_of_the_engine_is_raised_and_the_run_so_far_kept() -> None:
    script = Script(turn(call(0, "add", '{"a": 1, "b": 1}')), DecodeError("no luck"))
    stream = start(script)
    with pytest.raises(DecodeError):
        stream.result()
    assert stream.run.stopped == "error"
    assert results(stream.run) == ["2"]


async def test_a_conversation_that_outgrows_the_context_ends_the_run() -> None:
    for wait in (False, True):
        script = Script(turn(call(0, "add", '{"a": 1, "b": 1}')), ContextOverflowError("too long"))
        stream = start(script)
        run = await stream if wait else stream.result()
        assert run.stopped == "overflow"
        assert results(run) == ["2"]
        assert [message.role for message in run.messages] == ["user", "assistant", "tool"]
        with pytest.raises(ContextOverflowError):
            start(Script(ContextOverflowError("too long"))).result()


async def test_a_turn_that_finds_out_later_that_it_does_not_fit() -> None:
    """After another turn that ends the run; the first turn of all is an error."""

    class Full(ScriptedTurn):
        @property
        def completion(self) -> Completion:
            raise ContextOverflowError("too long")

    for wait in (False, True):
        turns = [ScriptedTurn(turn(call(0, "add", '{"a": 1, "b": 1}'))), Full(answer()), Full(answer())]
        first, full, alone = turns
        stream = stream_run(lambda _messages, turns=turns: turns.pop(0), ASK, as_tools((add,)))
        run = await stream if wait else stream.result()
        assert (run.stopped, results(run), full.cancelled, first.cancelled) == ("overflow", ["2"], True, True)
        stream = stream_run(lambda _messages, turns=turns: turns.pop(0), ASK, ())
        with pytest.raises(ContextOverflowError):
            await stream if wait else stream.result()
        assert (stream.run.stopped, alone.cancelled) == ("error", True)


async def test_async_for_and_await() -> None:
    turns = [turn(call(0, "add", '{"a": 1, "b": 2}')), answer("It is 3.")]
    events = [event async for event in start(Script(*turns))]
    stream = start(Script(*turns))
    assert events == list(start(Script(*turns)))
    run = await stream
    assert run == start(Script(*turns)).result()
    assert run.completion.content == "It is 3."


async def test_async_tools_of_one_turn_run_at_once() -> None:
    both = asyncio.Barrier(2)

    async def meet(name: str) -> str:
        await asyncio.wait_for(both.wait(), 5)
        return name

    calls = [call(0, "meet", '{"name": "a"}'), call(1, "meet", '{"name": "b"}'), call(2, "missing", "{}")]
    run = await start(Script(turn(*calls), answer()), [meet])
    assert results(run) == ["a", "b", "Error: there is no tool 'missing'. The tools are: meet."]


async def test_sync_tools_leave_the_event_loop_free_and_one_another_alone() -> None:
    running: list[int] = []
    most = 0
    begun = asyncio.Event()
    here = asyncio.get_running_loop()
    go = threading.Event()

    def slow(number: int) -> int:
        nonlocal most
        running.append(number)
        here.call_soon_threadsafe(begun.set)
        most = max(most, len(running))
        assert go.wait(5)
        time.sleep(0.005)  # long enough for a neighbour to be seen, were there one
        running.remove(number)
        return number

    calls = [call(number, "slow", f'{{"number": {number}}}') for number in range(2)]
    task = asyncio.ensure_future(_finish(start(Script(turn(*calls), answer()), [slow])))
    await asyncio.wait_for(begun.wait(), 5)
    go.set()
    run = await task
    assert (results(run), most) == (["0", "1"], 1)


async def _finish(stream: RunStream) -> Run:
    return await stream


async def test_leaving_async_early_cancels_generation_and_tools() -> None:
    script = Script(answer("one two"))
    async with start(script) as stream:
        async for _ in stream:
            break
    assert script.given[0].cancelled
    assert stream.run.stopped == "cancelled"
    async with start(script):
        pass

    ended: list[str] = []

    async def quick() -> str:
        return "quick"

    async def endless() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "never"

    script = Script(turn(call(0, "quick", "{}"), call(1, "endless", "{}")))
    async with start(script, [quick, endless]) as stream:
        async for event in stream:
            if isinstance(event, ToolResult):
                break
    await asyncio.sleep(0)
    assert ended == ["cancelled"]


async def test_breaking_out_of_async_for_cancels() -> None:
    script = Script(answer("one two"))
    async for _ in start(script):
        break
    for _ in range(5):
        await asyncio.sleep(0)
    assert script.given[0].cancelled


def test_async_tools_from_sync_code() -> None:
    async def later(text: str) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"text": text}

    run = start(Script(turn(call(0, "later", '{"text": "x"}')), answer()), [later]).result()
    assert results(run) == ['{"text": "x"}']
