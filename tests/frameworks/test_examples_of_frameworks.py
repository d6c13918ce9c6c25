"""Each framework does a task of two tools and several steps on the built-in model, through a client in this process."""

import asyncio
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from openai_clients import Watched

from engine import Engine

# Deprecations inside the frameworks are theirs; a field that does nothing, or any other warning of ours, is not.
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error::engine.errors.EngineWarning"),
]


class Framework(NamedTuple):
    """A way to use a framework. `needs`: what must be installed. `shows`: whether its user sees the reasoning.
    `sends`: whether it sends earlier reasoning back, so that the engine's memory has nothing to do."""

    name: str
    needs: str
    shows: bool
    sends: bool
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed


FRAMEWORKS = {
    "openai": Framework("openai", "openai", shows=True, sends=True),
    "openai-agents over Responses": Framework("openai_agents", "agents", shows=True, sends=True),
    "openai-agents over Chat": Framework(
        "openai_agents", "agents", shows=True, sends=False, options={"endpoint": "chat"}
    ),
    "pydantic-ai": Framework("pydantic_ai", "pydantic_ai", shows=True, sends=True),
    "smolagents": Framework("smolagents", "smolagents", shows=True, sends=False),
    "langchain over Chat": Framework("langchain", "langchain_openai", shows=False, sends=False),
    "langchain over Responses": Framework(
        "langchain", "langchain_openai", shows=True, sends=True, options={"responses": True}
    ),
    "llama-index": Framework("llama_index", "llama_index.llms.openai_like", shows=False, sends=False),
}
WHY = 'I call "get_weather" with {"city": "Oslo"}. Then "multiply" with {"a": 127, "b": 46}.'
THEN = 'I have the first result. I call "multiply" with {"a": 127, "b": 46}.'
CALLS = {"call: get_weather city='Oslo' -> 4 °C", "call: multiply a=127 b=46 -> 5842"}


@pytest.fixture(autouse=True)
def no_traces(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    """The examples import the task that they share; their frameworks report nothing to anybody."""
    monkeypatch.setattr(sys, "path", [str(repository / "examples" / "frameworks"), *sys.path])
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "false")


@pytest.fixture(scope="module")
def model(builtin_model_path: Path) -> Iterator[Engine]:
    """One call a message: gpt-oss takes three turns for the task."""
    with Engine.load(builtin_model_path, family="gpt-oss") as llm:
        yield llm


def example(name: str, needs: str) -> ModuleType:
    pytest.importorskip(needs)
    return import_module(f"with_{name}")


def answered(framework: Framework, llm: Watched, extra_body: dict[str, object] | None = None) -> str:
    found = example(framework.name, framework.needs).answer(llm, extra_body, **framework.options)
    return str(asyncio.run(found) if asyncio.iscoroutine(found) else found)


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=FRAMEWORKS.keys())
def test_two_tools_one_after_the_other(framework: Framework, model: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    llm = Watched(model)
    answer = answered(framework, llm)
    printed = capsys.readouterr().out.splitlines()
    assert sorted(line for line in printed if line.startswith("call: ")) == sorted(CALLS)
    assert answer == "The weather result: 4 °C. The multiply result: 5842"
    reasoning = [line for line in printed if line.startswith("reasoning: ")]
    assert [why in "".join(reasoning) for why in (WHY, THEN)] == [framework.shows] * 2
    first, second, third = llm.prompts
    assert WHY not in first
    assert WHY in second
    assert WHY in third
    assert THEN in third, "the reasoning of both turns is in the last prompt, whether the framework sent it or not"
    assert [len(numbers) for numbers in llm.restored] == ([0, 0, 0] if framework.sends else [0, 1, 2])


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=FRAMEWORKS.keys())
def test_reasoning_that_is_not_put_back_where_the_request_says_so(framework: Framework, model: Engine) -> None:
    llm = Watched(model)
    answered(framework, llm, {"restore_reasoning": False})
    assert {each["restore_reasoning"] for each in llm.options} == {False}
    assert [numbers for numbers in llm.restored if numbers] == []
    assert [WHY in prompt for prompt in llm.prompts[1:]] == [framework.sends] * len(llm.prompts[1:])


@pytest.mark.parametrize("name", sorted({each.name for each in FRAMEWORKS.values()}))
def test_both_calls_in_one_message_and_the_file_as_it_is_started(
    name: str, builtin_model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    example(name, next(each.needs for each in FRAMEWORKS.values() if each.name == name)).main(str(builtin_model_path))
    printed = capsys.readouterr().out
    assert {line for line in printed.splitlines() if line.startswith("call: ")} == CALLS
    answers = printed.split("answer: ")[1:]
    assert answers
    for answer in answers:
        assert "4 °C" in answer
        assert "5842" in answer


def test_instructor(builtin_model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Calls as models, then an answer as a model, each held to its schema."""
    example("instructor", "instructor").main(str(builtin_model_path))
    first, second, reasoning, answer = capsys.readouterr().out.splitlines()
    assert {first, second} == CALLS
    assert reasoning.startswith('reasoning: The user wants report. I call "Report"')
    assert answer == "answer: Report(weather='4 °C', product=5842)"


def test_every_example_has_its_test(repository: Path) -> None:
    files = {path.stem.removeprefix("with_") for path in (repository / "examples" / "frameworks").glob("with_*.py")}
    assert files == {each.name for each in FRAMEWORKS.values()} | {"instructor"}
