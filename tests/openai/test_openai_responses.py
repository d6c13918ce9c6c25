"""Turns as Responses, seen by the SDK: its types, its accumulator, the order of events, and the object not streamed."""

import base64
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from fakes.openai_clients import (
    CALL,
    INITIALS,
    PING,
    USAGE,
    WrittenEngine,
    golden_turns,
    scripted,
    turns,
    wait_until_idle,
)
from hypothesis import given, settings

import engine.openai
from engine import ChatTemplate, Engine
from engine.openai.fields import RESPONSES_FIELDS
from engine.openai.problems import Problem
from engine.openai.response_items import encoded, messages_of, stored_items
from engine.openai.store import ResponseStore, Stored
from engine.support.errors import DecodeError
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.types.events import ContentDelta, Event, Finished, ReasoningDelta, ToolCallDelta, ToolCallEnd, ToolCallStart

openai = pytest.importorskip("openai")
types: Any = pytest.importorskip("openai.types.responses")
ResponseStreamState: Any = pytest.importorskip("openai.lib.streaming.responses._responses").ResponseStreamState

WRITTEN = WrittenEngine()
CLIENT: Any = engine.openai.OpenAI(WRITTEN)
EVENTS: dict[str, Any] = {
    get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(get_args(types.ResponseStreamEvent)[0])
}
FLAT: dict[str, Any] = {"type": "function", **PING["function"]}


