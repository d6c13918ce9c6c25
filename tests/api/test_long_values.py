"""No message quotes all of what was given: every public door is called with a million characters in each argument."""

import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import engine
from engine import (
    GBNF,
    Audio,
    Choice,
    Engine,
    EngineError,
    EngineWarning,
    Families,
    Image,
    JsonSchema,
    Lark,
    Parser,
    Regex,
    RequestError,
    ToolName,
    as_tools,
    batch,
)
from engine.agent.limits import RunArguments
from engine.batch.job import BatchOptions
from engine.openai.problems import Problem
from engine.support.errors import bounded, did_you_mean
from engine.turns.options import (
    EmbedOptions,
    LoadArguments,
    LoadOptions,
    RerankOptions,
    ScoreOptions,
    TurnOptions,
)

LONG = "never said " * 100_000
QUOTED = LONG[:200]
MOST = 4_100
"""Characters of a message."""
VALUES: dict[str, Any] = {
    "text": LONG,
    "bytes": LONG.encode(),
    "list": [LONG],
    "dictionary": {LONG: LONG},
    "messages": [{"role": LONG, "content": 1}],
    "path": Path(LONG),
    "number": 10**4_000,
}
PATHS = {"model", "projector", "draft", "adapters", "path", "out", "errors", "rows", "source", "llm"}
"""Arguments whose text is a path, which a message names as it is."""


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    with Engine.load(n_ctx=1024, preflight=False) as made:
        yield made


def weather(city: str) -> str:
    """Get the weather in a city."""
    return city


def said_by(door: Callable[[], object]) -> list[str]:
    """Returns what a door says of ours: its error with the notes, and its warnings."""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            _ = door()
        except (EngineError, Problem) as error:
            return [str(error), *getattr(error, "__notes__", ()), *(str(each.message) for each in given)]
        except (TypeError, ValueError):  # Python's own of a signature, and pydantic's
            pass
    return [str(each.message) for each in given]


def check(name: str, value: str, door: Callable[[], object]) -> None:
    for said in said_by(door):
        assert len(said) <= MOST, f"{name}: {len(said):,} characters: {said[:200]}"
        if name not in PATHS and value != "path":
            assert QUOTED not in said, f"{name}: {said[:400]}"


def doors(llm: Engine, folder: Path) -> dict[str, tuple[Callable[..., object], dict[str, Any], set[str]]]:
    """Each public door: how it is called, what it is called with, and the arguments that get the values."""
    out = folder / "answers.jsonl"
    turn = {"tools", "messages", *TurnOptions.__annotations__} - {"response_format", "documents"}
    of_load = {*LoadArguments.__annotations__, *LoadOptions.__annotations__, "model", "draft", "family", "adapters"}
    x = {"messages": "x"}
    return {
        "chat": (llm.chat, {**x, "max_tokens": 1}, turn),
        "run": (llm.run, {**x, "max_tokens": 1}, {"max_steps", *RunArguments.__annotations__} - {"save"}),
        "complete": (llm.complete, {"prompt": "x", "max_tokens": 1}, {"n", "min_tokens", "deadline", "adapters"}),
        "generate": (llm.generate, {"rows": ["x"], "max_tokens": 1}, {"rows", "tools", "on_error"}),
        "choices": (llm.choices, {**x, "n": 1, "max_tokens": 1}, {"n", "offline"}),
        "embed": (llm.embed, {"texts": "x"}, {"texts", *EmbedOptions.__annotations__}),
        "rerank": (llm.rerank, {"query": "x", "documents": ["a"]}, {"documents", *RerankOptions.__annotations__}),
        "score": (llm.score, {"prompt": "x", "continuations": ["a"]}, {"continuations", *ScoreOptions.__annotations__}),
        "decide": (llm.decide, {"state": "x", "questions": "It is so."}, {"questions", "deadline", "calibration"}),
        "render": (llm.render, x, {"messages", "tools"}),
        "explain": (llm.explain, x, {"output"}),
        "pin": (llm.pin, x, {"messages", "tools"}),
        "conversation": (llm.conversation, {}, {"messages", "tools"}),
        "detokenize": (llm.detokenize, {"tokens": []}, {"tokens"}),
        "load_adapter": (llm.load_adapter, {"name": "a", "path": "no.gguf"}, {"name", "path", "scale"}),
        "drop_adapter": (llm.drop_adapter, {"name": "a"}, {"name"}),
        "load": (Engine.load, {"preflight": False, "n_ctx": 256}, of_load - {"progress", "preflight"}),
        "batch.run": (
            batch.run,
            {"rows": [{"prompt": "x"}], "out": out, "llm": llm, "quiet": True, "max_tokens": 1, "force": True},
            {"rows", "out", "llm", *BatchOptions.__annotations__.keys() - TurnOptions.__annotations__.keys()}
            - {"force"},
        ),
        "Image": (Image, {"source": "x.png"}, {"source"}),
        "Audio": (Audio, {"source": "x.wav"}, {"source", "rate"}),
        "Choice": (Choice, {"options": ["a"]}, {"options"}),
        "Families": (Families.load, {}, {"path"}),
        "Parser": (Parser, {"family": "qwen3"}, {"family"}),
        "as_tools": (as_tools, {"items": []}, {"items"}),
    }


