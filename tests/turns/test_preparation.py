"""Preparing a request costs little before it is refused, and no more than in proportion where it is taken; in counted
calls of functions, not in seconds."""

import sys
import time
from collections.abc import Callable
from importlib import import_module
from itertools import count
from typing import Any, cast

import openai
import pytest

from engine import Engine, EngineError, RequestError
from engine.openai.api import Api
from engine.openai.embeddings import MOST_TEXTS
from engine.openai.problems import Problem
from engine.openai.transport import transport
from engine.runtime.loop.request import TurnRequest
from engine.runtime.stream.service import Service
from engine.support.deadlines import finished_by, latest
from engine.testing.scripted import ScriptedEngine
from engine.tools import as_tools
from engine.tools.describe import MOST_TOOLS
from engine.tools.json_values import MOST_PARTS
from engine.turns import turns

HTTP: Any = import_module("httpx2" if int(openai.__version__.split(".")[0]) >= 3 else "httpx")
HI: list[Any] = [{"role": "user", "content": "Hi"}]
LITTLE = 100_000
"""Calls of functions: a tenth of a second, imports included."""
A_SCHEMA = 15 * MOST_PARTS
HUGE = 2_000_000


@pytest.fixture(scope="module")
def llm() -> Engine:
    engine = ScriptedEngine(lambda _: "Hello.", n_ctx=512)
    engine.chat("warm")
    return engine


def calls(work: Callable[[], object]) -> tuple[int, Exception | None]:
    """Returns how many functions a piece of work calls in this thread, and the error that ended it."""
    counted, error = 0, None

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    except Exception as found:  # noqa: BLE001 - it is returned
        error = found
    finally:
        sys.setprofile(None)
    return counted, error


def tool(number: int, description: str = "Does it.", fields: int = 2) -> dict[str, Any]:
    properties = {f"p{each}": {"type": "string"} for each in range(fields)}
    function = {
        "name": f"t{number}",
        "description": description,
        "parameters": {"type": "object", "properties": properties},
    }
    return {"type": "function", "function": function}


def schema(fields: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(fields)}}


def messages(number: int, text: str = "a") -> list[Any]:
    return [{"role": "user" if at % 2 == 0 else "assistant", "content": text} for at in range(number)]


