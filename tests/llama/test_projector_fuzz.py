"""A seeded sample of the projectors of benchmarks/hostile_files.py: none of them takes the process."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from files.projector_files import KINDS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and limits of memory")


def test_no_damaged_projector_takes_the_process(repository: Path) -> None:
    options = ["--no-media", "--projectors", "24", "--seed", "11", "--jobs", "1"]
    command = [sys.executable, "benchmarks/hostile_files.py", *options]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {name: int(count) for name, count in re.findall(r"^  ([\w.]+) +(\d+)$", done.stdout, re.MULTILINE)}
    assert sum(counts.values()) >= 4 * len(KINDS)
    # Each way to end is there, so that the fuzzer itself is seen to work.
    assert {"decoded", "trial", "llama.cpp"} <= set(counts)
    assert counts["decoded"] + counts["request"] >= len(KINDS)
