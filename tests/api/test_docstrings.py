"""What `help(Engine.chat)` teaches is so: its examples run, and the options that it lists exist."""

import doctest
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import engine
from engine import Engine
from engine.turns.options import AgentOptions, LoadOptions, TurnOptions

LISTS: list[tuple[Callable[..., Any], Any]] = [
    (Engine.load, LoadOptions),
    (Engine.chat, TurnOptions),
    (Engine.run, AgentOptions),
]


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    with Engine.load(n_ctx=1024) as llm:
        yield llm


@pytest.mark.parametrize("method", [Engine.load, Engine.chat, Engine.stream, Engine.run], ids=lambda it: it.__name__)
def test_the_examples_run(method: Callable[..., Any], llm: Engine) -> None:
    names = {name: getattr(engine, name) for name in engine.__all__}
    example = doctest.DocTestParser().get_doctest(
        method.__doc__ or "", {**names, "llm": llm}, method.__qualname__, None, None
    )
    assert example.examples
    said: list[str] = []
    assert doctest.DocTestRunner().run(example, out=said.append).failed == 0, "".join(said)


@pytest.mark.parametrize(("method", "options"), LISTS, ids=["load", "chat", "run"])
def test_the_options_exist_and_each_has_a_default(method: Callable[..., Any], options: Any) -> None:
    text = inspect.getdoc(method) or ""  # which has no indentation, in no version of Python
    items = re.findall(r"^- (`\w+`.*?)(?=^- |^$)", text, re.MULTILINE | re.DOTALL)
    known = {*options.__annotations__, *method.__annotations__}
    assert len(items) >= 9
    for item in items:
        names = re.findall(r"`(\w+)`", re.split(r":\s", item)[0])
        assert set(names) <= known, item
        assert "Default:" in item or {"messages", "progress"} & set(names), item


@pytest.mark.parametrize("name", ["load", "chat", "stream", "run"])
def test_each_names_its_twin_for_an_event_loop(name: str) -> None:
    assert f"`a{name}`" in (getattr(Engine, name).__doc__ or "")
