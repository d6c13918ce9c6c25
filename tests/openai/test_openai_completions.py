"""Turns as Chat Completions, seen by the SDK: its types, its accumulator, and the object that is not streamed."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from fakes.openai_clients import ASK, INITIALS, PING, USAGE, WrittenEngine, golden_turns, scripted, turns
from hypothesis import given, settings
from hypothesis import strategies as st

import engine.openai
from engine.openai.chat_completions import logprobs_object
from engine.types.events import ContentDelta, Event, Finished, ReasoningDelta, ToolCallDelta, ToolCallEnd, ToolCallStart
from engine.types.sampling import TokenLogprob

openai = pytest.importorskip("openai")
ChatCompletionStreamState = pytest.importorskip("openai.lib.streaming.chat").ChatCompletionStreamState
types: Any = pytest.importorskip("openai.types.chat")

WRITTEN = WrittenEngine()
CLIENT: Any = engine.openai.OpenAI(WRITTEN)


def streamed(client: Any, **body: Any) -> list[Any]:
    return list(client.chat.completions.create(model="m", messages=ASK, stream=True, **body))


def folded(chunks: Iterable[Any]) -> Any:
    """What the SDK's accumulator makes of a stream."""
    state = ChatCompletionStreamState()
    for chunk in chunks:
        for _ in state.handle_chunk(chunk):
            pass
    return state.current_completion_snapshot  # the final completion raises on every "length"


def choices(completion: Any) -> list[dict[str, Any]]:
    """The choices of a completion, without what only the accumulator adds."""
    found = completion.model_dump()["choices"]
    for choice in found:
        choice["message"].pop("parsed", None)
        for call in choice["message"]["tool_calls"] or ():
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
    return found


def check_chunks(chunks: Sequence[Any], *, usage: bool = False) -> None:
    """The rules of a stream, beyond its types."""
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1
    begun: set[int] = set()
    ended: set[int] = set()
    named: set[tuple[int, int]] = set()
    for chunk in chunks[: len(chunks) - usage]:
        types.ChatCompletionChunk.model_validate(chunk.model_dump(), strict=True)
        (choice,) = chunk.choices
        assert choice.index not in ended
        assert (choice.delta.role == "assistant") == (choice.index not in begun)
        begun.add(choice.index)
        for call in choice.delta.tool_calls or ():
            key = choice.index, call.index
            first = key not in named
            named.add(key)
            assert (call.id is not None, call.function.name is not None, call.type == "function") == (first,) * 3
            assert call.index == max(number for index, number in named if index == choice.index)
        if choice.finish_reason:
            ended.add(choice.index)
    assert begun == ended
    if usage:
        assert chunks[-1].choices == []
        assert chunks[-1].usage


def same_both_ways(*events: Sequence[Event]) -> None:
    WRITTEN.turns = list(events)
    chunks = streamed(CLIENT, n=len(events), stream_options={"include_usage": True})
    check_chunks(chunks, usage=True)
    whole = CLIENT.chat.completions.create(model="m", messages=ASK, n=len(events))
    types.ChatCompletion.model_validate(whole.model_dump(), strict=True)
    found = folded(chunks)
    assert choices(found) == choices(whole)
    assert found.usage == whole.usage


@given(st.lists(turns(), min_size=1, max_size=3))
@settings(max_examples=40)
def test_any_turns_fold_to_the_object_that_is_not_streamed(events: list[list[Event]]) -> None:
    same_both_ways(*events)


@pytest.mark.parametrize("letter", INITIALS)
def test_turns_of_every_family(letter: str) -> None:
    for case, events in golden_turns(letter, 3):
        try:
            same_both_ways(events)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error


def test_a_stream_that_lost_a_turn_s_end_is_an_error() -> None:
    WRITTEN.turns = [[ContentDelta("Hi", 0), Finished("stop")], [ContentDelta("Ho", 0)]]
    with pytest.raises(openai.APIError, match="ended with an error of the engine"):
        streamed(CLIENT, n=2)


