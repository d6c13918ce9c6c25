"""Bodies of requests as turns, the inverse of `engine.remote.request`, and bodies of responses."""

from typing import Any, cast

import pytest

from engine import RequestError, SamplingParams, remote
from engine.batch.bodies import Turn, read_body
from engine.turns.options import sampling_params
from engine.types.answer_formats import ResponseFormat
from engine.types.completion import Completion, Usage
from engine.types.parts import ReasoningPart, TextPart, ToolCall
from engine.types.sampling import TokenLogprob

SCHEMA: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {"name": "n", "schema": {"type": "object", "additionalProperties": False}},
}
HELD = ResponseFormat(type="json_schema", json_schema=SCHEMA["json_schema"]["schema"])
ASKED = [{"role": "user", "content": "?"}]


def read_chat(body: dict[str, Any], defaults: dict[str, Any], tools: Any = None) -> Turn:
    return read_body("/v1/chat/completions", body, defaults, tools)


def written(turn: Turn, answer: Completion) -> dict[str, Any]:
    assert turn.response is not None
    return turn.response("x", "m", [answer])


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"temperature": None, "stop": None, "tools": None, "n": None}, {}),
        ({"repeat_last_n": 9, "samplers": ["typ_p"]}, {"penalty_last_n": 9, "samplers": ["typical_p"]}),
        ({"model": "x", "user": "u", "stream": False}, {}),
    ],
)
def test_fields_become_options(fields: dict[str, Any], options: dict[str, Any]) -> None:
    assert dict(read_chat({"messages": ASKED, **fields}, {}).options) == options


def test_defaults_hold_where_a_body_is_silent() -> None:
    tool = {"name": "f", "parameters": {"type": "object"}}
    mine = read_chat({"messages": ASKED, "temperature": 1}, {"temperature": 0, "seed": 3}, [tool])
    assert dict(mine.options) == {"temperature": 1, "seed": 3}
    assert [each.name for each in mine.tools] == ["f"]
    assert read_chat({"messages": ASKED, "tools": []}, {}, [tool]).tools == ()


def test_what_our_own_requests_say_is_understood() -> None:
    """Every field of `SamplingParams` that a request carries is read back as it was."""
    given = SamplingParams(
        temperature=0.5,
        dynatemp_range=0.3,
        dynatemp_exponent=1.5,
        top_k=5,
        top_p=0.5,
        min_p=0.1,
        typical_p=0.5,
        top_n_sigma=1.0,
        xtc_probability=0.5,
        xtc_threshold=0.2,
        repeat_penalty=1.1,
        frequency_penalty=0.1,
        presence_penalty=0.2,
        penalty_last_n=5,
        dry_multiplier=0.5,
        dry_base=1.5,
        dry_allowed_length=3,
        dry_last_n=7,
        logit_bias=((7, -1.0),),
        samplers=("top_k", "typical_p"),
        logprobs=2,
        seed=3,
        stop=("a",),
        stop_tokens=(5,),
        dry_breakers=("x",),
        ignore_eos=True,
        max_tokens=9,
        min_tokens=2,
        repetition_limit=700,
        bad_words=("y",),
    )
    assert given.model_fields_set == set(SamplingParams.model_fields) - {"logits_processors"}
    body = remote.request("?", sampling=given, stream=False)
    assert sampling_params(read_chat(body, {}).options) == given


def test_a_response_is_read_back_as_the_turn_that_it_was_made_of() -> None:
    token = TokenLogprob(
        token=1, text="a", bytes=(97,), logprob=-0.5, top=(TokenLogprob(token=2, text="b", bytes=(98,), logprob=-1.0),)
    )
    usage = Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=5, reasoning_tokens=2, prefill_seconds=0.5)
    made = Completion(
        parts=(ReasoningPart(text="why"), TextPart(text="what")), finish_reason="length", usage=usage, logprobs=(token,)
    )
    body = written(read_body("/v1/chat/completions", {"messages": ASKED}, {}), made)
    assert body["id"] == "chatcmpl-x"
    read = remote.completion(body)
    assert (read.reasoning, read.content, read.finish_reason) == ("why", "what", "length")
    assert read.usage
    for name in ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens"):
        assert getattr(read.usage, name) == getattr(usage, name), name
    [entry] = cast("list[dict[str, Any]]", body["choices"][0]["logprobs"]["content"])
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("a", -0.5, [97])
    assert entry["top_logprobs"] == [{"token": "b", "logprob": -1.0, "bytes": [98]}]


