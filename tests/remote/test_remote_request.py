"""engine.remote.request: messages, tools and options as a request's body."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from engine import remote
from engine.support.errors import RequestError
from engine.types.answer_formats import ResponseFormat
from engine.types.completion import Completion
from engine.types.messages import Message
from engine.types.parts import ReasoningPart, TextPart, ToolCall
from engine.types.sampling import SamplingParams
from engine.types.tools import ToolName


def get_weather(city: str, days: int = 1) -> str:
    """The weather.

    Args:
        city: where.
    """
    return f"{city}: sunny for {days}"


def only(body: dict[str, Any], *left_out: str) -> dict[str, Any]:
    """The body without what every one holds; it is ready for JSON."""
    assert json.loads(json.dumps(body)) == body
    return {key: value for key, value in body.items() if key not in ("messages", "stream", "stream_options", *left_out)}


def test_a_text_is_a_user_s_message_and_nothing_else_is_said() -> None:
    assert remote.request("Hi") == {
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert remote.request("Hi", stream=False) == {"messages": [{"role": "user", "content": "Hi"}], "stream": False}


TURN = Completion(
    parts=(
        ReasoningPart(text="One."),
        TextPart(text="I look."),
        ReasoningPart(text="Two."),
        ToolCall(id="call_1", name="get_weather", arguments='{"city": "Zürich"}'),
    )
)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", None])
def test_a_history_goes_out_with_its_reasoning_in_one_field(field: Any) -> None:
    history = [
        Message(role="system", content="Be brief."),
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}], "name": "ann"},
        TURN.message,
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    assistant = {
        "role": "assistant",
        "content": "I look.",
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'},
            }
        ],
    }
    assert remote.request(history, reasoning_field=field)["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?", "name": "ann"},
        {**assistant, **({field: "One.\nTwo."} if field else {})},
        {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
    ]
    assert sum("reasoning" in key for key in remote.request(history)["messages"][2]) == 1


def test_calls_without_text_have_null_content_and_an_empty_answer_is_text() -> None:
    call = {"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}
    messages = remote.request(
        [
            {"role": "user", "content": "Go"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": ""},
            {"role": "assistant", "content": None},
            {"role": "user", "content": "?"},
        ]
    )["messages"]
    assert messages[1]["content"] is None
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'
    assert messages[2] == {"role": "tool", "content": "", "tool_call_id": "a"}
    assert messages[3] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ('{"x": 12345678901234567890}', '{"x": 12345678901234567890}'),
        ("", "{}"),
        ('{"x": "Par', '{"arguments": "{\\"x\\": \\"Par"}'),
        ("[1]", '{"arguments": "[1]"}'),
        ("null", '{"arguments": "null"}'),
    ],
)
def test_arguments_that_a_server_would_refuse_go_as_text_inside_an_object(written: str, sent: str) -> None:
    call = ToolCall(id="a", name="f", arguments=written)
    history = [Message(role="user", content="Go"), Message(role="assistant", tool_calls=(call,))]
    (out,) = remote.request(history)["messages"][1]["tool_calls"]
    assert out["function"]["arguments"] == sent


def test_tools_of_every_kind() -> None:
    class Search(BaseModel):
        """Search."""

        query: str

    plain: dict[str, Any] = {
        "type": "function",
        "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}},
    }
    tools = remote.request("Hi", [get_weather, Search, plain])["tools"]
    assert [item["function"]["name"] for item in tools] == ["get_weather", "Search", "ping"]
    assert tools[0]["function"]["parameters"]["required"] == ["city"]
    assert tools[2] == plain
    json.dumps(tools)


NAMED: dict[str, Any] = {"type": "function", "function": {"name": "get_weather"}}
SCHEMA: dict[str, Any] = {"type": "object"}
HELD: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA}}
OBJECT: dict[str, Any] = {"type": "json_object", "schema": {}}
SENT: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tool_choice": "auto"}, {}),
    ({"tool_choice": "none"}, {"tool_choice": "none"}),
    ({"tool_choice": "required"}, {"tool_choice": "required"}),
    ({"tool_choice": ToolName(name="get_weather")}, {"tool_choice": NAMED}),
    ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
    ({"response_format": ResponseFormat()}, {}),
    ({"response_format": ResponseFormat(type="json_object")}, {"response_format": {"type": "json_object"}}),
    ({"response_format": ResponseFormat(type="json_schema", json_schema=SCHEMA)}, {"response_format": HELD}),
    (
        {"response_format": {"type": "json_object", "schema": {}}},
        {"response_format": {"type": "json_object", "schema": {}}},
    ),
    ({"reasoning": None}, {}),
    ({"reasoning": True}, {"chat_template_kwargs": {"enable_thinking": True}}),
    ({"reasoning": False}, {"chat_template_kwargs": {"enable_thinking": False}}),
    ({"reasoning": "low"}, {"reasoning_effort": "low"}),
    ({"reasoning": True, "template_kwargs": {"enable_thinking": 0}}, {"chat_template_kwargs": {"enable_thinking": 0}}),
    ({"temperature": 0, "stop": "END", "seed": None}, {"temperature": 0, "stop": ["END"]}),
    ({"penalty_last_n": 32, "dry_last_n": 16}, {"repeat_last_n": 32, "dry_penalty_last_n": 16}),
    ({"dry_breakers": ["\n"], "stop_tokens": [7, 8]}, {"dry_sequence_breakers": ["\n"], "stop_token_ids": [7, 8]}),
    ({"samplers": ["top_k", "typical_p"], "typical_p": 0.9}, {"samplers": ["top_k", "typ_p"], "typical_p": 0.9}),
    ({"logit_bias": {7: -1.5}, "ignore_eos": True}, {"logit_bias": {"7": -1.5}, "ignore_eos": True}),
    ({"sampling": SamplingParams(logprobs=3)}, {"logprobs": True, "top_logprobs": 3}),
    ({"logprobs": 0}, {"logprobs": True, "top_logprobs": 0}),
    ({"model": "qwen3", "extra": {"cache_prompt": False, "model": "other"}}, {"model": "other", "cache_prompt": False}),
]


@pytest.mark.parametrize(("options", "sent"), SENT)
def test_options_under_the_server_s_names(options: dict[str, Any], sent: dict[str, Any]) -> None:
    """And no other fields."""
    assert only(remote.request("Hi", [get_weather], **options), "tools") == sent


def test_without_tools_there_is_nothing_to_choose() -> None:
    assert only(remote.request("Hi", tool_choice="none", parallel_tool_calls=False)) == {}
    with pytest.raises(RequestError, match="does not have; its tools: none"):
        remote.request("Hi", tool_choice="required")
    with pytest.raises(RequestError, match="does not have; its tools: get_weather"):
        remote.request("Hi", [get_weather], tool_choice=ToolName(name="ping"))
    with pytest.raises(RequestError, match="tool_choice='maybe' must be"):
        remote.request("Hi", [get_weather], tool_choice="maybe")  # pyright: ignore[reportArgumentType]


def test_a_sampling_record_and_options_over_it() -> None:
    record = SamplingParams(temperature=0.5, top_p=0.9)
    assert only(remote.request("Hi", sampling=record, temperature=0.1)) == {"temperature": 0.1, "top_p": 0.9}
    assert record == SamplingParams(temperature=0.5, top_p=0.9)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"temperature": -1}, "temperature=-1 is not valid"),
        ({"temprature": 1}, "no option 'temprature'; did you mean 'temperature'"),
        ({"logits_processors": [print]}, "functions and cannot be sent"),
    ],
)
def test_options_that_are_not_valid(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(RequestError, match=wrong):
        remote.request("Hi", **options)


def test_messages_that_are_not_valid() -> None:
    with pytest.raises(RequestError, match="empty"):
        remote.request([])
    with pytest.raises(RequestError, match="matches no tool call"):
        remote.request([{"role": "user", "content": "Hi"}, {"role": "tool", "tool_call_id": "x", "content": "y"}])


def test_arguments_for_the_openai_client() -> None:
    body = remote.request("Hi", model="qwen3", reasoning=False, top_k=3)
    assert remote.client_arguments(body) == {
        "model": "qwen3",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "extra_body": {
            "stream_options": {"include_usage": True},
            "chat_template_kwargs": {"enable_thinking": False},
            "top_k": 3,
        },
    }
    assert remote.client_arguments({"messages": []}) == {"model": "", "messages": []}
