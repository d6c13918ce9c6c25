"""engine.remote.Remote: turns and the agent loop over a scripted server."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from fakes.server_streams import Json, call, chunk, sse, stream

from engine import remote
from engine.agent.agent import Agent
from engine.agent.run import stream_run
from engine.support.errors import RemoteError, RequestError
from engine.types.events import ContentDelta, Finished, ReasoningDelta, ToolCallEnd, ToolResult
from engine.types.messages import Message
from engine.types.parts import TextPart, ToolCall

USAGE: Json = {"id": "chatcmpl-7", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
ANSWER = [*stream({"reasoning_content": "Easy."}, {"content": "Sunny."}), USAGE]
CALL = stream(
    {"reasoning_content": "I must look."},
    call(0, "", "get_weather", "call_1"),
    call(0, '{"city": '),
    call(0, '"Paris"}'),
    finish="tool_calls",
)


def get_weather(city: str) -> str:
    """The weather."""
    return f"sunny in {city}"


class Server:
    """Answers one stream after the other and keeps what it was asked; as lines, as a server sends them."""

    def __init__(self, *streams: list[Json]) -> None:
        self.streams = list(streams)
        self.bodies: list[Json] = []
        self.closed = 0

    def send(self, body: dict[str, Any]) -> Iterator[str]:
        self.bodies.append(json.loads(json.dumps(body)))
        try:
            yield from sse(self.streams[len(self.bodies) - 1]).split("\n")
        finally:
            self.closed += 1

    async def stream(self, body: dict[str, Any]) -> AsyncIterator[str]:
        for line in self.send(body):
            yield line

    async def create(self, body: dict[str, Any]) -> AsyncIterator[str]:
        """As an async client does it: the stream is awaited first."""
        return self.stream(body)


def test_a_turn() -> None:
    server = Server(ANSWER)
    llm = remote.Remote(server.send, model="some-model", temperature=0.5)
    turn = llm.stream("Weather?", temperature=0.25)
    assert server.bodies == []
    found = turn.result()
    assert (found.reasoning, found.content, found.finish_reason) == ("Easy.", "Sunny.", "stop")
    assert found.usage
    assert found.usage.prompt_tokens == 5
    assert turn.malformed == 0
    (body,) = server.bodies
    assert (body["model"], body["temperature"]) == ("some-model", 0.25)
    assert body == turn.body


def test_chat_is_the_turn_whole() -> None:
    assert remote.Remote(Server(ANSWER).send).chat("Weather?").content == "Sunny."


def test_the_agent_loop_runs_tools_and_feeds_reasoning_back() -> None:
    server = Server(CALL, ANSWER)
    run = remote.Remote(server.send).run("Weather in Paris?", [get_weather])
    assert (run.stopped, run.completion.content, len(run.steps)) == ("stop", "Sunny.", 2)
    first, second = server.bodies
    assert first["tools"] == second["tools"]
    assert first["messages"] == [{"role": "user", "content": "Weather in Paris?"}]
    assert second["messages"][1:] == [
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "I must look.",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'},
                }
            ],
        },
        {"role": "tool", "content": "sunny in Paris", "tool_call_id": "call_1"},
    ]
    assert run.messages[-1].parts[-1] == TextPart(text="Sunny.")


def test_the_loop_s_events_carry_their_step() -> None:
    events = list(remote.Remote(Server(CALL, ANSWER).send).stream_run("Weather?", [get_weather]))
    assert ToolResult(0, "call_1", "sunny in Paris", part=1, name="get_weather") in events
    assert [event for event in events if event.step == 1][:2] == [
        ReasoningDelta("Easy.", 0, 1),
        ContentDelta("Sunny.", 1, 1),
    ]


def test_an_agent_written_for_the_engine_takes_a_remote_turn() -> None:
    """The loop's own protocol, without `Remote.run`."""
    llm = remote.Remote(Server(CALL, ANSWER).send)
    run = stream_run(lambda history: llm.stream(history), [Message(role="user", content="Weather?")], ()).result()
    assert run.stopped == "stop"
    assert run.steps[0].results[0].error
    assert "there is no tool 'get_weather'" in run.steps[0].results[0].content


@pytest.mark.parametrize("transport", ["stream", "create"])
async def test_the_agent_loop_from_async_code(transport: str) -> None:
    server = Server(CALL, ANSWER)
    run = await remote.Remote(getattr(server, transport)).stream_run("Weather?", [get_weather])
    assert (run.stopped, run.completion.content) == ("stop", "Sunny.")
    assert server.bodies[1]["messages"][-1]["content"] == "sunny in Paris"


async def test_an_async_turn() -> None:
    server = Server(ANSWER, ANSWER)
    llm = remote.Remote(server.create)
    assert (await llm.stream("Weather?")).content == "Sunny."
    async with llm.stream("Weather?") as turn:
        assert await anext(aiter(turn)) == ReasoningDelta("Easy.", 0)
    assert turn.completion.finish_reason == "cancelled"
    assert turn.completion.reasoning == "Easy."


