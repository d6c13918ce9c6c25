"""A model that does not fit beside engines of this process: the message names them; forgotten ones are freed first."""

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from engine import Engine, ModelLoadError
from engine.api import loading
from engine.llama.plan.plan import Machine


@pytest.fixture
def full_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults: Any = loading.load.__kwdefaults__
    monkeypatch.setitem(defaults, "machine", lambda: Machine(1 << 10))


def refused() -> str:
    with pytest.raises(ModelLoadError) as error:
        _ = Engine.load(n_ctx=256, preflight=False)
    return str(error.value)


@pytest.mark.usefixtures("full_machine")
def test_what_is_open_is_named_with_the_way_out() -> None:
    llm = Engine.load(n_ctx=256, preflight=False, check_memory=False)
    with llm:
        said = refused()
        name = Path(llm.info.path).name
    assert f"In this process an engine is open: {name} (6 MB, this file)." in said
    assert "Use what is open, or call its close() first" in said
    assert "In this process" not in refused()


def test_an_engine_that_nothing_reaches_is_freed_before_the_next_is_loaded() -> None:
    gc.disable()
    try:
        llm = Engine.load(n_ctx=256, preflight=False)
        llm.itself = llm  # pyright: ignore[reportAttributeAccessIssue] - only the collector frees it now
        before = weakref.ref(llm)
        del llm
        assert before() is not None
        with Engine.load(n_ctx=256, preflight=False):
            assert before() is None
    finally:
        gc.enable()
