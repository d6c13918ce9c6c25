"""A model in a child process: the same answers, whose faults and whose Python are its own."""

import asyncio
import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.inside import parts
from numpy.typing import NDArray
from pydantic import BaseModel, field_validator

from engine import Engine, EngineError, ModelLoadError, RequestError, StateStore, Stream, ToolCallEnd, as_tools
from engine.formats.families import builtin_families
from engine.formats.parsing.parser import ParserRecipe
from engine.isolated import parent as isolation
from engine.isolated.parent import IsolatedRunner
from engine.types.events import ToolCallStart
from engine.types.prompt import Piece

FORBIDDEN = 300
SILENT = (sys.executable, "-W", "error", "-W", "ignore::UserWarning", "-c")
"""Runs scripts that are to say nothing, also where the preflight has a remedy to tell of."""


def get_weather(city: str, days: int = 1) -> str:
    """Get the weather in a city.

    Args:
        city: The name of the city.
        days: For so many days.
    """
    return f"{days} sunny day in {city}"


def never(_tokens: Sequence[int], logits: NDArray[np.float32]) -> None:
    """A logits processor of a module."""
    logits[FORBIDDEN] = -np.inf


def noisy(_tokens: Sequence[int], _logits: NDArray[np.float32]) -> None:
    print("hm")  # noqa: T201


@pytest.fixture(scope="module")
def here(builtin_model_path: Path) -> Iterator[Engine]:
    with Engine.load(builtin_model_path, n_ctx=1024, n_sequences=4, n_threads=1) as llm:
        yield llm


@pytest.fixture(scope="module")
def apart(builtin_model_path: Path) -> Iterator[Engine]:
    with Engine.load(builtin_model_path, n_ctx=1024, n_sequences=4, n_threads=1, isolated=True) as llm:
        yield llm


def process(llm: Engine) -> "subprocess.Popen[bytes]":
    runner = parts(llm).service._runner  # pyright: ignore[reportPrivateUsage]
    assert isinstance(runner, IsolatedRunner)
    return runner._link.child.process  # pyright: ignore[reportPrivateUsage]


def test_it_answers_as_one_here(here: Engine, apart: Engine) -> None:
    asked = "What is the weather in Paris?"
    assert (apart.n_ctx, apart.info, apart.family) == (here.n_ctx, here.info, here.family)
    assert apart.inspect() == here.inspect()
    drawn: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.8, "seed": 7, "top_p": 0.9, "logprobs": 2}]
    for options in drawn:
        there = apart.chat(asked, [get_weather], **options)
        expected = here.chat(asked, [get_weather], **options)
        assert there.parts == expected.parts
        assert there.finish_reason == expected.finish_reason
        assert len(there.logprobs) == len(expected.logprobs)
    run = apart.run(asked, [get_weather], temperature=0)
    assert [message.role for message in run.messages] == ["user", "assistant", "tool", "assistant"]
    assert "1 sunny day in Paris" in (run.completion.content or "")


def test_events_come_one_by_one_and_a_stream_may_be_left(apart: Engine) -> None:
    with apart.stream("What is the weather in Paris?", [get_weather], temperature=0) as stream:
        reading = iter(stream)
    assert next(reading)
    assert stream.result().finish_reason == "cancelled"
    assert apart.chat("Hello!", temperature=0).content


def test_asyncio_waits_for_it_too(apart: Engine) -> None:
    async def ask() -> tuple[int, str | None]:
        events = [event async for event in apart.stream("Hello!", temperature=0)]
        return len(events), (await apart.stream("Hello!", temperature=0)).content

    count, content = asyncio.run(ask())
    assert count > 1
    assert content


def test_many_at_once(here: Engine, apart: Engine) -> None:
    asked = ["Hello!", "Who are you?", "Thank you.", "Say one two three."]
    answers = [answer.content for answer in apart.generate(asked, temperature=0)]
    assert answers == [answer.content for answer in here.generate(asked, temperature=0)]
    assert apart.metrics.running == 0


def test_limits_budgets_and_deadlines_hold(here: Engine, apart: Engine) -> None:
    asked = "What is the weather in Paris?"
    assert apart.chat(asked, [get_weather], max_tokens=3).finish_reason == "length"
    there, expected = (llm.chat(asked, [get_weather], reasoning_budget=2, temperature=0) for llm in (apart, here))
    assert there.parts == expected.parts
    assert apart.chat(asked, deadline=0.001, ignore_eos=True).finish_reason == "deadline"


