"""Scripts of llama-cpp-python, ollama and llama-server, moved: they run, and docs/guides/migrate.md says how
much changed.

Run as a script (`python tests/api/test_moved_scripts.py`) this file writes the present table into the page.
"""

import difflib
import re
import tomllib
import warnings
from pathlib import Path
from typing import Any

import pytest

from engine import EngineWarning

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "migrate.md"
SCRIPTS: list[dict[str, str]] = tomllib.loads(Path(__file__).with_name("moved.toml").read_text(encoding="utf-8"))[
    "script"
]


def changed(script: dict[str, str]) -> int:
    """How many lines a person edits, adds or deletes."""
    old, new = (script[name].strip().splitlines() for name in ("old", "new"))
    steps = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in steps if kind != "equal")


def table() -> str:
    rows: list[str] = []
    for each in SCRIPTS:
        lines = len(each["old"].strip().splitlines())
        rows.append(f"| {each['of']} | {each['does']} | {changed(each)} of {lines} | {each['left']} |")
    return "\n".join(["| script for | which | lines changed | what does not move |", "|---|---|---|---|", *rows]) + "\n"


def refreshed(text: str) -> str:
    block = re.compile(r"(<!-- moved scripts -->\n).*?(?=\n## |\Z)", re.DOTALL)
    assert block.search(text), "docs/guides/migrate.md has no place for the table"
    return block.sub(lambda found: found[1] + "\n" + table(), text)


def test_the_page_has_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == refreshed(text), "docs/guides/migrate.md is out of date: python tests/api/test_moved_scripts.py"
    assert [sum(each["of"] == of for each in SCRIPTS) for of in ("llama-cpp-python", "ollama", "llama-server")] == [
        4
    ] * 3


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda each: f"{each['of']} {each['does']}")
def test_a_moved_script_runs(
    script: dict[str, str],
    tmp_path: Path,
    builtin_model_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if script["of"] == "llama-server":
        pytest.importorskip("openai")
    (tmp_path / "model.gguf").symlink_to(builtin_model_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EngineWarning)  # of fields that do nothing here
        exec(compile(script["new"], script["does"], "exec"), names)
    assert script["prints"] in capsys.readouterr().out


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
