"""Every block of README.md and of the pages in docs/ runs, and prints what the page says it prints.

A page runs in an empty folder that holds the built-in model as `model.gguf`, and a projector for it, of random
numbers, as `mmproj.gguf`. A block with a title, as in
```` ```toml title="parrot.toml" ````, is a file of that name there. `console` blocks are commands after `$ ` with their
output; `python` blocks run in order in one namespace, and a `text` block right after one is what it printed. `sh`
blocks show commands whose output is nobody's promise: they are not run, but each `llama-engine` in them must be
understood, and each extra must exist. `py` blocks need what is not installed here; tests elsewhere run them. Times,
speeds, sizes of memory and made-up ids are masked before comparing. Run as a script (`python
tests/project/test_readme.py [PAGE ...]`) this file writes the present outputs into the pages.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from projector_files import KINDS, write_projector

from engine.cli.arguments import parser
from engine.support import _data

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").rglob("*.md")))
LANGUAGES = {"console", "jinja", "json", "py", "python", "sh", "text", "toml"}
MOST_WORDS, MOST_LINES = 700, 130
_BLOCK = re.compile(r"^```(\w*)(?: title=\"(.+?)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MASKS = (
    (re.compile(r"\bcall_[A-Za-z0-9]+"), "call_#"),
    (re.compile(r"\d[\d,]*(?:\.\d+)?(?= ?(?:ms|s|seconds|tokens/s|tok/s|MiB|GiB)\b)"), "#"),
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that it is (or ""), its text, and where the text lies in its page."""

    language: str
    file: str
    text: str
    start: int
    end: int


def blocks(source: str) -> list[Block]:
    return [
        Block(found[1], found[2] or "", found[3], found.start(3), found.end(3)) for found in _BLOCK.finditer(source)
    ]


@contextlib.contextmanager
def workplace() -> Generator[Path]:
    """The folder that a page runs in, as the current directory."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        Path("model.gguf").symlink_to(_data.builtin_model())
        _ = write_projector(Path(name, "mmproj.gguf"), KINDS["llava"])
        yield Path(name)


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
    wide = {"PYTHONIOENCODING": "utf-8", "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        words, capture_output=True, text=True, encoding="utf-8", env={**os.environ, **wide}, check=False
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


def refreshed(page: Path) -> Iterator[tuple[Block, str]]:
    """Each block of a page whose text is an output, with the text it has now. Runs in the current directory."""
    source = page.read_text(encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "__readme__"}
    before: tuple[Block, str] | None = None
    for block in blocks(source):
        if block.file:
            Path(block.file).write_text(block.text, encoding="utf-8")
        if block.language == "console":
            yield block, console(block.text)
        elif block.language == "python":
            printed = io.StringIO()
            line = source[: block.start].count("\n")
            code = compile("\n" * line + block.text, str(page), "exec")
            with contextlib.redirect_stdout(printed):
                exec(code, namespace)
            before = block, printed.getvalue()
            continue
        elif before and not source[before[0].end : block.start].replace("```text", "").replace("```", "").strip():
            yield block, before[1]
        before = None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_prints_what_it_says(page: Path) -> None:
    source = page.read_text(encoding="utf-8")
    assert {block.language for block in blocks(source)} <= LANGUAGES
    with workplace():
        for block, now in refreshed(page):
            line = source[: block.start].count("\n") + 1
            assert masked(now) == masked(block.text), f"{page.name}:{line} is out of date: run {Path(__file__).name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_that_are_not_run_are_understood(page: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language != "sh":
            continue
        for command in re.findall(r"(?:^|/|&& )llama-engine (.+?)(?: &&|$)", block.text, re.MULTILINE):
            _ = parser().parse_args(shlex.split(command, comments=True))  # exits where it is wrong
        for named in re.findall(r"(?:llama-engine|\.)\[([\w,]+)\]", block.text):
            assert set(named.split(",")) <= set(extras), f"{page.name} names an extra that does not exist: {named}"


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


def write(pages: Sequence[Path]) -> None:
    """Put the present outputs into the pages."""
    for page in pages:
        with workplace():
            now = list(refreshed(page))
        source = page.read_text(encoding="utf-8")
        for block, text in reversed(now):
            source = source[: block.start] + text + source[block.end :]
        page.write_text(source, encoding="utf-8")


if __name__ == "__main__":
    write([Path(name).resolve() for name in sys.argv[1:]] or PAGES)
