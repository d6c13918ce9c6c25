"""What `print` shows of public records: what says something, and nothing else."""

import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, Literal

import pytest
from pydantic import BaseModel

import engine
from engine import Agent, Engine, Message, SamplingParams, ToolResult, Usage, batch
from engine.api.budget import Size
from engine.api.engines import ModelState
from engine.turns.sampling_defaults import SamplingDefaults

GIVEN = {"Choice", "GBNF", "JsonSchema", "Lark", "MediaUrls", "Regex", "TurnRequest"}
GOT = {"AdapterInfo", "ToolContext", "Waiting"}
TAKEN = GIVEN | GOT
"""Records that callers give, or functions of theirs get: they print as they were made."""
WALL = 500


class Mood(BaseModel):
    mood: Literal["glad", "calm"]


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"21 degrees and sunny in {city}"


def is_record(found: object) -> bool:
    return isinstance(found, type) and (is_dataclass(found) or issubclass(found, BaseModel))


NAMED = (getattr(engine, name) for name in engine.__all__ if name not in TAKEN)
RECORDS: list[type[Any]] = [*filter(is_record, NAMED), batch.Report, ModelState, SamplingDefaults]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_no_public_record_prints_all_that_it_holds(record: type[Any]) -> None:
    """Neither a dataclass's own `repr`, which has `__wrapped__`, nor pydantic's."""
    for method in (record.__repr__, record.__str__):
        assert not hasattr(method, "__wrapped__")
        assert method not in (BaseModel.__repr__, BaseModel.__str__)


def printed(llm: Engine) -> Iterator[object]:
    """What a newcomer prints in his first hour."""
    answer = llm.chat("Hello! Who are you?", temperature=0, logprobs=1)
    yield from (answer, answer.usage, answer.message, answer.parts, answer.logprobs[0], llm.metrics, llm.sampling)
    yield llm.chat("Hello!", temperature=0, response_format=Mood)
    called = llm.chat("What is the weather in Paris?", tools=[get_weather], temperature=0)
    yield from (called, called.tool_calls[0], called.message)
    run = llm.run("What is the weather in Paris?", [get_weather], temperature=0)
    yield from (run, *run.steps, *run.steps[0].results, *run.messages)
    yield from llm.stream("What is the weather in Paris?", tools=[get_weather], temperature=0)
    yield from (llm.pin([{"role": "system", "content": "Be kind."}]), *llm.score("Hello", [" world", " there"]))
    yield from (llm.decide("Is it good?", "It is good."), llm.template, llm, llm.conversation())
    yield from (Agent(instructions="Be kind."), SamplingParams(temperature=0.5), batch.Report(4, 4, 0))


def test_what_is_printed_says_something() -> None:
    with Engine.load() as llm:
        for value in printed(llm):
            for text in (str(value), repr(value)):
                assert len(text) < WALL, text
                assert " object at 0x" not in text
                assert re.findall(r"\w+=(?:None|\(\)|\{\}|0\.0)(?=[,)])", text) == [], text
                assert [each for each in re.findall(r"\d\.0*(\d+)", text) if len(each) > 4] == [], text
        assert str(llm.render("Hello!")).startswith("<|im_start|>user\nHello!")
        assert str(llm.explain("Hello!")).count("because [family.qwen3] declares it") == 1
        assert str(llm.inspect()).startswith("model ")
        assert "none known" not in str(llm.inspect())


def test_a_record_prints_what_was_given() -> None:
    assert repr(Usage()) == str(Usage()) == "Usage()"
    assert repr(Usage(prompt_tokens=3, prefill_seconds=0.0123456)) == "Usage(prompt_tokens=3, prefill_seconds=0.01235)"
    assert repr(Message(role="assistant", content="Hi.")) == "Message(role='assistant', content='Hi.')"
    mixed: Any = [{"type": "text", "text": "a"}, {"type": "reasoning", "text": "b"}, {"type": "text", "text": "c"}]
    assert "parts=(TextPart(text='a'), ReasoningPart(text='b')" in repr(Message(role="assistant", parts=mixed))
    assert (
        repr(ToolResult(0, "call_1", "21", error=True)) == "ToolResult(index=0, id='call_1', content='21', error=True)"
    )
    assert repr(ModelState("a", True, Size(77 << 20), False, False, 1)).count("size=<77 MiB>") == 1
    assert repr(SamplingParams(temperature=0)) == "SamplingParams(temperature=0.0)"
