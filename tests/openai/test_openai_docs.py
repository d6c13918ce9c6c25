"""docs/guides/openai-client.md: its tables are the tables of `engine.openai.fields`, and its code runs.

Run as a script (`python tests/openai/test_openai_docs.py`) this file writes the present tables into the page.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.openai.fields import CHAT_FIELDS, COMPLETIONS_FIELDS, EMBEDDINGS_FIELDS, RESPONSES_FIELDS
from engine.openai.request import Field
from engine.support import _data

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "openai-client.md"
TABLES: dict[str, Mapping[str, Field]] = {
    "chat": CHAT_FIELDS,
    "completions": COMPLETIONS_FIELDS,
    "embeddings": EMBEDDINGS_FIELDS,
    "responses": RESPONSES_FIELDS,
}


def table(fields: Mapping[str, Field]) -> str:
    own = [row.name for row in fields.values() if row.note == "the engine's option"]
    rows = [f"| `{row.name}` | {row.rule} | {row.note} |" for row in fields.values() if row.name not in own]
    rest = ", ".join(f"`{name}`" for name in own)
    head = "| field | | what it does, or why it does nothing |\n|---|---|---|\n"
    return head + "\n".join(rows) + f"\n\nThe engine's options that go under their own names: {rest}.\n"


def refreshed(text: str) -> str:
    for name, fields in TABLES.items():
        block = re.compile(rf"(<!-- fields: {name} -->\n).*?(?=\n## |\Z)", re.DOTALL)
        assert block.search(text), f"docs/guides/openai-client.md has no place for the table of {name}"
        text = block.sub(lambda found, fields=fields: found[1] + "\n" + table(fields), text)
    return text


def test_the_tables_are_those_that_hold() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == refreshed(text), (
        "docs/guides/openai-client.md is out of date: python tests/openai/test_openai_docs.py"
    )


def test_the_code_runs(
    tmp_path: Path, builtin_model_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openai")
    (tmp_path / "model.gguf").symlink_to(builtin_model_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_data, "builtin_model", lambda: builtin_model_path)
    names: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        exec(code, names)
    names["llm"].close()
    assert capsys.readouterr().out.strip()


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
