"""Reasoning that a client drops between two requests is in the next prompt, unless the request says otherwise."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.openai_clients import Watched, scripted

import engine.openai
from engine import Engine

pytest.importorskip("openai")
QUESTION = "What is the weather in Oslo?"
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the current weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
WHY = 'I call "get_weather" with {"city": "Oslo"}.'


@pytest.fixture(scope="module")
def model(builtin_model_path: Path) -> Iterator[Engine]:
    with Engine.load(builtin_model_path, family="gpt-oss", n_ctx=2048) as llm:
        yield llm


@pytest.fixture
def llm(model: Engine) -> Watched:
    return Watched(model)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("switch", [None, True, False])
def test_chat_completions(llm: Watched, switch: bool | None, stream: bool) -> None:
    client: Any = engine.openai.OpenAI(llm)
    asked: list[Any] = [{"role": "user", "content": QUESTION}]
    tools = [{"type": "function", "function": WEATHER}]
    first = client.chat.completions.create(model="m", messages=asked, tools=tools, temperature=0).choices[0].message
    assert WHY in first.reasoning_content
    call = first.tool_calls[0]
    history = [
        *asked,
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"temperature": 4})},
    ]
    body = {} if switch is None else {"restore_reasoning": switch}
    raw = client.chat.completions.with_raw_response.create(
        model="m", messages=history, tools=tools, temperature=0, stream=stream, extra_body=body
    )
    for _ in raw.parse() if stream else ():
        pass
    assert (WHY in llm.prompts[1]) is (switch is not False)
    assert raw.headers["x-restored-reasoning"] == ("0" if switch is False else "1")
    assert llm.restored == [(), () if switch is False else (1,)]


@pytest.mark.parametrize("switch", [None, False])
async def test_responses_with_the_reasoning_items_left_out(llm: Watched, switch: bool | None) -> None:
    client: Any = engine.openai.AsyncOpenAI(llm)
    tools = [{"type": "function", **WEATHER}]
    first = await client.responses.create(model="m", input=QUESTION, tools=tools, temperature=0, store=False)
    (call,) = [item for item in first.output if item.type == "function_call"]
    items = [
        {"role": "user", "content": QUESTION},
        {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments},
        {"type": "function_call_output", "call_id": call.call_id, "output": json.dumps({"temperature": 4})},
    ]
    raw = await client.responses.with_raw_response.create(
        model="m",
        input=items,
        tools=tools,
        temperature=0,
        extra_body={} if switch is None else {"restore_reasoning": switch},
    )
    assert (WHY in llm.prompts[1]) is (switch is not False)
    assert raw.headers["x-restored-reasoning"] == ("0" if switch is False else "1")


def test_what_the_client_sends_is_never_left_out(llm: Watched) -> None:
    client: Any = engine.openai.OpenAI(llm)
    tools = [{"type": "function", **WEATHER}]
    off = {"restore_reasoning": False}
    first = client.responses.create(model="m", input=QUESTION, tools=tools, temperature=0, extra_body=off)
    (call,) = [item for item in first.output if item.type == "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "4"}
    client.responses.create(
        model="m", input=[output], previous_response_id=first.id, tools=tools, temperature=0, extra_body=off
    )
    assert WHY in llm.prompts[1], "the stored response holds it"


def test_the_engine_s_own_option() -> None:
    with scripted(["<think>\nI greet.\n</think>\n\nHello.", "Yes."]) as llm:
        llm.chat("Hi.")
        history = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
        history.append({"role": "user", "content": "Really?"})
        assert llm.render(history).restored == (1,)
        assert llm.render(history, restore_reasoning=False).restored == ()
        assert llm.explain(history).restored
        assert not llm.explain(history, restore_reasoning=False).restored
        (turn,) = llm.choices(history, 1)
        assert turn.restored == (1,)
        turn.cancel()
        with pytest.raises(engine.RequestError, match="restore_reasoning"):
            llm.render(history, restore_reasoning="no")  # pyright: ignore[reportArgumentType]
