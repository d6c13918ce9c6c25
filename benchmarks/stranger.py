"""Goes the way of somebody who has just met the project, from the front page to an agent, in a fresh clone and a fresh
virtual environment, and prints how many commands and seconds each step takes.

`python benchmarks/stranger.py [--compile]`. The commands and programs are read out of the pages. pip takes the wheel
of llama-cpp-python from its cache if it is there; `--compile` times the compilation first, without the cache. The
model by name comes from a Hub on the loopback device, so its download takes no time worth counting; all other caches
are empty.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

from fakes import hub_server

ROOT = Path(__file__).resolve().parents[1]
MODEL = "somebody/builtin-GGUF:Q8_0"


@dataclass
class Step:
    """What somebody wants, the commands for it, what one of them must print, and the programs written on the way."""

    name: str
    commands: list[str]
    prints: str = ""
    files: dict[str, str] = field(default_factory=dict[str, str])


def block(page: str, language: str, within: str) -> str:
    """Returns the first block of a page in this language that has this text in it."""
    found = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return next(text for text in found if within in text)


def steps() -> list[Step]:
    """Returns the way: docs/index.md, then README.md, then docs/guides/frameworks.md."""
    ask = block("docs/index.md", "console", "llama-engine run model.gguf").strip().removeprefix("$ ")
    agents = (ROOT / "examples/frameworks/with_openai_agents.py").read_text("utf-8")
    install, run = re.findall(r"^((?:pip|python) .+)$", agents, re.MULTILINE)[:2]
    return [
        Step(
            "install",
            [
                f"git clone --quiet {shlex.quote(str(ROOT))} llama-engine",
                "cd llama-engine",
                "python3 -m venv .venv",
                ". .venv/bin/activate",
                block("docs/index.md", "sh", "pip install .").strip(),
            ],
        ),
        Step("first answer, of the built-in model", ["llama-engine demo"], "answer: The multiply result: 5842"),
        Step("a model by name", [ask.replace("model.gguf", MODEL)], "I am the tiny built-in model"),
        Step(
            "an answer of a type, a stream, tools",
            ["python mood.py"],
            "mood='calm'",
            {"mood.py": block("README.md", "python", "response_format=Mood")},
        ),
        Step(
            "an agent of openai-agents",
            [install.replace("llama-engine[", ".["), run.partition(" [")[0]],
            "answer: The weather result: 4 °C. The multiply result: 5842",
        ),
    ]


def surroundings(folder: Path, hub: hub_server.Hub) -> dict[str, str]:
    """Returns the environment: nothing of this one's packages and caches but pip's."""
    pip = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=True)
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    caches = {"PIP_CACHE_DIR": pip.stdout.strip(), "XDG_CACHE_HOME": str(folder / "cache")}
    return {
        **inherited,
        **caches,
        "HF_HOME": str(folder / "hub"),
        "HF_ENDPOINT": hub.address,
        "NO_PROXY": "127.0.0.1,localhost",
    }


def go(step: Step, folder: Path, env: dict[str, str]) -> float:
    """Runs a step's commands in `folder`, in the shell that the steps before left. Returns its seconds."""
    for name, text in step.files.items():
        (folder / "llama-engine" / name).write_text(text, encoding="utf-8")
    left = "cd llama-engine && . .venv/bin/activate\n" if step.name != "install" else ""
    started = time.monotonic()
    done = subprocess.run(
        ["bash", "-ec", left + "\n".join(step.commands)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - started
    if done.returncode or step.prints not in done.stdout:
        sys.exit(f"{step.name} failed:\n{done.stdout}\n{done.stderr}")
    return seconds


def compiled(folder: Path) -> float:
    """Returns how many seconds it takes to compile llama-cpp-python of the pinned version."""
    pinned = re.findall(r'"(llama-cpp-python==[^"]+)"', (ROOT / "pyproject.toml").read_text("utf-8"))[0]
    started = time.monotonic()
    wheel = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-cache-dir",
        "--no-binary",
        "llama-cpp-python",
    ]
    _ = subprocess.run([*wheel, "--wheel-dir", str(folder / "wheels"), pinned], check=True)
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    _ = parser.add_argument("--compile", action="store_true", help="time the compilation of llama-cpp-python first")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, hub_server.running() as hub:
        folder = Path(name)
        if options.compile:
            print(f"llama-cpp-python compiled: {compiled(folder):.0f} s", flush=True)
        model = (ROOT / "examples/default_model/builtin-q8_0.gguf").read_bytes()
        hub.repos["somebody/builtin-GGUF"] = repo = hub_server.Repo()
        _ = repo.commit({"builtin-Q8_0.gguf": model})
        env = surroundings(folder, hub)
        print("| step | commands | lines of code | seconds |\n|---|---|---|---|", flush=True)
        commands, seconds = 0, 0.0
        for step in steps():
            took = go(step, folder, env)
            lines = sum(bool(line.strip()) for text in step.files.values() for line in text.splitlines())
            print(f"| {step.name} | {len(step.commands)} | {lines or ''} | {took:.1f} |", flush=True)
            commands, seconds = commands + len(step.commands), seconds + took
        print(f"| together | {commands} | | {seconds:.1f} |")


if __name__ == "__main__":
    main()