def test_chunks_as_written() -> None:
    WRITTEN.turns = [
        [
            ReasoningDelta("I see.", 0),
            ReasoningDelta("And", 1),
            ContentDelta("So:", 2),
            ToolCallStart(0, "call_a", "ping", 3),
            ToolCallDelta(0, ' {"x"', 3),
            ToolCallDelta(0, ": 1} ", 3),
            ToolCallEnd(0, '{"x": 1}', part=3),
            ToolCallStart(1, "", "ping", 4),
            ToolCallDelta(1, "{}", 4),
            ToolCallEnd(1, "{}", part=4, id="late"),
            Finished("tool_calls", USAGE),
        ]
    ]
    *chunks, last = streamed(CLIENT, stream_options={"include_usage": True})
    deltas = [chunk.choices[0].delta.model_dump(exclude_unset=True) for chunk in chunks]
    first, second = {"index": 0, "id": "call_a", "type": "function"}, {"index": 1, "id": "late", "type": "function"}
    assert deltas == [
        {"role": "assistant", "content": None},
        {"reasoning_content": "I see."},
        {"reasoning_content": "\nAnd"},
        {"content": "So:"},
        {"tool_calls": [{**first, "function": {"name": "ping", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]},
        {"tool_calls": [{**second, "function": {"name": "ping", "arguments": "{}"}}]},
        {},
    ]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 8 + ["tool_calls"]
    assert {chunk.usage for chunk in chunks} == {None}
    usage = last.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (11, 7, 18)
    assert usage.prompt_tokens_details.cached_tokens == 4
    assert usage.completion_tokens_details.reasoning_tokens == 3


def test_reasoning_has_one_field() -> None:
    WRITTEN.turns = [[ReasoningDelta("I see.", 0), ContentDelta("So.", 1), Finished("stop", USAGE)]]
    for field, other in (("reasoning_content", "reasoning"), ("reasoning", "reasoning_content")):
        asked = {"reasoning_field": field}
        whole = CLIENT.chat.completions.create(model="m", messages=ASK, extra_body=asked).choices[0].message
        assert (getattr(whole, field), hasattr(whole, other)) == ("I see.", False)
        deltas = [chunk.choices[0].delta for chunk in streamed(CLIENT, extra_body=asked)]
        assert [getattr(delta, field, None) for delta in deltas] == [None, "I see.", None, None]
        assert not any(hasattr(delta, other) for delta in deltas)


def test_every_call_has_an_id_of_its_own() -> None:
    call = [ToolCallStart(0, "", "ping", 0), ToolCallDelta(0, " {}", 0), ToolCallEnd(0, " {}", part=0)]
    again = [ToolCallStart(1, "", "ping", 1), ToolCallDelta(1, "{}", 1), ToolCallEnd(1, "{}", part=1)]
    WRITTEN.turns = [[*call, *again, Finished("tool_calls", USAGE)]]
    calls = CLIENT.chat.completions.create(model="m", messages=ASK).choices[0].message.tool_calls
    assert len({each.id for each in calls} - {"", None}) == 2
    assert [each.function.arguments for each in calls] == ["{}", "{}"]


def test_no_usage_unless_asked_for() -> None:
    WRITTEN.turns = [[ContentDelta("So.", 0), Finished("stop", USAGE)]]
    assert all("usage" not in chunk.model_fields_set for chunk in streamed(CLIENT))


def test_the_usage_of_several_choices_counts_the_prompt_once() -> None:
    WRITTEN.turns = [[ContentDelta("So.", 0), Finished("stop", USAGE)]] * 3
    usage = CLIENT.chat.completions.create(model="m", messages=ASK, n=3).usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (11, 21, 32)


def test_logprobs_come_with_their_chunks_and_whole() -> None:
    with scripted(lambda _: "<think>\n</think>\n\nAb.") as llm:
        client: Any = llm.openai_client()
        asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 1}
        whole = client.chat.completions.create(model="m", messages=ASK, **asked)
        chunks = streamed(client, **asked)
    entries = whole.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries).endswith("</think>\n\nAb.<|im_end|>")
    assert [len(entry.top_logprobs) for entry in entries] == [1] * len(entries)
    parts = [chunk.choices[0].logprobs.content for chunk in chunks if chunk.choices[0].logprobs]
    assert [entry for part in parts for entry in part] == entries
    assert len(parts) > 1
    assert folded(chunks).choices[0].logprobs.content == entries