KINDS: dict[str, Callable[[Engine], object]] = {
    "many tools": lambda llm: llm.chat(HI, [tool(number) for number in range(5 * MOST_TOOLS)]),
    "endless tools": lambda llm: llm.chat(HI, cast("Any", map(tool, count()))),
    "a huge tool": lambda llm: llm.chat(HI, [tool(1, fields=MOST_PARTS)]),
    "one long description": lambda llm: llm.chat(HI, [tool(1, "x" * HUGE)]),
    "one long message": lambda llm: llm.chat("x" * HUGE),
    "long messages": lambda llm: llm.chat(messages(9, "x" * HUGE)),
    "many messages": lambda llm: llm.chat(messages(541)),
    "one long system message": lambda llm: llm.chat(
        [{"role": "system", "content": "x" * HUGE}, *HI], overflow="truncate_oldest"
    ),
    "a long document": lambda llm: llm.chat(HI, documents=["x" * HUGE]),
    "many documents": lambda llm: llm.chat(HI, documents=["x"] * 1000),
    "a huge schema": lambda llm: llm.chat(HI, response_format=schema(MOST_PARTS)),
    "many choices": lambda llm: llm.chat(HI, response_format={"enum": [str(number) for number in range(MOST_PARTS)]}),
    "stop strings": lambda llm: llm.chat(HI, stop=[f"s{number}" for number in range(20_000)]),
    "bad words": lambda llm: llm.chat(HI, bad_words=[f"s{number}" for number in range(20_000)]),
    "biases": lambda llm: llm.chat(HI, logit_bias=dict.fromkeys(range(10**5, 10**5 + 20_000), 1.0)),
    "a long raw prompt": lambda llm: llm.complete("x" * HUGE),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_far_too_large_is_refused_at_little_cost(kind: str, llm: Engine) -> None:
    counted, error = calls(lambda: KINDS[kind](llm))
    assert isinstance(error, EngineError), error
    assert counted < (A_SCHEMA if "a huge" in kind else LITTLE)


def test_a_refused_request_for_vectors_costs_little(llm: Engine) -> None:
    import json

    body = json.dumps({"model": "x", "input": ["a"] * (MOST_TEXTS + 1)}).encode()
    counted, error = calls(lambda: Api(llm).handle("POST", "/v1/embeddings", {}, body))
    assert isinstance(error, Problem)
    assert f"{MOST_TEXTS:,}" in str(error.body())
    assert counted < LITTLE


def many_tools(size: int) -> object:
    return as_tools([tool(number) for number in range(size)])


def many_fields(size: int) -> object:
    return as_tools([tool(1, fields=size)])


@pytest.mark.parametrize("make", [many_tools, many_fields])
def test_what_is_taken_costs_in_proportion(make: Callable[[int], object]) -> None:
    one, two = (calls(lambda size=size: make(size))[0] for size in (60, 120))
    assert two < 2.3 * one


def test_tools_have_a_most_together() -> None:
    with pytest.raises(RequestError, match=r"more than 50,000 parts together"):
        as_tools([tool(number, fields=9_000) for number in range(4)])


def test_what_is_not_far_too_long_is_left_to_the_tokens(llm: Engine) -> None:
    """A prompt that fits is never refused by the bound, whatever it is made of."""
    for content in ("x" * 400, " " * HUGE, "\n" * HUGE + "x"):
        try:
            llm.chat(content)
        except EngineError as error:
            assert "at least" not in str(error)  # noqa: PT017 - its own count may refuse it
    thought = [*HI, {"role": "assistant", "content": "a", "reasoning": "x" * HUGE}, *HI]
    assert llm.chat(thought).content == "Hello."


def test_a_deadline_holds_while_a_request_is_prepared(llm: Engine) -> None:
    with finished_by(time.monotonic() - 1):
        for work in (
            lambda: as_tools([tool(1)]),
            lambda: llm.chat(HI),
            lambda: llm.embed(["a"]),
        ):
            with pytest.raises(RequestError, match="still being prepared when its deadline passed"):
                work()
    assert latest() is None


def test_the_earlier_of_two_deadlines_holds() -> None:
    with finished_by(10.0), finished_by(20.0):
        assert latest() == 10.0
    with finished_by(20.0), finished_by(10.0), finished_by(None):
        assert latest() == 10.0


def test_preparation_counts_toward_the_deadline_of_a_turn(llm: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[float | None] = []
    usual = Service.submit

    def submit(service: Service, turn: TurnRequest) -> Any:
        left.append(turn.settings.deadline)
        return usual(service, turn)

    monkeypatch.setattr(Service, "submit", submit)
    llm.chat(HI, deadline=100)
    monkeypatch.setattr(turns, "monotonic", lambda: time.monotonic() + 70)
    llm.chat(HI, deadline=100)
    monkeypatch.setattr(turns, "monotonic", lambda: time.monotonic() + 200)
    llm.chat(HI, deadline=100)
    first, second, third = [seconds or 0.0 for seconds in left]
    assert 30 < first <= 100
    assert first - 71 < second < 30.1
    assert third < 0.01


def test_the_timeout_of_a_client_holds_while_a_request_is_prepared(llm: Engine) -> None:
    tools = [tool(number) for number in range(20)]
    with HTTP.Client(transport=transport(llm), base_url="http://in-process/v1") as client:
        body = {"messages": HI, "tools": tools}
        with pytest.raises(HTTP.ReadTimeout, match="sent nothing for"):
            client.post("/chat/completions", json=body, timeout=1e-6)
        assert client.post("/chat/completions", json={"messages": HI}, timeout=60).status_code == 200
