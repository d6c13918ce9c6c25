"""Ctrl-C at every line: what was taken is given back, also while a traceback keeps every object alive, as a notebook
does."""

import dis
import sys
import threading
import weakref
from _thread import interrupt_main
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias
from unittest.mock import Mock

import pytest
from fakes.scripts import parts, scripted, wait_until

from engine import ChatTemplate, Engine, Engines, StateStore
from engine.api import engines as engines_module
from engine.api.budget import Size
from engine.runtime.adapters.adapters import AdapterInfo
from engine.testing import ByteVocab, ScriptedBackend

FOLDER = Path(engines_module.__file__).parents[1]
LINES = {
    str(FOLDER / name)
    for name in (
        "runtime/stream/service.py",
        "runtime/stream/stream.py",
        "runtime/stream/pending.py",
        "runtime/loop/runner.py",
        "api/engines.py",
        "api/admission.py",
    )
}
REPLY = "An answer of some words, which ends by itself."
TURN: dict[str, Any] = {"reasoning": False}


@cache
def ends_of_blocks(code: CodeType) -> set[int]:
    """Returns where the ends of `with` blocks are: between the last call of a block and that of `__exit__` CPython runs
    no signal handler, since a lock would be kept."""
    steps = list(dis.get_instructions(code))
    return {
        steps[at].offset
        for at in range(len(steps) - 2)
        if all(step.opname == "LOAD_CONST" and step.argval is None for step in steps[at : at + 3])
    }


def in_finalizer(frame: FrameType | None) -> bool:
    """Whether an object is collected here: what is raised then is nobody's."""
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename == weakref.__file__:
            return True
        frame = frame.f_back
    return False


Place: TypeAlias = tuple[str, int, int]
"""A file, a line of it, and the how manieth visit."""


