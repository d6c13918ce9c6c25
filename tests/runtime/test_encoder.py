"""Pictures are encoded beside the loop's thread, and evaluated in steps: what needs none of them goes on."""

import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest
from fakes.inside import parts
from fakes.scripted_media import Projector, asked, opened, picture, read

from engine import EngineError, StateStore
from engine.runtime.loop.backend import Row
from engine.runtime.media.encoder import Encoder
from engine.runtime.media.media import MediaChunk, PromptPart
from engine.support.errors import DecodeError
from engine.types.media import Media

WAIT = 20.0


class Gate:
    """Holds the encoding of a projector until it is opened."""

    def __init__(self, projector: Projector) -> None:
        self.begun = threading.Event()
        self.open = threading.Event()
        projector.on_encode = self.hold

    def hold(self, _unit: MediaChunk) -> None:
        self.begun.set()
        assert self.open.wait(WAIT)


@contextmanager
def gated(projector: Projector) -> Generator[Gate]:
    gate = Gate(projector)
    try:
        yield gate
    finally:
        gate.open.set()


def check(llm: Any) -> None:
    cast("Any", parts(llm)).service._runner._loop.cache.check()


def test_others_go_on_while_a_picture_is_encoded() -> None:
    projector = Projector()
    llm, backend = opened(projector)
    with llm, gated(projector) as gate:
        seeing = llm.stream(asked(1))
        assert gate.begun.wait(WAIT)
        assert llm.chat("Hello").content == "fine"
        assert [row.content for row in llm.generate(["one", "two", "three"])] == ["fine"] * 3
        assert backend.media == []
        gate.open.set()
        assert seeing.result().content == "fine"
        assert projector.encoded == backend.media == [picture(1).digest]


def test_the_text_before_a_picture_is_evaluated_meanwhile() -> None:
    projector = Projector()
    llm, backend = opened(projector)
    reached = threading.Event()
    with llm, gated(projector) as gate:
        seeing = llm.stream(asked(1, text="x" * 600), progress=lambda done, _total: reached.set() or True)
        assert gate.begun.wait(WAIT)
        assert reached.wait(WAIT)
        llm.chat("Hello")
        assert backend.evaluated > 600
        gate.open.set()
        assert seeing.result().content == "fine"


def test_one_at_a_time_the_most_urgent_first() -> None:
    projector = Projector()
    llm, _ = opened(projector)
    running: list[int] = []

    def count(_unit: MediaChunk) -> None:
        running.append(threading.active_count())

    with llm:
        with gated(projector) as gate:
            first = llm.stream(asked(1))
            assert gate.begun.wait(WAIT)
            projector.on_encode = count
            others = [llm.stream(asked(2)), llm.stream(asked(3), priority=5), llm.stream(asked(1, 4))]
            gate.open.set()
        assert [each.result().content for each in (first, *others)] == ["fine"] * 4
        assert projector.encoded == [picture(shade).digest for shade in (1, 3, 2, 4)]
        assert len(set(running)) == 1


def test_a_request_that_waits_can_be_cancelled_and_has_its_deadline() -> None:
    projector = Projector()
    llm, backend = opened(projector)
    with llm, gated(projector) as gate:
        cancelled, late = llm.stream(asked(1)), llm.stream(asked(2), deadline=0.05)
        assert gate.begun.wait(WAIT)
        cancelled.cancel()
        assert cancelled.result().finish_reason == "cancelled"
        assert late.result().finish_reason == "deadline"
        assert not gate.open.is_set()
        gate.open.set()
        assert llm.chat(asked(2)).content == "fine"
        assert backend.media == [picture(2).digest]
        check(llm)


class Bare(Projector):
    """Puts nothing around a picture, which has two parts."""

    def read(self, media: Media) -> list[PromptPart]:
        (unit,) = (part for part in super().read(media) if isinstance(part, MediaChunk))
        return [unit, replace(unit, key=unit.key[::-1])]


def test_pictures_without_text_between_them() -> None:
    llm, backend = opened(Bare())
    with llm:
        for shades in ((1, 2), (1, 2, 3), (2,)):
            assert llm.stream(asked(*shades)).result(timeout=WAIT).content == "fine"
        assert len(backend.media) == 8
        check(llm)


