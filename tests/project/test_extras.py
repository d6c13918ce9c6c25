"""How an extra is installed is said in one place; no page and no message names an index that lacks the package."""

import re
from pathlib import Path

from engine.support.extras import install

ROOT = Path(__file__).resolve().parents[2]


def test_messages_ask_one_function_and_pages_write_what_it_writes() -> None:
    written = install("openai").partition(" in ")[0]
    assert written == "pip install '.[openai]'"
    for path in (
        *ROOT.glob("engine/**/*.py"),
        *ROOT.glob("examples/**/*.py"),
        *ROOT.glob("docs/**/*.md"),
        ROOT / "README.md",
    ):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"llama-engine\[\w", text), path
        if path.is_relative_to(ROOT / "engine") and path.name != "extras.py":
            assert not re.search(r"pip install '\.\[", text), path