# --- Responses


def read_responses(body: dict[str, Any], defaults: dict[str, Any] | None = None, tools: Any = None) -> Turn:
    return read_body("/v1/responses", body, defaults or {}, tools)


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, {}),
        ({"max_output_tokens": 5, "temperature": 0.5}, {"max_tokens": 5, "temperature": 0.5}),
        ({"reasoning": {"effort": "none"}}, {"reasoning": False}),
        ({"text": {"format": {"type": "json_schema", **SCHEMA["json_schema"]}}}, {"response_format": HELD}),
        ({"truncation": "auto"}, {"overflow": "truncate_oldest"}),
        ({"stream": False, "store": True, "background": None, "metadata": {"a": "b"}}, {}),
    ],
)
def test_fields_of_responses_become_options(fields: dict[str, Any], options: dict[str, Any]) -> None:
    assert dict(read_responses({"input": "?", **fields}).options) == options


def test_items_of_responses_become_messages() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "b"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "r"},
    ]
    found = read_responses({"input": items, "instructions": "i"}, {"seed": 3, "temperature": 1}, [{"name": "f"}])
    assert [(each.role, each.content) for each in found.messages] == [
        ("system", "i"),
        ("user", "a"),
        ("assistant", ""),
        ("tool", "r"),
    ]
    assert found.messages[2].reasoning == "b"
    assert [call.name for call in found.messages[2].tool_calls] == ["f"]
    assert [each.name for each in found.tools] == ["f"]
    assert dict(found.options) == {"seed": 3, "temperature": 1}


ALONE: list[tuple[dict[str, Any], str]] = [
    ({"stream": True}, "stream is true"),
    ({"background": True}, "background"),
    ({"previous_response_id": "resp_1"}, "previous_response_id.*rows are independent"),
    ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "eA="}]}, "encrypted_content"),
    ({"input": None}, "input is missing"),
    ({"messages": ASKED}, "messages"),
    ({"max_tokens": 3}, "max_tokens"),
    ({"tools": [{"type": "web_search"}]}, "tools"),
    ({"input": [{"role": "assistant", "content": "x"}]}, "nothing to answer"),
]


@pytest.mark.parametrize(("fields", "message"), ALONE)
def test_what_a_row_that_stands_alone_cannot_ask_for(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        read_responses({"input": "?", **fields})


def test_a_response_is_openais() -> None:
    """The `openai` package reads it."""
    response = pytest.importorskip("openai.types.responses").Response
    usage = Usage(prompt_tokens=7, cached_tokens=3, completion_tokens=5, reasoning_tokens=2, decode_seconds=0.25)
    call = ToolCall(id="c", name="f", arguments="{}")
    made = Completion(parts=(ReasoningPart(text="why"), call), finish_reason="tool_calls", usage=usage)
    body = read_body("/v1/responses", {"input": "?", "metadata": {"a": "b"}, "instructions": "i"}, {})
    found = written(body, made)
    read = response.model_validate(found, strict=True)
    assert (read.id, read.model, read.status, read.metadata) == ("resp_x", "m", "completed", {"a": "b"})
    assert [item.type for item in read.output] == ["reasoning", "function_call"]
    assert (read.usage.input_tokens, read.usage.input_tokens_details.cached_tokens) == (7, 3)
    assert (found["store"], found["timings"]["predicted_ms"]) == (False, 250.0)
    cut = written(body, Completion(parts=(TextPart(text="w"),), finish_reason="length"))
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