def test_a_loop_of_which_all_wait_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    projector = Projector()
    llm, _ = opened(projector)
    runner: Any = parts(llm).service._runner  # pyright: ignore[reportPrivateUsage]
    loop = runner._loop
    steps: list[int] = []
    step = loop.step
    monkeypatch.setattr(loop, "step", lambda: steps.append(1) or step())
    with llm, gated(projector) as gate:
        seeing = llm.stream(asked(1))
        assert gate.begun.wait(WAIT)
        waited = llm.stream(asked(1, text="another"), deadline=0.3).result()
        assert waited.finish_reason == "deadline"
        assert len(steps) < 20
        gate.open.set()
        assert seeing.result().content == "fine"


def test_what_cannot_be_encoded_ends_those_that_wait_for_it() -> None:
    projector = Projector()
    llm, _ = opened(projector)

    def fail(unit: MediaChunk) -> None:
        if unit.key == picture(9).digest:
            raise DecodeError("no rows", "failed")

    with llm:
        with gated(projector) as gate:
            first = llm.stream(asked(1))
            assert gate.begun.wait(WAIT)
            projector.on_encode = fail
            streams = [llm.stream(asked(shade)) for shade in (9, 2)]
            streams.append(llm.stream(asked(9, text="Another text")))
            gate.open.set()
        for stream in (streams[0], streams[2]):
            with pytest.raises(DecodeError, match="no rows"):
                stream.result()
        assert [first.result().content, streams[1].result().content] == ["fine", "fine"]
        projector.on_encode = lambda _: None
        assert llm.chat(asked(9)).content == "fine", "the next one tries again"
        check(llm)


def test_what_ends_a_process_ends_the_request_only() -> None:
    projector = Projector()
    llm, _ = opened(projector)

    def leave(_unit: MediaChunk) -> None:
        raise SystemExit(3)

    with llm:
        projector.on_encode = leave
        with pytest.raises(EngineError, match="SystemExit"):
            llm.chat(asked(1))
        projector.on_encode = lambda _: None
        assert llm.chat(asked(1)).content == "fine"


def test_without_a_thread_the_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    llm, _ = opened()
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "llama-engine-encode":
            raise RuntimeError("can't start new thread")
        start(thread)

    with llm:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(EngineError, match="can't start new thread"):
            llm.chat(asked(1))
        monkeypatch.undo()
        assert llm.chat(asked(1)).content == "fine"


def test_closing_waits_for_what_is_encoded() -> None:
    projector = Projector()
    llm, backend = opened(projector)
    with gated(projector) as gate:
        seeing = llm.stream(asked(1))
        assert gate.begun.wait(WAIT)
        closing = threading.Thread(target=llm.close)
        closing.start()
        assert seeing.result().finish_reason == "cancelled"
        closing.join(0.2)
        assert closing.is_alive()
        assert not backend.closed, "nothing is freed while it is used"
        gate.open.set()
        closing.join(WAIT)
        assert backend.closed
    assert not any(thread.name == "llama-engine-encode" for thread in threading.enumerate())


def test_rows_are_kept_only_while_they_are_wanted() -> None:
    done = threading.Semaphore(0)
    encoder = Encoder(lambda unit: unit.key, done.release)  # pyright: ignore[reportArgumentType]
    one, two = MediaChunk(b"1" * 32, 3, 3, True), MediaChunk(b"2" * 32, 3, 3, True)
    assert dict(encoder.encoded([one, two])) == {}
    assert done.acquire(timeout=WAIT)
    assert dict(encoder.encoded([one, two])) == {one.key: one.key}
    assert done.acquire(timeout=WAIT)
    assert dict(encoder.encoded([two])) == {two.key: two.key}
    assert dict(encoder.encoded([])) == {}
    encoder.close()


def rows_between(llm: Any, backend: Any, projector: Projector) -> tuple[list[int], list[int]]:
    """The sizes of the parts in which a picture is evaluated beside an answer, and how many decodes had come before
    each."""
    parts: list[int] = []
    decodes: list[int] = []
    decode = backend.decode_media

    def note(unit: MediaChunk, sequence: int, position: int, rows: Any, part: slice) -> None:
        decode(unit, sequence, position, rows, part)
        parts.append(part.stop - part.start)
        decodes.append(backend.decodes)

    backend.decode_media = note
    with gated(projector) as gate:
        seeing = llm.stream(asked(1))
        assert gate.begun.wait(WAIT)
        writing = llm.stream("Hello", repetition_limit=0)
        events = iter(writing)
        next(events)
        gate.open.set()
        assert [seeing.result().content, writing.result().content] == ["fine", "fine" * 200]
    return parts, decodes


