"""`llama-engine chat`: its commands, saved conversations, tools from a file, interrupts; and `run` with schemas, files
and pipes."""

import argparse
import io
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.scripts import scripted as scripted_engine

from engine import Engine, RequestError
from engine.cli import commands, confirm, main
from engine.cli.screen import Screen
from engine.cli.tool_files import tools_of

ANSWER = "<think>\nI know it.\n</think>\n\nIt is 5842."
TOOLS = '''
"""Tools."""
import time
from os.path import join

LOG = []

def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b

async def later(text: str) -> str:
    """Say it later."""
    return text.upper()

def sleep(seconds: int) -> str:
    """Sleep."""
    time.sleep(seconds)
    return "slept"

def _hidden(a: int) -> int:
    return a
'''


class Script:
    """What the model says, and the prompts that it was asked with."""

    def __init__(self, *replies: str) -> None:
        self.replies = list(replies)
        self.asked: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.asked.append(prompt)
        return self.replies.pop(0)


def call(name: str, **arguments: object) -> str:
    written = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{written}\n</tool_call>"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Script]:
    """Let every command load an engine over a script."""

    def use(*replies: str, delay: float = 0.0, listed: bool = False) -> Script:
        script = Script(*replies)

        def load(_: argparse.Namespace) -> Engine:
            return scripted_engine(script.replies if listed else script, delay=delay)

        def greeting(_: Engine) -> str:
            return "hello"

        monkeypatch.setattr(commands, "load", load)
        monkeypatch.setattr(commands, "greeting", greeting)
        return script

    return use


Scripted = Callable[..., Script]
Types = Callable[..., None]


@pytest.fixture
def types(monkeypatch: pytest.MonkeyPatch) -> Types:
    """Let a user type lines at a prompt, then Ctrl-D. A function among them is called in place of a line."""

    def use(*lines: str | Callable[[], str]) -> None:
        said: Iterator[str | Callable[[], str]] = iter(lines)

        def answer(_: str = "") -> str:
            line = next(said, None)
            if line is None:
                raise EOFError
            return line if isinstance(line, str) else line()

        monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
        monkeypatch.setattr(confirm, "can_ask", lambda: True)
        monkeypatch.setattr(commands, "can_ask", lambda: True)
        monkeypatch.setattr("builtins.input", answer)

    return use


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    path = tmp_path / "my_tools.py"
    path.write_text(TOOLS, encoding="utf-8")
    return path


