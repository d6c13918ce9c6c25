"""A seeded sample of benchmarks/fuzz_gguf.py: no damaged file takes the process. The full run is that command."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks, and limits of memory")
KINDS = ("llama", "gemma3", "mamba", "llama+ugm")


def test_no_damaged_file_takes_the_process(repository: Path) -> None:
    kinds = [argument for kind in KINDS for argument in ("--kind", kind)]
    command = [sys.executable, "benchmarks/fuzz_gguf.py", "28", "--seed", "11", "--jobs", "1", *kinds]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = {name: int(count) for name, count in re.findall(r"^  ([\w.]+) +(\d+)", done.stdout, re.MULTILINE)}
    assert sum(counts.values()) >= 28
    # Each way to end is there, so that the fuzzer itself is seen to work.
    assert {"decoded", "header", "llama.cpp"} <= set(counts)
    assert counts["decoded"] >= len(KINDS)
    assert "after a trial in a child" in done.stdout
