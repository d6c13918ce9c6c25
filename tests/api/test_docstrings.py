"""What `help(Engine.chat)` teaches is so: its examples run, and the options that it lists exist."""

import doctest
import inspect
import pydoc
import re
from collections.abc import Callable, Iterator
from math import ceil
from pathlib import Path
from typing import Any

import pytest

import engine
from engine import Engine, SamplingParams
from engine.turns.options import AgentOptions, LoadOptions, TurnOptions
from engine.turns.sampling_defaults import LLAMA_CPP

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "options.md"
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


@pytest.mark.parametrize(("method", "options"), LISTS, ids=["load", "chat", "run"])
def test_a_default_is_the_one_of_the_options_page(method: Callable[..., Any], options: Any) -> None:
    """Numbers and quoted words are the same; what is drawn with is nowhere told but by `llm.sampling`."""
    assert options
    page = PAGE.read_text(encoding="utf-8")
    text = inspect.getdoc(method) or ""
    for names, default in re.findall(r"^- (`\w+`[^:]*):.*?Default:\s+(.*?)\.$", text, re.MULTILINE | re.DOTALL):
        name = re.findall(r"`(\w+)`", names)[0]
        if name in SamplingParams.model_fields and name in LLAMA_CPP:
            assert default == "`llm.sampling`", name
            continue
        found = re.search(rf"^\| [^|\n]*`{name}`[^|\n]* \|([^|\n]*)\|", page, re.MULTILINE)
        assert found is None or figures(default) == figures(found[1]), name


@pytest.mark.parametrize("method", [each for each, _ in LISTS], ids=["load", "chat", "run"])
def test_its_help_fits_a_screen(method: Callable[..., Any]) -> None:
    """Forty lines of 120 characters, the signature too."""
    lines = pydoc.plain(pydoc.render_doc(method)).splitlines()[1:]
    assert sum(ceil(max(len(line), 1) / 120) for line in lines) <= 40


def figures(text: str) -> set[str]:
    return set(re.findall(r"\d+|\"\w+\"|True|False", re.sub(r"(?<=\d),(?=\d)", "", text)))


def test_no_docstring_and_no_page_tells_other_defaults_of_drawing() -> None:
    """`LLAMA_CPP` is the source; which-model.md quotes it once."""
    stated = ", ".join(str(value) for value in LLAMA_CPP.values())
    pages = {page: page.read_text(encoding="utf-8") for page in PAGE.parents[1].rglob("*.md")}
    telling = [page.name for page, text in pages.items() if f"llama.cpp's own defaults ({stated})" in text]
    assert telling == ["which-model.md"]
    help_ = " ".join(filter(None, (each.__doc__ for each in vars(Engine).values() if callable(each))))
    assert not re.search(r"the family's, or|or off\.|each with a buffer", help_)


@pytest.mark.parametrize("name", ["load", "chat", "stream", "run"])
def test_each_names_its_twin_for_an_event_loop(name: str) -> None:
    assert f"`a{name}`" in (getattr(Engine, name).__doc__ or "")
