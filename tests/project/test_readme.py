"""Every block of README.md and of the pages in docs/ runs, and prints what the page says it prints.

Python blocks run as they are pasted after the install line on their own page: in a process that finds only what the
base install brings, what the extras and packages bring that the page names (`pip install '.[openai]'`), and in an empty
folder, with those of the files `model.gguf` (the built-in model) and `mmproj.gguf` (a projector for it, of random
numbers) that a line of the page asks for ("You need ..."). Commands find both files. A block with a title, as in
```` ```toml title="parrot.toml" ````, is a file of that name there. `console` blocks are commands after `$ ` with their
output; `python` blocks run in order in one namespace, and a `text` block right after one is what it printed. `sh`
blocks show commands whose output is nobody's promise: they are not run, but each `llama-engine` in them must be
understood, and each extra must exist. `py` blocks need what is not installed here; tests elsewhere run them. Times,
speeds, sizes of memory and made-up ids are masked before comparing. Run as a script (`python
tests/project/test_readme.py [PAGE ...]`) this file writes the present outputs into the pages; with `--code FOLDER` it
writes each page's Python as a module, which .ci/run type-checks.
"""

import contextlib
import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
import pages
from files.projector_files import KINDS, write_projector
from pages import ROOT, RUN, Block, blocks

from engine.cli.arguments import parser
from engine.support import _data

README = ROOT / "README.md"
PAGES = (README, *sorted((ROOT / "docs").rglob("*.md")))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LANGUAGES = {"console", "jinja", "json", "py", "python", "sh", "text", "toml"}
OF_OTHERS = re.compile(r"^(?:from|import) (?:llama_cpp|pandas)\b", re.MULTILINE)  # wrong types, and none
MOST_WORDS, MOST_LINES, MOST_COLUMNS = 700, 130, 104
_MASKS = (
    (re.compile(r"\bcall_[A-Za-z0-9]+"), "call_#"),
    (re.compile(r"\d[\d,]*(?:\.\d+)?(?= ?(?:ms|s|seconds|tokens/s|tok/s|MiB|GiB)\b)"), "#"),
)


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


def installed(source: str) -> Iterator[Requirement]:
    """What a page has installed: the base install, the extras and the packages that it names."""
    yield from map(Requirement, PROJECT["dependencies"])
    for extra in re.findall(r"(?:llama-engine|\.)\[([\w,-]+)\]", source):
        yield from (
            Requirement(needed) for name in extra.split(",") for needed in PROJECT["optional-dependencies"][name]
        )
    for command in re.findall(r"pip install ([^\n`&#\\]+)", source):
        names = [word for word in shlex.split(command) if re.fullmatch(r"[A-Za-z][\w.-]*(\[[\w,]+\])?", word)]
        yield from (Requirement(name) for name in names if name != "llama-engine")


def brought(requirements: Iterable[Requirement]) -> set[str]:
    """The distributions that these requirements bring, as far as they are installed here."""
    found: set[str] = set()
    waiting = list(requirements)
    while waiting:
        needed = waiting.pop()
        extras = ("", *sorted(needed.extras))
        if any(f"{canonicalize_name(needed.name)}[{extra}]" not in found for extra in extras):
            found |= {f"{canonicalize_name(needed.name)}[{extra}]" for extra in extras}
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                for each in map(Requirement, importlib.metadata.requires(needed.name) or ()):
                    marker = each.marker
                    if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                        waiting.append(each)
    return {name.partition("[")[0] for name in found}


@cache
def owners() -> Mapping[str, list[str]]:
    """The distributions that each importable module belongs to."""
    return importlib.metadata.packages_distributions()


def hidden_by(source: str) -> list[str]:
    """The modules that a page does not install."""
    there = brought(installed(source))
    return sorted(
        module
        for module, distributions in owners().items()
        if module not in ("engine", "pip", "setuptools")
        and not any(canonicalize_name(name) in there for name in distributions)
    )


