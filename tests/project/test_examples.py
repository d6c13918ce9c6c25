"""The examples run on the built-in model and print what a reader expects."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def run(repository: Path, name: str, model: Path) -> str:
    """What an example prints. It must end well and say nothing on stderr."""
    done = subprocess.run(
        [sys.executable, f"examples/{name}", str(model)],
        cwd=repository,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=240,
        check=False,
        env={**os.environ, "PYTHONPATH": str(repository), "PYTHONIOENCODING": "utf-8"},
    )
    warned = [line for line in done.stderr.splitlines() if "preflight" not in line.lower()]
    assert done.returncode == 0, done.stderr
    assert warned == [] or "EngineWarning" in done.stderr, done.stderr
    return done.stdout


def test_agent(repository: Path, builtin_model_path: Path) -> None:
    weather, product, missing = run(repository, "agent.py", builtin_model_path).strip().split("\n\n")
    assert 'call:     get_weather {"city": "Oslo"}' in weather
    assert 'result:   {"temperature": 4, "unit": "celsius"}' in weather
    assert re.search(r"answer: .*\b4\b", weather)
    assert 'call:     multiply {"a": 127, "b": 46}' in product
    assert re.search(r"answer: .*5842", product)
    assert "result:   Error: ValueError: no weather station in Atlantis" in missing
    assert re.search(r"answer: .*no weather station in Atlantis", missing)


def test_stream(repository: Path, builtin_model_path: Path) -> None:
    printed = run(repository, "stream.py", builtin_model_path)
    assert re.search(r"^user: Set a timer for 12 minutes\n\(.+\)\nset_timer ", printed)
    arguments = re.search(r"^set_timer (.+)$", printed, re.MULTILINE)
    assert arguments
    assert arguments[1].count("|") > 2
    assert json.loads(arguments[1].replace("|", "")) == {"minutes": 12}
    assert "[tool_calls]" in printed
    assert len(re.findall(r"^assistant: \w+", printed, re.MULTILINE)) == 2


def test_openai_client(repository: Path, builtin_model_path: Path) -> None:
    pytest.importorskip("openai")
    fragments, call, answer, cached = run(repository, "openai_client.py", builtin_model_path).strip().splitlines()
    assert fragments.count("|") > 2
    assert json.loads(fragments.replace("|", "")) == {"city": "Oslo"}
    assert call == 'get_weather {"city": "Oslo"} -> 4'
    assert re.search(r"\b4\b", answer)
    assert re.match(r"\d{3} of \d{3} prompt tokens were there already", cached)


def test_mcp_agent(repository: Path, builtin_model_path: Path) -> None:
    pytest.importorskip("mcp")
    lines = run(repository, "mcp_agent.py", builtin_model_path).splitlines()
    assert lines[:3] == ["tools:    get_weather", 'call:     get_weather {"city": "Oslo"}', "result:   4 degrees"]
    assert re.match(r"answer: .*\b4\b", lines[3])
    assert lines[4:6] == [
        'call:     get_weather {"city": "Lima"}',
        "result:   Error: the call was denied: Lima is closed today",
    ]


def test_batch(repository: Path, builtin_model_path: Path) -> None:
    lines = run(repository, "batch.py", builtin_model_path).splitlines()
    assert lines[0] == "Create an event budget review on 2026-03-14"
    assert len([line for line in lines if line.startswith("    ")]) == 6
    found = [line.strip() for line in lines if re.match(r"    2026-\d\d-\d\d  \w", line)]
    assert len(found) >= 4, "\n".join(lines)
    assert re.match(r"6 answers, \d{3,} tokens", lines[-1])
