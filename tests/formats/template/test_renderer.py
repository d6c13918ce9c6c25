"""Templates of strangers in a child process: the same texts, whatever happens to the child, and nothing that reaches
this process."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from attacks.hostile_templates import TRIGGER, late

from engine import ChatTemplate, Engine, RequestError, TemplateError
from engine.formats.template import chat_template, renderer, sandbox
from engine.formats.template.env import Template
from engine.formats.template.renderer import TemplateStoppedError
from engine.support.child import Child
from engine.testing.scripted import ScriptedBackend

PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
HUNGRY = "{% set a = 'x' * 3000000000 %}"
USER = [{"role": "user", "content": "Hi"}]
posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")


@pytest.fixture(autouse=True)
def own_children(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Children of this test alone."""
    monkeypatch.setattr(renderer, "_idle", children())
    yield
    for process in renderer._idle:  # pyright: ignore[reportPrivateUsage]
        process.child.kill()


def children() -> "renderer.deque[renderer._Renderer]":  # pyright: ignore[reportPrivateUsage]
    return renderer.deque()


def the_child() -> Child:
    """The only one that waits for orders."""
    (process,) = renderer._idle  # pyright: ignore[reportPrivateUsage]
    return process.child


def soon() -> float:
    return time.monotonic() + 0.3


VALUES = {
    "text": "a <b>Some</b> text,\nof 'two' lines & \t1 tab \U0001f600",
    "list": [3, 1, 2, 1],
    "texts": ["b", "a", "c"],
    "dicts": [{"name": "x", "n": 1}, {"name": "y", "n": 2}],
    "dict": {"k": 1, "j": [None, True, 1.5]},
    "number": 1234.567,
}
ARGUMENTS = {
    "batch": "(2)",
    "format": "(1)",
    "groupby": "('n')",
    "join": "('-')",
    "map": "(attribute='n')",
    "replace": "('a', 'b')",
    "selectattr": "('n', 'gt', 1)",
    "rejectattr": "('n', 'gt', 1)",
    "slice": "(2)",
    "sum": "(attribute='n')",
    "sort": "(attribute='n')",
    "from_json": "",
}


def test_every_filter_and_method_that_is_listed_works_there() -> None:
    """A process that can open no file must have all that they need."""
    filters, attributes = sandbox._FILTERS | {"tojson", "e", "escape"}, sandbox._TEXT  # pyright: ignore[reportPrivateUsage]
    sources = [f"{{{{ {value} | {name}{ARGUMENTS.get(name, '')} | string }}}}" for name in filters for value in VALUES]
    for arguments in ("", "'a'", "3", "'a', 'b'", "['x', 'y']"):
        sources += [f"{{{{ text.{name}({arguments}) | string }}}}" for name in attributes]
        sources += [f"{{{{ (text | safe).{name}({arguments}) | string }}}}" for name in ("striptags", "unescape")]
    sources += [f"{{{{ {value} is {name} }}}}" for name in ("string", "iterable", "odd", "lower") for value in VALUES]
    worked = 0
    for source in sources:
        texts: list[str] = []
        for trusted in (False, True):
            try:
                texts.append(Template(source, trusted=trusted).render(VALUES))
            except TemplateError as error:
                texts.append(str(error))
        there, here = (re.sub(r"0x[0-9a-f]+", "0x", text) for text in texts)
        assert there == here, source
        assert "Errno" not in there, source
        worked += "The chat template failed" not in there
    assert worked > len(sources) // 4


def test_a_template_of_ours_needs_no_child_and_neither_does_one_that_is_trusted() -> None:
    ChatTemplate(None, family="qwen3").render("Hi")
    ChatTemplate(PLAIN, trust_template=True).render("Hi")
    assert not renderer._idle  # pyright: ignore[reportPrivateUsage]
    ChatTemplate(PLAIN).render("Hi")
    ChatTemplate(PLAIN + " ").render("Hi")
    assert the_child().alive, "one for all"


def test_time() -> None:
    template = Template(late(ENDLESS))
    assert "Hi" in template.render({"messages": USER})
    began = time.monotonic()
    with pytest.raises(TemplateStoppedError, match=r"did not finish within 0\.\d+ seconds"):
        template.render({"messages": [{"role": "user", "content": TRIGGER}]}, until=soon())
    assert time.monotonic() - began < 5
    assert "Hi" in template.render({"messages": USER}), "another child"


