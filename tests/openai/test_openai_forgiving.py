"""What clients of other servers send is honoured, or they are told: fields, efforts, forms, prefills, long lists."""

import cProfile
import json
import pstats
from pathlib import Path
from typing import Any

import pytest
from fakes.openai_clients import ASK, WrittenEngine, scripted

import engine.openai
from engine import GBNF, Choice, Engine, EngineWarning, JsonSchema, Lark, Regex
from engine.batch.bodies import read_body
from engine.openai.api import Api
from engine.openai.extra_fields import SERVER_FIELDS
from engine.support.errors import RequestError
from engine.types.answer_formats import ResponseFormat
from engine.types.events import ContentDelta, Finished

openai = pytest.importorskip("openai")
ASKED: dict[str, Any] = {"model": "m", "messages": ASK}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["Ann"]}},
    "required": ["name"],
    "additionalProperties": False,
}
GRAMMAR = 'root ::= "yes"'
LARK = 'start: "yes"'
HONOURED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"n_predict": 9}, {"max_tokens": 9}),
    ({"n_predict": -1, "cache_prompt": True, "n_probs": 0, "id_slot": -1, "mirostat": 0, "mirostat_tau": 5.0}, {}),
    ({"n_probs": 3}, {"logprobs": 3}),
    ({"grammar": GRAMMAR}, {"response_format": GBNF(GRAMMAR)}),
    ({"json_schema": SCHEMA}, {"response_format": JsonSchema(SCHEMA)}),
    ({"regex": "a+"}, {"response_format": Regex("a+")}),
    ({"ebnf": GRAMMAR}, {"response_format": GBNF(GRAMMAR)}),
    ({"guided_json": SCHEMA}, {"response_format": JsonSchema(SCHEMA)}),
    ({"guided_regex": "a+"}, {"response_format": Regex("a+")}),
    ({"guided_choice": ["a", "b"]}, {"response_format": Choice(("a", "b"))}),
    ({"guided_grammar": GRAMMAR}, {"response_format": GBNF(GRAMMAR)}),
    ({"guided_grammar": LARK}, {"response_format": Lark(LARK)}),
    ({"structured_outputs": {"json": SCHEMA, "regex": None}}, {"response_format": JsonSchema(SCHEMA)}),
    ({"structured_outputs": {"json_object": True}}, {"response_format": JsonSchema({"type": "object"})}),
    ({"structured_outputs": {"choice": ["a"]}}, {"response_format": Choice(("a",))}),
    ({"enable_thinking": False}, {"reasoning": False}),
    ({"think": "max"}, {"reasoning": "high"}),
    ({"thinking_budget": 7}, {"reasoning_budget": 7}),
    ({"repeat_last_n": 5}, {"penalty_last_n": 5}),
    ({"chat_template_kwargs": {"enable_thinking": True, "x": 1}}, {"reasoning": True, "template_kwargs": {"x": 1}}),
]
WRONG: list[dict[str, Any]] = [
    {"grammar": 3},
    {"json_schema": "x"},
    {"guided_choice": "x"},
    {"structured_outputs": {"json": {}, "regex": "x"}},
    {"structured_outputs": {"structural_tag": "x"}},
    {"think": "hard"},
    {"think": True, "enable_thinking": False},
    {"grammar": GRAMMAR, "json_schema": SCHEMA},
]


@pytest.mark.parametrize("path", ["/chat/completions", "/responses"])
def test_what_the_engine_has_under_another_name(path: str) -> None:
    written = WrittenEngine([Finished("stop")])
    client: Any = engine.openai.OpenAI(written)
    for fields, options in HONOURED:
        if path == "/chat/completions" or "n_probs" not in fields:
            body = {"model": "m", "messages" if "chat" in path else "input": ASK, **fields}
            client.post(path, body=body, cast_to=object)
            asked = {name: value for name, value in written.asked.items() if name not in ("messages", "n", "tools")}
            assert asked == options, fields


