"""The tables of docs/reference/options.md name every option that can be passed, and its default."""

import ast
import inspect
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from engine import Engine, LlamaOptions, SamplingParams
from engine.agent.limits import RunOptions
from engine.runtime.loop.config import ContextOptions, LoopOptions, MediaOptions, ModelOptions
from engine.turns.options import (
    AgentOptions,
    ChoicesArguments,
    EmbedOptions,
    LoadArguments,
    LoadOptions,
    RawOptions,
    RerankOptions,
    ScoreOptions,
    TurnOptions,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "options.md"
KINDS: tuple[Any, ...] = (
    LoadArguments,
    LoadOptions,
    TurnOptions,
    RawOptions,
    AgentOptions,
    EmbedOptions,
    RerankOptions,
    ScoreOptions,
)


def rows() -> dict[str, str]:
    """The tables' cells under "default" by option; of several options in one cell, each with its part."""
    found: dict[str, str] = {}
    for names, default in re.findall(r"^\| (`.+?) \| (.*?) ?\| ", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        options = re.findall(r"`(\w+)`", names)
        parts = re.findall(r"`.+?`", default)
        found.update(zip(options, parts if len(parts) == len(options) else [default] * len(options), strict=True))
    return found


def defaults() -> dict[str, Any]:
    """The default of each option that has one of its own in a record or a signature."""
    known: dict[str, Any] = {}
    for record in (ModelOptions, ContextOptions, MediaOptions, LoopOptions, RunOptions):
        known.update({each.name: each.default for each in fields(record) if each.default is not MISSING})
    known.update({name: field.default for name, field in SamplingParams.model_fields.items()})
    for parameter in inspect.signature(Engine.load).parameters.values():
        known.setdefault(parameter.name, parameter.default)
    return known


def test_every_option_is_in_a_table() -> None:
    options = {name for kind in KINDS for name in kind.__annotations__}
    options |= set(inspect.signature(Engine.load).parameters) - {"options"}
    options |= {field.name for field in fields(LlamaOptions)}
    assert options - set(rows()) - {"files", "suffix"} == set()
    assert set(rows()) - options <= {"tools", "max_steps"} | set(ChoicesArguments.__annotations__)


def test_a_default_in_code_is_the_default() -> None:
    known = defaults()
    told = {name: cell for name, cell in rows().items() if cell.startswith("`") and name in known}
    assert len(told) > 25
    for name, cell in told.items():
        if cell == "`n_ctx`":
            continue
        assert ast.literal_eval(cell.strip("`")) == known[name], name
