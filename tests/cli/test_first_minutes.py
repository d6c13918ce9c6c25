"""The first minutes at a command line: pipes, base models, any GGUF, Ctrl-C before anything is loaded, errors in the
words of the command line."""

import io
import json
import os
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import pytest
from files import model_files
from hypothesis import given
from hypothesis import strategies as st

from engine.cli import main, standard
from engine.cli.exit_codes import INTERRUPTED
from engine.cli.wording import BY_SET, OF_LOADING, OF_TURNS, spoken


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def ran(*arguments: str, piped: str = "") -> Done:
    """Run a command in this process, whose standard input is a pipe with this text."""
    reading, writing = os.pipe()
    os.write(writing, piped.encode())
    os.close(writing)
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, os.fdopen(reading, encoding="utf-8") as pipe, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, stream in (("stdin", pipe), ("stdout", out), ("stderr", err)):
            patch.setattr(sys, name, stream)
        try:
            code = main(arguments)
        except SystemExit as end:  # of --help
            code = int(end.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a chat template."""

    def bare(writer: Any) -> None:
        for data in writer.kv_data:
            data.pop("tokenizer.chat_template", None)

    return model_files.write(tmp_path_factory.mktemp("base") / "base.gguf", change=bare)


@pytest.mark.parametrize("model", [["builtin"], ["-m", "builtin"]])
def test_a_pipe_alone_is_the_prompt(model: list[str]) -> None:
    done = ran("run", *model, "--temperature", "0", piped="Hello! Who are you?\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("I am the tiny built-in model")
    said = ran("run", "-m", "builtin", "--temperature", "0", "Hello! Who are you?")
    assert said.stdout == done.stdout


def test_a_real_pipe_is_the_prompt_of_a_process() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "engine", "run", "builtin", "--temperature", "0"]
    done = subprocess.run(command, input="Hello!\n", capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout[:5]) == (0, "Hello"), done.stderr


def test_without_any_text_the_prompt_is_missed() -> None:
    done = ran("run", "builtin")
    assert done.returncode == 1
    assert "builtin is in the place of the prompt" in done.stderr
    done = ran("run", "-m", "builtin")
    assert (done.returncode, done.stdout) == (1, "")
    assert "There is no prompt, and nothing came from the pipe" in done.stderr


def test_a_base_model_continues_a_text(base_model: Path) -> None:
    options = ("--raw", "--max-tokens", "6", "--temperature", "0")
    piped = ran("run", str(base_model), *options, piped="hello world\n")
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout == ran("run", str(base_model), "hello world", *options).stdout
    refused = ran("run", str(base_model), "hello world")
    assert refused.returncode == 1
    assert "`run --raw` continues a text" in refused.stderr
    assert "chat_template=" not in refused.stderr
    for name, value in (("system", "x"), ("reasoning", "on")):
        done = ran("run", str(base_model), "a", "--raw", f"--{name}", value)
        assert (done.returncode, f"so --{name} says nothing" in done.stderr) == (1, True)


def test_a_base_model_chats_by_a_transcript(base_model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "talk.json"
    options = ("--max-tokens", "6", "--temperature", "0", "--resume", str(kept))
    done = ran("chat", str(base_model), *options, piped="hello\nworld\n")
    assert done.returncode == 0, done.stderr
    assert [each["role"] for each in json.loads(kept.read_text())] == ["user", "assistant"] * 2


@pytest.mark.parametrize("kind", ["adapter", "mmproj", "imatrix"])
def test_every_gguf_is_inspected(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = model_files.write(tmp_path / "a.gguf", change=lambda writer: writer.add_type(kind))
    assert main(["inspect", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    reader = gguf.GGUFReader(path)
    assert found["tensors"] == len(reader.tensors)
    assert found["metadata"]["general.type"] == kind
    assert set(found["metadata"]) == {key for key in reader.fields if not key.startswith("GGUF.")}
    assert "not a model" in found["refused"]
    assert main(["inspect", str(path)]) == 0
    assert f"general.type: {kind}" in capsys.readouterr().out


def test_a_vocabulary_is_inspected_and_other_files_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = model_files.write(tmp_path / "a.gguf", tensors=False)
    assert main(["inspect", str(path)]) == 0
    assert "a vocabulary only" in capsys.readouterr().out
    whole = path.read_bytes()
    for data in (b"", b"GGUF", whole[:200], b"text"):
        path.write_bytes(data)
        assert main(["inspect", str(path)]) == 1
        assert "a.gguf" in capsys.readouterr().err


INTERRUPTED_AT = """
import sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == {name!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
from engine.cli import main
sys.exit(main(["run", "-m", "builtin", "Hello"]))
"""


@pytest.mark.parametrize(
    "name", ["argparse", "pydantic", "rich", "engine.cli.arguments", "engine.api.engine", "jinja2"]
)
def test_ctrl_c_while_modules_are_imported_shows_no_traceback(name: str) -> None:
    source = INTERRUPTED_AT.format(name=name)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")


class Terminal(io.StringIO):
    """A terminal that is written to."""

    def isatty(self) -> bool:
        return True


def test_a_load_that_takes_long_is_told_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard, "_PATIENCE", 0.05)
    for stream, seconds, told in (
        (Terminal(), 0.5, "loading a model ...\n"),
        (Terminal(), 0.0, ""),
        (io.StringIO(), 0.5, ""),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        with standard.loading("a model"):
            time.sleep(seconds)
        time.sleep(0.1)
        assert stream.getvalue() == told


OPTIONS = {name: option for table in (OF_LOADING, OF_TURNS) for name, option in table.items()}
LITERALS = st.one_of(st.integers(-9, 10**6), st.sampled_from(["auto", "f16.gguf"]))


@given(st.sampled_from(sorted(OPTIONS)), LITERALS, st.text(alphabet="ab ,.;()", max_size=9))
def test_errors_name_the_options_of_the_command_line(name: str, value: object, after: str) -> None:
    shown = f"{value:,}" if isinstance(value, int) else repr(value)
    text = spoken(f"Pass {name}={shown}; or another {name}= ({after})")
    assert f"{name}=" not in text
    assert text == f"Pass {OPTIONS[name]} {value}; or another {OPTIONS[name]} ({after})"
    if name in OF_TURNS:
        assert spoken(f"{name}={shown}", chat=True) == f"{name}={shown}", "/set has Python's names"


@given(st.sampled_from(sorted(BY_SET)), LITERALS, st.text(alphabet="ab ,.;()", max_size=9))
def test_errors_name_what_is_set_by_its_name(name: str, value: object, after: str) -> None:
    shown = f"{value:,}" if isinstance(value, int) else repr(value)
    assert spoken(f"Pass {name}={shown}; {after}") == f"Pass --set {name}={value}; {after}"
    assert spoken("pass preflight=False") == "pass --set preflight=false"


def test_these_options_exist() -> None:
    helps = "".join(help_of(name) for name in ("run", "batch", "models download"))
    assert [option for option in OPTIONS.values() if not re.search(rf"{option}\b", helps)] == []


def help_of(command: str) -> str:
    return ran(*command.split(), "--help").stdout
