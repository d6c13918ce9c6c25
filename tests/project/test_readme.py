"""Every block of the README and of some pages of docs runs, and prints what the page says it prints.

`console` blocks are commands after `$ ` with their output; `python` blocks run in order in one namespace, and a `text`
block right after one is what it printed. Times, speeds, sizes of memory and made-up ids are masked before comparing.
Run as a script (`python tests/project/test_readme.py`) this file writes the present outputs into the pages.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
PAGES = (README, *(README.parent / "docs" / f"{name}.md" for name in ("GUIDE", "agents", "STRUCTURED", "batches")))
MOST_WORDS, MOST_LINES = 900, 150
_BLOCK = re.compile(r"^```(console|python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MASKS = (
    (re.compile(r"\bcall_[A-Za-z0-9]+"), "call_#"),
    (re.compile(r"\d[\d,]*(?:\.\d+)?(?= ?(?:ms|s|seconds|tokens/s|tok/s|MiB|GiB)\b)"), "#"),
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and where the text lies in README.md."""

    language: str
    text: str
    start: int
    end: int


def blocks(source: str) -> list[Block]:
    return [Block(found[1], found[2], found.start(2), found.end(2)) for found in _BLOCK.finditer(source)]


def masked(text: str) -> str:
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def shell(command: str) -> str:
    """What a command prints, run as `python -m engine` so that it is this checkout's. Fails with it."""
    words = shlex.split(command)
    if words[0] == "llama-engine":
        words = [sys.executable, "-m", "engine", *words[1:]]
    elif words[0] == "python":
        words[0] = sys.executable
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        words, capture_output=True, text=True, encoding="utf-8", cwd=README.parent, env=environment, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def console(text: str) -> str:
    """The block as it prints now. A command that has no output there is run, and its output is nobody's promise."""
    lines: list[str] = []
    for part in re.split(r"^(?=\$ )", text, flags=re.MULTILINE)[1:]:
        command, _, told = part.partition("\n")
        printed = shell(command[2:])
        lines.append(f"{command}\n{printed if told.strip() else ''}".rstrip("\n"))
    return "\n".join(lines) + "\n"


def refreshed(source: str) -> Iterator[tuple[Block, str]]:
    """Each block whose text is an output, with the text it has now."""
    namespace: dict[str, Any] = {"__name__": "__readme__"}
    before: tuple[Block, str] | None = None
    for block in blocks(source):
        if block.language == "console":
            yield block, console(block.text)
        elif block.language == "python":
            printed = io.StringIO()
            line = source[: block.start].count("\n")
            code = compile("\n" * line + block.text, str(README), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
            before = block, printed.getvalue()
            continue
        elif before and not source[before[0].end : block.start].replace("```text", "").replace("```", "").strip():
            yield block, before[1]
        before = None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_prints_what_it_says(monkeypatch: pytest.MonkeyPatch, page: Path) -> None:
    monkeypatch.chdir(README.parent)
    source = page.read_text(encoding="utf-8")
    languages = {block.language for block in blocks(source)}
    assert {"python", "text"} <= languages <= {"console", "python", "text"}
    for block, now in refreshed(source):
        line = source[: block.start].count("\n") + 1
        assert masked(now) == masked(block.text), f"{page.name}:{line} is out of date: run {Path(__file__).name}"


def test_the_readme_is_short() -> None:
    source = README.read_text(encoding="utf-8")
    assert len(source.split()) <= MOST_WORDS
    assert source.count("\n") <= MOST_LINES


def test_readme_begins_with_the_two_lines() -> None:
    """What .ci/run runs; see there."""
    source = README.read_text(encoding="utf-8")
    for name, ending in (("run", "llama-engine demo"), ("test", "pytest -W error -n auto")):
        found = re.findall(rf"^<!-- ci: {name} -->\n```sh\n(.+)\n```$", source, re.MULTILINE)
        assert len(found) == 1, f"one line is marked ci: {name}"
        assert found[0].endswith(ending)


def test_the_mask_hides_figures_and_nothing_else() -> None:
    assert masked("12 tokens in 0.31 s, 1,042.5 tokens/s, call_aB3") == "12 tokens in # s, # tokens/s, call_#"


def write() -> None:
    """Put the present outputs into the pages."""
    for page in PAGES:
        source = page.read_text(encoding="utf-8")
        for block, now in reversed(list(refreshed(source))):
            source = source[: block.start] + now + source[block.end :]
        page.write_text(source, encoding="utf-8")


if __name__ == "__main__":
    write()
