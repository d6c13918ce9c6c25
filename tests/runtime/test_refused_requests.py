"""Thousands of refused requests of every kind, each with other texts: the process does not grow, and keeps no text."""

import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import APIError, OpenAIError

from engine import Engine, Image
from engine.openai import OpenAI
from engine.support.errors import EngineError, EngineWarning
from engine.support.limits import resident_bytes
from engine.types.answer_formats import GBNF, Choice, JsonSchema, Lark, Regex

ROUNDS = 24
FILLER = 20_000
MIB = 1 << 20
LONG = "word " * 6000
"""More than fits: what comes with it is refused."""


def schema(number: int) -> dict[str, Any]:
    """Another schema each time, of 300,000 characters."""
    members = {f"m{number}_{at}": {"type": "string", "description": "x" * 30_000} for at in range(10)}
    return {"type": "object", "properties": members}


def tool(number: int, **more: Any) -> dict[str, Any]:
    return {"name": f"tool_{number}", "description": f"Number {number}.", "parameters": {**schema(number), **more}}


def pattern(number: int) -> dict[str, Any]:
    return {"properties": {"p": {"type": "string", "pattern": f"^(?=a{number})b{'c' * 200}$"}}}


KINDS: dict[str, Callable[[Any, int], object]] = {
    "a prompt too long with a tool": lambda llm, n: llm.chat(LONG, tools=[tool(n)]),
    "a tool's pattern that nothing checks": lambda llm, n: llm.chat(LONG, tools=[tool(n, **pattern(n))]),
    "a strict tool": lambda llm, n: llm.chat(LONG, tools=[{**tool(n, **pattern(n)), "strict": True}]),
    "tools held where possible": lambda llm, n: llm.chat(LONG, tools=[tool(n, **pattern(n))], strict_tools=True),
    "a schema": lambda llm, n: llm.chat(LONG, response_format=JsonSchema(schema(n))),
    "a schema that is none": lambda llm, n: llm.chat("Hi", response_format=JsonSchema({"type": f"t{n}" * 200})),
    "a schema that nothing checks": lambda llm, n: llm.chat("Hi", response_format=JsonSchema(pattern(n))),
    "a regular expression": lambda llm, n: llm.chat("Hi", response_format=Regex(f"({n}" + "x" * FILLER)),
    "a long choice": lambda llm, n: llm.chat(LONG, response_format=Choice([f"{n} {at}" for at in range(500)])),
    "a Lark grammar": lambda llm, n: llm.chat("Hi", response_format=Lark(f"start: a{n}" + " b" * 500)),
    "a GBNF grammar": lambda llm, n: llm.chat("Hi", response_format=GBNF(f"root ::= ({n}" + "x" * FILLER)),
    "a picture that is none": lambda llm, n: llm.chat([Image(b"no picture %d" % n + b"x" * FILLER), "What is it?"]),
    "an option that is none": lambda llm, n: llm.chat("Hi", **{f"option_{n}": "x" * FILLER}),
    "a template's variable": lambda llm, n: llm.chat(LONG, template_kwargs={f"name_{n}": "x" * FILLER}),
    "stop strings": lambda llm, n: llm.chat(LONG, stop=[f"{n}" + "x" * 1000]),
    "an unknown tool to choose": lambda llm, n: llm.chat("Hi", tools=[tool(n)], tool_choice=f"other_{n}" * 100),
}
BODIES: dict[str, Callable[[int], dict[str, Any]]] = {
    "a body's tool": lambda n: {"tools": [{"type": "function", "function": tool(n)}]},
    "a body's pattern": lambda n: {"tools": [{"type": "function", "function": tool(n, **pattern(n))}]},
    "a body's schema": lambda n: {
        "response_format": {"type": "json_schema", "json_schema": {"name": f"n{n}", "schema": schema(n)}}
    },
    "a body's fields": lambda n: {"extra_body": {f"field_{n}": "x" * FILLER}},
}


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    with Engine.load(n_ctx=2048, n_sequences=2, n_threads=1) as engine:
        yield engine


def refused(request: Callable[[], object]) -> bool:
    try:
        request()
    except (EngineError, TypeError, ValueError, OpenAIError, APIError):
        return True
    return False


def kept_warnings() -> int:
    """The texts in Python's registries of the warnings that it has shown."""
    registries = (getattr(module, "__warningregistry__", {}) for module in list(sys.modules.values()))
    return sum(len(registry) for registry in registries)


@pytest.mark.parametrize("kind", [*KINDS, *BODIES])
def test_refused_requests_leave_nothing(llm: Engine, kind: str) -> None:
    client: Any = OpenAI(llm)

    def send(number: int) -> None:
        if kind in KINDS:
            assert refused(lambda: KINDS[kind](llm, number)), "it was answered"
            return
        asked = {"model": "m", "messages": [{"role": "user", "content": LONG}], **BODIES[kind](number)}
        assert refused(lambda: client.chat.completions.create(**asked)), "it was answered"

    with warnings.catch_warnings():
        warnings.simplefilter("default", EngineWarning)
        for number in range(ROUNDS // 4):
            send(number)
        gc.collect()
        memory, texts = resident_bytes(), kept_warnings()
        for number in range(ROUNDS // 4, ROUNDS):
            send(number)
        gc.collect()
    assert kept_warnings() - texts <= 2
    assert resident_bytes() - memory < 8 * MIB
    assert llm.metrics.running == 0
