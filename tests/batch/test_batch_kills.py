"""A seeded sample of benchmarks/batch_kills.py (batches killed at random moments, inside writes, on a full disk; files
changed by something else) and one of benchmarks/batch_paths.py (paths that name one file twice)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest


def counts_of(repository: Path, script: str, *options: str) -> dict[str, int]:
    """What the benchmark counted."""
    command = [sys.executable, f"benchmarks/{script}", *options, "--seed", "7"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: int(number) for name, number in re.findall(r"^(.+): (\d+)$", done.stdout, re.MULTILINE)}


@pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc and forks")
def test_killed_batches_lose_nothing(repository: Path) -> None:
    sample = {"--rows": 24, "--kills": 2, "--writes": 2, "--replaces": 2, "--full": 2, "--tampers": 1}
    counts = counts_of(repository, "batch_kills.py", *(str(item) for pair in sample.items() for item in pair))
    assert [counts[f"killed: {moment}"] for moment in ("moment", "write", "replace")] == [2, 2, 2]
    assert counts["torn tails seen after a kill"] > 0
    assert counts["full: limit"] >= 2
    assert counts["tampered"] == 1
    names = ("lost", "twice", "torn", "wrong", "not in order", "crashed", "success reported wrongly")
    assert {name: counts[name] for name in names} == dict.fromkeys(names, 0)


def test_no_pair_of_paths_loses_a_file(repository: Path) -> None:
    counts = counts_of(repository, "batch_paths.py", "--sample", "30")
    assert (counts["tried"], counts["lost"]) == (30, 0)
    assert min(counts["refused"], counts["ran"]) > 5