def checked(events: Sequence[Any]) -> list[Any]:
    """The events of one response, once they keep OpenAI's order; returns the items as the deltas make them."""
    for event in events:
        EVENTS[event.type].model_validate(event.model_dump(by_alias=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    names = [event.type.removeprefix("response.") for event in events]
    assert names[:2] == ["created", "in_progress"]
    assert names[-1] in ("completed", "incomplete", "failed")
    assert len({events[number].response.id for number in (0, 1, -1)}) == 1
    items: list[Any] = []
    rest = list(zip(names, events, strict=True))[2:-1]
    while rest:
        rest = _one_item(rest, items)
    return items


def _one_item(rest: list[tuple[str, Any]], items: list[Any]) -> list[tuple[str, Any]]:
    """Take one item's events, which stand together."""
    (name, added), *rest = rest
    assert (name, added.output_index) == ("output_item.added", len(items))
    kind = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}
    base, id_, text = kind[added.item.type], added.item.id, ""
    if added.item.type != "function_call":
        (name, part), *rest = rest
        assert (name, part.item_id, part.part.text) == ("content_part.added", id_, "")
    while rest[0][0] == f"{base}.delta":
        (_, delta), *rest = rest
        assert (delta.item_id, delta.output_index) == (id_, len(items))
        assert delta.delta
        text += delta.delta
    (name, done), *rest = rest
    assert (name, done.item_id) == (f"{base}.done", id_)
    assert (done.arguments if added.item.type == "function_call" else done.text) == text
    if added.item.type != "function_call":
        (name, part), *rest = rest
        assert (name, part.item_id, part.part.text) == ("content_part.done", id_, text)
    (name, ended), *rest = rest
    assert (name, ended.item.id, ended.output_index) == ("output_item.done", id_, len(items))
    assert (ended.item.arguments if ended.item.type == "function_call" else ended.item.content[0].text) == text
    items.append(ended.item)
    return rest


def streamed(**body: Any) -> list[Any]:
    return list(CLIENT.responses.create(model="m", input="Hi.", stream=True, **body))


def plain(output: Sequence[Any]) -> list[dict[str, Any]]:
    return [{**item.model_dump(), "id": None} for item in output]


def same_both_ways(events: Sequence[Event]) -> None:
    WRITTEN.turns = [events]
    found = streamed()
    items = checked(found)
    final = found[-1].response
    assert final.output == items
    state = ResponseStreamState(input_tools=[], text_format=openai.NOT_GIVEN)
    for event in found:
        state.handle_event(event)
    whole = CLIENT.responses.create(model="m", input="Hi.")
    types.Response.model_validate(whole.model_dump(by_alias=True))
    assert plain(whole.output) == plain(items)
    assert (whole.status, whole.usage, whole.incomplete_details) == (
        final.status,
        final.usage,
        final.incomplete_details,
    )


@given(turns())
@settings(max_examples=50)
def test_any_turn_streams_in_order_and_folds_to_the_object_not_streamed(events: list[Event]) -> None:
    same_both_ways(events)


@pytest.mark.parametrize("letter", INITIALS)
def test_turns_of_every_family(letter: str) -> None:
    for case, events in golden_turns(letter, 0):
        try:
            same_both_ways(events)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from error


def test_the_order_of_events_as_written() -> None:
    WRITTEN.turns = [
        [
            ReasoningDelta("I see.", 0),
            ToolCallStart(0, "call_a", "ping", 1),
            ToolCallDelta(0, "{}", 1),
            ToolCallEnd(0, "{}", part=1),
            ToolCallStart(1, "", "ping", 2),
            ToolCallDelta(1, "{}", 2),
            ToolCallEnd(1, "{}", part=2, id="late"),
            Finished("tool_calls", USAGE),
        ]
    ]
    found = streamed()
    call = ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"]
    text = ["output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"]
    assert [event.type.removeprefix("response.") for event in found] == [
        "created",
        "in_progress",
        *text,
        "content_part.done",
        "output_item.done",
        *call,
        *call,
        "completed",
    ]
    assert [item.call_id for item in found[-1].response.output[1:]] == ["call_a", "late"]
    usage = found[-1].response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (11, 7, 18)
    assert usage.input_tokens_details.cached_tokens == 4
    assert usage.output_tokens_details.reasoning_tokens == 3


def test_a_cut_answer_is_incomplete() -> None:
    WRITTEN.turns = [[ContentDelta("So", 0), Finished("length", USAGE)]]
    *_, last = streamed()
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details.reason == "max_output_tokens"
    assert last.response.output[0].status == "incomplete"


def test_an_error_amid_a_stream_is_a_failed_response() -> None:
    def fails(rows: Any) -> None:
        if len(rows) == 1 and rows[0].position > 60:
            raise DecodeError("the decode of row 61 failed.")

    with scripted(lambda _: "a" * 3000, before_decode=fails) as llm:
        client: Any = llm.openai_client()
        events = list(client.responses.create(model="m", input="Hi.", stream=True))
        checked(events)
        assert events[-1].type == "response.failed"
        assert "failed" in events[-1].response.error.message
        with pytest.raises(openai.InternalServerError):
            client.responses.create(model="m", input="Hi.")


def test_a_closed_stream_ends_its_turn_and_stores_nothing() -> None:
    with scripted(lambda _: "a" * 3000, delay=0.005) as llm:
        client: Any = llm.openai_client()
        stream = client.responses.create(model="m", input="Hi.", stream=True)
        id_ = next(iter(stream)).response.id
        stream.close()
        wait_until_idle(llm)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(id_)


async def test_an_async_client() -> None:
    with scripted() as llm:
        client: Any = llm.async_openai_client()
        stream = await client.responses.create(model="m", input="Hi.", tools=[FLAT], stream=True)
        events = [event async for event in stream]
        checked(events)
        assert await client.responses.retrieve(events[-1].response.id) == events[-1].response


def test_a_conversation_goes_on_from_a_stored_response() -> None:
    """What the next prompt holds is the same, sent whole and continued by id."""
    prompts: list[str] = []

    def says(prompt: str) -> str:
        prompts.append(prompt)
        return "Pong." if "pong" in prompt else CALL

    with scripted(says) as llm:
        client: Any = llm.openai_client()
        asked: dict[str, Any] = {"model": "m", "tools": [FLAT], "instructions": "Be brief."}
        first = client.responses.create(**asked, input="Ping.", metadata={"a": "b"})
        call = first.output[-1]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "pong"}
        by_id = client.responses.create(**asked, input=[result], previous_response_id=first.id)
        whole = [{"role": "user", "content": "Ping."}, *(item.model_dump() for item in first.output), result]
        sent = client.responses.create(**asked, input=whole, store=False)
        assert prompts[-1] == prompts[-2]
        assert by_id.output_text == sent.output_text == "Pong."
        assert "I ping." in prompts[-1]
        assert prompts[-1].count("Be brief.") == 1
        assert client.responses.retrieve(first.id) == first
        assert first.metadata == {"a": "b"}
        listed = client.responses.input_items.list(by_id.id).data
        assert [item.type for item in listed] == ["function_call_output"]
        for limit in (0, 101, int("1" * 4000), -1):
            with pytest.raises(openai.BadRequestError, match="ask for 1 to 100"):
                client.responses.input_items.list(by_id.id, limit=limit)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(sent.id)
        client.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError) as error:
            client.responses.create(**asked, input="x", previous_response_id=first.id)
        assert (error.value.param, error.value.code) == ("previous_response_id", "previous_response_not_found")
        again = client.responses.create(**asked, input="And pong?", previous_response_id=by_id.id)
        assert again.output_text == "Pong."


