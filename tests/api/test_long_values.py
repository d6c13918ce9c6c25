"""A value of a million characters in any place: the message names it, and does not hold all of it."""

from collections.abc import Callable
from typing import Any

import pytest

import engine
from engine import Engine
from engine.testing import ScriptedEngine
from engine.turns.options import LoadOptions, TurnOptions

LONG = "x" * 10**6
MOST = 4000
"""Characters of a message."""
SHAPES: dict[str, Callable[[str], Any]] = {
    "text": lambda text: text,
    "list": lambda text: [text],
    "nested": lambda text: {"type": text, "name": [text]},
}
MADE = (
    "Image", "Audio", "Regex", "Lark", "GBNF", "Choice", "JsonSchema", "ToolName", "AllowedTools", "Message",
    "ToolCall", "as_tool", "as_tools", "ChatTemplate", "StateStore", "SamplingParams", "Agent", "ToolContext",
    "Engines", "MCP",
)  # fmt: skip
METHODS = (
    "chat", "complete", "stream", "generate", "run", "embed", "score", "rerank", "tokenize", "detokenize", "render",
    "explain", "conversation", "pin", "choices",
)  # fmt: skip


@pytest.fixture(scope="module")
def llm() -> Any:
    with ScriptedEngine(lambda _: "Done.", n_ctx=512) as made:
        yield made


def told(function: Callable[[], object]) -> str:
    """Returns the message of what a call raises; "" if it is taken."""
    try:
        function()
    except Exception as error:  # noqa: BLE001 - whatever it is, a user reads it
        return str(error)
    return ""


def check(place: str, message: str) -> None:
    assert len(message) <= MOST, f"{place}: {len(message):,} characters: {message[:300]}"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", sorted(TurnOptions.__annotations__))
def test_options_of_a_turn(llm: Engine, name: str, shape: str) -> None:
    options: Any = {name: SHAPES[shape](LONG)}
    check(f"chat({name}=)", told(lambda: llm.chat("Hi", **options)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["model", *sorted(LoadOptions.__annotations__)])
def test_options_of_loading(name: str, shape: str) -> None:
    options: Any = {"n_ctx": 64, name: SHAPES[shape](LONG)}
    check(f"Engine.load({name}=)", told(lambda: Engine.load(**options).close()))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", MADE)
def test_what_is_made(name: str, shape: str) -> None:
    made: Any = getattr(engine, name)
    value = SHAPES[shape](LONG)
    check(f"{name}(..)", told(lambda: made(value)))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", METHODS)
def test_what_is_asked(llm: Engine, name: str, shape: str) -> None:
    method: Any = getattr(llm, name)
    value = SHAPES[shape](LONG)
    check(f"{name}(..)", told(lambda: method(value)))
    check(f"{name}(.., tools=)", told(lambda: method("Hi", tools=value)))
    if name not in ("tokenize", "detokenize"):  # whose options Python itself refuses
        check(f"{name}({{unknown}}=)", told(lambda: method("Hi", **{LONG: 1})))


def test_a_command_is_not_read_for_a_minute() -> None:
    assert "Give it as a list of words" in told(lambda: engine.MCP(LONG))
