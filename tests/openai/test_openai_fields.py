"""Which fields of a request do what: the tables against the SDK's parameter lists, and bodies that are refused."""

import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest
from fakes.openai_clients import ASK, PING, WrittenEngine, scripted

import engine.openai
from engine import Engine
from engine.openai.extra_fields import SERVER_FIELDS
from engine.openai.fields import CHAT_FIELDS, RESPONSES_FIELDS
from engine.openai.request import Field
from engine.support.errors import EngineWarning
from engine.turns.options import TurnOptions
from engine.types.answer_formats import ResponseFormat
from engine.types.events import Finished
from engine.types.tools import AllowedTools, ToolName

openai = pytest.importorskip("openai")
VERSION = tuple(int(part) for part in openai.__version__.split(".")[:2])
NEWEST = (3, 54)
OWN = TurnOptions.__optional_keys__ | SERVER_FIELDS.keys() | {"chat_template_kwargs", "reasoning_field"}


def http(transport: Any) -> Any:
    """A client of the HTTP library that the installed SDK uses."""
    library = import_module("httpx2" if VERSION >= (3, 0) else "httpx")
    return library.Client(transport=transport, base_url="http://in-process/v1")


def sdk_fields(module: str, name: str) -> set[str]:
    return {*getattr(import_module(module), name).__annotations__, "stream"}


def test_every_parameter_of_the_sdk_has_its_row() -> None:
    there = sdk_fields("openai.types.chat.completion_create_params", "CompletionCreateParamsBase")
    assert there <= CHAT_FIELDS.keys()
    if VERSION >= NEWEST:
        assert CHAT_FIELDS.keys() - OWN <= there


def test_every_row_tells_what_it_does() -> None:
    for row in CHAT_FIELDS.values():
        assert isinstance(row, Field)
        assert row.note
        assert row.rule in ("honoured", "ignored", "refused")


SAID: list[Any] = [{"role": "assistant", "content": "x"}]
NAMELESS: dict[str, Any] = {"type": "function", "function": {"parameters": {}}}
CUSTOM = {"type": "custom", "custom": {"name": "x"}}
IMAGE = [{"type": "image_url", "image_url": {"url": "data:,"}}]
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "x"}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x"}}


def asked(*content: Any) -> dict[str, Any]:
    return {"messages": [*content]}


