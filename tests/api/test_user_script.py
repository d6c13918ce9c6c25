"""Strict type checkers find each planted mistake of a user's script, and complain of nothing else."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("user_script.py")
EXTRAS = "[mypy]\n[mypy-openai.*,mcp.*,IPython.*,prompt_toolkit.*,matplotlib.*,cryptography.*]\nfollow_imports = skip\n"
"""Mypy sees what the base install has (3,000 files of extras are two thirds of its time); basedpyright sees all."""
PLANTED = {
    number
    for number, line in enumerate(SCRIPT.read_text(encoding="utf-8").splitlines(), 1)
    if re.search("# mistake: ", line)
}


def output(arguments: list[str], folder: Path, repository: Path) -> str:
    environment = {**os.environ, "MYPYPATH": str(repository)}
    done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 1, done.stdout + done.stderr  # 1: the program is checked and has mistakes
    return done.stdout


def check(found: dict[int, str]) -> None:
    assert {line: text for line, text in found.items() if line not in PLANTED} == {}, "false"
    assert PLANTED - found.keys() == set(), "not found"


def test_basedpyright(tmp_path: Path, repository: Path) -> None:
    (tmp_path / SCRIPT.name).write_bytes(SCRIPT.read_bytes())
    settings = {"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": [str(repository)]}
    # An expression alone is the shortest mistake.
    settings["reportUnusedExpression"] = "none"
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, SCRIPT.name]
    told = json.loads(output(command, tmp_path, repository))["generalDiagnostics"]
    check({each["range"]["start"]["line"] + 1: each["message"] for each in told})


def test_mypy(tmp_path: Path, repository: Path) -> None:
    mypy = shutil.which("mypy", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if mypy is None:
        pytest.skip("mypy is not installed; it comes with the extra dev")
    (tmp_path / SCRIPT.name).write_bytes(SCRIPT.read_bytes())
    (tmp_path / "mypy.ini").write_text(EXTRAS, encoding="utf-8")
    options = ["--strict", "--follow-imports=silent", "--python-executable", sys.executable, "--output=json"]
    options.append(f"--cache-dir={os.devnull}")
    lines = output([mypy, *options, SCRIPT.name], tmp_path, repository).splitlines()
    told = [json.loads(line) for line in lines]
    check({each["line"]: each["message"] for each in told if each["severity"] == "error"})
