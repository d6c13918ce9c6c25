"""Messages as callers bring them, and records that survive a dump."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError

from engine.types.completion import Completion, Usage
from engine.types.messages import Message
from engine.types.parts import ReasoningPart, TextPart, ToolCall
from engine.types.sampling import TokenLogprob


class Sdk(BaseModel):
    """An object of an SDK: fields of its own, others as extras."""

    model_config = ConfigDict(extra="allow")


TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
WRITTEN = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
PARTS = st.one_of(
    st.builds(ReasoningPart, text=WRITTEN),
    st.builds(TextPart, text=WRITTEN),
    st.builds(ToolCall, id=TEXT, name=WRITTEN, arguments=TEXT, error=st.sampled_from([None, "truncated", "malformed"])),
)
COMPLETIONS = st.builds(
    Completion,
    parts=st.lists(PARTS, max_size=4).map(tuple),
    finish_reason=st.sampled_from(["stop", "length", "tool_calls"]),
    usage=st.one_of(st.none(), st.builds(Usage, prompt_tokens=st.integers(0, 9))),
    logprobs=st.one_of(st.just(()), st.just((TokenLogprob(token=1, text="a", bytes=(97,), logprob=-1.0),))),
)


@given(COMPLETIONS)
def test_a_completion_survives_its_dump(completion: Completion) -> None:
    for dump in (completion.model_dump(), completion.model_dump(exclude_defaults=True)):
        assert Completion.model_validate(dump) == completion
    assert Completion.model_validate_json(completion.model_dump_json()) == completion


@given(COMPLETIONS)
def test_a_message_survives_its_dump(completion: Completion) -> None:
    message = completion.message
    for dump in (message.model_dump(), message.model_dump(exclude_defaults=True)):
        assert Message.model_validate(dump) == message
    assert Message.model_validate_json(message.model_dump_json(exclude_defaults=True)) == message


def test_a_dump_shows_what_was_said() -> None:
    call = ToolCall(id="a", name="f", arguments='{"x": 1}')
    dump = Completion(parts=(ReasoningPart(text="hm"), TextPart(text="Yes."), call)).model_dump()
    assert (dump["reasoning"], dump["content"]) == ("hm", "Yes.")
    assert [call["name"] for call in dump["tool_calls"]] == ["f"]


def test_a_completion_of_flat_fields_gets_parts() -> None:
    call: Any = {"id": "a", "name": "f", "arguments": "{}"}
    flat = Completion.model_validate({"reasoning": "hm", "content": "Yes.", "tool_calls": [call]})
    assert flat.parts == (ReasoningPart(text="hm"), TextPart(text="Yes."), ToolCall(id="a", name="f"))


def test_an_object_of_an_sdk_is_a_message() -> None:
    call = Sdk.model_validate({"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}})
    extras: dict[str, Any] = {
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "reasoning_content": "hm",
    }
    message = Message.model_validate(Sdk.model_validate({"role": "assistant", "tool_calls": [call], **extras}))
    assert message == Message(
        role="assistant", reasoning="hm", tool_calls=(ToolCall(id="a", name="f", arguments='{"x": 1}'),)
    )


@pytest.mark.parametrize(
    ("fields", "content"),
    [
        ({"role": "user", "content": ["a", {"type": "text", "text": "b"}]}, "a\nb"),
        ({"role": "user", "content": [Sdk.model_validate({"type": "input_text", "text": "b"})]}, "b"),
        ({"role": "assistant", "content": None}, ""),
        ({"role": "assistant", "content": None, "refusal": "I will not."}, "I will not."),
        ({"role": "tool", "tool_call_id": "a", "content": 21}, "21"),
        ({"role": "tool", "tool_call_id": "a", "content": {"à": [1, None]}}, '{"à": [1, null]}'),
        ({"role": "tool", "tool_call_id": "a", "content": [{"id": 1}, {"id": 2}]}, '[{"id": 1}, {"id": 2}]'),
        ({"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "b"}]}, "b"),
        ({"role": "tool", "tool_call_id": "a", "content": []}, "[]"),
        ({"role": "user", "content": "a", "timestamp": 7, "annotations": [1], "cache_control": {"type": "x"}}, "a"),
        ({"role": "assistant", "parts": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab"),
    ],
)
def test_what_is_read_as_content(fields: dict[str, Any], content: str) -> None:
    assert Message.model_validate(fields).content == content


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"role": "user", "contnet": "a"}, "did you mean 'content'"),
        ({"role": "assistant", "content": "a", "tool_call": [{"name": "f"}]}, "did you mean 'tool_calls'"),
        ({"role": "user", "content": "a", "images": ["x"]}, "'images' holds content"),
        ({"role": "user", "content": "a", "audio": {"data": "x"}}, "'audio' holds content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "address 'x' is not read"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "of type 'image_url' needs its 'image_url'"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}, "file_id names a file of another"),
        ({"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}, "of type 'file'"),
        ({"role": "tool", "content": [{"type": "image", "data": "x"}]}, "of type 'image'"),
        ({"role": "user"}, "neither content nor tool calls"),
        ({"role": "user", "content": None}, "neither content nor tool calls"),
        ({"role": "assistant"}, "neither content nor tool calls"),
        ({"role": "user", "text": "a"}, "but unknown fields: 'text'"),
        ({"role": "tool", "content": object()}, "not JSON serializable"),
        ({"role": "assistant", "tool_calls": [{"name": "f", "argument": "{}"}]}, "did you mean 'arguments'"),
        ({"role": "assistant", "tool_calls": [{"function": "f"}]}, "the function of a call is 'f'"),
    ],
)
def test_what_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Message.model_validate(fields)


def test_a_result_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValidationError, match=r"holds itself|Circular"):
        Message.model_validate({"role": "tool", "content": {"a": loop}})


def test_a_message_in_openais_form_and_back() -> None:
    call = ToolCall(id="a", name="f", arguments='{"x": 1}')
    message = Message(role="assistant", content="Yes.", reasoning="hm", tool_calls=(call,))
    form = message.openai()
    assert form == {
        "role": "assistant",
        "content": "Yes.",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}],
    }
    assert Message.model_validate(form) == message
    assert "reasoning_content" not in message.openai(reasoning_field=None)
    assert message.openai(reasoning_field="reasoning")["reasoning"] == "hm"
    assert Message(role="tool", tool_call_id="a", name="f", content="1").openai() == {
        "role": "tool",
        "content": "1",
        "tool_call_id": "a",
    }
    assert Message(role="user", name="Ann", content="Hi").openai() == {"role": "user", "content": "Hi", "name": "Ann"}


@pytest.mark.parametrize(
    ("before", "added", "content", "reasoning", "parts"),
    [
        (Message(role="assistant", content="The "), (TextPart(text="sky"),), "The sky", None, 1),
        (Message(role="assistant", content=""), (TextPart(text="sky"),), "sky", None, 1),
        (Message(role="assistant", content="The "), (), "The ", None, 1),
        (Message(role="assistant", reasoning="so"), (ReasoningPart(text=" far"), TextPart(text="A")), "A", "so far", 2),
        (Message(role="assistant", content="A"), (ToolCall(id="a", name="f"),), "A", None, 2),
    ],
)
def test_a_message_is_continued(
    before: Message, added: tuple[Any, ...], content: str, reasoning: str | None, parts: int
) -> None:
    whole = before.continued(added)
    assert (whole.content, whole.reasoning, len(whole.parts)) == (content, reasoning, parts)