def test_commands_are_listed_and_unknown_ones_named(
    scripted: Scripted, types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    script = scripted(ANSWER)
    types(
        "/help", "/zzz loud", "/cler", "/think maybe", "/save", "//etc/hosts is a file", "/clear now", "/quit", "never"
    )
    assert main(["chat"]) == 0
    out = capsys.readouterr().out
    for name in ("/help", "/think on|off|show|hide", "/save FILE", "/load FILE", "/clear", "/quit"):
        assert f"\n  {name}" in out
    assert "There is no command /zzz; /help lists the commands. To send" in out
    assert "There is no command /cler; did you mean '/clear'? To send" in out
    assert "/think does not take 'maybe'; write /think on|off|show|hide." in out
    assert "/save is incomplete; write /save FILE." in out
    assert "/clear does not take 'now'" in out
    assert len(script.asked) == 1
    assert "user\n/etc/hosts is a file<|im_end|>" in script.asked[0]


def test_reasoning_is_shown_folded_and_switched(
    scripted: Scripted, types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    script = scripted(ANSWER, ANSWER, "It is 5842.", ANSWER)
    types("one", "/think hide", "two", "/think off", "three", "/think on", "/think show", "four")
    assert main(["chat"]) == 0
    shown = ("reasoning", "answer", "(reasoning")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(shown)]
    assert lines == [
        "reasoning: I know it.",
        "answer: It is 5842.",
        "(reasoning is hidden from now on)",
        "reasoning: 3 words, hidden (/think show)",
        "answer: It is 5842.",
        "(reasoning is off from now on)",
        "answer: It is 5842.",
        "(reasoning is on from now on)",
        "(reasoning is shown from now on)",
        "reasoning: I know it.",
        "answer: It is 5842.",
    ]
    assert [prompt.endswith("<think>\n\n</think>\n\n") for prompt in script.asked] == [False, False, True, False]


def test_the_system_message_is_shown_set_and_removed(
    scripted: Scripted, types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    script = scripted(*["Yes."] * 4)
    types(
        "/system",
        "/system Be brief.",
        "/system",
        "one",
        "/system Be long.",
        "two",
        "/clear",
        "three",
        "/system off",
        "four",
    )
    assert main(["chat"]) == 0
    out = capsys.readouterr().out
    assert "There is no system message; /system TEXT sets one.\n(the system message is set)\nBe brief.\n" in out
    assert "Be brief." in script.asked[0]
    assert "Be long." in script.asked[1]
    assert "Be brief." not in script.asked[1]
    assert "one" in script.asked[1]
    assert "Be long." in script.asked[2], "it stays when the conversation is forgotten"
    assert "one" not in script.asked[2]
    assert "system" not in script.asked[3]
    assert "three" in script.asked[3]


def test_a_saved_conversation_gets_the_system_message_of_the_command(
    scripted: Scripted, types: Types, tmp_path: Path
) -> None:
    script = scripted("Yes.", "Yes.")
    for system, question in (("Be brief.", "one"), ("Be long.", "two")):
        types(question)
        assert main(["chat", "--resume", str(tmp_path / "kept.json"), "--system", system]) == 0
    assert "Be long." in script.asked[1]
    assert "Be brief." not in script.asked[1]


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The options of every turn that a chat runs."""
    seen: list[dict[str, object]] = []
    original = Engine.stream_run

    def stream_run(llm: Engine, *arguments: Any, **options: Any) -> Any:
        seen.append({name: value for name, value in options.items() if name != "approve" and value is not None})
        return original(llm, *arguments, **options)

    monkeypatch.setattr(Engine, "stream_run", stream_run)
    return seen


def test_options_are_set_taken_back_and_checked(
    scripted: Scripted, types: Types, turns: list[dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(*["Yes."] * 3)
    types(
        "/set",
        "/set temperature 0.5",
        "/set max_tokens 9",
        "/set stop ###",
        '/set dry_breakers ["a", "b"]',
        "/set reasoning off",
        "/set",
        "one",
        "/set temperature default",
        "/set reasoning default",
        "two",
        "/set temprature 1",
        "/set num_predict 1",
        "/set temperature hot",
        "/set temperature NaN",
        "/set max_tokens 0",
        "/set reasoning very",
        "/set response_format {}",
        "/set temperature",
        "three",
    )
    assert main(["chat", "--max-tokens", "99"]) == 0
    out = capsys.readouterr().out
    assert "Set: max_tokens 99\nOptions: temperature, dynatemp_range, dynatemp_exponent, top_k" in out
    assert 'Set: temperature 0.5, max_tokens 9, stop "###", dry_breakers ["a", "b"], reasoning off' in out.replace(
        "\n", " "
    )
    given = {"max_tokens": 9, "stop": "###", "dry_breakers": ["a", "b"]}
    assert turns == [{**given, "temperature": 0.5, "reasoning": False}, given, given]
    for words in (
        "There is no option 'temprature'; did you mean 'temperature'?",
        "There is no option 'num_predict'; write max_tokens=",
        "temperature='hot'",
        "temperature=nan",
        "max_tokens=0",
        "reasoning is one of on, off, low, medium, high, not 'very'.",
        "There is no option 'response_format'",
        "/set does not take 'temperature'; write /set [NAME VALUE].",
    ):
        assert words in out


def test_reasoning_is_not_set_where_the_model_has_no_such_switch(
    scripted: Scripted, types: Types, turns: list[dict[str, object]], capsys: pytest.CaptureFixture[str]
) -> None:
    scripted("Yes.")
    types("/set reasoning high", "one")
    assert main(["chat"]) == 0
    assert "reasoning is high" not in capsys.readouterr().out
    assert turns == [{}]


def test_the_last_question_is_asked_again_or_forgotten(
    scripted: Scripted, types: Types, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = scripted("First.", "Second.", "Third.", "Fourth.")
    kept = tmp_path / "kept.json"
    types("/retry", "/undo", "one", "two", "/retry", "/undo", "/show", "three", "/undo", "/undo")
    assert main(["chat", "--resume", str(kept), "--system", "Be brief."]) == 0
    out = capsys.readouterr().out
    assert out.count("There is no question yet.") == 2
    assert script.asked[1] == script.asked[2], "the same prompt again"
    assert "two" not in script.asked[3]
    assert "First." in script.asked[3]
    assert "answer: Third." in out
    assert [message["role"] for message in json.loads(kept.read_text(encoding="utf-8"))] == ["system"]


def test_a_question_that_is_asked_again_has_its_pictures_and_calls_are_undone_with_it(
    scripted: Scripted, types: Types, tools: Path, tmp_path: Path
) -> None:
    note = tmp_path / "note.txt"
    note.write_text("from a file", encoding="utf-8")
    script = scripted(call("multiply", a=2, b=3), "Six.", call("multiply", a=2, b=3), "Six!", "Yes.")
    types("alpha", "y", f"/file {note}", "/retry", "y", "/undo", "two")
    assert main(["chat", "--tools", str(tools)]) == 0
    assert script.asked[0] == script.asked[2]
    assert "Six" not in script.asked[4]
    assert "alpha" not in script.asked[4]
    assert "from a file" in script.asked[4], "the file waits for the next question that is typed"


@pytest.mark.parametrize(("name", "seen"), [("photo.png", "pictures"), ("voice.wav", "sounds")])
def test_a_picture_for_a_model_that_takes_none_is_told_so(
    scripted: Scripted, types: Types, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, seen: str
) -> None:
    """Before anything is needed to read it."""
    (tmp_path / name).write_bytes(b"no picture at all")
    scripted("Yes.")
    types(f"/file {tmp_path / name}", "one")
    assert main(["chat"]) == 0
    said = "".join(capsys.readouterr())
    assert f"takes no {seen}" in said
    assert "--projector auto" in said


def test_what_a_chat_uses_is_shown(
    scripted: Scripted, types: Types, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scripted(ANSWER)
    types("/show", "/system Be brief.", "/set temperature 0", "one", "/show", "/model")
    assert main(["chat", "--tools", str(tools)]) == 0
    first, second = capsys.readouterr().out.partition("(the system message is set)")[::2]
    for line in ("system    none", "options   the defaults of the model", "used      no tokens yet"):
        assert line in first
    for line in (
        "model     Qwen3",
        "system    Be brief.",
        "options   temperature 0",
        "tools     multiply, later, sleep",
    ):
        assert f"\n{line}" in second
    assert "messages  3, of which 1 question\n" in second
    assert re.search(r"\nused      \d+ tokens in 1 turn, ", second)
    found = re.search(r"\ncontext   about ([\d,]+) of 4,096 tokens, ([\d,]+) left\nsaved to  nothing", second)
    assert found is not None
    used, left = (int(text.replace(",", "")) for text in found.groups())
    assert used + left == 4096
    assert used > 100, "the tools are part of it"
    assert re.search(r"\nQwen3.* answers; name several after `chat`\.\n", second)


def test_piped_lines_are_no_commands(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = tmp_path / "stolen.json"
    lines = f"one\n/save {target}\n/halp\n//two\n/etc/hosts is a file\n"
    for first, words in (
        ("", "/save is sent as text: piped lines"),
        ("/halp\n", "/halp is no command, and sent as text"),
    ):
        script = scripted(*["Yes."] * 6)
        monkeypatch.setattr("sys.stdin", io.StringIO(first + lines))
        assert main(["chat"]) == 0
        err = capsys.readouterr().err
        assert words in err
        assert err.count("--commands runs those") == 1
        assert not target.exists()
        for text in (f"/save {target}", "/halp", "//two", "/etc/hosts is a file"):
            assert f"user\n{text}<|im_end|>" in script.asked[-1]
    script = scripted("Yes.", "Yes.")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"one\n//two\n/save {target}\n/halp\nnever\n"))
    assert main(["chat", "--commands"]) == 1
    assert "There is no command /halp; did you mean '/help'?" in capsys.readouterr().err
    assert "user\n/two<|im_end|>" in script.asked[1]
    assert len(json.loads(target.read_text(encoding="utf-8"))) == 4


def test_a_status_line_follows_an_answer(scripted: Scripted, types: Types, capsys: pytest.CaptureFixture[str]) -> None:
    scripted(ANSWER, ANSWER)
    types("one", "two")
    assert main(["chat"]) == 0
    first, second = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")]
    assert " tokens/s | context " in first
    assert re.fullmatch(r"\[\d+ tokens, \d+ tokens/s \| context \d+ % of 4,096 \| prefix 0 % reused\]", first)
    assert re.search(r"\| prefix [1-9]\d? % reused\]", second)


def test_a_conversation_is_saved_loaded_cleared_and_resumed(
    scripted: Scripted, types: Types, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = scripted(ANSWER, "Second.", "Third.", "Fourth.")
    saved, kept = tmp_path / "saved.json", tmp_path / "kept.json"
    types("one", f"/save {saved}", "/clear", "two", f"/load {saved}", "three")
    assert main(["chat", "--resume", str(kept), "--system", "Be brief."]) == 0
    assert "one" not in script.asked[1]
    assert "Be brief." in script.asked[1]
    assert "It is 5842." in script.asked[2]
    assert "two" not in script.asked[2]
    assert "3 messages saved to" in capsys.readouterr().out
    stored = json.loads(saved.read_text(encoding="utf-8"))
    assert [message["role"] for message in stored] == ["system", "user", "assistant"]
    assert stored[2]["reasoning"] == "I know it."
    types("four")
    assert main(["chat", "--resume", str(kept)]) == 0
    assert "going on after 2 questions" in capsys.readouterr().out
    assert all(text in script.asked[3] for text in ("Be brief.", "one", "It is 5842.", "three", "Third.", "four"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.json", "saved.json"], (
        "no half-written file is left"
    )


def test_files_that_are_no_conversation_are_named(
    scripted: Scripted, types: Types, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scripted()
    wrong = tmp_path / "wrong.json"
    wrong.write_text('[{"role": "king", "content": "x"}]', encoding="utf-8")
    types(f"/load {wrong}", f"/load {tmp_path / 'none.json'}", f"/save {tmp_path / 'none' / 'x.json'}")
    assert main(["chat"]) == 0
    out = capsys.readouterr().out
    assert "wrong.json is not a saved conversation: " in out
    assert "none.json cannot be read" in out
    assert "cannot be saved to" in out
    assert main(["chat", "--resume", str(wrong)]) == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_what_is_no_file_is_neither_waited_for_nor_read_for_ever(
    scripted: Scripted, types: Types, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scripted()
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    picture = tmp_path / "fifo.png"
    os.mkfifo(picture)
    asked = [f"/{what} {path}" for what in ("file", "load") for path in (fifo, picture, "/dev/zero", tmp_path)]
    types(*asked)
    assert main(["chat"]) == 0
    told = capsys.readouterr().out
    assert told.count("cannot be read") + told.count("is not a file") >= len(asked)


def test_tools_of_a_file_are_asked_about(
    scripted: Scripted, types: Types, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = scripted(call("multiply", a=127, b=46), ANSWER, call("multiply", a=2, b=3), "As you wish.")
    types("What is 127 times 46?", "y", "And 2 times 3?", "no")
    assert main(["chat", "--tools", str(tools)]) == 0
    out = capsys.readouterr().out
    assert 'run multiply {"a": 127, "b": 46}' in out
    assert "result: 5842" in out
    assert "the user refused this call" in out
    assert "5842" in script.asked[1]
    assert "the user refused this call" in script.asked[3]
    assert "_hidden" not in script.asked[0]
    assert '"later"' in script.asked[0]


SHELL = '''
def shell(cmd: str) -> str:
    """Run a command."""
    return "ran"
'''


@pytest.mark.parametrize("length", [10, 3_000, 60_000])
def test_a_question_shows_all_that_it_is_about(
    length: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page at a time; each word stands in what was shown before the last question."""
    words = [f"w{number:05}" for number in range(length // 7)]
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        return "y" if question.startswith("Run it?") else ""

    monkeypatch.setattr("builtins.input", answer)
    assert confirm.confirmed(Screen(sys.stdout), " ".join(words), "Run it?")
    shown = "".join(capsys.readouterr().out.splitlines())
    assert [word for word in words if word not in shown] == []
    assert len(asked) >= 1 + length // (80 * 25)


def always(answer: str) -> Callable[[str], str]:
    def give(_: str) -> str:
        return answer

    return give


def test_what_was_not_read_to_its_end_or_is_too_long_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in ("n", "y"):
        monkeypatch.setattr("builtins.input", always(answer))
        assert not confirm.confirmed(Screen(sys.stdout), "x" * 5_000, "Run it?")
    assert not confirm.confirmed(Screen(sys.stdout), "x" * (confirm.LONGEST + 1), "Run it?")
    assert "too many to read: refused" in capsys.readouterr().out


def test_a_question_hides_no_character(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", always("y"))
    assert confirm.confirmed(Screen(sys.stdout), "run\u200b \u202e\x1b[8mrm\x9b", "Run it?")
    assert capsys.readouterr().out == "run\\u200b \\u202e\\x1b[8mrm\\x9b\n"


def test_calls_are_not_run_where_nobody_sees_the_question(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shell.py").write_text(SHELL, encoding="utf-8")
    scripted("Hello.")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(isatty=lambda: True))
    assert main(["chat", "--tools", str(tmp_path / "shell.py")]) == 1
    assert "without a terminal as input and output" in capsys.readouterr().err


def test_tools_run_without_questions_with_yes(
    scripted: Scripted, tools: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(call("later", text="soon"), ANSWER)
    monkeypatch.setattr("sys.stdin", io.StringIO("Say soon.\n"))
    assert main(["chat", "--tools", str(tools)]) == 1
    assert "add --yes" in capsys.readouterr().err
    assert main(["chat", "--tools", str(tools), "--yes"]) == 0
    assert "result: SOON" in capsys.readouterr().out


def test_servers_of_tools_are_asked_about_too(
    scripted: Scripted, types: Types, capsys: pytest.CaptureFixture[str], repository: Path, tmp_path: Path
) -> None:
    """A command, and a file that lists servers as MCP clients do."""
    pytest.importorskip("mcp")
    words = ["-I", str(repository / "tests" / "helpers" / "mcp_stdio.py"), "good"]
    server = " ".join([sys.executable, *words])
    config = {"mcpServers": {"calculator": {"command": sys.executable, "args": words}}}
    (tmp_path / "my servers.json").write_text(json.dumps(config), encoding="utf-8")
    call = '<tool_call>\n{"name": "%s", "arguments": {"n": 21}}\n</tool_call>'
    scripted(call % "double", "It is 42.", call % "b_double", "Refused.")
    types("Double 21.", "y", "Again.", "n")
    assert main(["chat", "--mcp", server, "--mcp", f"b_={tmp_path / 'my servers.json'}"]) == 0
    printed = capsys.readouterr().out
    assert 'run double {"n": 21}' in printed
    assert "42" in printed
    assert 'run b_double {"n": 21}' in printed
    assert "the user refused this call" in printed


def test_servers_of_tools_that_cannot_be_used(
    scripted: Scripted, types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mcp")
    for given, words in (
        ("no-such-command-anywhere", "cannot be used: FileNotFoundError"),
        ("", "--mcp is empty"),
        ("no-such-file.json", "no-such-file.json cannot be read as a configuration of MCP servers"),
    ):
        scripted("never")
        types("Hello.")
        assert main(["chat", "--mcp", given]) == 1
        assert words in capsys.readouterr().err


def test_which_names_of_a_file_are_tools(tmp_path: Path, tools: Path) -> None:
    assert [tool.name for tool in tools_of(tools)] == ["multiply", "later", "sleep"]
    listed = tmp_path / "listed.py"
    listed.write_text(TOOLS + "\nTOOLS = [_hidden]\n", encoding="utf-8")
    assert [tool.name for tool in tools_of(listed)] == ["_hidden"]
    for text, words in (("1 / 0", "ZeroDivisionError"), ("nothing = 1", "defines no tools"), ("def", "SyntaxError")):
        listed.write_text(text, encoding="utf-8")
        with pytest.raises(RequestError, match=words):
            tools_of(listed)
    with pytest.raises(RequestError, match="is not a Python file"):
        tools_of(tmp_path / "none.py")


def test_hostile_calls_and_output_move_no_cursor(
    scripted: Scripted, types: Types, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b[2J\x1b]0;title\x07\r\x9b1A\u202e\u2066\b"
    scripted(call("later", text=evil), f"<think>\n{evil}\n</think>\n\n{evil}" + "long " * 100)
    types("Hello", "y")
    assert main(["chat", "--tools", str(tools)]) == 0
    out = capsys.readouterr().out
    assert [letter for letter in out if ord(letter) < 32 and letter != "\n"] == []
    assert not set("\x7f\x9b\u202e\u2066") & set(out)
    assert "\\x1b[2J\\x1b]0;title\\x07\\r\\x9b1A\\u202e\\u2066\\x08" in out


def pressing(after: float) -> None:
    """Press Ctrl-C some seconds later."""
    threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Whoever started the tests may have told them to ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


needs_main_thread = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread only"
)


@needs_main_thread
@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_while_waiting_keeps_what_was_written(
    scripted: Scripted, types: Types, capsys: pytest.CaptureFixture[str]
) -> None:
    script = scripted("word " * 400, "Second.", delay=0.005)

    def first() -> str:
        pressing(0.5)
        return "one"

    types("/think off", first, "two")
    began = time.monotonic()
    assert main(["chat"]) == 0
    assert time.monotonic() - began < 5
    out = capsys.readouterr().out
    assert "[The answer was cancelled.]" in out
    assert "answer: Second." in out
    assert "assistant\nword word" in script.asked[1]


@needs_main_thread
@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_in_a_tool_and_at_its_question_stops_the_answer_only(
    scripted: Scripted, types: Types, tools: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = scripted(call("sleep", seconds=60), "Second.", call("sleep", seconds=60), "Fourth.")

    def yes() -> str:
        pressing(0.3)
        return "y"

    def interrupted() -> str:
        raise KeyboardInterrupt

    types("one", yes, "two", "three", interrupted, "four")
    began = time.monotonic()
    assert main(["chat", "--tools", str(tools)]) == 0
    assert time.monotonic() - began < 20
    out = capsys.readouterr().out
    assert "answer: Second." in out
    assert "answer: Fourth." in out
    assert script.asked[1].count("the user stopped this call") == 1
    assert script.asked[3].count("the user stopped this call") == 2


# run


@contextmanager
def piped(monkeypatch: pytest.MonkeyPatch, text: str) -> Generator[None]:
    read, write = os.pipe()
    with os.fdopen(write, "w") as file:
        file.write(text)
    with os.fdopen(read) as given:
        monkeypatch.setattr("sys.stdin", given)
        yield


def test_run_takes_files_and_a_pipe_into_the_prompt(
    scripted: Scripted, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = scripted("One.", "Two.", "Three.", "Four.")
    note = tmp_path / "note.txt"
    note.write_text("from a file", encoding="utf-8")
    with piped(monkeypatch, "from a pipe\n"):
        assert main(["run", "Summarise:", "--file", str(note)]) == 0
    assert "user\nSummarise:\n\nfrom a file\n\nfrom a pipe<|im_end|>" in script.asked[0]
    with piped(monkeypatch, "first"):
        assert main(["run", "Summarise:", "--file", "-", "--file", str(note)]) == 0
    assert "user\nSummarise:\n\nfirst\n\nfrom a file<|im_end|>" in script.asked[1]
    with Path(os.devnull).open(encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main(["run", "Hello"]) == 0
    monkeypatch.setattr("sys.stdin", None)
    assert main(["run", "Hello"]) == 0
    assert all("user\nHello<|im_end|>" in prompt for prompt in script.asked[2:])
    assert capsys.readouterr().out == "One.\nTwo.\nThree.\nFour.\n"


def test_run_with_a_schema(scripted: Scripted, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    scripted('{"city": "Rome"}', listed=True)
    schema = tmp_path / "schema.json"
    schema.write_text(
        '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], '
        '"additionalProperties": false}',
        encoding="utf-8",
    )
    line = ["run", "Where?", "--schema", str(schema), "--reasoning", "off"]
    assert main(line) == 0
    assert json.loads(capsys.readouterr().out) == {"city": "Rome"}
    assert main([*line, "--json", "--max-tokens", "2"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["reason"] == "length"
    assert "The answer does not match the schema" in err
    for text, words in (("[1]", "is not a JSON Schema"), ("{", "is not JSON")):
        schema.write_text(text, encoding="utf-8")
        assert main(line) == 1
        assert words in capsys.readouterr().err


def test_another_model_goes_on_with_the_conversation(
    types: Types, capsys: pytest.CaptureFixture[str], builtin_model_path: Path, tmp_path: Path
) -> None:
    names = [tmp_path / "one.gguf", tmp_path / "two.gguf"]
    for path in names:
        path.write_bytes(builtin_model_path.read_bytes())
    saved, options = tmp_path / "talk.json", ["--ctx", "1024", "--temperature", "0", "--max-tokens", "40"]
    types("What is 2 + 2?", "/model two", "/model ten", f"/save {saved}", "And 3 + 3?", "/quit")
    assert main(["chat", *map(str, names), *options]) == 0
    out = capsys.readouterr().out
    assert "(two answers from now on)" in out
    assert "There is no model 'ten' here; the models are one, two." in out
    assert out.count(" of 1,024 ") == 2, "each of both answers has a line of figures"
    assert "3 messages saved" in out or "2 messages saved" in out
    types("/model two", "/quit")
    assert main(["chat", str(names[0])]) == 0
    assert "There is no model 'two' here; name several after `chat`." in capsys.readouterr().out