def rerun(page: Path) -> list[tuple[Block, str]]:
    """`refreshed` in a process of its own, which finds only what the page installs. A page that runs nothing needs
    none."""
    source = page.read_text(encoding="utf-8")
    known = {block.start: block for block in blocks(source)}
    if not any(block.language in RUN for block in known.values()):
        return []
    with workplace() as folder:
        told = folder / "told.json"
        command = [sys.executable, "-W", "error", pages.__file__, str(told), str(page), json.dumps(hidden_by(source))]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert done.returncode == 0, f"{page.name}: {done.stdout}\n{done.stderr}"
        now = json.loads(told.read_text(encoding="utf-8"))
    return [(known[start], text) for start, text in now]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_prints_what_it_says(page: Path) -> None:
    source = page.read_text(encoding="utf-8")
    assert {block.language for block in blocks(source)} <= LANGUAGES
    for block, now in rerun(page):
        line = source[: block.start].count("\n") + 1
        assert masked(now) == masked(block.text), f"{page.name}:{line} is out of date: run {Path(__file__).name}"


def test_a_page_finds_only_what_it_installs() -> None:
    code = "import json, sys; from pages import hide; hide(json.loads(sys.argv[1])); import engine, numpy, rich, openai"
    for page, fails in (("pip install .", True), ("pip install '.[openai]'", False), ("pip install openai", False)):
        done = subprocess.run(
            [sys.executable, "-c", code, json.dumps(hidden_by(page))],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'helpers'}"},
            check=False,
        )
        assert ("No module named 'openai'" in done.stderr) == fails, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_that_are_not_run_are_understood(page: Path) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language != "sh":
            continue
        for command in re.findall(r"(?:^|/|&& )llama-engine (.+?)(?: &&|$)", block.text, re.MULTILINE):
            _ = parser().parse_args(shlex.split(command, comments=True))  # exits where it is wrong
        for named in re.findall(r"(?:llama-engine|\.)\[([\w,]+)\]", block.text):
            assert set(named.split(",")) <= set(extras), f"{page.name} names an extra that does not exist: {named}"


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_is_not_cut_on_the_site(page: Path) -> None:
    """A screen of 1280 pixels shows 104 columns beside both lists; what is printed is wrapped."""
    code = [block for block in blocks(page.read_text(encoding="utf-8")) if block.language in ("python", "py")]
    assert [line for block in code for line in block.text.splitlines() if len(line) > MOST_COLUMNS] == []


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


def code(source: str) -> str:
    """A page's Python, each line where the page has it."""
    lines = [""] * source.count("\n")
    for block in blocks(source):
        if block.language == "python" and not OF_OTHERS.search(block.text):
            first, text = source[: block.start].count("\n"), block.text.splitlines()
            lines[first : first + len(text)] = text
    return "\n".join(lines) + "\n"


def write_code(folder: Path) -> None:
    """Write each page's Python into a folder, as a module of the page's name."""
    for page in PAGES:
        name = page.relative_to(ROOT)
        if (text := code(page.read_text(encoding="utf-8"))).strip():
            path = folder / name.with_suffix(".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            _ = path.write_text(text, encoding="utf-8")


def test_the_code_of_every_page_is_type_checked(tmp_path: Path) -> None:
    write_code(tmp_path)
    named = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
    for name, source in named.items():
        path = (tmp_path / name).with_suffix(".py")
        there = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for block in blocks(source):
            if block.language == "python" and not OF_OTHERS.search(block.text):
                first, text = source[: block.start].count("\n"), block.text.splitlines()
                assert there[first : first + len(text)] == text, f"{name}:{first}"
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.search(r"test_readme\.py --code (\S+)\n\S+basedpyright \1\n", steps)


def write(pages: Sequence[Path]) -> None:
    """Put the present outputs into the pages."""
    for page in pages:
        now = rerun(page)
        source = page.read_text(encoding="utf-8")
        for block, text in reversed(now):
            source = source[: block.start] + text + source[block.end :]
        page.write_text(source, encoding="utf-8")


if __name__ == "__main__" and sys.argv[1:2] == ["--code"]:
    write_code(Path(sys.argv[2]))
elif __name__ == "__main__":
    write([Path(name).resolve() for name in sys.argv[1:]] or PAGES)
