"""A seeded sample of tests/bench/batch_kills.py (batches killed at random moments, inside writes, on a full disk; files
changed by something else) and one of tests/bench/batch_paths.py (paths that name one file twice)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc and forks")
def test_killed_batches_lose_nothing(repository: Path) -> None:
    sample = ["--rows", "40", "--kills", "3", "--writes", "3", "--replaces", "2", "--full", "2"]
    sample += ["--tampers", "2", "--seed", "7"]
    done = subprocess.run(
        [sys.executable, "tests/bench/batch_kills.py", *sample],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(re.findall(r"^(.+): (\d+)$", done.stdout, re.MULTILINE))
    assert {name: counts[name] for name in ("killed: moment", "killed: write", "killed: replace")} == {
        "killed: moment": "3",
        "killed: write": "3",
        "killed: replace": "2",
    }
    assert int(counts["torn tails seen after a kill"]) > 0
    assert int(counts["full: limit"]) >= 2
    assert counts["tampered"] == "2"
    names = ("lost", "twice", "torn", "wrong", "not in order", "crashed", "success reported wrongly")
    wrong = {name: counts[name] for name in names}
    assert set(wrong.values()) == {"0"}, wrong


def test_no_pair_of_paths_loses_a_file(repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "tests/bench/batch_paths.py", "--sample", "60", "--seed", "7"],
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {name: int(number) for name, number in re.findall(r"^(\w+): (\d+)$", done.stdout, re.MULTILINE)}
    assert counts["tried"] == 60
    assert counts["lost"] == 0
    assert min(counts["refused"], counts["ran"]) > 10