def test_wrong_values_of_such_fields_are_refused_by_name() -> None:
    client: Any = engine.openai.OpenAI(WrittenEngine([Finished("stop")]))
    for fields in WRONG:
        with pytest.raises(openai.BadRequestError) as told:
            client.chat.completions.create(**ASKED, extra_body=fields)
        assert str(told.value.param).split(".")[0] in fields


def test_every_other_field_is_ignored_with_a_note() -> None:
    client: Any = engine.openai.OpenAI(WrittenEngine([ContentDelta("So."), Finished("stop")]))
    idle = {row.name: "x" for row in SERVER_FIELDS.values() if not row.option}
    assert {"cache_prompt", "id_slot", "timings_per_token", "keep_alive"} <= idle.keys()
    with pytest.warns(EngineWarning, match=r"The field \w+ of the request has no effect here"):
        raw = client.chat.completions.with_raw_response.create(**ASKED, extra_body=idle)
    assert raw.headers["x-ignored-fields"].split(", ") == list(idle)
    assert raw.parse().choices[0].message.content == "So."


def test_an_effort_is_on_where_a_model_has_only_on_and_off(builtin_model_path: Path) -> None:
    with Engine.load(builtin_model_path, n_ctx=512) as llm:
        client: Any = llm.openai_client()
        with pytest.warns(EngineWarning, match="reasoning_effort: this model has no efforts, so reasoning is on"):
            raw = client.chat.completions.with_raw_response.create(
                **ASKED, reasoning_effort="low", temperature=0, max_tokens=40
            )
        assert raw.headers["x-note"].startswith("reasoning_effort: ")
        assert raw.parse().choices[0].message.reasoning_content
        with pytest.warns(EngineWarning, match=r"reasoning\.effort: this model"):
            client.responses.create(model="m", input="Hi.", reasoning={"effort": "high"}, max_output_tokens=4)
        raw = client.chat.completions.with_raw_response.create(**ASKED, reasoning_effort="none", max_tokens=4)
        assert "x-note" not in raw.headers
        with pytest.raises(RequestError, match="knows only reasoning="):
            llm.chat("Hi.", reasoning="low")


def test_responses_say_what_they_were_made_with() -> None:
    with scripted(lambda _: "So.") as llm:
        client: Any = llm.openai_client()
        with pytest.warns(EngineWarning, match=r"The field \w+ of the request"):
            response = client.responses.create(
                model="m", input="Hi.", top_p=0.5, max_tool_calls=3, safety_identifier="s", prompt_cache_key="k"
            )
        found = response.to_dict()
        assert (found["top_p"], found["temperature"]) == (0.5, llm.family.sampling["temperature"])
        assert (found["presence_penalty"], found["frequency_penalty"]) == (0.0, 0.0)
        assert (found["max_tool_calls"], found["safety_identifier"], found["prompt_cache_key"]) == (3, "s", "k")
        for chunk in client.chat.completions.create(**ASKED, stream=True):
            assert chunk.service_tier == "default"
            assert chunk.system_fingerprint.startswith("llama-engine-")


@pytest.mark.parametrize("spelt", ["record", "dictionary", "client"])
def test_a_json_object_holds_its_schema(builtin_model_path: Path, spelt: str) -> None:
    form: dict[str, Any] = {"type": "json_object", "schema": SCHEMA}
    with Engine.load(builtin_model_path, n_ctx=512) as llm:
        if spelt == "client":
            client: Any = llm.openai_client()
            answer = client.chat.completions.create(**ASKED, response_format=form, temperature=0)
            found = json.loads(answer.choices[0].message.content)
        else:
            record = ResponseFormat(type="json_object", json_schema=SCHEMA)
            found: Any = llm.chat("Hi.", response_format=record if spelt == "record" else form, temperature=0).parsed
        assert found["name"] == "Ann"
        with pytest.raises(RequestError, match="must be a JSON Schema"):
            llm.chat("Hi.", response_format={"type": "json_object", "schema": "x"})


