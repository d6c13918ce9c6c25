"""The `openai` client's decisions over a scripted model: what a real client sends and reads."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from engine import ChatTemplate, Engine, EngineWarning
from engine.testing import ScriptedBackend

openai = pytest.importorskip("openai")

ASKED: Any = {
    "type": "choice",
    "name": "queue",
    "instructions": "Which queue?",
    "choices": [{"value": "billing"}, {"value": "access"}],
}
SCORE: Any = {
    "type": "score",
    "instructions": "How severe?",
    "levels": [{"label": "low"}, {"label": "high", "description": "all"}],
}
TRUE: Any = {"type": "predicate", "name": "angry", "instructions": "The customer is angry."}


def said(text: str) -> str:
    begun = text.rpartition("</think>\n\n")[2]
    answers = {"queue": "access", "severe": "high", "angry": "no", "JSON": "yes"}
    answer = next(each for name, each in answers.items() if name in text)
    return answer.removeprefix(begun) if answer.startswith(begun) else "?"


@pytest.fixture
def llm() -> Iterator[Engine]:
    with Engine.over(ScriptedBackend(said, n_ctx=2048), ChatTemplate(None, family="qwen3")) as llm:
        yield llm


def test_answers_come_in_order_with_their_names(llm: Engine) -> None:
    decision: Any = llm.openai_client().decisions.create(
        model="any", input="I want my money back.", questions=[ASKED, SCORE, TRUE]
    )
    choice, score, predicate = decision.answers
    assert (choice.type, choice.name, choice.choice, choice.confidence) == ("choice", "queue", "access", 1.0)
    assert [(each.value, each.probability) for each in choice.probabilities] == [("billing", 0.0), ("access", 1.0)]
    assert (score.type, score.name, score.score) == ("score", None, 1.0)
    assert [(each.label, each.value) for each in score.probabilities] == [("low", 0), ("high", 1)]
    assert (predicate.type, predicate.probability) == ("predicate", 0.0)
    assert decision.usage.output_tokens == 0
    assert decision.usage.total_tokens == decision.usage.input_tokens > 100
    details = decision.usage.input_tokens_details
    assert details.cached_tokens + details.cache_write_tokens == decision.usage.input_tokens


def test_messages_calls_and_json_are_read(llm: Engine) -> None:
    items: Any = [
        {"role": "developer", "content": "Be strict."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "Look:"}, {"type": "input_json", "data": {"paid": 3}}],
        },
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "nothing"},
        {"type": "custom_tool_call", "call_id": "2", "name": "note", "input": "call them"},
        {"type": "custom_tool_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "done"}]},
    ]
    asked: Any = {"type": "predicate", "instructions": [{"type": "input_json", "data": {"kind": "JSON"}}]}
    decision: Any = llm.openai_client().decisions.create(model="any", input=items, questions=[asked])
    assert decision.answers[0].probability == 1.0
    assert decision.usage.input_tokens > 100


async def test_an_event_loop_and_a_raw_response(llm: Engine) -> None:
    async with llm.async_openai_client() as client:
        with pytest.warns(EngineWarning, match="safety_identifier"):
            raw: Any = await client.decisions.with_raw_response.create(
                model="any", input="x", questions=[TRUE], safety_identifier="me", prompt_cache_key="mine"
            )
        assert raw.parse().answers[0].probability == 0.0


def refusals() -> Iterator[tuple[dict[str, Any], str]]:
    yield {"questions": []}, "questions"
    yield {"input": ""}, "input"
    yield {"questions": [TRUE] * 401}, "questions"
    yield {"questions": [{"type": "vote", "instructions": "x"}]}, "questions[0].type"
    yield {"questions": [TRUE, {"type": "predicate", "instructions": 3}]}, "questions[1].instructions"
    yield {"questions": [{**TRUE, "weight": 1}]}, "questions[0].weight"
    yield {"questions": [{**ASKED, "choices": [{"value": "a"}]}]}, "questions[0]"
    yield {"questions": [{**ASKED, "choices": [{"value": "a"}, {"value": "a"}]}]}, "questions[0]"
    yield {"questions": [{**ASKED, "choices": [{"value": 1}, {"value": "a"}]}]}, "questions[0].choices[0].value"
    yield {"questions": [{**SCORE, "levels": [{"label": True}, {"label": "a"}]}]}, "questions[0]"
    yield (
        {"questions": [{**TRUE, "instructions": [{"type": "input_image", "image_url": "x"}]}]},
        "questions[0].instructions[0]",
    )
    yield {"input": [{"type": "function_call_output", "call_id": "9", "output": "x"}]}, "input"
    yield {"input": [{"role": "user", "content": [{"type": "input_json", "data": 3}]}]}, "input[0].content[0].data"
    yield {"extra_body": {"temperature": 1}}, "temperature"


@pytest.mark.parametrize(("fields", "param"), list(refusals()))
def test_what_is_wrong_is_refused_by_its_place(llm: Engine, fields: dict[str, Any], param: str) -> None:
    body: dict[str, Any] = {"model": "any", "input": "x", "questions": [TRUE], **fields}
    with pytest.raises(openai.BadRequestError) as error:
        llm.openai_client().decisions.create(**body)
    assert error.value.param == param
    assert llm.metrics.running == 0


def test_a_timeout_ends_the_readings() -> None:
    with Engine.load(n_ctx=1024) as real:
        asked: Any = [{**TRUE, "instructions": f"Statement {n} is true."} for n in range(300)]
        with pytest.raises(openai.APITimeoutError):
            real.openai_client(timeout=0.05, max_retries=0).decisions.create(model="any", input="x", questions=asked)

        async def late() -> None:
            async with real.async_openai_client(timeout=0.05, max_retries=0) as client:
                with pytest.raises(openai.APITimeoutError):
                    await client.decisions.create(model="any", input="x", questions=asked)

        asyncio.run(late())
        assert real.decide("x", "It is late.").parsed in (True, False)


# --- the System One form

STATE = {"state": "I want my money back.", "model": "any"}
NAMED: Any = {
    "angry": {"type": "noul", "instructions": "The customer is angry."},
    "why": {"type": "noul", "instructions": "Is it angry?", "criteria": {"true": "shouts", "false": None}},
    "queue": {"type": "choice", "instructions": "Which queue?", "criteria": {"billing": "money", "access": None}},
    "severity": {"type": "score", "instructions": {"text": "How severe?"}, "criteria": ["low", "medium", "high"]},
}


def system_one(llm: Engine, **body: Any) -> Any:
    return llm.openai_client().post("/systemone", body={**STATE, "questions": NAMED, **body}, cast_to=object)


@pytest.mark.parametrize("state", ["I want my money back.", {"mail": "x"}, [{"role": "user", "content": "x"}]])
def test_the_system_one_form_is_answered(llm: Engine, state: Any) -> None:
    found = system_one(llm, state=state)
    answers = found["answers"]
    assert answers["angry"] == answers["why"] == {"type": "noul", "noul": 0.0}
    shares = {"billing": 0.0, "access": 1.0}
    assert answers["queue"] == {"type": "choice", "choice": "access", "confidence": 1.0, "probabilities": shares}
    assert answers["severity"]["legend"] == {"0": "low", "1": "medium", "2": "high"}
    assert answers["severity"]["score"] == 2.0
    assert answers["severity"]["probabilities"]["2"] == 1.0
    assert found["usage"]["input_tokens"] > 100
    assert found["usage"]["output_tokens"] == 0


async def test_the_system_one_form_in_an_event_loop_and_its_confidence(llm: Engine) -> None:
    with Engine.load(n_ctx=1024) as real:
        async with real.async_openai_client() as client:
            found: Any = await client.post("/systemone", body={**STATE, "questions": NAMED}, cast_to=object)
    for name in ("queue", "severity"):
        shares = found["answers"][name]["probabilities"].values()
        assert sum(shares) == pytest.approx(1.0)
        flat = 1 / len(shares)
        assert found["answers"][name]["confidence"] == pytest.approx((max(shares) - flat) / (1 - flat))
    assert (
        "lost" not in system_one(llm, questions={**NAMED, "lost": {"type": "noul", "instructions": "queue"}})["answers"]
    )


def refused_in_this_form() -> Iterator[tuple[dict[str, Any], str]]:
    noul = NAMED["angry"]
    yield {"state": ""}, "state"
    yield {"questions": {}}, "questions"
    yield {"questions": {f"q{n}": noul for n in range(401)}}, "questions"
    yield {"questions": {"a": {**noul, "type": "predicate"}}}, "questions.a.type"
    yield {"questions": {"a": {**noul, "weight": 1}}}, "questions.a.weight"
    yield {"questions": {"a": 3}}, "questions.a"
    yield {"questions": {"a": {**noul, "instructions": ""}}}, "questions.a"
    yield {"questions": {"a": {**noul, "instructions": 3}}}, "questions.a.instructions"
    yield {"questions": {"a": {**noul, "criteria": {"maybe": "x"}}}}, "questions.a.criteria.maybe"
    yield {"questions": {"a": {**NAMED["queue"], "criteria": ["a", "b"]}}}, "questions.a.criteria"
    yield {"questions": {"a": {**NAMED["queue"], "criteria": {"a": None}}}}, "questions.a"
    yield {"questions": {"a": {**NAMED["severity"], "criteria": {"a": None}}}}, "questions.a.criteria"
    yield {"questions": {"a": {**NAMED["severity"], "criteria": ["a", "a"]}}}, "questions.a"
    yield {"images": ["x"]}, "images"
    yield {"temperature": 1}, "temperature"


@pytest.mark.parametrize(("fields", "param"), list(refused_in_this_form()))
def test_what_is_wrong_in_this_form_is_refused_by_its_place(llm: Engine, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        system_one(llm, **fields)
    assert error.value.param == param
    assert llm.metrics.prompt_tokens == 0


def test_a_field_that_a_question_lacks_is_told_with_those_that_it_has(llm: Engine) -> None:
    question: Any = {"type": "choice", "name": "a", "instructions": "Which?", "options": ["b", "c"]}
    with pytest.raises(openai.BadRequestError, match=r"has no field 'options'.*; its fields are choices, "):
        llm.openai_client().decisions.create(model="any", input="Hello", questions=[question])