def test_a_turns_deadline_reaches_its_template() -> None:
    with Engine.over(ScriptedBackend(["Hello."] * 2), ChatTemplate(late(ENDLESS))) as llm:
        began = time.monotonic()
        for overflow in ("error", "truncate_oldest", "shorten_results"):
            with pytest.raises(TemplateError, match="did not finish"):
                llm.chat(TRIGGER, deadline=0.3, overflow=overflow)
        assert time.monotonic() - began < 6, "and not three times as long as a turn without"
        assert llm.chat("Hi").content == "Hello."
        with suppress(RequestError):  # while it is prepared; a TemplateError would blame the template
            assert llm.chat("Hi", deadline=0.001).finish_reason in ("deadline", "stop")


def test_a_loads_renders_have_one_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_PROBING", 0.5)
    began = time.monotonic()
    with pytest.raises(TemplateError, match="did not finish"):
        ChatTemplate("{{ range(99999) | map('string') | join | length }}" * 5 + PLAIN)
    assert time.monotonic() - began < 10


@pytest.mark.skipif(sys.platform != "linux", reason="macOS and Windows limit no process's memory so")
def test_memory() -> None:
    template = Template(late(HUNGRY))
    with pytest.raises(TemplateStoppedError, match="more memory than a template may"):
        template.render({"messages": [{"role": "user", "content": TRIGGER}]})
    assert "Hi" in template.render({"messages": USER}), "another child"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_what_a_child_may_use() -> None:
    Template(PLAIN)
    limits = Path(f"/proc/{the_child().process.pid}/limits").read_text(encoding="utf-8")
    found = dict(re.findall(r"^Max ([\w ]+?) {2,}(\w+) ", limits, re.MULTILINE))
    expected = {
        "address space": str(1 << 30),
        "open files": "0",
        "file size": "0",
        "processes": "0",
        "core file size": "0",
    }
    assert {name: found[name] for name in expected} == expected
    assert int(found["cpu time"]) < 20


def test_a_hostile_template_delays_no_other() -> None:
    hostile, other = Template(late(ENDLESS)), Template(PLAIN)
    until = time.monotonic() + 3
    caught: list[TemplateError] = []

    def go_off() -> None:
        try:
            hostile.render({"messages": [{"role": "user", "content": TRIGGER}]}, until=until)
        except TemplateError as error:
            caught.append(error)

    threads = [threading.Thread(target=go_off) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    for _ in range(20):
        assert "Hi" in other.render({"messages": USER})
    assert time.monotonic() < until, "while the hostile one still ran"
    for thread in threads:
        thread.join()
    assert len(caught) == 3
    assert time.monotonic() - until < 3, "those who wait for the same template have their time too"


@posix
@pytest.mark.parametrize("end", ["SIGKILL", "SIGSEGV"])
def test_a_child_that_died_idle_is_replaced(end: str) -> None:
    template = Template(PLAIN)
    child = the_child().process
    child.send_signal(getattr(signal, end))
    child.wait()
    assert "Hi" in template.render({"messages": USER})


def test_what_a_worn_out_child_could_not_do_is_done_by_a_fresh_one(monkeypatch: pytest.MonkeyPatch) -> None:
    template, send = Template(PLAIN), Child.send
    worn = the_child()

    def dies(self: Child, data: bytes) -> None:
        if self is worn:
            self.process.kill()
            self.process.wait()
        send(self, data)

    monkeypatch.setattr(Child, "send", dies)
    assert "Hi" in template.render({"messages": USER})
    assert the_child() is not worn


@posix
def test_a_child_that_was_stopped_is_ended_in_time() -> None:
    template = Template(PLAIN)
    child = the_child().process
    child.send_signal(signal.SIGSTOP)
    with pytest.raises(TemplateError, match="did not finish"):
        template.render({"messages": [{"role": "user", "content": "x" * 1_000_000}]}, until=soon())
    assert child.wait() == -signal.SIGKILL
    assert "Hi" in template.render({"messages": USER})


def test_an_interrupted_render_leaves_no_answer_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    template = Template("{{ x }}")

    def interrupted(self: Child, limit: int = 0) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Child, "receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            template.render({"x": "first"})
    assert template.render({"x": "second"}) == "second"


def test_a_worn_child_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer, "_TEMPLATES", 2)
    templates = [Template("{{ x }}" + "." * number) for number in range(3)]
    for number, template in enumerate(templates):
        assert template.render({"x": "x"}) == "x" + "." * number


COMPROMISED = {
    "silence": "return 1",
    "a flood": "while True: write_frame(pipe, b't' + b'x' * (1 << 20))",
    "a giant": "pipe.write((1 << 60).to_bytes(8, 'big')); time.sleep(60)",
    "a large text": "write_frame(pipe, b't' + b'x' * (64 << 20)); time.sleep(60)",
    "no UTF-8": "write_frame(pipe, b't\\xff\\xfe')",
    "nothing": "write_frame(pipe, b'')",
    "an unknown kind": "write_frame(pipe, b'?what')",
    "a pickle": "write_frame(pipe, pickle.dumps(Bomb()))",
    "half a frame": "pipe.write((100).to_bytes(8, 'big') + b't'); time.sleep(60)",
}


