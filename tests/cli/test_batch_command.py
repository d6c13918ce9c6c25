"""`llama-engine batch`: its exit codes, and what it says when it is interrupted."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine import ChatTemplate, ContextOverflowError, Engine
from engine.cli import commands, main
from engine.testing.scripted import ByteVocab, ScriptedBackend


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The command gets a scripted model; what it asked for when loading."""
    asked: list[dict[str, Any]] = []

    def load(_: object, **more: Any) -> Engine:
        asked.append(more)
        backend = ScriptedBackend(lambda _: "Yes.", vocab=ByteVocab(["<|im_start|>"]), n_ctx=600)
        return Engine.over(backend, ChatTemplate(None, family="qwen3"))

    monkeypatch.setattr(commands, "load", load)
    return asked


def write(path: Path, *rows: object) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_all_good_then_some_failed_then_another_job(
    tmp_path: Path, loaded: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.jsonl")
    good = write(tmp_path / "in.jsonl", {"prompt": "one"}, {"prompt": "two"})
    assert main(["batch", good, "-o", out, "--temperature", "0"]) == 0
    assert loaded == [{"n_sequences": 2}]
    assert "2 of 2 rows (100 %)" in capsys.readouterr().err
    grown = write(tmp_path / "in.jsonl", {"prompt": "one"}, {"prompt": "two"}, {"prompt": "long " * 900})
    assert main(["batch", grown, "-o", out, "--temperature", "0", "--quiet"]) == 3
    assert capsys.readouterr().err == ""
    assert main(["batch", grown, "-o", out, "--temperature", "1"]) == 1
    assert "another job; it differs in: options" in capsys.readouterr().err
    assert main(["batch", grown, "-o", out, "--temperature", "1", "--quiet", "--force"]) == 3


def test_sequences_are_as_asked_for_or_as_fit(
    tmp_path: Path, loaded: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Eight rows at once, else what fits."""
    load, room = commands.load, [2]

    def crowded(options: Any, **more: Any) -> Engine:
        if more.get("n_sequences", 1) > room[0]:
            loaded.append(more)
            raise ContextOverflowError("no room")
        return load(options, **more)

    monkeypatch.setattr(commands, "load", crowded)
    source = write(tmp_path / "in.jsonl", *({"prompt": f"{number}"} for number in range(20)))
    command = ["batch", source, "-o", str(tmp_path / "out.jsonl"), "--quiet", "--force"]
    ladder: list[dict[str, Any]] = [{"n_sequences": 8}, {}]
    assert main([*command, "--sequences", "5"]) == 1
    assert "no room" in capsys.readouterr().err
    assert loaded == [{"n_sequences": 5}]
    for fits, tried in ((8, 1), (1, 2)):
        room[0] = fits
        loaded.clear()
        assert main(command) == 0
        assert loaded == ladder[:tried]
    room[0] = 0
    loaded.clear()
    assert main(command) == 1
    assert loaded == ladder


def test_bad_input(tmp_path: Path, loaded: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    bad = write(tmp_path / "in.jsonl", {"prompt": "one"}, {"prompt": 2}, {"no": "prompt"})
    assert main(["batch", bad, "-o", str(tmp_path / "out.jsonl")]) == 2
    said = capsys.readouterr().err
    assert "2 rows of" in said
    assert "line 2:" in said
    assert "line 3:" in said
    assert loaded == []
    assert main(["batch", bad, "-o", str(tmp_path / "out.jsonl"), "--skip-bad", "--quiet"]) == 3
    assert main(["batch", str(tmp_path / "none.jsonl"), "-o", str(tmp_path / "out.jsonl")]) == 2


MODULE = """
from pydantic import BaseModel

class Name(BaseModel):
    name: str

other = 7
"""


def test_tables_prompts_and_schemas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a CSV file to one; the schema is a file, or a type of a module in the current folder."""

    def load(_: object, **more: Any) -> Engine:
        def reply(prompt: str) -> str:
            said = f'<think>\nI know.\n</think>\n\n{{"name":"{prompt.split("Name: ")[1][:3]}"}}'
            return said[len(prompt.rsplit("assistant\n", 1)[-1]) :]

        return Engine.over(
            ScriptedBackend(reply, vocab=ByteVocab(["<|im_start|>"])), ChatTemplate(None, family="qwen3")
        )

    monkeypatch.setattr(commands, "load", load)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    Path("in.csv").write_text("id,text\n1,Ann\n2,Bob\n", encoding="utf-8")
    Path("names_of_a_batch.py").write_text(MODULE, encoding="utf-8")
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    Path("schema.json").write_text(json.dumps(schema), encoding="utf-8")
    for number, named in enumerate(("schema.json", "names_of_a_batch:Name")):
        out = f"{number}.csv"
        assert main(["batch", "in.csv", "-o", out, "--prompt", "Name: {text}", "--schema", named]) == 0
        said = capsys.readouterr().err
        assert re.search(
            r"^\d+ tokens in(?: \(\d+ of them cached\))?, \d+ out, \d+\.\d s, \d+ tokens/s$", said, re.MULTILINE
        ), said
        first, one, two = Path(out).read_text(encoding="utf-8").splitlines()
        assert first == "id,text,answer,name,finish_reason,error"
        assert (one, two) == ('1,Ann,"{""name"":""Ann""}",Ann,stop,', '2,Bob,"{""name"":""Bob""}",Bob,stop,')
    wrong = {"names_of_a_batch:other": 1, "names_of_a_batch:None_": 1, "no_such_module:A": 1, "in.csv": 1, "no.json": 1}
    for named, code in wrong.items():
        assert main(["batch", "in.csv", "-o", "2.csv", "--prompt-column", "text", "--schema", named]) == code
        assert named.partition(":")[0] in capsys.readouterr().err
    assert main(["batch", "in.csv", "-o", "2.csv"]) == 2
    assert "--prompt-column" in capsys.readouterr().err
    assert main(["batch", "in.csv", "-o", "2.csv", "--prompt", "{txt}"]) == 2
    assert "the columns are id, text. Did you mean 'text'?" in capsys.readouterr().err
    assert not Path("2.csv").exists()


def command(folder: Path, *more: str, before: Callable[[], None] | None = None) -> "subprocess.Popen[str]":
    """The command itself, on the built-in model."""
    rows = [{"prompt": f"Repeat: number {number}"} for number in range(60)]
    source = write(folder / "in.jsonl", *rows)
    return subprocess.Popen(
        [sys.executable, "-m", "engine", "batch", source, "-o", str(folder / "out.jsonl"), *more],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        preexec_fn=before,
    )


def count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_full_disk_and_interrupts_of_the_command(tmp_path: Path) -> None:
    """A full disk (a limit on the size of files), then Ctrl-C twice, then to the end: each row once."""
    out = tmp_path / "out.jsonl"
    options = ("--temperature", "0", "--max-tokens", "60", "--sequences", "2")
    with command(tmp_path, *options, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))) as child:
        assert child.stderr is not None
        said = child.stderr.read()
    assert child.returncode == 4, said
    assert "Make room, and run the same command to go on." in said
    assert 0 < count(out) < 60
    with command(tmp_path, *options) as child:
        before = count(out)
        while child.poll() is None and count(out) == before:
            time.sleep(0.01)
        child.send_signal(signal.SIGINT)
        assert child.stderr is not None
        lines = [child.stderr.readline()]
        while "Finishing" not in lines[-1] and lines[-1]:
            lines.append(child.stderr.readline())
        child.send_signal(signal.SIGINT)
        lines += child.stderr.read().splitlines()
    said = "\n".join(lines)
    assert "Run the same command to go on." in said
    assert child.returncode == (130 if count(out) < 60 else 0), said
    with command(tmp_path, *options, "--in-order") as child:
        assert child.stderr is not None
        child.stderr.read()
    assert child.returncode == 0
    names = [json.loads(line)["custom_id"] for line in out.read_text(encoding="utf-8").splitlines()]
    assert names == [f"row-{number}" for number in range(1, 61)]
