"""A call that a turn may not have ends it and is not part of it: where calls are demanded, one that equals an earlier
one; without parallel calls, any second one, whoever asks and by whatever door."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from cases.canonical import PARIS, PING, ROME, Turn
from cases.constrained import callable_families
from cases.writer import applies, prefix, written
from hypothesis import example, given
from hypothesis import strategies as st

from engine import Engine, JsonSchema, as_tool
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


APART = [("send", {"a": text}, (",", ":")) for text in ("New York", "NewYork", "New York")]


@given(CALLS, st.integers(1, 9), st.integers(1, 5))
@example(APART, 1, 1)
def test_calls_up_to_the_first_that_repeats_one(calls: Any, size: int, together: int) -> None:
    said = [(name, json.dumps(arguments)) for name, arguments, _ in calls]
    first = next((number for number, each in enumerate(said) if each in said[:number]), len(calls))
    repeats, events, passed = CallRepeats(), list(events_of(calls, size)), list[Event]()
    for start in range(0, len(events), together):
        passed += repeats.filter(events[start : start + together])
    passed += repeats.flush()
    wanted = [*events_of(calls[:first], size), *([ContentDelta("Now:", 2 * first)] if first < len(calls) else [])]
    assert (passed, repeats.hit) == (wanted, first < len(calls))


@given(CALLS, st.integers(1, 9), st.integers(1, 5))
def test_a_single_call_is_the_first(calls: Any, size: int, together: int) -> None:
    single, events, passed = CallRepeats(single=True), list(events_of(calls, size)), list[Event]()
    for start in range(0, len(events), together):
        passed += single.filter(events[start : start + together])
    passed += single.flush()
    wanted = [*events_of(calls[:1], size), *([ContentDelta("Now:", 2)] if calls[1:] else [])]
    assert (passed, single.hit) == (wanted, len(calls) > 1)


TOLD = Turn("a call that repeats another", (PARIS, PING, ROME, PING, PARIS))
VOCAB = ByteVocab([])
TOOLS = [{"name": name, "parameters": {"type": "object"}} for name in ("get_weather", "ping")]


@pytest.mark.parametrize("family", callable_families())
def test_in_every_syntax_and_under_auto_both_are_calls(family: str) -> None:
    format_ = builtin_families().get(family).format
    if not applies(TOLD, format_):
        pytest.skip("one call in a turn")
    kept: dict[Any, int] = {"any": 5, "different": 3, "single": 1}
    for which, most in kept.items():
        parser = Parser(family, prefix(TOLD, format_), tools=TOOLS)
        generation, events = Generation(TokenTable(VOCAB), parser, Limits(calls=which)), list[Event]()
        for token in VOCAB.tokenize(written(TOLD, format_), special=False):
            advance = generation.advance(token)
            events += advance.events
            if advance.finish is not None:
                break
        completion = fold([*events, *generation.close("stop")])
        made = [call.name for call in completion.tool_calls]
        assert made == [each.name for each in TOLD.calls[:most]]
        assert (completion.finish_reason, generation.dropped_calls) == ("tool_calls", int(which != "any"))
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


def _by_chat(llm: Engine, **more: Any) -> list[str]:
    return [made.name for made in llm.chat("Go", [mail], parallel_tool_calls=False, **more).tool_calls]


def _by_stream(llm: Engine) -> list[str]:
    events = llm.stream("Go", [mail], parallel_tool_calls=False)
    return [event.name for event in events if isinstance(event, ToolCallStart)]


def _by_run(llm: Engine) -> list[str]:
    SENT.clear()
    run = llm.run("Go", [mail], parallel_tool_calls=False, max_steps=1)
    assert SENT == ["Ann"]
    return [made.name for made in run.steps[0].completion.tool_calls]


def _by_many(llm: Engine) -> list[str]:
    (completion,) = llm.generate(["Go"], tools=[mail], parallel_tool_calls=False)
    return [made.name for made in completion.tool_calls]


def _by_coroutine(llm: Engine) -> list[str]:
    completion = asyncio.run(llm.achat("Go", [mail], parallel_tool_calls=False))
    return [made.name for made in completion.tool_calls]


def _by_client(llm: Engine, **more: Any) -> list[str]:
    messages, tools = cast("Any", [{"role": "user", "content": "Go"}]), cast("Any", [as_tool(mail).openai()])
    create: Any = OpenAI(llm).chat.completions.create
    made: Any = create(model="m", messages=messages, tools=tools, parallel_tool_calls=False, **more)
    if not more.get("stream"):
        return [each.function.name for each in made.choices[0].message.tool_calls]
    choices: list[Any] = [choice for chunk in made for choice in chunk.choices]
    deltas: list[Any] = [each for choice in choices for each in choice.delta.tool_calls or ()]
    return [each.function.name for each in deltas if each.function.name]


def _by_responses(llm: Engine, *, strict: bool = False, stream: bool = False) -> list[str]:
    tool = {**as_tool(mail).openai()["function"], "type": "function", "strict": strict}
    made: Any = OpenAI(llm).responses.create(
        model="m", input="Go", tools=cast("Any", [tool]), parallel_tool_calls=False, stream=stream
    )
    events: list[Any] = list(made) if stream else []
    response: Any = events[-1].response if stream else made
    return [item.name for item in response.output if item.type == "function_call"]


DOORS: dict[str, Callable[[Engine], list[str]]] = {
    "chat": _by_chat,
    "chat, strict": lambda llm: _by_chat(llm, strict_tools=True),
    "chat, or an answer": lambda llm: _by_chat(llm, response_format=JsonSchema({"type": "object"})),
    "chat, required": lambda llm: _by_chat(llm, tool_choice="required"),
    "stream": _by_stream,
    "run": _by_run,
    "many": _by_many,
    "coroutine": _by_coroutine,
    "client": _by_client,
    "client, streamed": lambda llm: _by_client(llm, stream=True),
    "responses": _by_responses,
    "responses, strict": lambda llm: _by_responses(llm, strict=True),
    "responses, streamed": lambda llm: _by_responses(llm, stream=True),
}


@pytest.mark.parametrize("door", DOORS)
def test_no_second_call_by_any_door(door: str) -> None:
    with ScriptedEngine(MAILS[:1], rewrite=True) as llm:
        assert DOORS[door](llm) == ["mail"]
