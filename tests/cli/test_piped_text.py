"""Text from a pipe is UTF-8 in every locale, and refused if it is not, as a file is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

LATIN_1 = "Say café".encode("latin-1")


@pytest.mark.parametrize(
    "locale", [{}, {"LC_ALL": "C"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}]
)
@pytest.mark.parametrize("command", [["run", "-m", "builtin"], ["chat", "-m", "builtin"]])
def test_piped_text_that_is_not_utf_8_is_refused(command: list[str], locale: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine", *command],
        input=LATIN_1,
        env={**os.environ, **locale},
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode != 0
    assert b"Standard input is not UTF-8 text" in done.stderr
    assert b"Traceback" not in done.stderr


def test_utf_8_is_read_in_the_locale_c(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "engine", "tokenize", "-"],
        input="café".encode(),
        env={**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"},
        cwd=tmp_path,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert b"is not UTF-8" not in done.stderr
