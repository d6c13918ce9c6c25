"""What a framework's own list of providers would need of us: a class of under fifteen lines, which answers."""

import ast
import runpy
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from engine import Engine

PROVIDERS = {"any_llm": "any_llm", "litellm": "litellm", "pydantic_ai": "pydantic_ai", "langchain": "langchain_openai"}
FOLDER = Path(__file__).parents[2] / "examples" / "frameworks" / "providers"

pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error::engine.support.errors.EngineWarning"),
]


@pytest.fixture(scope="module")
def llm(builtin_model_path: Path) -> Iterator[Engine]:
    with Engine.load(builtin_model_path) as llm:
        yield llm


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_provider_answers(name: str, llm: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_spec(PROVIDERS[name]) is None:
        pytest.skip(f"{PROVIDERS[name]} is not installed")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    found = runpy.run_path(str(FOLDER / f"for_{name}.py"))
    assert found["ask"](llm, "Hello! Who are you?").startswith("I am the tiny built-in model of llama-engine.")


@pytest.mark.parametrize("name", PROVIDERS)
def test_its_class_is_short(name: str) -> None:
    text = (FOLDER / f"for_{name}.py").read_text(encoding="utf-8")
    (made,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    assert len([line for line in text.splitlines()[made.lineno - 1 : made.end_lineno] if line.strip()]) <= 15
