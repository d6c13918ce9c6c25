"""No way by which text reaches the terminal sends control codes that somebody else wrote."""

import argparse
import io
import json
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine import ChatTemplate, Engine, ModelLoadError
from engine.api.inspect import Inspection
from engine.cli import commands, doctor, main
from engine.cli.screen import Screen, json_line
from engine.support.errors import EngineWarning
from engine.support.screens import Lines, Loading, Notebook, Terminal
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.types.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
    ToolResult,
)

HOSTILE = {
    "clears the screen": "a\x1b[2Jb",
    "sets the title": "a\x1b]0;evil\x07b",
    "one byte of C1": "a\x9b2Jb\x9d0;evil\x9c",
    "moves back": "a\x08\x08\x08b\rc",
    "turns the text around": "a\u202eb\u2066c",
    "a byte that is no text": "a\udc9b\x1bc",
}
RAW = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
VOCAB = ByteVocab(["<|im_start|>"], end=["<|im_end|>"])


def scripted(_: argparse.Namespace) -> Engine:
    return Engine.over(ScriptedBackend(lambda _: "Yes \x1b[2J.", vocab=VOCAB), ChatTemplate(None, family="qwen3"))


def raising(error: Exception) -> Callable[..., int]:
    def load(*_: object, **__: object) -> int:
        raise error

    return load


def ends(*arguments: str) -> None:
    with pytest.raises(SystemExit):
        main(list(arguments))


def an_error(evil: str, _: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commands, "load", raising(ModelLoadError(f"architecture {evil}")))
    assert main(["run", "hi"]) == 1


def a_bug(evil: str, _: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commands, "load", raising(ValueError(evil)))
    assert main(["run", "hi"]) == 1


def a_warning(evil: str, _: Path, patch: pytest.MonkeyPatch) -> None:
    def load(options: argparse.Namespace) -> Engine:
        warnings.warn(evil, EngineWarning, stacklevel=2)
        warnings.warn(evil, UserWarning, stacklevel=2)
        return scripted(options)

    patch.setattr(commands, "load", load)
    assert main(["run", evil]) == 0


def an_argument(evil: str, _: Path, __: pytest.MonkeyPatch) -> None:
    ends(evil)
    ends("run", f"--x{evil}", "hi")
    ends("run", "--max-tokens", evil, "hi")
    ends("families", "show", evil)
    ends("bench", "--rounds", evil)


def a_file_name(evil: str, folder: Path, _: pytest.MonkeyPatch) -> None:
    missing = str(folder / evil)
    for command in (["run", f"{missing}.gguf", "hi"], ["inspect", f"{missing}.gguf"], ["models", "list", missing]):
        assert main(command) == 1
    assert main(["chat", "--tools", f"{missing}.py", "--yes"]) == 1
    assert main(["run", "hi", "--file", missing]) == 1
    assert main(["run", "hi", "--schema", missing]) == 1
    assert main(["batch", missing, "-o", str(folder / "out.jsonl")]) == 2
    assert main(["models", "download", missing]) == 1
    assert main(["families", "check", missing]) == 1


def a_template(evil: str, folder: Path, _: pytest.MonkeyPatch) -> None:
    path = folder / "evil.jinja"
    text = evil.encode("utf-8", "replace").decode()
    path.write_text("{{ raise_exception(" + json.dumps(text, ensure_ascii=False) + ") }}", encoding="utf-8")
    assert main(["run", "builtin", "--chat-template", str(path), "hi"]) == 1


def a_family_file(evil: str, folder: Path, _: pytest.MonkeyPatch) -> None:
    path = folder / "families.toml"
    path.write_text(f"[[family]]\nname = {json.dumps(evil)}\nodd = {json.dumps(evil)}\n", encoding="utf-8")
    assert main(["families", "check", str(path)]) == 1
    assert main(["run", "builtin", "--family", str(path), "hi"]) == 1


def reports(evil: str, _: Path, patch: pytest.MonkeyPatch) -> None:
    with Engine.load(None, n_ctx=64) as llm:
        found = llm.inspect()
    evil = evil.encode("utf-8", "replace").decode()  # a file's header is text
    report = replace(found, name=evil, architecture=evil, quantization=evil, reason=evil)

    def inspect(_: Engine) -> Inspection:
        return report

    patch.setattr(commands, "load", scripted)
    patch.setattr(Engine, "inspect", inspect)
    assert main(["inspect"]) == main(["inspect", "--json"]) == 0
    sys.stdout.write(report.text())
    assert main(["explain", "--prompt", evil]) == main(["explain", "--prompt", evil, "--json"]) == 0
    sys.stdout.write(scripted(argparse.Namespace()).explain(evil).text())


def the_doctor(evil: str, _: Path, patch: pytest.MonkeyPatch) -> None:
    report = doctor.Diagnosis(
        evil, evil, evil, evil, (evil,), doctor.Machine(evil, evil), None, evil,
        doctor.Verdict("faulty", evil),
        evil, None, Path("h"), Path("o"), (1, 1),
    )  # fmt: skip
    patch.setattr(commands, "diagnose", lambda: report)
    assert main(["doctor"]) == 1
    sys.stdout.write(report.text())


def events(evil: str, _: Path, __: pytest.MonkeyPatch) -> None:
    every: list[Event] = [
        ReasoningDelta(evil, 0), ContentDelta(evil, 1), ToolCallStart(0, evil, evil, 2), ToolCallDelta(0, evil, 2),
        ToolCallEnd(0, evil, "malformed", 2), ToolResult(0, evil, evil, error=True, part=3),
    ]  # fmt: skip
    screen = Screen(sys.stdout)
    for event in every:
        screen.show(event)
        if not re.search("[\ud800-\udfff]", evil):
            screen.line(json_line(event))


def a_conversation(evil: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(commands, "load", scripted)
    patch.setattr("sys.stdin", io.StringIO(f"/{evil}\n"))
    assert main(["chat", "--commands"]) == 1
    patch.setattr("sys.stdin", io.StringIO(f"/load {folder / evil}\n"))
    assert main(["chat", "--commands"]) == 1
    patch.setattr("sys.stdin", io.StringIO(f"{evil}\n"))
    assert main(["chat"]) == 0


class Cell:
    """What a notebook shows."""

    def __call__(self, data: dict[str, str], **_: object) -> "Cell":
        sys.stdout.write(data["text/plain"])
        return self

    update = __call__


def progress(evil: str, _: Path, __: pytest.MonkeyPatch) -> None:
    cell = Cell()
    for screen in (Lines(sys.stdout), Notebook(cell)):
        screen.line(evil)
        loading = Loading(screen, evil, iter(range(0, 100, 10)).__next__)
        loading(0.5)
        loading.end()


CHANNELS = (
    an_error, a_bug, a_warning, an_argument, a_file_name, a_template, a_family_file, reports, the_doctor, events,
    a_conversation, progress,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("channel", CHANNELS, ids=lambda channel: channel.__name__)
def test_no_channel_sends_control_codes(
    channel: Callable[[str, Path, pytest.MonkeyPatch], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for what, evil in HOSTILE.items():
        with pytest.MonkeyPatch.context() as patch:
            channel(evil, tmp_path, patch)
        written = "".join(capsys.readouterr())
        assert written, what
        assert RAW.findall(written) == [], (what, written)


def test_a_terminal_s_line_sends_only_its_own_return() -> None:
    for evil in HOSTILE.values():
        out = io.StringIO()
        screen = Terminal(out)
        screen.state(evil)
        screen.line(evil)
        assert set(RAW.findall(out.getvalue())) == {"\r"}
        assert out.getvalue().count("\r") == 3