@pytest.mark.parametrize("name", COMPROMISED)
def test_whatever_a_compromised_child_sends_is_an_error(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = f"compromised_{list(COMPROMISED).index(name)}"
    (tmp_path / f"{module}.py").write_text(
        "import pickle, time\n"
        "from engine.support.child import ends, read_frame, write_frame\n"
        "class Bomb:\n"
        f"    def __reduce__(self): return (open, ({str(tmp_path / 'ran')!r}, 'w'))\n"
        "def main():\n"
        "    orders, pipe = ends()\n"
        "    read_frame(orders)\n"
        f"    {COMPROMISED[name]}\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.setattr(renderer, "WORKER", module)
    monkeypatch.setattr(renderer, "SECONDS", 1.0)
    with pytest.raises(TemplateError):
        Template(PLAIN)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [("frozen", True, "frozen"), ("executable", "", "sys.executable is empty"), ("executable", "/nowhere", "/nowhere")],
)
def test_where_no_child_can_start_the_way_out_is_named(
    attribute: str, value: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, attribute, value, raising=False)
    with pytest.raises(TemplateError, match=rf"{words}.*trust_template=True"):
        ChatTemplate(PLAIN)
    assert "Hi" in ChatTemplate(PLAIN, trust_template=True).render("Hi").text


def test_a_child_that_cannot_run_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderer, "WORKER", "engine.formats.template.no_such_module")
    with pytest.raises(
        TemplateError, match=r"No module named 'engine.formats.template.no_such_module'.*trust_template=True"
    ):
        ChatTemplate(PLAIN)


def run(script: str) -> "subprocess.CompletedProcess[str]":
    """A program of its own, in which every warning is an error."""
    begin = "import os, signal, sys, threading, time\nfrom engine.formats.template.env import Template\n"
    begin += f"PLAIN = {PLAIN!r}\nUSER = {USER!r}\n"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", begin + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_has_children_of_its_own() -> None:
    done = run(
        """
        from engine.formats.template import renderer
        template = Template(PLAIN)
        first = renderer._idle[0].child.process.pid
        template._compiled.lock.acquire()  # as a thread might that the fork does not have
        if not os.fork():
            text = template.render({"messages": USER})
            print("Hi" in text, renderer._idle[0].child.process.pid != first, flush=True)
            sys.exit(0)
        os.wait()
        template._compiled.lock.release()
        print("Hi" in template.render({"messages": USER}), renderer._idle[0].child.process.pid == first)
        """
    )
    assert (done.stdout.split(), done.stderr) == (["True"] * 4, "")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_child_ends_with_its_parent_whatever_forks_and_loops_remain() -> None:
    script = """
        from engine.formats.template import renderer
        template = Template("{{ x }}")
        print(renderer._idle[0].child.process.pid, flush=True)
        if not (fork := os.fork()):
            os.closerange(0, 3)
            time.sleep(60)
            os._exit(0)
        print(fork, flush=True)
        if ENDLESS:
            endless = Template("{% for a in range(99999) %}{% for b in range(99999) %}{{ x }}{% endfor %}{% endfor %}")
            threading.Thread(target=endless.render, args=[{"x": 1}, {}, time.monotonic() + 1], daemon=True).start()
            time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    for endless in (False, True):
        done = run(script.replace("ENDLESS", str(endless)))
        child, fork = map(int, done.stdout.split())
        try:
            end = time.monotonic() + 30
            while Path(f"/proc/{child}").exists() and "State:\tZ" not in Path(f"/proc/{child}/status").read_text(
                "utf-8"
            ):
                assert time.monotonic() < end, f"the child lives on, {endless=}"
                time.sleep(0.05)
        finally:
            os.kill(fork, signal.SIGKILL)


def test_a_program_ends_at_once_and_in_silence() -> None:
    script = """
        template = Template("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}")
        def go_off():
            try:
                template.render({}, until=time.monotonic() + 60)
            except Exception:
                pass
        threading.Thread(target=go_off, daemon=True).start()
        time.sleep(0.5)
        """
    began = time.monotonic()
    done = run(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - began < 20


def test_a_current_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = run(
        f"""
        os.chdir({str(gone)!r})
        os.rmdir({str(gone)!r})
        print("Hi" in Template(PLAIN).render({{"messages": USER}}))
        """
    )
    assert (done.stdout.strip(), done.stderr) == ("True", "")
