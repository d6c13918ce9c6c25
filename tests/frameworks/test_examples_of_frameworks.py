"""Each framework does a task of two tools and several steps on the built-in model, through a client in this process."""

import asyncio
import re
import runpy
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from fakes.openai_clients import Watched

from engine import Engine

# Deprecations inside the frameworks are theirs; a field that does nothing, or any other warning of ours, is not.
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error::engine.support.errors.EngineWarning"),
]


class Framework(NamedTuple):
    """A way to use a framework. `needs`: what must be installed. `shows`: whether its user sees the reasoning.
    `sends`: whether it sends earlier reasoning back, so that the engine's memory has nothing to do. `extra`: whether a
    request of it can have fields that it does not know."""

    name: str
    needs: str
    shows: bool
    sends: bool
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed
    extra: bool = True
    answers: str = "The weather result: 4 °C. The multiply result: 5842"


FRAMEWORKS = {
    "openai": Framework("openai", "openai", shows=True, sends=True),
    "openai-agents over Responses": Framework("openai_agents", "agents", shows=True, sends=True),
    "openai-agents over Chat": Framework(
        "openai_agents", "agents", shows=True, sends=False, options={"endpoint": "chat"}
    ),
    "pydantic-ai": Framework("pydantic_ai", "pydantic_ai", shows=True, sends=True),
    "smolagents": Framework("smolagents", "smolagents", shows=True, sends=False),
    "langchain over Chat": Framework("langchain", "langchain", shows=False, sends=False),
    "langchain over Responses": Framework(
        "langchain", "langchain", shows=True, sends=True, options={"responses": True}
    ),
    "langgraph": Framework("langgraph", "langchain_openai", shows=False, sends=False),
    "llama-index": Framework("llama_index", "llama_index.llms.openai_like", shows=False, sends=False),
    "haystack": Framework("haystack", "haystack", shows=False, sends=False),
    "autogen": Framework("autogen", "autogen_ext.models.openai", shows=False, sends=False),
    "ag2": Framework("ag2", "ag2", shows=False, sends=False),
    "agno": Framework("agno", "agno", shows=True, sends=False),
    "semantic-kernel": Framework("semantic_kernel", "semantic_kernel", shows=False, sends=False),
    "strands": Framework("strands", "strands", shows=True, sends=False),
    "agent-framework": Framework("agent_framework", "agent_framework.openai", shows=False, sends=False),
    "litellm": Framework("litellm", "litellm", shows=True, sends=True),
    # Results go out as {"result": ...}, which the built-in model cannot quote.
    "google-adk": Framework("google_adk", "google.adk.models.lite_llm", shows=True, sends=True, answers=""),
    "mirascope": Framework("mirascope", "mirascope", shows=False, sends=False, extra=False),
    "crewai": Framework("crewai", "crewai", shows=False, sends=False),
}
RECORDS = {
    "instructor": ("1.17", r"Report\(weather='4 °C', product=5842\)"),
    "outlines": (None, r"Report\(weather='(cold|warm)', product=\d{4}\) (even|odd) \d{4}"),
    "guidance": (None, r"Report\(weather='(cold|warm)', product=\d{4}\)"),
    "dspy": (None, r"Report\(weather_is='(cold|warm)', product_is='(even|odd)'\)"),
}
"""Frameworks whose answer is a record, held to its schema: the version that is needed, and the answer."""
WHY = 'I call "get_weather" with {"city": "Oslo"}. Then "multiply" with {"a": 127, "b": 46}.'
THEN = 'I have the first result. I call "multiply" with {"a": 127, "b": 46}.'
ENVIRONMENT = {
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "CREWAI_DISABLE_TELEMETRY": "true",
    "CREWAI_TRACING_ENABLED": "false",
}
"""The frameworks report nothing to anybody, and ask nobody for prices."""
CALLS = {"call: get_weather city='Oslo' -> 4 °C", "call: multiply a=127 b=46 -> 5842"}


