"""Every child starts alike: with the modules that this process has, and with none that lie about."""

import errno
import os
import subprocess
import sys
import textwrap
import threading
import time
from io import FileIO
from pathlib import Path
from typing import NoReturn

import pytest

import engine
from engine.isolated.protocol import Channel
from engine.support.child import Child, ChildGoneError, signal_name

PLANTED = [
    "json",
    "jinja2",
    "pickle",
    "numpy",
    "llama_cpp",
    "sitecustomize",
    "usercustomize",
    "logging",
    "struct",
    "tempfile",
    "pydantic",
    "markupsafe",
]
STARTS = {
    "template": ("from engine.formats.template.env import Template", "print(Template('{{ 1 + 1 }}').render({}))"),
    "isolated": (
        "from engine import Engine",
        ("with Engine.load(n_ctx=256, isolated=True) as llm: print(llm.chat('Hello!', max_tokens=2).finish_reason)"),
    ),
}


@pytest.mark.parametrize("kind", STARTS)
def test_nothing_of_the_current_directory_runs(kind: str, tmp_path: Path) -> None:
    """Whatever the program has in its own path since, and in its environment for others."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    for name in (*PLANTED, "engine/__init__", "engine/support/child", "engine/formats/template/worker"):
        (here / f"{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n", encoding="utf-8")
    before, act = STARTS[kind]
    later = "" if kind == "isolated" else "sys.path.insert(0, '')\n"
    program = elsewhere / "program.py"
    program.write_text(
        f"import os, sys\n{before}\n{later}os.environ.update(PYTHONPATH='.', PYTHONSTARTUP='json.py')\n{act}\n", "utf-8"
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(Path(engine.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text(encoding="utf-8")


@pytest.mark.skipif(
    sys.version_info[:3] == (3, 13, 0), reason="its import machinery raises SystemError in a folder that is gone"
)
@pytest.mark.parametrize("kind", STARTS)
def test_the_current_directory_may_be_gone(kind: str, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script = f"import os, sys; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r}); sys.path.insert(0, '')\n" + "\n".join(
        STARTS[kind]
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.strip()


def module(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> str:
    """A child's module with this `main`."""
    name = f"child_{folder.name.replace('-', '_')}"
    opening = "import os, sys, time\nfrom engine.support.child import ends, read_frame, write_frame\ndef main():\n"
    (folder / f"{name}.py").write_text(opening + textwrap.indent(textwrap.dedent(body), "    "), encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    return name


ECHO = """
orders, answers = ends()
while True:
    try:
        write_frame(answers, read_frame(orders))
    except EOFError:
        return 0
"""


def test_frames_of_any_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(module(tmp_path, monkeypatch, "print('Welcome!', flush=True)\n" + ECHO), "The echo", "")
    for data in (b"", b"x", b"y" * 70_000, bytes(range(256)) * 20_000):
        sender = threading.Thread(target=child.send, args=[data])
        sender.start()
        assert child.receive() == data
        sender.join()
    child.close()
    assert child.process.returncode == 0
    child.close()
    with pytest.raises(ChildGoneError):
        child.send(b"x")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 3", "ended with exit code 3"),
        ("sys.exit('no room')", "ended with exit code 1 (no room)"),
        ("raise ValueError('odd')", "ended with exit code 1 (ValueError: odd)"),
        ("os.abort()", "died by SIGABRT"),
        ("os.kill(os.getpid(), 40)", "died by signal 40"),
    ],
)
def test_how_it_ended_is_said(body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(module(tmp_path, monkeypatch, body), "The child", "")
    with pytest.raises(ChildGoneError) as caught:
        child.receive()
    assert str(caught.value) == f"The child {said}."
    child.close()


def read_on(child: Child) -> None:
    child.receive()


def write_on(child: Child) -> None:
    child.send(b"x" * 10_000_000)


def test_time_limits_end_what_reads_and_what_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = module(tmp_path, monkeypatch, "kept = ends()\ntime.sleep(600)")
    for act in (read_on, write_on):
        child = Child(name, "The child", "")
        child.wait_for_greeting()
        began = time.monotonic()
        with pytest.raises(ChildGoneError, match=r"did not finish within 0\.2 seconds"), child.within(0.2):
            act(child)
        assert time.monotonic() - began < 10
        assert not child.alive
        child.close()


def test_a_frame_that_is_too_long_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(module(tmp_path, monkeypatch, ECHO), "The echo", "")
    child.send(b"x" * 100)
    with pytest.raises(ChildGoneError, match="100 bytes where 99 are allowed"):
        child.receive(99)
    assert not child.alive


def test_what_it_says_on_standard_error_does_not_stop_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "orders, answers = ends()\nsys.stderr.write('x' * 1_000_000)\nwrite_frame(answers, b'done')"
    child = Child(module(tmp_path, monkeypatch, body), "The child", "")
    assert child.receive() == b"done"
    child.close()


def test_signals_by_name() -> None:
    assert [signal_name(code) for code in (0, 1, -9, -1000)] == [None, None, "SIGKILL", "signal 1000"]


def test_a_channel_that_cannot_write_closes_its_end() -> None:
    """So that the other end, if it is there, ends too: nobody waits for an answer to what was never sent."""
    reading, writing = os.pipe()

    class Full(FileIO):
        def write(self, _b: object, /) -> NoReturn:
            raise OSError(errno.ENOMEM, "no memory")

    channel = Channel(Full(writing, "wb"))
    channel.send(b"an order")
    channel.send(b"another")
    with os.fdopen(reading, "rb") as other:
        assert other.read() == b""
    channel.close()
    channel.join(20)
