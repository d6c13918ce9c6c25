"""`Agent`: instructions, tools, output and limits, over the engine."""

from typing import Any

import pytest
from fakes.scripts import plain as engine
from pydantic import BaseModel

from engine import Agent, Message, RequestError


class Sum(BaseModel):
    total: int


def add(a: int, b: int) -> int:
    return a + b


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
AGENT = Agent(instructions="You add.", tools=[add], output=Sum, options={"temperature": 0, "reasoning": False})


async def test_tools_and_a_structured_answer() -> None:
    for way in ("run", "arun", "stream_run"):
        with engine(CALL, '{"total": 3}') as llm:
            if way == "run":
                run = AGENT.run(llm, "What is 1 + 2?")
            elif way == "arun":
                run = await AGENT.arun(llm, "What is 1 + 2?")
            else:
                with AGENT.stream_run(llm, "What is 1 + 2?") as stream:
                    assert len(list(stream)) > 4
                run = stream.run
        assert run.completion.parsed == Sum(total=3)
        assert [message.role for message in run.messages] == ["system", "user", "assistant", "tool", "assistant"]
        assert run.messages[0].content == "You add."


@pytest.mark.parametrize(
    "start",
    [
        "Go.",
        {"role": "user", "content": "Go."},
        Message(role="user", content="Go."),
        [Message(role="user", content="Go.")],
        [{"role": "system", "content": "You add."}, {"role": "user", "content": "Go."}],
        (message for message in [Message(role="system", content="You add."), Message(role="user", content="Go.")]),
    ],
)
def test_instructions_stand_in_front_once(start: Any) -> None:
    with engine('{"total": 1}', '{"total": 2}') as llm:
        run = AGENT.run(llm, start)
        assert [message.role for message in run.messages] == ["system", "user", "assistant"]
        again = AGENT.run(llm, [*run.messages, Message(role="user", content="More.")])
    assert [message.role for message in again.messages].count("system") == 1


def test_another_system_message_is_refused() -> None:
    with engine("never") as llm:
        for role in ("system", "developer"):
            with pytest.raises(RequestError, match=f"begin with a {role} message of their own"):
                AGENT.run(llm, [{"role": role, "content": "You sing."}, {"role": "user", "content": "Go."}])
    with engine("fine") as llm:
        run = Agent().run(llm, [{"role": "system", "content": "You sing."}, {"role": "user", "content": "Go."}])
        assert run.completion.content == "fine"


def test_a_name_that_is_no_tool_is_refused() -> None:
    with engine("never") as llm, pytest.raises(RequestError, match=r"stop_on names 'ad', but .* The tools are: add\."):
        llm.run("Go.", [add], stop_on=["ad"])


def test_limits_hold_and_a_runs_own_options_win() -> None:
    agent = Agent(tools=[add], max_steps=1, stop_on=["add"])
    with engine(CALL) as llm:
        assert agent.run(llm, "Go.").stopped == "stop_on"
    with engine(CALL) as llm:
        assert agent.run(llm, "Go.", stop_on=()).stopped == "max_steps"
    with engine(CALL, "Done.") as llm:
        run = agent.run(llm, "Go.", stop_on=(), max_steps=2)
        assert run.stopped == "stop"
    with engine(CALL, "Done.") as llm:
        left = agent.run(llm, "Go.", stop_on=())
        assert agent.run(llm, left.transcript, max_steps=2).completion.content == "Done."