def test_gpt_oss_reads_its_own_items_again() -> None:
    """Analysis is a reasoning item, the preamble a message, and both are in the next prompt while calls go on."""
    start = "<|start|>assistant"
    reply = (
        "<|channel|>analysis<|message|>I need it.<|end|>"
        f"{start}<|channel|>commentary<|message|>Let me look.<|end|>"
        f'{start}<|channel|>commentary to=functions.ping <|constrain|>json<|message|>{{"x": 1}}<|call|>'
    )
    marks = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"]
    vocab = ByteVocab(marks, end=["<|return|>", "<|call|>"])
    prompts: list[str] = []

    def says(prompt: str) -> str:
        prompts.append(prompt)
        return "<|channel|>final<|message|>Done." if len(prompts) > 1 else reply

    template = ChatTemplate(None, family="gpt-oss", control_tokens=vocab.control_tokens)
    with Engine.over(ScriptedBackend(says, vocab=vocab, n_ctx=8192), template) as llm:
        client: Any = llm.openai_client()
        first = client.responses.create(model="m", input="Ping.", tools=[FLAT], include=["reasoning.encrypted_content"])
        assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
        sealed = [{**item.model_dump(), "content": None} if item.type == "reasoning" else item for item in first.output]
        result = {"type": "function_call_output", "call_id": first.output[-1].call_id, "output": "pong"}
        client.responses.create(model="m", input=[{"role": "user", "content": "Ping."}, *sealed, result], tools=[FLAT])
    assert "<|channel|>analysis<|message|>I need it." in prompts[-1]
    assert "Let me look." in prompts[-1]


