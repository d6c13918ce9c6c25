"""A seeded sample of tests/bench/batch_kills.py: batches killed at random moments, inside writes, on a full disk."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc and forks")
def test_killed_batches_lose_nothing(repository: Path) -> None:
    sample = ["--rows", "60", "--kills", "5", "--writes", "5", "--replaces", "3", "--full", "4", "--seed", "7"]
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
        "killed: moment": "5",
        "killed: write": "5",
        "killed: replace": "3",
    }
    assert int(counts["torn tails seen after a kill"]) > 0
    assert int(counts["full: limit"]) >= 4
    wrong = {name: counts[name] for name in ("lost", "twice", "torn", "wrong", "not in order", "crashed")}
    assert set(wrong.values()) == {"0"}, wrong
