"""A child that dies is started again: what had shown nothing is answered, the rest ends by name."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.inside import parts
from files.adapter_files import write_adapter
from numpy.typing import NDArray

from engine import Engine, EngineError
from engine.isolated import parent as isolation
from engine.isolated.parent import IsolatedRunner

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
QUESTIONS = ("Hello!", "Who are you?", "Thank you.", "What is the weather in Paris?")


def deadly(_tokens: Sequence[int], _logits: NDArray[np.float32]) -> None:
    """A logits processor that ends its process."""
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture(scope="module")
def expected(builtin_model_path: Path) -> Sequence[str | None]:
    with Engine.load(builtin_model_path, n_ctx=1024, n_sequences=4, n_threads=1) as llm:
        return [llm.chat(asked, **GREEDY).content for asked in QUESTIONS]


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Engine]]:
    """Those that tests used, the last one last."""
    used: list[Engine] = []
    yield used
    for llm in used:
        llm.close()


@pytest.fixture
def llm(engines: list[Engine], builtin_model_path: Path) -> Engine:
    """An engine whose child has answered last; that of the test before, unless that ended it."""
    if not engines or engines[-1].closed:
        options: dict[str, Any] = {"n_ctx": 1024, "n_sequences": 4, "n_threads": 1, "isolated": True}
        engines.append(Engine.load(builtin_model_path, **options))
    assert engines[-1].chat("Hello!", **GREEDY).content
    return engines[-1]


def runner_of(llm: Engine) -> Any:
    runner = parts(llm).service._runner  # pyright: ignore[reportPrivateUsage]
    assert isinstance(runner, IsolatedRunner)
    return runner


def send(llm: Engine, number: int) -> None:
    runner_of(llm)._link.child.process.send_signal(number)


def test_what_had_shown_nothing_is_answered_by_the_next_child(llm: Engine, expected: Sequence[str | None]) -> None:
    before = llm.metrics.restarts
    send(llm, signal.SIGSTOP)
    streams = [llm.stream(asked, **GREEDY) for asked in QUESTIONS]
    send(llm, signal.SIGSEGV)
    send(llm, signal.SIGCONT)
    assert [stream.result(60).content for stream in streams] == expected
    assert [llm.chat(asked, **GREEDY).content for asked in QUESTIONS] == expected
    assert (llm.metrics.running, llm.metrics.restarts - before) == (0, 1)
    assert not llm.closed


def test_what_had_shown_something_ends_by_name(llm: Engine, caplog: pytest.LogCaptureFixture) -> None:
    stream = llm.stream("Hello!", ignore_eos=True)
    reading = iter(stream)
    assert next(reading)
    send(llm, signal.SIGSEGV)
    with pytest.raises(EngineError, match=r"died by SIGSEGV while it wrote this answer; .* so ask again"):
        stream.result(60)
    assert llm.chat("Hello!", **GREEDY).content
    assert "it is started again" in caplog.text


def test_the_request_that_kills_ends_by_name_and_the_others_are_answered(
    llm: Engine, expected: Sequence[str | None]
) -> None:
    killer = llm.stream("Hello!", logits_processors=[deadly])
    streams = [llm.stream(asked, **GREEDY) for asked in QUESTIONS]
    with pytest.raises(EngineError, match=r"died by SIGKILL twice over this request"):
        killer.result(60)
    answered = 0
    for stream, content in zip(streams, expected, strict=True):
        try:
            assert stream.result(60).content == content
            answered += 1
        except EngineError as error:  # it had shown something when the killer killed
            assert "while it wrote this answer" in str(error)  # noqa: PT017 - either is right
    assert answered
    assert [llm.chat(asked, **GREEDY).content for asked in QUESTIONS] == expected


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> int:
    """The most deaths in a row; fewer than in earnest, since each costs a start."""
    monkeypatch.setattr(isolation, "_MOST_DEATHS", 2)
    return 2


def test_deaths_in_a_row_are_given_up(llm: Engine, most: int) -> None:
    streams = [llm.stream("Hello!", logits_processors=[deadly]) for _ in range(most + 2)]
    heard: list[str] = []
    for stream in streams:
        with pytest.raises(EngineError) as told:
            stream.result(120)
        heard.append(str(told.value))
    assert sum("twice over this request" in told for told in heard) == most
    assert sum("load the model again" in told for told in heard) == len(streams) - most
    assert llm.closed
    with pytest.raises(EngineError, match="load the model again"):
        llm.chat("Hello!")


def test_an_answer_between_them_starts_the_count_again(llm: Engine, most: int) -> None:
    for _ in range(most + 1):
        send(llm, signal.SIGKILL)
        assert llm.chat("Hello!", **GREEDY).content


def test_cancelled_requests_are_not_sent_again(llm: Engine) -> None:
    send(llm, signal.SIGSTOP)
    streams = [llm.stream("Hello!", ignore_eos=True) for _ in range(6)]
    for stream in streams[:-1]:
        stream.cancel()
    send(llm, signal.SIGKILL)
    assert [stream.result(60).finish_reason for stream in streams[:-1]] == ["cancelled"] * 5
    streams[-1].cancel()
    assert streams[-1].result(60).finish_reason == "cancelled"


def test_what_was_told_about_a_request_is_told_again(llm: Engine) -> None:
    send(llm, signal.SIGSTOP)
    stream = llm.stream("What is the weather in Paris?", temperature=0)
    stream.end_reasoning()
    send(llm, signal.SIGKILL)
    told_twice = stream.result(60)
    plain = llm.chat("What is the weather in Paris?", temperature=0)
    assert told_twice.reasoning != plain.reasoning


def test_closing_while_it_is_started_again(llm: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    link, begun, go = runner_of(llm)._link, threading.Event(), threading.Event()
    dead = link.child
    bury = dead.close

    def slowly() -> None:
        begun.set()
        assert go.wait(60)
        bury()

    monkeypatch.setattr(dead, "close", slowly)
    send(llm, signal.SIGKILL)
    assert begun.wait(60)
    waiting = llm.stream("Hello!")
    closing = threading.Thread(target=llm.close, daemon=True)
    closing.start()
    closing.join(2 * isolation._GRACE)  # pyright: ignore[reportPrivateUsage]
    go.set()
    closing.join(20)
    assert not closing.is_alive()
    assert waiting.result(60).finish_reason == "cancelled"
    assert link.child is dead, "no other was started"


def test_adapters_are_loaded_again_and_prefixes_are_evaluated_again(llm: Engine, tmp_path: Path) -> None:
    write_adapter(tmp_path / "lora.gguf", seed=1, strength=1.0)
    llm.load_adapter("mine", tmp_path / "lora.gguf")
    system = [{"role": "system", "content": "You are a helpful assistant who answers at length."}]
    asked: Any = [*system, {"role": "user", "content": "Hello!"}]
    adapted = llm.chat(asked, adapters=["mine"], **GREEDY, logprobs=1).logprobs
    with llm.pin(system):
        send(llm, signal.SIGKILL)
        assert llm.chat(asked, adapters=["mine"], **GREEDY, logprobs=1).logprobs == adapted
    assert llm.chat(asked, **GREEDY).usage is not None
    llm.drop_adapter("mine")


def test_an_adapter_that_is_gone_ends_the_engine_by_name(llm: Engine, tmp_path: Path) -> None:
    path = tmp_path / "lora.gguf"
    write_adapter(path, seed=1, strength=1.0)
    llm.load_adapter("mine", path)
    path.unlink()
    send(llm, signal.SIGKILL)
    with pytest.raises(EngineError, match=r"lora\.gguf cannot be loaded again"):
        llm.chat("Hello!", **GREEDY)


def test_another_file_in_its_place_is_refused(builtin_model_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(builtin_model_path.read_bytes())
    with Engine.load(path, n_ctx=512, n_threads=1, isolated=True, preflight=False) as llm:
        (tmp_path / "next").write_bytes(b"GGUF")
        (tmp_path / "next").replace(path)
        send(llm, signal.SIGKILL)
        with pytest.raises(EngineError):
            llm.chat("Hello!", **GREEDY)
        assert llm.closed
