"""Work of many kinds on an engine with the built-in model, real weights, and calls below it whose n-th one fails.

After each failure the request that met it ended by name, every other one gave its right answer, and the same work gives
the same answers again.
"""

import asyncio
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from failures.failing_calls import (
    MEMORY,
    Breaker,
    Failure,
    Install,
    Library,
    arrays,
    backend_of,
    decode_error,
    function,
    is_named,
    method,
    of_module,
    raising,
    returning,
    runner_of,
    vector_decode,
    vocab,
)
from failures.failing_child import Failed
from fakes.inside import parts
from files import projector_files

from engine import Engine, StateStore

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "reasoning": False}
LONGER: dict[str, Any] = {**GREEDY, "max_tokens": 40}
DRAWN: dict[str, Any] = {**GREEDY, "temperature": 1.0, "samplers": ["top_k"], "top_k": 1}
OPTIONS: dict[str, Any] = {"n_ctx": 1024, "n_sequences": 3, "n_threads": 1, "preflight": False}
SYSTEM = [{"role": "system", "content": "You are a helpful assistant."}]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "form",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"kind": {"enum": ["letter", "invoice"]}, "urgent": {"type": "boolean"}},
            "required": ["kind", "urgent"],
            "additionalProperties": False,
        },
    },
}
PATIENCE = 60.0
PICTURE = projector_files.media(projector_files.KINDS["llava"], 5)
_NUMBERS = count(1)


def get_weather(city: str) -> str:
    """Get the weather.

    Args:
        city: The name of the city.
    """
    return f"rain in {city}"


def same(_tokens: Any, logits: Any) -> Any:
    """A caller's processor of logits, which changes nothing."""
    return logits


@contextmanager
def opened(folder: Path) -> Generator[Engine]:
    """Yields an engine that keeps states and sees pictures; the files are written into a folder."""
    projector = projector_files.write_projector(folder / "mmproj.gguf", projector_files.KINDS["llava"])
    with Engine.load(projector=projector, states=StateStore(memory=1 << 26), **OPTIONS) as llm:
        yield llm


def work(llm: Engine) -> dict[str, object]:
    """Do all of it once; returns what each request gave, or the error that ended it."""
    store_of(llm).clear()
    told: dict[str, object] = {}
    begin: dict[str, Callable[[], Any]] = {
        "plain": lambda: llm.stream("Hello!", **GREEDY),
        "same beginning": lambda: llm.stream("Hello! Who are you?", **GREEDY),
        "scored": lambda: llm.stream("Thank you.", logprobs=2, **GREEDY),
        "a form": lambda: llm.stream("A letter.", response_format=SCHEMA, **LONGER),
        "a call": lambda: llm.stream("Weather in Lima?", [get_weather], tool_choice="required", **LONGER),
        "processed": lambda: llm.stream("Good morning.", logits_processors=[same], **GREEDY),
        "filtered": lambda: llm.stream("Good day.", **DRAWN),
    }
    streams: dict[str, Any] = {name: outcome(call) for name, call in begin.items()}
    left: Any = outcome(lambda: llm.stream("Say one two three.", ignore_eos=True))
    if not isinstance(left, BaseException):
        left.cancel()
        left = outcome(lambda: left.result(PATIENCE).finish_reason)
    for name, stream in streams.items():
        failed = isinstance(stream, BaseException)
        told[name] = stream if failed else outcome(lambda s=stream: answer(s.result(PATIENCE)))
    told["left"] = left
    for letter in "pqrsp":  # what was held is kept as states, and found again
        told[letter] = outcome(lambda letter=letter: answer(llm.chat(f"{letter} " * 60, **GREEDY)))
    asked: Any = [{"role": "user", "content": [f"{next(_NUMBERS)}, what is it?", PICTURE]}]  # never in the cache
    told["seen"] = outcome(lambda: llm.chat(asked, ignore_eos=True, **GREEDY).finish_reason)
    told["pinned"] = outcome(lambda: pinned(llm))
    told["vectors"] = outcome(lambda: llm.embed(["a text", "another"]).tobytes())
    told["awaited"] = outcome(lambda: asyncio.run(awaited(llm)))
    return told


def store_of(llm: Engine) -> StateStore:
    return runner_of(llm)._loop._store


def answer(completion: Any) -> object:
    scores = [each.token for each in completion.logprobs or ()]
    return completion.parts, completion.finish_reason, scores


def pinned(llm: Engine) -> object:
    asked: Any = [*SYSTEM, {"role": "user", "content": "Hello!"}]
    with llm.pin(SYSTEM):
        return llm.chat(asked, **GREEDY).parts