# What is sent in place of, or beside, one good message; the parameter that is named, and the code.
MALFORMED: list[tuple[Any, str | None, str]] = [
    (b"", None, "invalid_json"),
    (b"{", None, "invalid_json"),
    (b"\xff\xfe", None, "invalid_json"),
    (b'{"temperature": NaN}', None, "invalid_json"),
    (b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, "invalid_json"),
    ([], None, "invalid_json"),
    ("text", None, "invalid_json"),
    (None, None, "invalid_json"),
    ({"messages": None}, "messages", "missing_required_parameter"),
    ({"messages": []}, "messages", "missing_required_parameter"),
    ({"messages": "Hi."}, "messages", "invalid_type"),
    ({"messages": {}}, "messages", "invalid_type"),
    ({"messages": ["Hi."]}, "messages[0]", "invalid_type"),
    (asked({}), "messages[0]", "invalid_value"),
    (asked({"role": "user"}), "messages[0]", "invalid_value"),
    (asked({"role": "function", "name": "x", "content": "x"}), "messages[0]", "invalid_value"),
    (asked({"role": "user", "content": 3}), "messages[0]", "invalid_value"),
    (asked(*ASK, {"role": "user", "content": IMAGE}), "messages[1]", "invalid_value"),
    (asked(*ASK, RESULT), "messages[1]", "invalid_value"),
    (asked(*ASK, *SAID), "messages", "invalid_value"),
    (asked(*ASK, {"role": "assistant", "tool_calls": [{"id": "x"}]}), "messages[1]", "invalid_value"),
    (asked(*ASK, {"role": "assistant", "tool_calls": 3}), "messages[1]", "invalid_value"),
    ({"model": 3}, "model", "invalid_type"),
    ({"temperature": "hot"}, "temperature", "invalid_type"),
    ({"temperature": True}, "temperature", "invalid_type"),
    ({"temperature": -1}, "temperature", "invalid_value"),
    ({"top_p": 0}, "top_p", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"),
    ({"n": 129}, "n", "invalid_value"),
    ({"n": 1.5}, "n", "invalid_type"),
    ({"max_tokens": 0}, "max_tokens", "invalid_value"),
    ({"max_completion_tokens": -3}, "max_completion_tokens", "invalid_value"),
    ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens", "invalid_value"),
    ({"seed": -2}, "seed", "invalid_value"),
    ({"seed": 2**70}, "seed", "invalid_value"),
    ({"stop": [1]}, "stop[0]", "invalid_type"),
    ({"stream": "yes"}, "stream", "invalid_type"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", "unknown_parameter"),
    ({"stream": True, "stream_options": {"include_usage": 3}}, "stream_options.include_usage", "invalid_type"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"999999": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"1": "x"}}, "logit_bias", "invalid_type"),
    ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
    ({"logprobs": True, "top_logprobs": 999}, "top_logprobs", "invalid_value"),
    ({"logprobs": 3}, "logprobs", "invalid_type"),
    ({"reasoning_effort": "immense"}, "reasoning_effort", "invalid_type"),
    ({"tools": [3]}, "tools[0]", "invalid_type"),
    ({"tools": [CUSTOM]}, "tools[0]", "unsupported_parameter"),
    ({"tools": [NAMELESS]}, "tools", "invalid_value"),
    ({"tools": [PING, PING]}, "tools", "invalid_value"),
    ({"tool_choice": "must"}, "tool_choice", "invalid_value"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "invalid_value"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": 3}}, "tool_choice", "invalid_type"),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}, "tool_choice", "invalid_value"),
    ({"response_format": {"type": "xml"}}, "response_format", "invalid_value"),
    ({"response_format": SCHEMA}, "response_format.json_schema.schema", "invalid_type"),
    ({"functions": [{"name": "x"}]}, "functions", "unsupported_parameter"),
    ({"modalities": ["text", "audio"]}, "modalities", "unsupported_parameter"),
    ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
    ({"temprature": 1}, "temprature", "unknown_parameter"),
    ({"logits_processors": []}, "logits_processors", "unknown_parameter"),
    ({"overflow": "x"}, "overflow", "invalid_value"),
    ({"deadline": -1}, "deadline", "invalid_value"),
    ({"documents": [3]}, "documents", "invalid_value"),
    ({"chat_template_kwargs": 3}, "chat_template_kwargs", "invalid_type"),
    ({"messages": [{"role": "user", "content": "x" * 5000}]}, "messages", "context_length_exceeded"),
]


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    with scripted(n_ctx=4096) as llm:
        yield llm


def content_of(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    good = {"model": "m", "messages": ASK}
    return json.dumps({**good, **body} if isinstance(body, dict) else body).encode()


def test_malformed_bodies(llm: Engine) -> None:
    """Each gets a 400 that says what is meant; none a 500."""
    wrong: list[str] = []
    with http(engine.openai.transport(llm)) as client:
        for body, param, code in MALFORMED:
            response = client.post("/chat/completions", content=content_of(body))
            error = response.json().get("error", {})
            found = response.status_code, error.get("param"), error.get("code")
            if found != (400, param, code) or not error["message"]:
                wrong.append(f"{str(body)[:80]}: {found} in place of {(400, param, code)}: {error.get('message')}")
    assert not wrong, "\n".join(wrong)
    assert len(MALFORMED) >= 60


def test_what_the_engine_is_asked_for() -> None:
    written = WrittenEngine([Finished("stop")])
    client: Any = engine.openai.OpenAI(written)
    other = {"type": "function", "function": {"name": "other"}}
    asked = written.asked

    def ask(**body: Any) -> dict[str, Any]:
        client.chat.completions.create(model="m", messages=ASK, **body)
        return written.asked

    assert not asked
    asked = ask(
        temperature=0.5,
        top_p=0.9,
        frequency_penalty=1,
        presence_penalty=-1,
        seed=7,
        stop=["a", "b"],
        max_completion_tokens=9,
        logit_bias={"3": -100},
        logprobs=True,
        top_logprobs=2,
        reasoning_effort="minimal",
        tools=[PING, other],
        parallel_tool_calls=True,
        extra_body={"top_k": 5, "chat_template_kwargs": {"a": 1}, "reasoning_budget": 8, "priority": 2},
    )
    tools = asked.pop("tools")
    assert [tool.name for tool in tools] == ["ping", "other"]
    assert asked == {
        "messages": ASK,
        "n": 1,
        "temperature": 0.5,
        "top_p": 0.9,
        "frequency_penalty": 1,
        "presence_penalty": -1,
        "seed": 7,
        "stop": ["a", "b"],
        "max_tokens": 9,
        "logit_bias": {3: -100},
        "logprobs": 2,
        "parallel_tool_calls": True,
        "reasoning": "low",
        "top_k": 5,
        "template_kwargs": {"a": 1},
        "reasoning_budget": 8,
        "priority": 2,
    }
    assert ask(reasoning_effort="none")["reasoning"] is False
    for tier, priority in (("auto", None), ("default", None), ("flex", -1), ("priority", 1)):
        assert ask(service_tier=tier).get("priority") == priority
    assert ask(logprobs=True)["logprobs"] == 0
    assert ask(tools=[PING], parallel_tool_calls=False)["parallel_tool_calls"] is False
    named = {"type": "function", "function": {"name": "ping"}}
    assert ask(tools=[PING], tool_choice=named)["tool_choice"] == ToolName(name="ping")
    assert "tool_choice" not in ask(tools=[PING], tool_choice="auto")
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    asked = ask(tools=[other, PING], tool_choice=allowed)
    assert asked["tool_choice"] == AllowedTools(names=("ping",), mode="required")
    schema = {"type": "object"}
    asked = ask(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
    assert asked["response_format"] == ResponseFormat(type="json_schema", json_schema=schema)
    assert "response_format" not in ask(response_format={"type": "text"})


def test_every_option_of_the_engine_arrives_under_its_own_name() -> None:
    written = WrittenEngine([Finished("stop")])
    client: Any = engine.openai.OpenAI(written)
    for path, table in (("/chat/completions", CHAT_FIELDS), ("/responses", RESPONSES_FIELDS)):
        for row in table.values():
            if row.note == "the engine's option":
                body = {"model": "m", "messages" if table is CHAT_FIELDS else "input": ASK, row.name: 1}
                client.post(path, body=body, cast_to=object)
                assert written.asked[row.name] == 1, f"{row.name} of {path} was lost"


def test_what_does_nothing_is_told_by_a_warning_each_and_a_header() -> None:
    client: Any = engine.openai.OpenAI(WrittenEngine([Finished("stop")]))
    asked: dict[str, Any] = {"model": "m", "messages": ASK}
    with pytest.warns(EngineWarning, match="The field (store|user) of the request has no effect here") as told:
        raw = client.chat.completions.with_raw_response.create(**asked, store=True, user="ann")
    assert len(told) == 2, "one for each field, so that there are no more texts than fields"
    assert raw.headers["x-ignored-fields"] == "store, user"
    raw = client.chat.completions.with_raw_response.create(
        **asked, store=False, service_tier="auto", verbosity="medium", metadata={}
    )
    assert "x-ignored-fields" not in raw.headers