PREFILLED: list[Any] = [*ASK, {"role": "assistant", "content": '{"na'}]
CONTINUED: dict[str, Any] = {"continue_final_message": True, "temperature": 0}


def test_a_prefill_is_part_of_what_is_parsed(builtin_model_path: Path) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    with Engine.load(builtin_model_path, n_ctx=512) as llm:
        chatted = llm.chat(PREFILLED, response_format=form, **CONTINUED)
        assert (chatted.parsed, chatted.parse_error) == ({"name": "Ann"}, None)
        assert not chatted.content.startswith('{"na'), "a completion has only what the model adds"
        assert llm.run(PREFILLED, response_format=form, **CONTINUED).completion.parsed == {"name": "Ann"}
        client: Any = llm.openai_client()
        asked = {"model": "m", "messages": PREFILLED, "response_format": form, "extra_body": CONTINUED}
        whole = client.chat.completions.create(**asked).choices[0].message.content
        chunks = client.chat.completions.create(**asked, stream=True)
        assert json.loads(whole) == {"name": "Ann"}
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
        body = {"messages": PREFILLED, "response_format": form, **CONTINUED}
        request = read_body("/v1/chat/completions", body, {})
        answers = [stream.result() for stream in llm.choices(request.messages, 1, **request.options)]
        assert request.response is not None
        written = request.response("x", "m", answers)["choices"][0]["message"]["content"]
        assert (written, answers[0].parsed) == (whole, {"name": "Ann"})
        reasoned = [*ASK, {"role": "assistant", "content": '<think>\nHm.\n</think>\n\n{"na'}]
        assert llm.chat(reasoned, response_format=form, **CONTINUED).parsed == {"name": "Ann"}


def test_top_logprobs_ends_at_20() -> None:
    written = WrittenEngine([Finished("stop")])
    client: Any = engine.openai.OpenAI(written)
    client.chat.completions.create(**ASKED, logprobs=True, top_logprobs=20)
    assert written.asked["logprobs"] == 20
    with pytest.raises(openai.BadRequestError, match="ask for 0 to 20") as told:
        client.chat.completions.create(**ASKED, logprobs=True, top_logprobs=21)
    assert told.value.param == "top_logprobs"


def conversation(length: int) -> list[dict[str, Any]]:
    """A question, then calls and results."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Hi."}]
    for number in range(length // 2):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
        messages.append({"role": "assistant", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": "y"})
    return messages


def test_twice_as_many_messages_cost_twice_as_much() -> None:
    """Counted in Python calls of the request's thread, so the machine's load does not matter."""
    counts: list[int] = []
    with scripted(lambda _: "So.", n_ctx=200_000) as llm:
        api = Api(llm)
        for length in (16, 250, 500, 1000):  # the first fills the caches
            body = json.dumps({"messages": conversation(length)}).encode()
            profile = cProfile.Profile()
            profile.enable()
            turn: Any = api.handle("POST", "/v1/chat/completions", {}, body)
            streams = turn.begin()
            profile.disable()
            assert streams[0].result().content == "So."
            counts.append(vars(pstats.Stats(profile))["total_calls"])
    for before, after in ((counts[1], counts[2]), (counts[2], counts[3])):
        assert 1.8 < after / before < 2.2, f"calls: {counts}"


@pytest.mark.parametrize(
    ("field", "option", "meant"),
    [
        ("max_tokens", "max_tokens", None),
        ("max_completion_tokens", "max_tokens", None),
        ("n_predict", "max_tokens", None),
        ("top_k", "top_k", 0),
        ("repeat_last_n", "penalty_last_n", 2**20),
        ("dry_penalty_last_n", "dry_last_n", 2**20),
    ],
)
def test_minus_one_means_what_other_programs_mean(field: str, option: str, meant: int | None) -> None:
    own = read_body("/v1/chat/completions", {**ASKED, field: -1}, {}).options
    assert own.get(option) == meant