NAMES = sorted(doors(Mock(), Path("x")))


@pytest.mark.parametrize("name", NAMES)
def test_no_door_quotes_a_whole_value(name: str, llm: Engine, tmp_path: Path) -> None:
    call, base, arguments = doors(llm, tmp_path)[name]
    assert arguments
    for argument, (kind, value) in itertools.product(sorted(arguments), VALUES.items()):
        check(argument, kind, lambda: call(**{**base, argument: value}))  # noqa: B023 - called at once
    check("an unknown name", "", lambda: call(**base, **{LONG: 1}))
    if PATHS & arguments:
        assert any(said_by(lambda: call(**{**base, each: LONG})) for each in PATHS & arguments)  # noqa: B023


FORMS: dict[str, Callable[[Any], Any]] = {
    "Regex": lambda value: Regex("(" + value),
    "Lark": lambda value: Lark("start: " + value),
    "GBNF": lambda value: GBNF("root ::= " + value[:50_000]),
    "a type": lambda value: JsonSchema({"type": value}),
    "a reference": lambda value: JsonSchema({"$ref": value}),
    "a pattern": lambda value: JsonSchema({"type": "string", "pattern": "(" + value}),
    "a dictionary": lambda value: {"type": value},
}


@pytest.mark.parametrize("name", FORMS)
def test_no_form_of_an_answer_is_quoted_whole(name: str, llm: Engine) -> None:
    said = said_by(lambda: llm.chat("x", response_format=FORMS[name](LONG)))
    assert said
    assert max(map(len, said)) <= MOST


@pytest.mark.parametrize("kind", VALUES)
def test_no_field_of_a_message_or_a_tool_is_quoted_whole(kind: str, llm: Engine) -> None:
    value = VALUES[kind]
    hello = {"role": "user", "content": "x"}
    for message in (
        {"role": value, "content": "x"},
        {"role": "user", "content": value},
        {"role": "user", "content": [{"type": value}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": value}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": value}}]},
        {"role": "user", LONG: value},
        {"role": "assistant", "tool_calls": value},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": value, "arguments": value}}]},
        {"role": "tool", "tool_call_id": value, "content": "x"},
    ):
        check("a message", kind, lambda: llm.chat([hello, message], max_tokens=1))  # noqa: B023
    for key in ("name", "parameters", LONG):
        tool: dict[str, Any] = {"type": "function", "function": {"name": "w", "parameters": {}, key: value}}
        check("a tool", kind, lambda: llm.chat("x", tools=[tool], max_tokens=1))  # noqa: B023
    check("a tool", kind, lambda: llm.chat("x", tools=[weather], tool_choice=ToolName(name=value)))


@pytest.mark.parametrize("kind", VALUES)
def test_no_column_of_a_row_is_quoted_whole(kind: str, llm: Engine, tmp_path: Path) -> None:
    for column in ("messages", "custom_id", "url", "method", "body", LONG):
        row = {"prompt": "x", column: VALUES[kind]}
        check(column, kind, lambda: batch.run([row], tmp_path / "o.jsonl", llm, quiet=True, max_tokens=1))  # noqa: B023


@pytest.mark.parametrize("kind", ["text", "list", "number"])
def test_the_client_quotes_no_whole_value(kind: str, llm: Engine) -> None:
    client, value = llm.openai_client(), VALUES[kind]
    create: Any = client.chat.completions.create
    hello = {"model": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    for field in ("tools", "tool_choice", "response_format", "reasoning_effort", "stream_options", "stop", "n", LONG):
        with pytest.raises(Exception, match=r"Error code: 400") as refused:
            create(**hello, extra_body={field: value})
        assert len(str(refused.value)) <= MOST + 100, field


def test_a_long_message_keeps_its_beginning_and_its_end() -> None:
    error = RequestError(f"The path {LONG} cannot be read; correct it.")
    assert str(error).startswith("The path never said ")
    assert str(error).endswith("cannot be read; correct it.")
    assert len(str(error)) <= MOST
    assert str(EngineWarning(LONG)) == str(RequestError(LONG)) == Problem(400, LONG).message == bounded(LONG)
    assert bounded("short") == "short"


def test_a_long_name_is_not_compared_with_all_that_are_known() -> None:
    assert did_you_mean(LONG, engine.__all__, "no") == "no"


def test_a_command_is_not_read_for_a_minute() -> None:
    with pytest.raises(RequestError, match="Give it as a list of words"):
        engine.MCP("x" * 10**6)