class Interrupter:
    """Runs a function, and raises KeyboardInterrupt before a line; notes the `places`, the first two visits of each
    line."""

    def __init__(self, at: Place | None = None) -> None:
        self._at = at
        self._visits: Counter[tuple[str, int]] = Counter()
        self.places: list[Place] = []

    def run(self, function: Callable[[], object]) -> BaseException | None:
        """Returns the interrupt, with its traceback, if it came."""
        before = sys.gettrace()
        sys.settrace(self._called)
        try:
            function()
        except KeyboardInterrupt as error:
            return error
        finally:
            sys.settrace(before)
        return None

    def _called(self, frame: FrameType, *_: object) -> Any:
        return self._line if frame.f_code.co_filename in LINES and not in_finalizer(frame) else None

    def _line(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and frame.f_lasti not in ends_of_blocks(frame.f_code):
            line = frame.f_code.co_filename, frame.f_lineno
            self._visits[line] += 1
            place = (*line, self._visits[line])
            if place[2] <= 2:
                self.places.append(place)
            if place == self._at:
                raise KeyboardInterrupt
        return self._line


def every_line(function: Callable[[], object], check: Callable[[], object]) -> int:
    """Interrupt a function before each of its lines in turn; returns how often. `check` is called after each, while all
    that the traceback refers to is alive."""
    visited = Interrupter()
    visited.run(function)
    check()
    came = 0
    for place in visited.places:
        error = Interrupter(place).run(function)
        came += error is not None
        try:
            check()
        except Exception as wrong:
            raise AssertionError(f"after an interrupt at {told(error)}") from wrong
    return came


def told(error: BaseException | None) -> str:
    """The lines that led to an interrupt."""
    lines, at = list[str](), error and error.__traceback__
    while at is not None:
        lines.append(f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}")
        at = at.tb_next
    return " > ".join(lines)


@pytest.fixture
def llm() -> Iterator[Engine]:
    with scripted(lambda _: REPLY, n_sequences=4) as made:
        yield made


def nothing_open(llm: Engine) -> None:
    service: Any = parts(llm).service
    wait_until(lambda: not service.running, 5)
    assert not service.pinned
    pins: Any = service._runner._loop._pins
    wait_until(lambda: not pins._sequences, 5)


def read(llm: Engine) -> None:
    for _ in llm.stream("Hi", **TURN):
        pass


def taken(llm: Engine) -> None:
    stream = llm.stream("Hi", **TURN)
    arrived = threading.Event()
    stream.listen(arrived.set)
    while not stream.over:
        arrived.wait(5)
        while stream.take() is not None:
            pass
    assert stream.completion.content == REPLY


def claimed(llm: Engine) -> None:
    conversation = llm.conversation()
    conversation.chat("Hi", **TURN)
    conversation.chat("And?", **TURN)


def embedded(llm: Engine) -> None:
    assert len(llm.embed(["a", "b"])) == 2


def generated(llm: Engine) -> None:
    assert len(llm.generate(["Hi", "Ho", "He"], reasoning=False)) == 3


OPERATIONS: dict[str, Callable[[Engine], object]] = {
    "chat": lambda llm: llm.chat("Hi", **TURN),
    "stream": read,
    "take": taken,
    "conversation": claimed,
    "generate": generated,
    "embed": embedded,
    "score": lambda llm: llm.score("a", ["b", "c"]),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_call_leaves_nothing_open(name: str, llm: Engine) -> None:
    lines = every_line(partial(OPERATIONS[name], llm), partial(nothing_open, llm))
    assert lines > 20
    assert llm.chat("Hi", **TURN).content == REPLY


def test_a_stream_whose_reader_was_interrupted_can_be_read_to_its_end(llm: Engine) -> None:
    streams: list[Any] = []

    def reading() -> None:
        streams.append(llm.stream("Hi", **TURN))
        for _ in streams[-1]:
            pass

    def check() -> None:
        for stream in streams:
            completion = stream.result(5)
            assert REPLY.startswith(completion.content)
            assert stream.completion == completion
            assert completion.usage, "the last reply was lost"
        streams.clear()
        nothing_open(llm)

    assert every_line(reading, check) > 20


def test_a_prefix_is_pinned_by_somebody_or_not_at_all(llm: Engine) -> None:
    prefixes: list[Any] = []

    def pin() -> None:
        prefixes.append(llm.pin([{"role": "system", "content": "Be brief."}], **TURN))

    def check() -> None:
        for prefix in prefixes:
            prefix.release()
        prefixes.clear()
        nothing_open(llm)

    assert every_line(pin, check) > 20


def test_a_release_that_was_interrupted_can_be_called_again(llm: Engine) -> None:
    prefix: Any = None

    def check() -> None:
        prefix.release()
        nothing_open(llm)

    visited = Interrupter()
    visited.run(llm.pin([{"role": "system", "content": "Be brief."}], **TURN).release)
    for place in visited.places:
        prefix = llm.pin([{"role": "system", "content": "Be brief."}], **TURN)
        Interrupter(place).run(prefix.release)
        check()


def test_an_adapter_has_its_name_or_is_not_loaded(llm: Engine, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    service: Any = parts(llm).service
    backend: Any = service._runner._backend
    adapter = AdapterInfo("a", tmp_path / "a", "digest", 1.0, "qwen3", 4, 100, ())

    def load() -> None:
        service.load_adapter(adapter)
        service.drop_adapter("a")

    def check() -> None:
        nothing_open(llm)
        if "a" in service.adapters:
            service.drop_adapter("a")
        llm.chat("Hi", **TURN)  # behind the orders
        assert not backend.adapters, "it is loaded, and nobody can drop it"
        service.load_adapter(adapter)
        assert backend.adapters == {"digest"}
        service.drop_adapter("a")

    assert every_line(load, check) > 20


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engines]:
    """Two models that do not fit beside one another."""
    made: list[Any] = []

    def loaded(*_: object, **__: object) -> Engine:
        engine = scripted(lambda _: REPLY)
        made.append(engine.source)
        return engine

    model: Any = engines_module._Model  # pyright: ignore[reportPrivateUsage]
    for name, value in {"size": Size(10), "_plan": (Planned(), Planned(), None), "_exactly": (None, None)}.items():
        monkeypatch.setattr(model, name, Mock(return_value=value))
    monkeypatch.setattr(Engine, "load", loaded)
    with Engines({"a": "a.gguf", "b": "b.gguf"}, budget=15, states=StateStore(0)) as engines:
        engines.opened = made  # pyright: ignore[reportAttributeAccessIssue]
        yield engines


class Planned:
    """A plan, and a file, of which nothing counts."""

    n_ctx = 4096
    path = Path("a.gguf")
    embeds = False

    @property
    def model(self) -> Any:
        return type("Options", (), {"n_gpu_layers": 0})

    @property
    def context(self) -> Any:
        return type("Options", (), {"n_sequences": 4})


def nothing_taken(engines: Any) -> None:
    """No model is used, nobody waits, and each engine in memory is counted."""
    admission = engines._admission
    for load in list(admission.loads.values()):
        assert load.engine is not None, "a model that nobody loads is waited for"
        assert not load.users, "it is used by nobody"
    assert not admission.queue.tickets
    assert not admission.leaving
    counted = [load.engine for load in admission.loads.values()]
    open_ones = [engine for engine in engines.opened if not engine.closed]
    assert all(any(engine is each for each in counted) for engine in open_ones), "an engine is open and not counted"
    for load in list(admission.loads.values()):
        wait_until(lambda: not load.busy, 5)  # noqa: B023 - called at once
    assert not engines_module._held.loads  # pyright: ignore[reportPrivateUsage]
    engines.opened[:] = open_ones


def turns(engines: Engines) -> None:
    engines["a"].chat("Hi", **TURN)
    engines["b"].chat("Hi", **TURN)


def blocks(engines: Engines) -> None:
    with engines.use("a") as llm:
        llm.chat("Hi", **TURN)
    with engines.use("b"):
        pass


def unloads(engines: Engines) -> None:
    engines.load("a")
    engines.unload("a")


@pytest.mark.parametrize("operation", [turns, blocks, unloads])
def test_models_are_used_by_nobody_and_all_are_counted(operation: Callable[[Any], object], two: Engines) -> None:
    assert every_line(partial(operation, two), partial(nothing_taken, two)) > 50
    turns(two)


def test_an_interrupted_call_shows_the_callers_line_and_one_of_ours() -> None:
    """A notebook shows every frame, and where the engine waited tells nobody anything."""

    def interrupting(_prompt: str) -> str:
        interrupt_main()
        return "word " * 500

    asks: list[Callable[[Any], object]] = [
        lambda llm: llm.chat("x", **TURN),
        lambda llm: llm.generate(["x", "y"], **TURN),
        lambda llm: llm.complete("x"),
        lambda llm: llm.run("x", **TURN),
    ]
    for ask in asks:
        backend = ScriptedBackend(interrupting, vocab=ByteVocab(["<|im_start|>"]), delay=0.002)
        with Engine.over(backend, ChatTemplate(None, family="qwen3")) as llm:
            with pytest.raises(KeyboardInterrupt) as caught:
                ask(llm)
            frames = [Path(str(each.path)) for each in caught.traceback]
            assert [path.is_relative_to(FOLDER) for path in frames[-2:]] == [False, True], frames
            assert caught.value.__context__ is None
            wait_until(lambda: not llm.metrics.running)
