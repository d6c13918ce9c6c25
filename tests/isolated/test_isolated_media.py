"""Pictures and sounds for a model in a child process: what crosses, and what its death ends."""

import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.inside import parts
from files.projector_files import KINDS, media, write_model, write_projector

from engine import Engine, EngineError, Image, RequestError
from engine.isolated.parent import IsolatedRunner
from engine.isolated.protocol import Drop, Parts, PickledRequest, Read
from engine.runtime.media.media import MediaChunk, PromptPart

TURN: dict[str, Any] = {"temperature": 0, "max_tokens": 2, "ignore_eos": True}
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")


def asked(seed: int, text: str = "What is it?") -> list[dict[str, Any]]:
    return [{"role": "user", "content": ["See:", media(KINDS["llava"], seed), text]}]


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Engine]:
    path = write_projector(tmp_path / "mmproj.gguf", KINDS["llava"])
    options: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "kv_unified": False, "preflight": False}
    with Engine.load(projector=path, isolated=True, **options) as llm:
        yield llm


def runner_of(llm: Engine) -> Any:
    runner = parts(llm).service._runner  # pyright: ignore[reportPrivateUsage]
    assert isinstance(runner, IsolatedRunner)
    return runner


@pytest.fixture
def sent(apart: Engine, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The orders to the child."""
    orders: list[object] = []
    channel = runner_of(apart)._link.orders
    send = channel.send

    def note(frame: bytes) -> None:
        orders.append(pickle.loads(frame))
        send(frame)

    monkeypatch.setattr(channel, "send", note)
    return orders


def test_pixels_cross_once_for_many_turns_and_are_forgotten_on_both_sides(apart: Engine, sent: list[object]) -> None:
    for text in ("What is it?", "Is it large?"):
        apart.chat(asked(0, text), **TURN)
    assert sum(isinstance(order, Read) for order in sent) == 1
    pixels = media(KINDS["llava"], 0)
    assert isinstance(pixels, Image)
    assert all(pixels.rgb not in order.request for order in sent if isinstance(order, PickledRequest))
    count = 20
    for seed in range(1, count):
        apart.chat(asked(seed), **TURN)
    dropped = [order.id for order in sent if isinstance(order, Drop)]
    assert dropped == list(range(-1, 15 - count, -1)), "the service remembers 16"
    apart.chat(asked(0), **TURN)
    assert sum(isinstance(order, Read) for order in sent) == count + 1


def test_a_picture_that_cannot_be_read_there_ends_its_request_only(apart: Engine) -> None:
    with pytest.raises(RequestError, match="takes image, not audio"):
        apart.chat([{"role": "user", "content": ["Hear:", media(KINDS["ultravox"]), "?"]}], **TURN)
    assert apart.chat(asked(1), **TURN).finish_reason == "length"
    assert len(runner_of(apart)._ledger) == 0


def test_a_child_that_dies_of_a_sound_ends_that_request_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GGML_NO_BACKTRACE", "1")  # a debugger attached to the death takes seconds
    kind = KINDS["ultravox"]
    path = write_projector(tmp_path / "mmproj.gguf", kind, stack=8)
    llm = Engine.load(
        write_model(tmp_path / "model.gguf", kind), projector=path, isolated=True, preflight=False, n_ctx=4096
    )
    with llm:
        beside = llm.stream("Hello!", ignore_eos=True)
        reading = iter(beside)
        assert next(reading)
        with pytest.raises(EngineError, match=r"process died by SIGABRT twice over this request"):
            llm.chat([{"role": "user", "content": ["Hear:", media(kind), "?"]}], **TURN)
        with pytest.raises(EngineError, match="died by SIGABRT while it wrote this answer"):
            beside.result(10)
        assert llm.chat("Hello!", **TURN).finish_reason == "length"


def test_one_that_waits_for_a_picture_to_be_read_hears_of_the_end(apart: Engine) -> None:
    runner = runner_of(apart)
    runner._link.child.process.send_signal(signal.SIGSTOP)
    heard: list[str] = []

    def ask() -> None:
        try:
            apart.chat(asked(2), **TURN)
        except EngineError as error:
            heard.append(str(error))

    waiting = threading.Thread(target=ask)
    waiting.start()
    while not len(runner._ledger):
        assert waiting.is_alive(), heard
    apart.close()
    waiting.join(20)
    assert heard == ["The engine was closed before the picture or sound was read."]


def test_the_next_child_reads_the_pictures_again(apart: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [apart.chat(asked(seed), **TURN, logprobs=1).logprobs for seed in (0, 1)]
    process = runner_of(apart)._link.child.process
    process.send_signal(signal.SIGSTOP)
    answers: list[Any] = []
    asking = threading.Thread(target=lambda: answers.append(apart.chat(asked(2), **TURN).finish_reason))
    asking.start()
    while not len(runner_of(apart)._ledger):
        assert asking.is_alive()
    process.kill()
    asking.join(60)
    assert answers == ["length"], "a picture that was being read"
    monkeypatch.setattr(runner_of(apart), "read", None)
    assert [apart.chat(asked(seed), **TURN, logprobs=1).logprobs for seed in (0, 1)] == expected


def test_others_may_ask_for_pictures_while_a_child_is_set_up(apart: Engine) -> None:
    runner, asked_for = runner_of(apart), list[object]()
    apart.chat(asked(0), **TURN)

    class Beside:
        """A source beside which another thread asks for one more."""

        @property
        def order(self) -> Read:
            if len(asked_for) < 3:
                asked_for.append(more := Beside())
                runner._sources[next(runner._own_ids)] = more
            return Read(next(runner._own_ids), media(KINDS["llava"], 1))

    runner._sources[next(runner._own_ids)] = first = Beside()
    runner._link.child.process.kill()
    assert apart.chat(asked(0), **TURN).finish_reason == "length"
    assert asked_for
    del first


def test_what_is_read_for_one_who_was_interrupted_is_forgotten(apart: Engine, sent: list[object]) -> None:
    runner, main = runner_of(apart), threading.main_thread().ident
    assert main is not None
    process = runner._link.child.process
    process.send_signal(signal.SIGSTOP)
    interrupt = threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        apart.chat(asked(3), **TURN)
    process.send_signal(signal.SIGCONT)
    assert apart.chat(asked(4), **TURN).finish_reason == "length"
    patience = time.monotonic() + 20
    while len(runner._ledger) and time.monotonic() < patience:
        time.sleep(0.01)
    assert sum(isinstance(order, Drop) for order in sent) == 1


def test_large_pictures_cross_and_nothing_waits_for_them(apart: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = Image(np.random.default_rng(3).integers(0, 256, (6000, 6000, 3), np.uint8))
    runner, answers = runner_of(apart), list[str]()

    def ask() -> None:
        answers.append(apart.chat([{"role": "user", "content": ["See:", pixels, "?"]}], **TURN).finish_reason)

    apart.chat("Hello!", **TURN)
    queued, channel = threading.Event(), runner._link.orders
    send = channel.send

    def note(frame: bytes) -> None:
        send(frame)
        queued.set()

    monkeypatch.setattr(channel, "send", note)
    asking = threading.Thread(target=ask)
    asking.start()
    assert queued.wait(60)
    (read,) = runner._ledger._owed
    assert apart.chat("Hello!", **TURN).finish_reason == "length"
    assert runner._ledger.get(read), "the picture is still being read"
    asking.join(60)
    assert answers == ["length"]


def test_a_child_that_reports_endless_rows_is_not_believed(apart: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    link = runner_of(apart)._link
    receive = link.receive

    def grown() -> Any:
        answer = receive()
        return [
            each._replace(parts=tuple(map(endless, each.parts))) if isinstance(each, Parts) else each for each in answer
        ]

    def endless(part: PromptPart) -> PromptPart:
        return replace(part, rows=2**40) if isinstance(part, MediaChunk) else part

    monkeypatch.setattr(link, "receive", grown)
    apart.chat("Hello", **TURN)  # the thread that reads has begun to wait before
    with pytest.raises(EngineError, match="of 1099511627776 rows"):
        apart.chat(asked(0), **TURN)
