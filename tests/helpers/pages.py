"""The blocks of a page, run in the current folder. As a script, `pages.py TOLD PAGE HIDDEN`: in a process that does not
find the modules HIDDEN, a list in JSON; what the outputs are now goes to the file TOLD. It imports nothing that a page
might not have."""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILES = ("model.gguf", "mmproj.gguf")
RUN = {"python", "console"}
"""The languages of blocks that run."""
_BLOCK = re.compile(r"^```(\w*)(?: title=\"(.+?)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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


class Hiding:
    """A finder of modules that does not find those of packages that a page does not install."""

    def __init__(self, finder: Any, hidden: frozenset[str]) -> None:
        self._finder = finder
        self._hidden = hidden

    def find_spec(self, name: str, *arguments: Any) -> Any:
        return None if name.partition(".")[0] in self._hidden else self._finder.find_spec(name, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


def hide(modules: Iterable[str]) -> None:
    """Let this process not find these modules."""
    hidden = frozenset(modules)
    sys.meta_path[:] = [Hiding(finder, hidden) for finder in sys.meta_path]
    for name in [name for name in sys.modules if name.partition(".")[0] in hidden]:
        del sys.modules[name]


@contextlib.contextmanager
def asked_for(source: str) -> Generator[None]:
    """The folder with those files only that the page asks for."""
    needed = "".join(re.findall(r"^You need .*(?:\n.+)*", source, re.MULTILINE))
    away = [Path(name) for name in FILES if f"`{name}`" not in needed]
    for path in away:
        _ = path.rename(path.with_suffix(".away"))
    try:
        yield
    finally:
        for path in away:
            _ = path.with_suffix(".away").rename(path)


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
            with contextlib.redirect_stdout(printed), asked_for(source):
                exec(code, namespace)
            before = block, printed.getvalue()
            continue
        elif before and not source[before[0].end : block.start].replace("```text", "").replace("```", "").strip():
            yield block, before[1]
        before = None


if __name__ == "__main__":
    told, page = map(Path, sys.argv[1:3])
    hide(json.loads(sys.argv[3]))
    if os.environ.get("LLAMA_ENGINE_AMX") == "0":  # a page may open a Llama of llama_cpp first, which knows no variable
        from engine.llama.lib import library

        library()
    _ = told.write_text(json.dumps([(block.start, text) for block, text in refreshed(page)]), encoding="utf-8")
