"""Standard streams that are full or closed: one line says so, and the exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
@pytest.mark.parametrize("command", ["families", "run builtin --max-tokens 3 hi", "--help", "completion bash"])
@pytest.mark.parametrize("to", [">/dev/full", ">&-"])
def test_output_that_cannot_be_written_is_an_error_of_one_line(command: str, to: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -W ignore -m engine {command} {to}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "the output cannot be written (" in done.stderr


@pytest.mark.parametrize("to", ["2>&-", "2>/dev/full", "<&-", "<&- 2>&-"])
def test_other_streams_that_are_closed_or_full_hinder_nothing(to: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -W ignore -m engine run builtin --max-tokens 3 --reasoning off hi {to}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()