def test_leaving_a_turn_early_closes_the_stream() -> None:
    server = Server(ANSWER)
    with remote.Remote(server.send).stream("Weather?") as turn:
        assert next(iter(turn)) == ReasoningDelta("Easy.", 0)
        assert server.closed == 0
    assert server.closed == 1
    assert (turn.completion.reasoning, turn.completion.finish_reason) == ("Easy.", "cancelled")


def test_cancelling_a_turn() -> None:
    server = Server(CALL, ANSWER)
    turn = remote.Remote(server.send).stream("Weather?", [get_weather])
    events = iter(turn)
    assert next(events) == ReasoningDelta("I must look.", 0)
    turn.cancel()
    assert list(events) == [Finished("cancelled")]
    assert server.closed == 1
    unsent = remote.Remote(server.send).stream("Weather?")
    unsent.cancel()
    assert unsent.result().finish_reason == "cancelled"
    assert len(server.bodies) == 1


async def test_an_async_turn_cancelled_before_it_is_sent() -> None:
    server = Server(ANSWER)
    turn = remote.Remote(server.create).stream("Weather?")
    turn.cancel()
    assert (await turn).finish_reason == "cancelled"
    assert server.bodies == []


def test_the_loop_s_own_options_and_agents_hold_for_a_server_too() -> None:
    asked: list[str] = []

    def approve(call: ToolCall) -> str:
        asked.append(call.name)
        return "not today"

    agent = Agent(instructions="Be brief.", tools=[get_weather], approve=approve)
    server = Server(CALL, ANSWER)
    run = agent.run(remote.Remote(server.send), "Weather?", max_steps=1)
    assert (run.stopped, asked) == ("max_steps", ["get_weather"])
    assert run.steps[0].results[0].content == "Error: the call was denied: not today"
    assert server.bodies[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "approve" not in server.bodies[0]
    again = agent.run(remote.Remote(server.send), run.transcript, max_steps=2)
    assert (again.stopped, again.completion.content) == ("stop", "Sunny.")


def test_cancelling_a_run_ends_it() -> None:
    server = Server(CALL, ANSWER)
    run = remote.Remote(server.send).stream_run("Weather?", [get_weather])
    for event in run:
        if isinstance(event, ReasoningDelta):
            run.cancel()
    assert (run.run.stopped, len(server.bodies)) == ("cancelled", 1)


def test_an_error_of_the_server_ends_the_run() -> None:
    server = Server([chunk({"content": "Su"}), {"error": {"code": 503, "message": "Loading model"}}])
    run = remote.Remote(server.send).stream_run("Weather?")
    assert next(iter(run)) == ContentDelta("Su", 0)
    with pytest.raises(RemoteError, match=r"\(503\): Loading model\."):
        run.result()
    assert run.run.stopped == "error"
    assert server.closed == 1


def test_calls_are_judged_by_the_tools_of_the_turn() -> None:
    wrong = stream(call(0, '{"town": "Paris"}', "get_weather", "a"), finish="tool_calls")
    events = list(remote.Remote(Server(wrong).send).stream("Weather?", [get_weather]))
    assert ToolCallEnd(0, '{"town": "Paris"}', "invalid_arguments", 0) in events


def test_a_server_that_parses_nothing() -> None:
    raw = stream(
        {"content": 'Hm.</think>\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "X"}}\n</tool_call>'}
    )
    llm = remote.Remote(Server(raw, ANSWER).send, family="qwen3", in_reasoning=True)
    run = llm.run("Weather?", [get_weather])
    assert [step.completion.reasoning for step in run.steps] == ["Hm.", "Easy."]
    assert run.steps[0].results[0].content == "sunny in X"


def test_a_turn_has_one_reader_of_the_transport_s_kind() -> None:
    server = Server(ANSWER)
    with pytest.raises(RequestError, match="transport is async"):
        remote.Remote(server.create).chat("Weather?")
    with pytest.raises(RequestError, match="transport is async"):
        remote.Remote(server.stream).chat("Weather?")
    turn = remote.Remote(server.send).stream("Weather?")
    assert iter(turn) is iter(turn)
    with pytest.raises(RequestError, match="read with `for`"):
        aiter(turn)
    other = remote.Remote(server.create).stream("Weather?")
    assert aiter(other) is aiter(other)
    with pytest.raises(RequestError, match="read with `async for`"):
        iter(other)


async def test_a_sync_transport_is_not_read_from_async_code() -> None:
    with pytest.raises(RequestError, match="transport is sync"):
        await remote.Remote(Server(ANSWER).send).stream("Weather?")


def test_a_request_that_is_not_valid_is_refused_before_it_is_sent() -> None:
    with pytest.raises(RequestError, match="temperature=-1 is not valid"):
        remote.Remote(Server().send, temperature=-1).stream("Weather?")
    with pytest.raises(RequestError, match="max_steps=0"):
        remote.Remote(Server().send).run("Weather?", max_steps=0)
