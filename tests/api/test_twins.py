"""What has a twin for event loops does the same in it: same parameters, same outcome of each call, the same queue."""

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, cast

import pytest
from fakes.scripts import scripted

import engine
from engine import Engine, QueueFullError
from engine.runtime.loop.config import LoopOptions

CLASSES: list[Any] = [kind for name in sorted(engine.__all__) if inspect.isclass(kind := getattr(engine, name))]
TWINS = [
    (kind, name)
    for kind in CLASSES
    for name in dir(kind)
    if not name.startswith("_") and callable(getattr(kind, f"a{name}", None)) and callable(getattr(kind, name))
]


def test_there_are_twins() -> None:
    named = {(kind.__name__, name) for kind, name in TWINS}
    assert named >= {
        *(("Engine", name) for name in ("chat", "stream", "run", "generate", "load", "close")),
        *(("Engines", name) for name in ("use", "load", "close")),
        *(("Conversation", name) for name in ("chat", "stream")),
    }


@pytest.mark.parametrize(("kind", "name"), TWINS)
def test_twins_take_the_same(kind: Any, name: str) -> None:
    one, other = (inspect.signature(getattr(kind, each)).parameters for each in (name, f"a{name}"))
    if any(each.kind is each.VAR_KEYWORD for each in other.values()):
        named = [each for each in other.values() if each.kind is not each.VAR_KEYWORD]
        assert all(one[each.name].default == each.default for each in named)
        return
    assert [(each.name, each.kind, each.default) for each in one.values()] == [
        (each.name, each.kind, each.default) for each in other.values()
    ]


def add(a: int) -> int:
    """Add one."""
    return a + 1


TURNS: list[dict[str, Any]] = [
    {},
    {"max_tokens": 3},
    {"max_tokens": "x"},
    {"tools": [add]},
    {"tools": [3]},
    {"temperature": -1},
    {"nothing": 1},
    {"response_format": int},
    {"response_format": object()},
    {"deadline": -1},
    {"reasoning": "never"},
    {"stop": [""]},
    {"tool_choice": "required"},
    {"n_ctx": 3},
]
MESSAGES: list[Any] = ["Hi", [], 3, [{"role": "user"}], "x" * 40_000, [{"role": "nobody", "content": "x"}], ""]
CALLS: dict[str, Callable[[Any], list[tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "chat": lambda said: [((said,), options) for options in TURNS],
    "run": lambda said: [((said,), options) for options in (*TURNS, {"max_steps": 0}, {"approve": 3}, {"save": 3})],
    "generate": lambda said: [(([said, "Ho"],), options) for options in (*TURNS, {"on_error": "x"})],
}


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    with scripted(lambda _: "An answer.", seed=1) as made:
        yield made


def outcome(call: Callable[[], Any]) -> str:
    """What a call comes to: its value, without what only the clock says, or its error."""
    try:
        value = call()
    except Exception as error:  # noqa: BLE001 - compared
        return f"{type(error).__name__}: {error}"
    listed: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    answers: list[Any] = [getattr(each, "completion", each) for each in listed]
    return str([(each.content, each.finish_reason) if hasattr(each, "content") else str(each) for each in answers])


@pytest.mark.parametrize("name", CALLS)
def test_twins_come_to_the_same(name: str, llm: Engine) -> None:
    for said in MESSAGES:
        for given, options in CALLS[name](said):
            one = outcome(lambda: getattr(llm, name)(*given, **options))  # noqa: B023 - called at once

            async def other() -> Any:
                return await getattr(llm, f"a{name}")(*given, **options)  # noqa: B023

            assert outcome(lambda: asyncio.run(other())) == one, (name, str(said)[:40], options)


def many(llm: Engine) -> None:
    llm.generate(["Hi"] * 40, reasoning=False)


def many_in_a_loop(llm: Engine) -> None:
    asked: Coroutine[Any, Any, Any] = llm.agenerate(["Hi"] * 40, reasoning=False)
    asyncio.run(asked)


def many_as_they_finish(llm: Engine) -> None:
    for _ in llm.generate_iter(["Hi"] * 40, reasoning=False):
        pass


@pytest.mark.parametrize("way", [many, many_in_a_loop, many_as_they_finish])
def test_many_rows_take_nobodys_place_in_the_queue(way: Callable[[Engine], None]) -> None:
    refused: list[str] = []
    with scripted(lambda _: "An answer.", n_sequences=2, options=LoopOptions(max_waiting=6), delay=0.002) as llm:

        def ask(number: int) -> None:
            try:
                llm.chat(f"Number {number}", reasoning=False)
            except QueueFullError as error:
                refused.append(str(error))

        batch = threading.Thread(target=way, args=(llm,))
        batch.start()
        while not llm.metrics.running:
            pass
        others = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in others:
            thread.start()
        for thread in (*others, batch):
            thread.join()
    assert not refused


def test_every_door_of_a_closed_engine_says_the_same() -> None:
    llm = Engine.load(n_ctx=512, preflight=False)
    llm.close()
    doors: list[Callable[[], object]] = [
        lambda: llm.chat("x"),
        lambda: llm.run("x"),
        lambda: llm.complete("x"),
        lambda: llm.generate(["x"]),
        lambda: llm.embed("x"),
        lambda: llm.score("x", ["y"]),
        lambda: llm.tokenize("x"),
        lambda: llm.detokenize([1]),
        lambda: llm.pin("x"),
        lambda: llm.drop_adapter("a"),
        lambda: llm.decide("x", "It is so."),
        lambda: asyncio.run(llm.achat("x")),
    ]
    for door in doors:
        with pytest.raises(engine.EngineError, match="is closed; load it again") as told:
            door()
        assert type(told.value) is engine.EngineError