@pytest.mark.parametrize("reasoning", ["", "\nI look, then I write A.\n"])
def test_the_tokens_of_a_content_chunk_are_its_text(reasoning: str) -> None:
    """The end of the reasoning has a chunk of its own, after the last of the reasoning."""
    with scripted(lambda _: f"<think>{reasoning}</think>\n\nA b.") as llm:
        client: Any = llm.openai_client()
        deltas = [chunk.choices[0] for chunk in streamed(client, logprobs=True)]
    said = [each for each in deltas if each.delta.content]
    assert "".join(each.delta.content for each in said) == "A b."
    for each in said:
        assert "".join(entry.token for entry in each.logprobs.content) == each.delta.content
    marker = deltas[deltas.index(said[0]) - 1]
    assert marker.delta.model_fields_set == set()
    assert "".join(entry.token for entry in marker.logprobs.content).endswith("</think>\n\n")


A, B, END = (TokenLogprob(token=i, text=t, bytes=tuple(t.encode()), logprob=-1.0) for i, t in enumerate("ab<"))
HALVES = [TokenLogprob(token=9, text="?", bytes=(each,), logprob=-1.0) for each in "é".encode()]


@pytest.mark.parametrize(
    ("text", "entries", "parts"),
    [
        ("ab", [END, A, B], [("", "<"), ("ab", "ab")]),
        ("a", [A, END], [("a", "a"), ("", "<")]),
        ("{a:b}", [END, A, B], [("", "<"), ("{", ""), ("a", "a"), (":", ""), ("b", "b"), ("}", "")]),
        ("aé", [A, *HALVES], [("aé", "a??")]),
        ("é:é", HALVES, [("é:", ""), ("é", "??")]),
        ("\ufffd", [A], [("", "a"), ("\ufffd", "")]),
    ],
)
def test_a_content_chunk_has_the_tokens_that_spell_it(
    text: str, entries: list[TokenLogprob], parts: list[tuple[str, str]]
) -> None:
    """And other tokens, and text that a grammar forced, have chunks of their own."""
    written = WrittenEngine([ContentDelta(text, 0), Finished("stop", USAGE)])
    written.logprobs = entries
    choices = [chunk.choices[0] for chunk in streamed(engine.openai.OpenAI(written), logprobs=True)][1:-1]
    told = [[entry.token for entry in each.logprobs.content] if each.logprobs else [] for each in choices]
    assert [(each.delta.content or "", "".join(names)) for each, names in zip(choices, told, strict=True)] == parts


def test_minus_infinity_is_a_number_in_json() -> None:
    found: Any = logprobs_object([TokenLogprob(token=1, text="a", bytes=(97,), logprob=float("-inf"))])
    assert found["content"][0]["logprob"] == -9999.0


def test_parse_and_stream_helpers() -> None:
    tool = {**PING, "function": {**PING["function"], "strict": True}}
    call = [ToolCallStart(0, "a", "ping", 2), ToolCallDelta(0, '{"x": 1}', 2), ToolCallEnd(0, '{"x": 1}', part=2)]
    said = [ReasoningDelta("I ping.", 0), ContentDelta("See:", 1)]
    WRITTEN.turns = [[*said, *call, Finished("tool_calls", USAGE)]]
    helper = CLIENT.chat.completions
    parsed = helper.parse(model="m", messages=ASK, tools=[tool])
    assert parsed.choices[0].message.tool_calls[0].function.parsed_arguments == {"x": 1}
    with helper.stream(model="m", messages=ASK, tools=[tool]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"chunk", "content.delta", "content.done", "tool_calls.function.arguments.done"} <= kinds
    assert final.choices[0].message.tool_calls[0].function.arguments == '{"x": 1}'
    assert final.choices[0].message.reasoning_content == "I ping."
