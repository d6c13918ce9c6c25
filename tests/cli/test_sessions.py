"""`llama-engine chat --session` and `--continue`, and `llama-engine sessions`: where they are kept, what their names
may be, who has one, and what is in them."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.scripts import scripted

from engine.cli import commands, confirm, main, sessions
from engine.cli.sessions import last, read, session, write
from engine.support.errors import RequestError
from engine.types.messages import Message

Types = Callable[..., list[str]]


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of the sessions, which is not there yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "state"))
    return tmp_path / "state" / "llama-engine" / "sessions"


@pytest.fixture
def types(monkeypatch: pytest.MonkeyPatch) -> Types:
    """Let a user type lines at a prompt, then Ctrl-D; every answer is "Yes." Returns the prompts and the models."""

    def use(*lines: str) -> list[str]:
        said: Iterator[str] = iter(lines)
        seen: list[str] = []

        def answer(_: str = "") -> str:
            line = next(said, None)
            if line is None:
                raise EOFError
            return line

        def reply(prompt: str) -> str:
            seen.append(prompt)
            return "Yes."

        def load(options: argparse.Namespace) -> Any:
            seen.append(f"model {options.model}")
            return scripted(reply)

        monkeypatch.setattr(commands, "load", load)

        def greeting(_: Any) -> str:
            return "hello"

        monkeypatch.setattr(commands, "greeting", greeting)
        monkeypatch.setattr(confirm, "can_ask", lambda: True)
        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
        monkeypatch.setattr("builtins.input", answer)
        return seen

    return use


def test_a_session_goes_on_with_its_model(types: Types, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    types("one")
    assert main(["chat", "--session", "trip", "-m", "own/repo:Q4_K_M", "--system", "Be brief."]) == 0
    stored = json.loads((state / "trip.json").read_text(encoding="utf-8"))
    assert stored["models"] == ["own/repo:Q4_K_M"]
    assert [message["role"] for message in stored["messages"]] == ["system", "user", "assistant"]
    if os.name == "posix":
        assert (state / "trip.json").stat().st_mode & 0o077 == 0, "nobody else reads it"
        assert state.stat().st_mode & 0o077 == 0

    seen = types("two")
    assert main(["chat", "--session", "trip"]) == 0
    assert seen[0] == "model own/repo:Q4_K_M"
    assert all(text in seen[1] for text in ("Be brief.", "one", "Yes.", "two"))
    assert "going on after 1 question of" in capsys.readouterr().out

    seen = types("three")
    assert main(["chat", "--session", "other", "other/repo"]) == 0
    assert "one" not in seen[1]
    seen = types("four")
    assert main(["chat", "--continue"]) == 0
    assert seen[0] == "model other/repo"
    assert all(text in seen[1] for text in ("three", "four"))
    seen = types()
    assert main(["chat", "--continue", "-m", "third/repo", "--system", "Be long."]) == 0
    assert seen == ["model third/repo"]


def test_a_file_as_model_is_found_from_any_folder(
    types: Types, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    types("one")
    assert main(["chat", "--session", "here", "m.gguf"]) == 0
    assert read(state / "here.json").models == (str(tmp_path / "m.gguf"),)


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "-x", "a/b", "../a", "/etc/passwd", "a\\b", "a\0b", "a b", "a" * 65, "ä", "C:a"]
)
def test_names_that_could_leave_the_folder_are_refused(
    name: str, state: Path, types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    types("one")
    assert main(["chat", f"--session={name}"]) == 1
    assert "cannot name a session" in capsys.readouterr().err
    assert not state.exists()


def test_two_chats_with_one_session_are_told(types: Types, capsys: pytest.CaptureFixture[str]) -> None:
    types("one")
    with session("trip"):
        assert main(["chat", "--session", "trip"]) == 1
        assert "The session trip is open in another process" in capsys.readouterr().err
        assert main(["chat", "--session", "other"]) == 0
    assert main(["chat", "--session", "trip"]) == 0


def test_what_goes_wrong_inside_is_not_said_of_the_folder() -> None:
    with pytest.raises(OSError, match="of the body"), session("trip"):
        raise OSError("of the body")


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_made(state: Path, types: Types, capsys: pytest.CaptureFixture[str]) -> None:
    state.parents[1].mkdir(mode=0o500)
    types("one")
    assert main(["chat", "--session", "trip"]) == 1
    assert "Set XDG_STATE_HOME to another folder" in capsys.readouterr().err


def test_a_file_in_the_way_of_the_folder(state: Path, types: Types, capsys: pytest.CaptureFixture[str]) -> None:
    state.parents[1].write_text("a file", encoding="utf-8")
    types("one")
    assert main(["chat", "--session", "trip"]) == 1
    assert "Set XDG_STATE_HOME to another folder" in capsys.readouterr().err


def test_sessions_are_listed_the_newest_first(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sessions"]) == 0
    assert "There are no sessions in" in capsys.readouterr().out
    with pytest.raises(RequestError, match="begin one: llama-engine chat --session NAME"):
        last()
    state.mkdir(parents=True)
    asked = Message(role="user", content="x")
    write(state / "old.json", [asked], ["own/repo"])
    write(state / "new.json", [asked, asked])
    (state / "bad.json").write_text("{", encoding="utf-8")
    (state / "not a name.json").write_text("[]", encoding="utf-8")
    (state / ".old.lock").write_bytes(b"")
    for seconds, name in enumerate(("bad", "old", "new"), 1_700_000_000):
        os.utime(state / f"{name}.json", (seconds, seconds))
    assert last() == "new"
    assert main(["sessions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["new", "2"], ["old", "1"], ["bad", "damaged"]]
    assert lines[2].endswith("own/repo")
    assert lines[4] == f"3 sessions in {state}"
    assert main(["sessions", "--json"]) == 0
    assert [row["questions"] for row in json.loads(capsys.readouterr().out)] == [2, 1, None]


def test_a_damaged_session_is_not_overwritten(state: Path, types: Types, capsys: pytest.CaptureFixture[str]) -> None:
    state.mkdir(parents=True)
    for text in ("{", "[" * 100_000, '{"messages": 3}', "3", '{"models": "x"}'):
        (state / "trip.json").write_text(text, encoding="utf-8")
        types("one")
        assert main(["chat", "--session", "trip", "-m", "own/repo"]) == 1
        assert "is not a saved conversation" in capsys.readouterr().err
        assert (state / "trip.json").read_text(encoding="utf-8") == text


def test_only_one_of_the_ways_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        ["--session", "a", "--continue"],
        ["--session", "a", "--resume", "b"],
        ["--continue", "--resume", "b"],
    ):
        with pytest.raises(SystemExit):
            main(["chat", *line])
        assert "not allowed with argument" in capsys.readouterr().err


def test_where_they_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if sys.platform == "win32":
        assert sessions.folder() == tmp_path / "state" / "llama-engine" / "sessions"
        return
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in ("", "relative/path"):  # the standard says that a relative one is ignored
        monkeypatch.setenv("XDG_STATE_HOME", given)
        assert sessions.folder() == tmp_path / ".local" / "state" / "llama-engine" / "sessions"