@pytest.fixture(autouse=True)
def no_traces(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    """The examples import the task that they share."""
    monkeypatch.setattr(sys, "path", [str(repository / "examples" / "frameworks"), *sys.path])
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def model(builtin_model_path: Path) -> Iterator[Engine]:
    """One call a message: gpt-oss takes three turns for the task."""
    with Engine.load(builtin_model_path, family="gpt-oss") as llm:
        yield llm


@pytest.fixture(scope="module")
def builtin(builtin_model_path: Path) -> Iterator[Engine]:
    """Both calls in one message."""
    with Engine.load(builtin_model_path) as llm:
        yield llm


def example(name: str, needs: str) -> ModuleType:
    pytest.importorskip(needs)
    return import_module(f"with_{name}")


def answered(framework: Framework, llm: Watched, extra_body: dict[str, object] | None = None) -> str:
    found = example(framework.name, framework.needs).answer(llm, extra_body, **framework.options)
    return str(asyncio.run(found) if asyncio.iscoroutine(found) else found)


def called(printed: str) -> list[str]:
    """The calls that were run; what a framework prints may follow in the same line."""
    return sorted(re.findall(r"call: .*? -> (?:4 °C|\d+)", printed))


def started(name: str, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """What an example prints that is started as a program."""
    path = str(Path(__file__).parents[2] / "examples" / "frameworks" / f"with_{name}.py")
    monkeypatch.setattr(sys, "argv", [path, str(model)])
    runpy.run_path(path, run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=FRAMEWORKS.keys())
def test_two_tools_one_after_the_other(framework: Framework, model: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    llm = Watched(model)
    answer = answered(framework, llm)
    printed = capsys.readouterr().out
    assert called(printed) == sorted(CALLS)
    assert answer == (framework.answers or answer)
    reasoning = "".join(line for line in printed.splitlines() if line.startswith("reasoning: "))
    assert [why in reasoning for why in (WHY, THEN)] == [framework.shows] * 2
    first, second, third = llm.prompts
    assert WHY not in first
    assert WHY in second
    assert WHY in third
    assert THEN in third, "the reasoning of both turns is in the last prompt, whether the framework sent it or not"
    assert [len(numbers) for numbers in llm.restored] == ([0, 0, 0] if framework.sends else [0, 1, 2])


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=FRAMEWORKS.keys())
def test_each_of_two_calls_in_one_message_has_its_own_result(framework: Framework, builtin: Engine) -> None:
    llm = Watched(builtin)
    answered(framework, llm)
    first, second = llm.prompts
    assert "4 °C" not in first
    assert (second.count("4 °C"), second.count("5842")) == (1, 1)


@pytest.mark.parametrize("framework", [each for each in FRAMEWORKS.values() if each.extra], ids=lambda each: each.name)
def test_reasoning_that_is_not_put_back_where_the_request_says_so(framework: Framework, model: Engine) -> None:
    llm = Watched(model)
    answered(framework, llm, {"restore_reasoning": False})
    assert {each["restore_reasoning"] for each in llm.options} == {False}
    assert [numbers for numbers in llm.restored if numbers] == []
    assert [WHY in prompt for prompt in llm.prompts[1:]] == [framework.sends] * len(llm.prompts[1:])


@pytest.mark.parametrize("name", sorted({each.name for each in FRAMEWORKS.values()}))
def test_the_file_as_it_is_started(
    name: str, builtin_model_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    framework = next(each for each in FRAMEWORKS.values() if each.name == name)
    pytest.importorskip(framework.needs)
    printed = started(name, builtin_model_path, capsys, monkeypatch)
    assert set(called(printed)) == CALLS
    answers = re.findall(r"^answer: (.*)$", printed, re.MULTILINE)
    assert answers
    assert all(answer == (framework.answers or answer) for answer in answers)


@pytest.mark.parametrize("name", RECORDS)
def test_an_answer_held_to_a_schema(
    name: str, builtin_model_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    version, record = RECORDS[name]
    pytest.importorskip(name, minversion=version)
    printed = started(name, builtin_model_path, capsys, monkeypatch)
    assert set(called(printed)) == CALLS
    assert re.search(rf"^answer: {record}$", printed, re.MULTILINE)
    if name == "instructor":
        assert 'reasoning: The user wants report. I call "Report"' in printed


def test_the_page_shows_lines_of_the_examples(repository: Path) -> None:
    """Each block of a section is made of lines of a file that the section names, in order; no file is left out."""
    page = (repository / "docs" / "guides" / "frameworks.md").read_text(encoding="utf-8")
    folder, shown = repository / "examples" / "frameworks", set[str]()
    for section in page.split("\n## ")[1:]:
        names = re.findall(r"`examples/frameworks/(with_\w+\.py|providers/\w+\.py)`", section)
        shown.update(names)
        for block in re.findall(r"^```py\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
            missing: list[str] = []
            for name in names:
                lines = iter(line.strip() for line in (folder / name).read_text(encoding="utf-8").splitlines())
                wanted = filter(None, map(str.strip, block.splitlines()))
                missing.append(next((line for line in wanted if line not in lines), ""))
            assert "" in missing, f"{names}: {missing}"
    files = (*folder.glob("with_*.py"), *folder.glob("providers/*.py"))
    assert shown == {path.relative_to(folder).as_posix() for path in files}


def test_every_example_has_its_test(repository: Path) -> None:
    files = {path.stem.removeprefix("with_") for path in (repository / "examples" / "frameworks").glob("with_*.py")}
    assert files == {each.name for each in FRAMEWORKS.values()} | set(RECORDS)
