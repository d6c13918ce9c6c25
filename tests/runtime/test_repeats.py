"""Where calls are demanded, a call that equals an earlier one ends the turn and is not part of it."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cases.canonical import PARIS, PING, ROME, Turn
from cases.constrained import callable_families
from cases.writer import applies, prefix, written
from hypothesis import given
from hypothesis import strategies as st

from engine import as_tool
from engine.formats.families import builtin_families
from engine.formats.parsing import Parser
from engine.openai import OpenAI
from engine.runtime.loop.generation import Generation, Limits, TokenTable
from engine.runtime.loop.repeats import CallRepeats
from engine.testing import ScriptedEngine, call
from engine.testing.scripted import ByteVocab
from engine.types.events import ContentDelta, Event, ToolCallDelta, ToolCallEnd, ToolCallStart, fold

ARGUMENTS = st.dictionaries(st.sampled_from("ab"), st.sampled_from(["New York", "NewYork", 1, 1.0, True, None]))
SPELLINGS: list[Any] = [(",", ":"), (", ", ": "), (" , ", ":  ")]
CALLS = st.lists(st.tuples(st.sampled_from(["send", "sender"]), ARGUMENTS, st.sampled_from(SPELLINGS)), max_size=6)


def events_of(calls: Any, size: int) -> Iterator[Event]:
    """Yields the events of these calls, with a text before each, their arguments in fragments of this size."""
    for index, (name, arguments, separators) in enumerate(calls):
        text = json.dumps(arguments, separators=separators)
        yield ContentDelta("Now:", 2 * index)
        yield ToolCallStart(index, f"id{index}", name, 2 * index + 1)
        for start in range(0, len(text), size):
            yield ToolCallDelta(index, text[start : start + size], 2 * index + 1)
        yield ToolCallEnd(index, text, None, 2 * index + 1)


@given(CALLS, st.integers(1, 9), st.integers(1, 5))
def test_calls_up_to_the_first_that_repeats_one(calls: Any, size: int, together: int) -> None:
    said = [(name, json.dumps(arguments)) for name, arguments, _ in calls]
    first = next((number for number, each in enumerate(said) if each in said[:number]), len(calls))
    repeats, events, passed = CallRepeats(), list(events_of(calls, size)), list[Event]()
    for start in range(0, len(events), together):
        passed += repeats.filter(events[start : start + together])
    passed += repeats.flush()
    wanted = [*events_of(calls[:first], size), *([ContentDelta("Now:", 2 * first)] if first < len(calls) else [])]
    assert (passed, repeats.hit) == (wanted, first < len(calls))


TOLD = Turn("a call that repeats another", (PARIS, PING, ROME, PING, PARIS))
VOCAB = ByteVocab([])
TOOLS = [{"name": name, "parameters": {"type": "object"}} for name in ("get_weather", "ping")]


@pytest.mark.parametrize("family", callable_families())
def test_in_every_syntax_and_under_auto_both_are_calls(family: str) -> None:
    format_ = builtin_families().get(family).format
    if not applies(TOLD, format_):
        pytest.skip("one call in a turn")
    for repeats in (True, False):
        parser = Parser(family, prefix(TOLD, format_), tools=TOOLS)
        generation, events = Generation(TokenTable(VOCAB), parser, Limits(repeats=repeats)), list[Event]()
        for token in VOCAB.tokenize(written(TOLD, format_), special=False):
            advance = generation.advance(token)
            events += advance.events
            if advance.finish is not None:
                break
        completion = fold([*events, *generation.close("stop")])
        made = [call.name for call in completion.tool_calls]
        assert made == [each.name for each in (TOLD.calls if repeats else TOLD.calls[:3])]
        assert (completion.finish_reason, generation.dropped_calls) == ("tool_calls", int(not repeats))
        assert not any(call.error for call in completion.tool_calls)


def mail(to: str) -> str:
    """Send a mail."""
    SENT.append(to)
    return "sent"


SENT: list[str] = []
MAILS = [[call("mail", to=to) for to in ("Ann", "Bob", "Ann", "Cy")], "Done."]


def test_a_tool_runs_once_and_it_is_told() -> None:
    options: Any = {"tool_choice": "required", "parallel_tool_calls": True}
    SENT.clear()
    with ScriptedEngine([*MAILS, *MAILS, *MAILS[:1]], rewrite=True) as llm:
        run = llm.run("Go", [mail], **options)
        assert (SENT, run.content, run.steps[0].completion.usage.dropped_calls) == (["Ann", "Bob"], "Done.", 1)
        SENT.clear()
        free = llm.run("Go", [mail])
        assert (SENT, free.steps[0].completion.usage.dropped_calls) == (["Ann", "Bob", "Ann", "Cy"], 0)
        tools: Any = [{"type": "function", "function": as_tool(mail).model_dump(include={"name", "parameters"})}]
        messages: Any = [{"role": "user", "content": "Go"}]
        client = OpenAI(llm)
        chunks: Any = client.chat.completions.create(model="m", messages=messages, tools=tools, stream=True, **options)
        choices = [chunk.choices[0] for chunk in chunks]
    names = [made.function.name for choice in choices for made in choice.delta.tool_calls or () if made.function]
    assert [name for name in names if name] == ["mail", "mail"]
    assert choices[-1].finish_reason == "tool_calls"
