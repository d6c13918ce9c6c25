"""Random requests that fail, each in its own way, on an engine with real weights; and the clean turns after them."""

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fakes.scripts import wait_until
from files import projector_files
from files.adapter_files import write_adapter_of

from engine import Engine, EngineError, Lark, Regex

QUESTIONS = ("Hello!", "Name a colour.", "What is two and two?", "Say goodbye.")
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6}
ADAPTERS: Mapping[str, float] = {"nan": float("nan"), "large": 1e38, "strong": 30.0}
"""Adapters that spoil a model, by the number that they hold."""
LONG = "tell me a story about the sea and the wind " * 20
PICTURE = projector_files.media(projector_files.KINDS["llava"], 5)
Fail = Callable[[Engine, random.Random], object]


def opened(model: Path, folder: Path, **options: Any) -> Engine:
    """Returns an engine whose adapters spoil it; nothing tried them."""
    files = {name: write_adapter_of(folder / f"{name}.gguf", model, number) for name, number in ADAPTERS.items()}
    return Engine.load(model, n_ctx=512, n_sequences=3, preflight=False, adapters=files, **options)


def spoiled(chance: random.Random) -> dict[str, Any]:
    """Returns the option of a turn with one of those adapters, or with none."""
    name = chance.choice((*ADAPTERS, *ADAPTERS, None))
    return {} if name is None else {"adapters": {name: chance.choice((-1000, 0.5, 1, 1000))}}


def asked(chance: random.Random) -> str:
    return chance.choice((*QUESTIONS, LONG, LONG[: chance.randrange(1, len(LONG))]))


def overflowing(llm: Engine, chance: random.Random) -> object:
    name = chance.choice([*ADAPTERS])
    return llm.chat(asked(chance), adapters={name: chance.choice((-1000, 1, 1000))}, **GREEDY)


def beside_others(llm: Engine, chance: random.Random) -> object:
    streams = [llm.stream(asked(chance), **spoiled(chance), **GREEDY) for _ in range(5)]
    results: list[object] = []
    for stream in streams:
        with suppress(EngineError):
            results.append(stream.result(120))
    return results


def cancelled(llm: Engine, chance: random.Random) -> object:
    stream = llm.stream(asked(chance), max_tokens=40, ignore_eos=True, **spoiled(chance))
    for number, _ in enumerate(stream):
        if number >= chance.randrange(4):
            break
    stream.cancel()
    return stream.result(120)


def stops(*_: object) -> bool:
    return False


def cancelled_while_it_is_read(llm: Engine, chance: random.Random) -> object:
    """Before anybody looks at its logits."""
    return llm.chat(LONG, progress=stops, **spoiled(chance), **GREEDY)


def left(llm: Engine, chance: random.Random) -> object:
    with llm.stream(asked(chance), max_tokens=40, **spoiled(chance)) as stream:
        return next(iter(stream))


def late(llm: Engine, chance: random.Random) -> object:
    return llm.chat(asked(chance), deadline=chance.choice((0.001, 0.01, 0.1)), max_tokens=200, **spoiled(chance))


def scored(llm: Engine, chance: random.Random) -> object:
    return llm.score(asked(chance), [" it is"], **spoiled(chance))


def pinned(llm: Engine, chance: random.Random) -> object:
    with llm.pin([{"role": "system", "content": asked(chance)}], **spoiled(chance)):
        return llm.chat([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], **GREEDY)


def raising(_tokens: Any, _logits: Any) -> None:
    raise ValueError("a caller's own mistake")


def processed(llm: Engine, chance: random.Random) -> object:
    return llm.chat(asked(chance), logits_processors=[raising], **spoiled(chance), **GREEDY)


def spoiling(_tokens: Any, logits: Any) -> None:
    logits[:] = float("nan")


def spoiled_by_a_processor(llm: Engine, chance: random.Random) -> object:
    return llm.chat(asked(chance), logits_processors=[spoiling], **GREEDY)


WRONG: tuple[dict[str, Any], ...] = (
    {"temperature": -1},
    {"top_p": float("nan")},
    {"nothing": 1},
    {"max_tokens": "x"},
    {"adapters": {"nan": 1e6}},
    {"adapters": {"nan": float("inf")}},
    {"adapters": ["none"]},
    {"stop": [""]},
    {"logit_bias": {10**9: 1.0}},
    {"tool_choice": "required"},
    {"deadline": -1},
)


def with_wrong_options(llm: Engine, chance: random.Random) -> object:
    return llm.chat(asked(chance), **{**GREEDY, **chance.choice(WRONG)})


UNMET: tuple[Any, ...] = (
    {"type": "json_schema", "json_schema": {"name": "x", "schema": False}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "minLength": 400}}},
    Regex("(?=a)b"),
    Lark("start: nothing"),
)


def constrained(llm: Engine, chance: random.Random) -> object:
    return llm.chat(asked(chance), response_format=chance.choice(UNMET), **spoiled(chance), **GREEDY)


def stopped(llm: Engine, chance: random.Random) -> object:
    stop = chance.choice(("a", "e", " ", ".", "the"))
    return llm.chat(asked(chance), stop=stop, temperature=0, max_tokens=30, **spoiled(chance))


def too_long(llm: Engine, chance: random.Random) -> object:
    return llm.chat("word " * chance.choice((600, 5_000, 200_000)), **spoiled(chance), **GREEDY)


def seeing(llm: Engine, chance: random.Random) -> object:
    question: Any = [{"role": "user", "content": [asked(chance), PICTURE]}]
    return llm.chat(question, **GREEDY)


KINDS: tuple[Fail, ...] = (
    overflowing,
    beside_others,
    cancelled,
    cancelled_while_it_is_read,
    left,
    late,
    scored,
    pinned,
    processed,
    spoiled_by_a_processor,
    with_wrong_options,
    constrained,
    stopped,
    too_long,
    seeing,
)


def clean(llm: Engine, number: int) -> str:
    """Returns a clean greedy turn's answer, of a prompt that nothing of is cached."""
    return llm.chat(QUESTIONS[number % len(QUESTIONS)], cache_salt=f"clean {number}", **GREEDY).content or ""


def outcome(llm: Engine, kind: Fail, chance: random.Random) -> str:
    """Make one request, and return how it ended. Whatever is no error of ours is raised."""
    try:
        kind(llm, chance)
    except EngineError as error:
        return type(error).__name__
    finally:
        wait_until(lambda: not llm.metrics.running, 120)
    return "an answer"