def test_a_prefix_is_pinned(apart: Engine) -> None:
    told: list[tuple[int, int]] = []
    system = {"role": "system", "content": "You are a helpful assistant who answers at length."}

    def progress(done: int, of: int) -> None:
        told.append((done, of))

    with apart.pin([system], progress=progress) as prefix:
        assert told[-1] == (prefix.tokens, prefix.tokens)
        answer = apart.chat([system, {"role": "user", "content": "Hello!"}], max_tokens=2)
        assert answer.usage is not None
        assert answer.usage.cached_tokens == prefix.tokens


def test_states_on_disk_are_shared_with_a_child(builtin_model_path: Path, tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "You answer at length. " * 20}, {"role": "user", "content": "Hello!"}]
    told: list[int] = []
    for isolated in (True, False):
        states = StateStore(0, tmp_path, 1 << 30)
        with Engine.load(builtin_model_path, n_ctx=512, isolated=isolated, states=states) as llm:
            usage = llm.chat(messages, max_tokens=2, temperature=0).usage
            assert usage is not None
            told.append(usage.prompt_tokens - usage.cached_tokens)
    assert told[0] > 100
    assert told[1] == 1


def test_reasoning_that_was_dropped_is_put_back(builtin_model_path: Path) -> None:
    with Engine.load(builtin_model_path, n_ctx=1024, n_threads=1, family="gpt-oss", isolated=True) as llm:
        first = llm.chat("What is the weather in Paris?", [get_weather], temperature=0)
        history: list[Any] = [
            {"role": "user", "content": "What is the weather in Paris?"},
            first.message.model_copy(update={"reasoning": None, "parts": ()}),
            {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sunny"},
        ]
        assert first.reasoning
        assert first.reasoning in llm.render(history, [get_weather]).text


def test_logits_processors_must_be_importable_there(apart: Engine) -> None:
    assert apart.chat("Hello!", max_tokens=4, logits_processors=[never]).usage
    assert apart.chat("Hello!", max_tokens=4, logits_processors=[noisy]).usage is not None, (
        "what it prints is no answer"
    )
    with pytest.raises(RequestError, match=r"neither a lambda nor a closure.*isolated=False"):
        apart.chat("Hello!", logits_processors=[lambda _tokens, _logits: None])
    gone: Any = type(sys)("a_module_that_only_this_process_has")
    exec("def processor(tokens, logits): pass", gone.__dict__)
    sys.modules[gone.__name__] = gone
    try:
        with pytest.raises(RequestError, match=r"cannot be read in the model's own process.*a_module_that_only"):
            apart.chat("Hello!", logits_processors=[gone.processor])
    finally:
        del sys.modules[gone.__name__]
    assert apart.chat("Hello!", temperature=0).content, "the others live"


def test_bad_requests_are_refused_as_here(here: Engine, apart: Engine) -> None:
    long, system = "word " * 3000, {"role": "system", "content": "You are a helpful assistant who answers at length."}
    said: list[list[str]] = []
    for llm in (here, apart):
        with pytest.raises(EngineError) as too_long:
            llm.chat(long)
        pinned = [llm.pin([{**system, "content": f"{number} {system['content']}"}]) for number in range(3)]
        with pytest.raises(RequestError) as no_sequence:
            llm.pin([system])
        for prefix in pinned:
            prefix.release()
        said.append([str(too_long.value), str(no_sequence.value)])
    assert said[0] == said[1]


class Wrong(BaseModel):
    """Get the weather in a city."""

    city: str

    @field_validator("city")
    @classmethod
    def look_up(cls, value: str) -> str:
        raise KeyError(value)


def test_a_check_that_raises_is_told_of_its_own_call(here: Engine, apart: Engine) -> None:
    for llm in (here, apart):
        (call,) = llm.chat("What is the weather in Paris?", [Wrong], temperature=0).tool_calls
        assert call.error == "invalid_arguments"
        assert llm.chat("Hello!", temperature=0).content
        assert llm.metrics.running == 0


@pytest.fixture
def stopped(builtin_model_path: Path) -> Iterator[tuple[Engine, Stream]]:
    """An engine whose child was stopped in the middle of a turn, and the turn's stream."""
    with Engine.load(builtin_model_path, n_ctx=4096, n_threads=1, isolated=True) as llm:
        stream = llm.stream("Hello!", ignore_eos=True, deadline=1.0)
        assert next(iter(stream))
        process(llm).send_signal(signal.SIGSTOP)
        yield llm, stream


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
class TestAStoppedChild:
    def test_closing_does_not_wait_for_it(self, stopped: tuple[Engine, Stream]) -> None:
        llm, stream = stopped
        waiting = llm.stream("Who are you?")
        began = time.monotonic()
        llm.close()
        assert time.monotonic() - began < 4 * isolation._GRACE  # pyright: ignore[reportPrivateUsage]
        assert process(llm).returncode == -signal.SIGKILL
        assert [left.result(1).finish_reason for left in (stream, waiting)] == ["cancelled", "cancelled"]
        with pytest.raises(EngineError, match="closed"):
            llm.chat("Hello!")

    def test_deadlines_hold_without_it(self, stopped: tuple[Engine, Stream]) -> None:
        llm, stream = stopped
        began = time.monotonic()
        others = [llm.stream("Who are you?", deadline=seconds) for seconds in (0.3, 0.1)]
        patient = llm.stream("Who are you?", deadline=3600)
        reasons = [other.result(20).finish_reason for other in (stream, *others)]
        assert reasons == ["deadline"] * 3
        assert time.monotonic() - began < 10, "a busy machine's second or two, not the child's hour"
        process(llm).send_signal(signal.SIGCONT)
        assert patient.result(60).content, "those that were given up are cancelled there, and the rest goes on"
        assert llm.metrics.running == 0

    def test_a_program_may_end_beside_it(self, builtin_model_path: Path) -> None:
        script = (
            "import signal; from engine import Engine\n"
            f"llm = Engine.load({str(builtin_model_path)!r}, n_ctx=512, n_threads=1, isolated=True)\n"
            "stream = llm.stream('Hello!', ignore_eos=True)\n"
            "reading = iter(stream); next(reading)\n"
            "llm.source.service._runner._link.child.process.send_signal(signal.SIGSTOP)\n"
        )
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert time.monotonic() - began < 30


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_is_refused_says_nothing_and_keeps_nothing_alive(builtin_model_path: Path) -> None:
    script = (
        "import os, time, warnings; from engine import Engine, EngineError\n"
        f"llm = Engine.load({str(builtin_model_path)!r}, n_ctx=512, n_threads=1, isolated=True)\n"
        "stream = llm.stream('Hello!', max_tokens=100, ignore_eos=True)\n"
        "reading = iter(stream); next(reading)\n"
        "warnings.simplefilter('ignore')\n"
        "fork = os.fork()\n"
        "if not fork:\n"
        "    try:\n"
        "        llm.chat('Hello!')\n"
        "    except EngineError as error:\n"
        "        print(error, flush=True)\n"
        "    llm.close()\n"
        "    os.closerange(1, 3); time.sleep(60); os._exit(0)\n"
        "time.sleep(0.2)\n"
        "print(stream.result().finish_reason, llm.chat('Hello!', max_tokens=3).finish_reason)\n"
        "print(fork, llm.source.service._runner._link.child.process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([*SILENT, script], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    refusal, reasons, pids = done.stdout.splitlines()
    fork, child = map(int, pids.split())
    try:
        assert refusal.startswith("This engine belongs to process")
        assert reasons == "length length"
        wait_until(lambda: not runs(child))
        assert runs(fork)
    finally:
        os.kill(fork, signal.SIGKILL)


def test_what_surrounds_the_interpreter_does_not_matter(builtin_model_path: Path, tmp_path: Path) -> None:
    """A start-up file that prints; a folder before the standard library, with a module of its name in it."""
    (tmp_path / "sitecustomize.py").write_text("print('Welcome!', flush=True)\n", encoding="utf-8")
    (tmp_path / "shadow").mkdir()
    (tmp_path / "shadow" / "queue.py").write_text("raise ImportError('not this one')\n", encoding="utf-8")
    script = (
        "import sys; from engine import Engine\n"
        f"sys.path.insert(0, {str(tmp_path / 'shadow')!r})\n"
        f"with Engine.load({str(builtin_model_path)!r}, n_ctx=512, isolated=True) as llm:\n"
        "    print(llm.chat('Hello!', max_tokens=3).finish_reason)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*SILENT, script], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1], done.stderr) == (0, "length", "")


def test_closing_ends_the_process_and_cancels_what_runs(builtin_model_path: Path) -> None:
    llm = Engine.load(builtin_model_path, n_ctx=4096, n_threads=1, isolated=True)
    child = process(llm)
    stream = llm.stream("Hello!", ignore_eos=True)
    reading = iter(stream)
    assert next(reading)
    llm.close()
    assert child.returncode == 0
    assert llm.closed
    assert stream.result().finish_reason == "cancelled"
    with pytest.raises(EngineError, match="closed"):
        llm.chat("Hello!")
    llm.close()


def test_a_program_may_end_without_closing(builtin_model_path: Path) -> None:
    script = (
        "from engine import Engine\n"
        f"llm = Engine.load({str(builtin_model_path)!r}, n_ctx=512, n_threads=1, isolated=True)\n"
        "stream = llm.stream('Hello!', ignore_eos=True)\n"
        "reading = iter(stream)\n"
        "print(len(next(reading).text) > 0)\n"
    )
    done = subprocess.run([*SILENT, script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_does_not_outlive_its_parent(builtin_model_path: Path) -> None:
    script = (
        "import os, sys; from engine import Engine\n"
        f"llm = Engine.load({str(builtin_model_path)!r}, n_ctx=512, n_threads=1, isolated=True)\n"
        "print(llm.source.service._runner._link.child.process.pid, flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    wait_until(lambda: not runs(child))


def runs(pid: int) -> bool:
    """A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(true: Any, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_ctrl_c_is_for_the_parent(apart: Engine) -> None:
    process(apart).send_signal(signal.SIGINT)
    assert apart.chat("Hello!", temperature=0).content


def test_what_cannot_be_loaded_is_told_as_here(tmp_path: Path, builtin_model_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(builtin_model_path.read_bytes()[:100_000])
    for path in (tmp_path / "none.gguf", tmp_path / "cut.gguf"):
        with pytest.raises(ModelLoadError) as here:
            Engine.load(path, preflight=False)
        with pytest.raises(ModelLoadError) as there:
            Engine.load(path, preflight=False, isolated=True)
        assert str(there.value) == str(here.value)
    with pytest.raises(EngineError, match="n_ctx"):
        Engine.load(builtin_model_path, n_ctx=2**31 - 1, isolated=True)


def test_loading_tells_its_progress_and_may_be_stopped(
    builtin_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []

    def progress(fraction: float) -> bool:
        told.append(fraction)
        return len(told) < 2

    started: list[subprocess.Popen[Any]] = []

    def start(*args: Any, **options: Any) -> "subprocess.Popen[Any]":
        started.append(popen(*args, **options))
        return started[-1]

    popen = subprocess.Popen
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", start)
        with pytest.raises(ModelLoadError, match="stopped by its progress callback") as stopped:
            Engine.load(builtin_model_path, progress=progress, preflight=False, isolated=True)
    assert len(told) == 2
    assert started[-1].returncode is not None, "it does not load on"
    del stopped  # whose traceback kept all that was made
    with Engine.load(builtin_model_path, n_ctx=256, progress=told.append, isolated=True):
        assert told[-1] == 1.0


def test_its_log_is_ours(builtin_model_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, logger="engine"),
        Engine.load(builtin_model_path, n_ctx=256, n_threads=1, isolated=True),
    ):
        pass
    said = [record.message for record in caplog.records if record.name == "engine.llama"]
    assert any("n_ctx=256 tokens a conversation" in message for message in said)


class TestRecipe:
    CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": %s}}\n</tool_call>'

    def events(self, recipe: ParserRecipe, days: str) -> list[Any]:
        parser = recipe()
        return [*parser.feed(self.CALL % days), *parser.close("stop")]

    @pytest.mark.parametrize(("days", "error"), [("2", None), ('"many"', "invalid_arguments"), ("2, 3", "malformed")])
    def test_what_its_copy_leaves_open_is_judged_where_the_tools_are(self, days: str, error: str | None) -> None:
        recipe = ParserRecipe(builtin_families().get("qwen3").format, tools=tuple(as_tools([get_weather])))
        copy: ParserRecipe = pickle.loads(pickle.dumps(recipe))
        assert copy.tools is not None
        assert copy.tools[0].function is None
        whole, bare = self.events(recipe, days), self.events(copy, days)
        assert any(isinstance(event, ToolCallEnd) and event.error == error for event in whole)
        assert [event for event in bare if isinstance(event, ToolCallStart)]
        checked = recipe.checked()
        assert [completed for event in bare for completed in checked([event])] == whole

    def test_without_tools(self) -> None:
        recipe = ParserRecipe(builtin_families().get("qwen3").format, [Piece("<think>", True)], id_salt="x")
        copy: ParserRecipe = pickle.loads(pickle.dumps(recipe))
        assert copy == recipe
        assert recipe.checked()(copy().feed("hm")) == tuple(recipe().feed("hm"))


def test_a_program_that_is_no_python_cannot(monkeypatch: pytest.MonkeyPatch, builtin_model_path: Path) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with pytest.raises(EngineError, match="isolated=False"):
        Engine.load(builtin_model_path, preflight=False, isolated=True)
