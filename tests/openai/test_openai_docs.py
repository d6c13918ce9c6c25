"""docs/reference/openai-fields.md has the tables of `engine.openai.fields`; docs/guides/openai-client.md runs.

Run as a script (`python tests/openai/test_openai_docs.py`) this file writes the present tables into the page.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.openai.fields import (
    CHAT_FIELDS,
    COMPLETIONS_FIELDS,
    DECISIONS_FIELDS,
    EMBEDDINGS_FIELDS,
    RESPONSES_FIELDS,
    SYSTEM_ONE_FIELDS,
)
from engine.openai.request import Field
from engine.support import _data

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "reference" / "openai-fields.md"
TABLES: dict[str, Mapping[str, Field]] = {
    "chat": CHAT_FIELDS,
    "completions": COMPLETIONS_FIELDS,
    "decisions": DECISIONS_FIELDS,
    "systemone": SYSTEM_ONE_FIELDS,
    "embeddings": EMBEDDINGS_FIELDS,
    "responses": RESPONSES_FIELDS,
}


SHORT = {"chat": "Chat", "completions": "Completions", "responses": "Responses"}
HEAD = "| field | | what it does, or why it does nothing |\n|---|---|---|\n"


def written(rows: Iterable[tuple[Field, str]]) -> str:
    """The rows of a table: fields of which the same is said, with the same last cell, are one row."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for row, last in rows:
        alike.setdefault((row.rule, row.note, last), []).append(f"`{row.name}`")
    cells = ((", ".join(names), rule, note, *filter(None, [last])) for (rule, note, last), names in alike.items())
    return "\n".join(f"| {' | '.join(each)} |" for each in cells)


def shared() -> list[tuple[Field, list[str]]]:
    """The fields that stand alike in several of the tables of SHORT, each with those tables' names."""
    found: dict[tuple[str, str, str], tuple[Field, list[str]]] = {}
    for name in SHORT:
        for row in TABLES[name].values():
            if row.note != "the engine's option":
                found.setdefault((row.name, row.rule, row.note), (row, []))[1].append(name)
    return [(row, names) for row, names in found.values() if len(names) > 1]


def table(name: str) -> str:
    fields = TABLES[name].values()
    own = [row.name for row in fields if row.note == "the engine's option"]
    told = {(row.name, row.rule, row.note) for row, _ in (shared() if name in SHORT else ())}
    rows = written((row, "") for row in fields if row.name not in own and (row.name, row.rule, row.note) not in told)
    rest = ", ".join(f"`{name}`" for name in own)
    return HEAD + rows + f"\n\nThe engine's options that go under their own names: {rest}.\n"


def table_of_shared() -> str:
    rows = written(
        (row, "all" if len(names) == len(SHORT) else ", ".join(SHORT[name] for name in names))
        for row, names in shared()
    )
    return HEAD.replace(" |\n", " | in |\n", 1).replace("---|\n", "---|---|\n") + rows + "\n"


def refreshed(text: str) -> str:
    for name, rows in {**{name: table(name) for name in TABLES}, "shared": table_of_shared()}.items():
        block = re.compile(rf"(<!-- fields: {name} -->\n).*?(?=\n## |\Z)", re.DOTALL)
        assert block.search(text), f"docs/reference/openai-fields.md has no place for the table of {name}"
        text = block.sub(lambda found, rows=rows: found[1] + "\n" + rows, text)
    return text


def test_every_field_is_on_the_page() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for fields in TABLES.values():
        assert [name for name in fields if f"`{name}`" not in page] == []


def test_the_tables_are_those_that_hold() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == refreshed(text), (
        "docs/reference/openai-fields.md is out of date: python tests/openai/test_openai_docs.py"
    )


def test_the_code_runs(
    tmp_path: Path, builtin_model_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openai")
    (tmp_path / "model.gguf").symlink_to(builtin_model_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_data, "builtin_model", lambda: builtin_model_path)
    names: dict[str, Any] = {}
    page = (DOCS / "guides" / "openai-client.md").read_text(encoding="utf-8")
    for code in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        exec(code, names)
    names["llm"].close()
    assert capsys.readouterr().out.strip()


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