async def awaited(llm: Engine) -> object:
    return [event async for event in llm.stream("Hello again!", **GREEDY)][:-1]


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is judged
        return error


def projector(name: str, failure: Failure) -> Install:
    """A function of mtmd fails, as the projector calls it; pictures that were read are forgotten."""

    def install(llm: Engine, breaker: Breaker, patch: pytest.MonkeyPatch) -> None:
        service: Any = parts(llm).service  # pyright: ignore[reportPrivateUsage]
        service._prompts._projected.cache_clear()
        own = backend_of(llm).projector
        own._cached.clear()
        lib = own._lib
        patch.setattr(own, "_lib", Library(lib, **{name: breaker.guard(getattr(lib, name), failure)}))

    return install


@dataclass(frozen=True)
class Kind:
    """How a kind of call fails. `may_end`: how many requests one failure may end. `in_caller`: some of the calls are
    made in the caller's thread, where a MemoryError is Python's own."""

    install: Install
    may_end: int = 1
    in_caller: bool = False

    def allows(self, error: Exception) -> bool:
        return is_named(error) or (self.in_caller and isinstance(error, MemoryError))


KINDS: Mapping[str, Kind] = {
    "llama_decode: no room": Kind(function("llama_decode", returning(1))),
    "llama_decode: aborted": Kind(function("llama_decode", returning(2))),
    "llama_decode: refused": Kind(function("llama_decode", returning(-1)), 0),
    "llama_decode: fatal": Kind(function("llama_decode", returning(-3)), 0),
    "logits": Kind(method("logits", raising(MEMORY))),
    "a state's size": Kind(function("llama_state_seq_get_size_ext", returning(0))),
    "a state's bytes": Kind(function("llama_state_seq_get_data_ext", returning(0))),
    "a state read": Kind(function("llama_state_seq_set_data_ext", returning(0)), 0),
    "vectors: refused": Kind(vector_decode(-1)),
    "a text's tokens": Kind(vocab("encode", raising(MEMORY)), in_caller=True),
    "a token's bytes": Kind(vocab("token_bytes", raising(MEMORY)), in_caller=True),
    "a numpy array": Kind(arrays),
    "a grammar's mask": Kind(of_module("engine.runtime.guidance.matcher", "Matcher.forced", raising(MEMORY))),
    "a grammar's step": Kind(of_module("engine.runtime.guidance.matcher", "Matcher.consume", raising(MEMORY))),
    "the parser": Kind(of_module("engine.formats.parsing.parser", "Parser.feed", raising(MEMORY)), in_caller=True),
    "a picture's tokens": Kind(projector("mtmd_tokenize_from_parts", returning(1))),
    "a picture's encoder": Kind(projector("mtmd_encode_chunk", returning(1))),
    "a picture's rows": Kind(method("decode_media", decode_error("failed"))),
    "the parser's end": Kind(of_module("engine.formats.parsing.parser", "Parser.close", raising(MEMORY))),
}


def expected(llm: Engine) -> dict[str, object]:
    """Returns what the work gives when nothing fails. Raises AssertionError if it does not give it twice."""
    right = work(llm)
    assert not any(isinstance(each, Exception) for each in right.values()), right
    assert work(llm) == right
    return right


def failing(llm: Engine, right: Mapping[str, object], kind: Kind, number: int) -> Failed:
    """Let the n-th call fail while the work is done, then do it again."""
    breaker = Breaker(number)
    with pytest.MonkeyPatch.context() as patch:
        kind.install(llm, breaker, patch)
        told = work(llm)
    ended = {name: each for name, each in told.items() if isinstance(each, Exception) and each != right[name]}
    result = Failed(breaker.reached > 0, len(ended))
    faults = [f"{name} ended by {each!r}" for name, each in ended.items() if not kind.allows(each)]
    if len(ended) > kind.may_end:
        faults.append(f"{len(ended)} requests ended: {ended}")
    faults += others(told, right)
    if breaker.reached:
        after = work(llm)
        faults += [f"afterwards: {name}: {after[name]!r}" for name in right if after[name] != right[name]]
    result.faults = [f"call {number}: {text}" for text in faults]
    return result


def others(told: Mapping[str, object], right: Mapping[str, object]) -> list[str]:
    wrong = {name: each for name, each in told.items() if not isinstance(each, Exception) and each != right[name]}
    return [f"{name}: {each!r}, not {right[name]!r}" for name, each in wrong.items()]
