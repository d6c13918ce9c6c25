"""A turn takes few calls of our own functions: counted, so the same on a busy machine."""

import re
import subprocess
import sys
from pathlib import Path

MOST = {"a bare question": (978, 80.2), "with one tool": (1_316, 80.1)}
"""Calls up to the first token, and for each token after it: those of November 2026, the fewest of three turns. A change
that adds one says why here. Each token asks once whether it is quoted, as a call that reasoning quotes is not run; each
wait asks twice whether it is made in the engine's own thread, which would wait for ever. An interrupt at any line loses
nothing: six a token. One table says what a marker does: three a token. A source is asked for the model: two a turn. A
text that a form opens may be chosen as a whole: one a token asks whether. How long a prompt waits for others: one a
turn. Whether texts are being tried: one a token; what code may be open: one a token; what a load leaves for the first
turn, and what a prompt reuses, which is found before it is taken: some a turn."""


def test_a_turn_takes_no_more_calls_than_it_did(repository: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(repository / "benchmarks" / "calls.py"), "--family"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=repository)
    found = re.findall(
        r"^the built-in model, (.+): to the first token \[(.+)\]; each .+ it \[(.+)\]$", done.stdout, re.MULTILINE
    )
    assert {kind for kind, _, _ in found} == set(MOST), done.stdout
    for kind, first, rest in found:
        counted = min(map(int, first.split(", "))), min(map(float, rest.split(", ")))
        assert counted[0] <= MOST[kind][0], done.stdout
        assert counted[1] <= MOST[kind][1], done.stdout
