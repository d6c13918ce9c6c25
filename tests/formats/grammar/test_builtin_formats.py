"""The built-in model, in each of the six formats that it was trained in, calls a tool that it would not have chosen."""

import json
from pathlib import Path

import pytest

from engine import Engine, ToolName

FORMATS = ["gpt-oss", "deepseek-r1", "llama-3", "mistral-nemo", "qwen3-coder", "qwen3"]
QUESTION = "Hello! Who are you?"


def get_weather(city: str) -> str:
    """Get the weather in a city.

    Args:
        city: The name of the city.
    """
    return city


def book(seats: int, vip: bool) -> str:
    """Book seats.

    Args:
        seats: How many.
        vip: Whether in the front.
    """
    return str(seats)


@pytest.mark.parametrize("family", FORMATS)
def test_a_tool_that_it_would_not_have_chosen_is_called(builtin_model_path: Path, family: str) -> None:
    tools = [get_weather, book]
    with Engine.load(builtin_model_path, family=family, n_ctx=2048, n_sequences=1, n_threads=1) as llm:
        assert not llm.chat(QUESTION, tools, temperature=0, max_tokens=200).tool_calls
        must = llm.chat(QUESTION, tools, tool_choice="required", temperature=0, max_tokens=400)
        assert must.tool_calls
        assert all(call.error is None for call in must.tool_calls)
        named = llm.chat(QUESTION, tools, tool_choice=ToolName(name="book"), temperature=0, max_tokens=400)
    assert {call.name for call in named.tool_calls} == {"book"}
    for call in named.tool_calls:
        assert call.error is None
        arguments = json.loads(call.arguments)
        assert type(arguments["seats"]) is int
        assert type(arguments["vip"]) is bool
    assert not named.content.strip()
