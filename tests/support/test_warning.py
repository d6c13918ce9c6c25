"""A warning points at the caller's line, through whatever it came."""

import asyncio
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.scripts import said, scripted

import engine
from engine import Engine, EngineWarning

PACKAGE = Path(engine.__file__).parent
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}], "user": "me"}


def tool(pattern: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"p": {"type": "string", "pattern": pattern}}}
    return {"name": "f", "parameters": schema}


class Thing:
    """What has no text of its own."""


def thing() -> Thing:
    """Return a thing."""
    return Thing()


@pytest.fixture
def llm() -> Iterator[Engine]:
    with scripted(lambda text: "So." if "<tool_response>" in text or "Hi" in text else said("thing")) as made:
        yield made


def read_twice(llm: Engine) -> None:
    stream = llm.stream("Hi", reasoning=False)
    assert list(stream)
    assert not list(stream)


def ignored(llm: Engine) -> None:
    client: Any = llm.openai_client()
    client.chat.completions.create(**ASK)


DOORS: dict[str, Callable[[Engine], object]] = {
    "a pattern that nothing checks": lambda llm: llm.chat("Hi", [tool("^(?=one)b")]),
    "the same in an event loop": lambda llm: asyncio.run(llm.achat("Hi", [tool("^(?=two)b")])),
    "a field without effect": ignored,
    "a stream read twice": read_twice,
    "an object of a tool": lambda llm: llm.run("x", [thing]),
}
OUT_OF_A_THREAD = {"the same in an event loop"}
"""In a thread of its own there is no line of the caller's."""


@pytest.mark.parametrize("name", DOORS)
def test_it_points_at_the_callers_line(name: str, llm: Engine) -> None:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        DOORS[name](llm)
    told = [each for each in given if issubclass(each.category, EngineWarning)]
    assert told
    for each in told:
        assert not each.filename.startswith(str(PACKAGE)), each
        assert each.filename == __file__ or name in OUT_OF_A_THREAD, each


def test_an_object_without_a_text_is_told_and_shows_no_address(llm: Engine) -> None:
    with pytest.warns(EngineWarning, match="an object of the class Thing, of which the model reads nothing"):
        run = llm.run("x", [thing])
    assert [each.content for each in run.messages if each.role == "tool"] == ['"<Thing>"']


def test_only_one_place_warns() -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "warning.py"
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\bwarnings\.warn\(", line)
    ]
    assert not wrong