@pytest.mark.parametrize(("is_causal", "trimmable"), [(True, True), (False, True), (True, False)])
def test_a_large_picture_is_evaluated_in_steps(is_causal: bool, trimmable: bool) -> None:
    projector = Projector(1000, is_causal=is_causal)
    llm, backend = opened(
        projector,
        reply=lambda text: "fine" * (1 if "What is this?" in text else 200),
        delay=0.001,
        n_batch=128,
        trimmable=trimmable,
    )
    with llm:
        parts, decodes = rows_between(llm, backend, projector)
        check(llm)
        assert sum(parts) == 1000
        if is_causal and trimmable:
            assert max(parts) <= 128
            assert len(set(decodes)) == len(decodes), "the answer goes on between them"
        else:
            assert parts == [1000]
        assert read(llm.chat(asked(1))) < 20


def test_of_a_picture_that_was_begun_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    projector = Projector(1000)
    llm, backend = opened(projector, n_batch=64, n_sequences=2, states=StateStore(0))
    decode, stream = backend.decode_media, None

    def stop(unit: MediaChunk, sequence: int, position: int, rows: Any, part: slice) -> None:
        decode(unit, sequence, position, rows, part)
        if stream is not None and part.start >= 128:
            stream.cancel()

    monkeypatch.setattr(backend, "decode_media", stop)
    with llm:
        with gated(projector) as gate:
            stream = llm.stream(asked(1))
            assert gate.begun.wait(WAIT)
            gate.open.set()
        assert stream.result().finish_reason == "cancelled"
        stream = None
        assert backend.media == []
        check(llm)
        assert llm.chat(asked(1)).content == "fine"
        assert read(llm.chat(asked(1))) < 10
        check(llm)


@pytest.mark.parametrize("reason", ["aborted", "failed"])
def test_a_picture_of_which_a_part_failed_is_begun_again(reason: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    projector = Projector(1000)
    llm, backend = opened(projector, n_batch=64)
    decode, failed = backend.decode_media, list[int]()

    def fail(unit: MediaChunk, sequence: int, position: int, rows: Any, part: slice) -> None:
        if part.start >= 128 and not failed:
            failed.append(part.start)
            backend.trim(sequence, position)
            raise DecodeError("stopped", reason)
        decode(unit, sequence, position, rows, part)

    monkeypatch.setattr(backend, "decode_media", fail)
    with llm:
        assert llm.chat(asked(1)).content == "fine"
        assert failed
        assert backend.media == [picture(1).digest]
        check(llm)


def test_a_picture_of_which_a_part_always_fails_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    llm, backend = opened(Projector(1000), n_batch=64)
    decode = backend.decode_media

    def fail(unit: MediaChunk, sequence: int, position: int, rows: Any, part: slice) -> None:
        if part.start >= 128 and unit.key == picture(1).digest:
            backend.trim(sequence, position)
            raise DecodeError("no such row", "failed")
        decode(unit, sequence, position, rows, part)

    monkeypatch.setattr(backend, "decode_media", fail)
    with llm:
        streams = [llm.stream(asked(shade)) for shade in (1, 2)]
        with pytest.raises(DecodeError, match="no such row"):
            streams[0].result()
        assert streams[1].result().content == "fine"
        check(llm)


def test_a_begun_picture_in_a_pool_that_is_full() -> None:
    """A decode finds no cell while a part of a picture is there: both requests end well, and nothing is left of it."""
    projector = Projector(300)
    options: dict[str, Any] = {"n_batch": 64, "n_ctx": 600, "kv_tokens": 600, "delay": 0.003, "states": StateStore(0)}
    llm, backend = opened(projector, reply=lambda text: "fine" * (1 if "What" in text else 20), **options)
    failed: list[int] = []

    def fail(_rows: Sequence[Row]) -> None:
        if not backend.media and backend.used > 300 and not failed:
            failed.append(backend.used)
            raise DecodeError("full", "no_slot")

    backend.before_decode = fail
    with llm, gated(projector) as gate:
        seeing = llm.stream(asked(1), max_tokens=8)
        assert gate.begun.wait(WAIT)
        writing = llm.stream("x" * 60, max_tokens=80)
        events = iter(writing)
        next(events)
        gate.open.set()
        assert [seeing.result().content, writing.result().content] == ["fine", "fine" * 20]
        assert failed
        check(llm)
