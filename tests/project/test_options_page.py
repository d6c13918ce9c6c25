"""The tables of docs/reference/options.md name every option that can be passed, and its default."""

import inspect
import json
import re
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from engine import Engine, LlamaOptions, SamplingParams
from engine.agent.limits import RunOptions
from engine.runtime.loop.config import ContextOptions, LoopOptions, MediaOptions, ModelOptions
from engine.turns.decisions import DecideOptions
from engine.turns.embedding import VectorSettings
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
from engine.types.turn_settings import TurnSettings

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
    DecideOptions,
)


_ROW = re.compile(r"^\| (`.+?) \| ?(.*?) ?\| ", re.MULTILINE)
SAID = {"control_vectors", "draft_max", "logit_bias"}
"""Options whose default is told in words: it hangs on another option, or is no value that a caller would give."""


def names_of(cell: str) -> list[str]:
    return re.findall(r"`(\w+)`", cell)


def defaults() -> dict[str, Any]:
    """The default of each option, as the records and signatures have it; None is worked out, in words."""
    known: dict[str, Any] = {}
    for record in (ModelOptions, ContextOptions, MediaOptions, LoopOptions, RunOptions, LlamaOptions, VectorSettings):
        known.update({each.name: each.default for each in fields(record) if each.default is not MISSING})
    known.update({name: field.default for name, field in SamplingParams.model_fields.items()})
    for parameter in inspect.signature(Engine.load).parameters.values():
        known.setdefault(parameter.name, parameter.default)
    known.update({each.name: each.default for each in fields(TurnSettings) if each.default is not MISSING})
    return known


def cell_of(names: list[str], cell: str, known: dict[str, Any]) -> str:
    """The cell under "default" of these options: their values in code, or the words that say what None is."""
    stated = [known.get(name) for name in names]
    if any(value is None for value in stated) or names[0] in SAID:
        return cell
    values = dict.fromkeys(json.dumps(value) if isinstance(value, str) else repr(value) for value in stated)
    return ", ".join(f"`{value}`" for value in values)


def refreshed(text: str) -> str:
    known = defaults()

    def row(found: re.Match[str]) -> str:
        cell = cell_of(names_of(found[1]), found[2], known)
        return f"| {found[1]} |{cell and f' {cell}'} | "

    return _ROW.sub(row, text)


def test_every_option_is_in_a_table() -> None:
    options = {name for kind in KINDS for name in kind.__annotations__}
    options |= set(inspect.signature(Engine.load).parameters) - {"options"}
    options |= {field.name for field in fields(LlamaOptions)}
    listed = {name for names, _ in _ROW.findall(PAGE.read_text(encoding="utf-8")) for name in names_of(names)}
    assert options - listed - {"files", "suffix"} == set()
    assert listed - options <= {"tools", "max_steps"} | set(ChoicesArguments.__annotations__)


def test_a_default_in_code_is_the_default() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == refreshed(text), (
        "docs/reference/options.md is out of date: python tests/project/test_options_page.py"
    )
    assert sum("`" in cell for _, cell in _ROW.findall(text)) > 40


def test_words_are_for_what_is_worked_out() -> None:
    """A cell in words, such as "none", stands only where the record says None."""
    known = defaults()
    for names, cell in _ROW.findall(PAGE.read_text(encoding="utf-8")):
        if "`" not in cell and known.keys() & set(names_of(names)) and names_of(names)[0] not in SAID:
            assert [name for name in names_of(names) if known.get(name) is not None] == [], names


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