MESSAGE = {"role": "user", "content": "x"}
IMAGE = {"type": "input_image", "image_url": "data:,"}
MALFORMED: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "missing_required_parameter"),
    ({"input": 3}, "input", "invalid_type"),
    ({"input": []}, "input", "invalid_value"),
    ({"input": ["x"]}, "input[0]", "invalid_type"),
    ({"input": [{}]}, "input[0]", "unsupported_parameter"),
    ({"input": [MESSAGE, {"role": "tool", "content": "x"}]}, "input[1].role", "invalid_value"),
    ({"input": [{"role": "user"}]}, "input[0].content", "invalid_type"),
    ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0]", "invalid_value"),
    ({"input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]", "unsupported_parameter"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "unsupported_parameter"),
    ({"input": [{"type": "web_search_call", "id": "x"}]}, "input[0]", "unsupported_parameter"),
    ({"input": [{"type": "function_call", "name": "x"}]}, "input[0].call_id", "invalid_type"),
    ({"input": [{"type": "function_call_output", "call_id": "x"}]}, "input[0].output", "invalid_type"),
    ({"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input", "invalid_value"),
    ({"input": [{"type": "reasoning", "summary": 3}]}, "input[0]", "invalid_type"),
    (
        {"input": [MESSAGE, {"type": "reasoning", "summary": [], "encrypted_content": "AAA"}]},
        "input[1].encrypted_content",
        "invalid_value",
    ),
    (
        {"input": [{"type": "reasoning", "summary": [], "encrypted_content": 3}]},
        "input[0].encrypted_content",
        "invalid_value",
    ),
    ({"model": 3}, "model", "invalid_type"),
    ({"instructions": 3}, "instructions", "invalid_type"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    ({"temperature": -1}, "temperature", "invalid_value"),
    ({"include": ["message.output_text.logprobs"]}, "include", "unsupported_parameter"),
    ({"top_logprobs": 3}, "top_logprobs", "unsupported_parameter"),
    ({"background": True}, "background", "unsupported_parameter"),
    ({"conversation": "x"}, "conversation", "unsupported_parameter"),
    ({"prompt": {"id": "x"}}, "prompt", "unsupported_parameter"),
    ({"context_management": [{"type": "compaction"}]}, "context_management", "unsupported_parameter"),
    ({"reasoning": {"effort": "immense"}}, "reasoning.effort", "invalid_value"),
    ({"reasoning": {"mode": "x"}}, "reasoning.mode", "unknown_parameter"),
    ({"text": {"format": {"type": "xml"}}}, "text.format", "invalid_value"),
    ({"text": {"format": 3}}, "text.format", "invalid_type"),
    ({"text": {"shape": 3}}, "text.shape", "unknown_parameter"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]", "unsupported_parameter"),
    ({"tools": [{"type": "custom", "name": "x"}]}, "tools[0]", "unsupported_parameter"),
    ({"tools": [{"type": "function"}]}, "tools", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice", "invalid_value"),
    ({"truncation": "x"}, "truncation", "invalid_type"),
    ({"metadata": {"a": 1}}, "metadata", "invalid_type"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options", "invalid_value"),
    ({"messages": [MESSAGE]}, "messages", "unknown_parameter"),
]


def test_malformed_bodies() -> None:
    wrong: list[str] = []
    with scripted() as llm:
        client: Any = llm.openai_client()
        for body, param, code in MALFORMED:
            try:
                client.post("/responses", body={"model": "m", "input": "Hi.", **body}, cast_to=object)
                wrong.append(f"{body} was taken")
            except openai.APIStatusError as error:
                if (error.status_code, error.param, error.code) != (400, param, code):
                    wrong.append(f"{body}: {error.status_code}, {error.param}, {error.code}, not {param}, {code}")
    assert not wrong, "\n".join(wrong)


def test_every_parameter_of_the_sdk_has_its_row() -> None:
    from openai.types.responses.response_create_params import ResponseCreateParamsBase

    there = {*ResponseCreateParamsBase.__annotations__, "stream"}
    assert there <= RESPONSES_FIELDS.keys()


def test_encrypted_content_is_the_reasoning_in_base64() -> None:
    assert base64.b64decode(encoded("Why? é")).decode() == "Why? é"
    item: dict[str, Any] = {"type": "reasoning", "summary": [], "encrypted_content": encoded("Why? é")}
    (read,) = messages_of((), stored_items([item]), None)
    assert read.reasoning == "Why? é"
    for wrong in ("x", "A", "/w==", 3, ["x"]):
        with pytest.raises(Problem, match="does not come from llama-engine"):
            messages_of((), stored_items([{**item, "encrypted_content": wrong}]), None)


def test_reasoning_comes_encoded_where_the_client_asks() -> None:
    WRITTEN.turns = [[ReasoningDelta("Why? é", 0), ContentDelta("So.", 1), Finished("stop", USAGE)]]
    for asked, wanted in (([], None), (["reasoning.encrypted_content"], encoded("Why? é"))):
        whole = CLIENT.responses.create(model="m", input="Hi.", include=asked)
        assert whole.output[0].encrypted_content == wanted
        assert checked(streamed(include=asked))[0].encrypted_content == wanted


def test_lines_are_ascii_since_clients_split_at_every_separator() -> None:
    WRITTEN.turns = [[ContentDelta("a\u2028b\x85é", 0), Finished("stop", USAGE)]]
    with CLIENT.responses.with_streaming_response.create(model="m", input="Hi.", stream=True) as response:
        body = response.read()
    assert body.isascii()
    assert rb"a\u2028b\u0085" in body


def test_the_store_keeps_the_last_used_within_its_room() -> None:
    def stored(number: int, size: int = 0) -> Stored:
        return Stored({"id": f"r{number}", "output": []}, (), [{"text": "x" * size}])

    store = ResponseStore(responses=3, size=10_000)
    for number in range(4):
        store.put(stored(number))
    with pytest.raises(Problem):
        store.get("r0")
    store.get("r1")
    store.put(stored(4))
    assert store.get("r1").response["id"] == "r1"
    with pytest.raises(Problem):
        store.get("r2")
    store.put(stored(5, 9_940))
    for gone in ("r1", "r3", "r4"):
        with pytest.raises(Problem):
            store.get(gone)
    store.delete("r5")
    store.put(stored(6))
    store.put(stored(7, 20_000))
    with pytest.raises(Problem):
        store.get("r7")
    assert store.get("r6"), "what is too large for the store leaves the others alone"
    store.put(stored(8, 9_900))
    assert store.get("r8").conversation == [{"text": "x" * 9_900}]
