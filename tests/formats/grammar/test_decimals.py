"""A `Decimal` is held to what it can be read from, in answers and in calls of every shape: pydantic's schema of it says
any text."""

from decimal import Decimal
from itertools import product
from typing import Annotated, Any

import pytest
from cases.constrained import Turn, engine_of
from cases.parsing_cases import FAMILIES
from pydantic import BaseModel, Field, create_model

from engine import as_tool
from engine.formats.families import builtin_families

LIMITS: list[dict[str, Any]] = [
    {"max_digits": most, "decimal_places": places, "ge": least}
    for most, places, least in product((None, 1, 2, 7), (None, 0, 2, 3), (None, 0))
] + [{"gt": 0.5, "lt": 2}, {"le": 9, "ge": -9}]
FIELDS: dict[str, Any] = {f"f{number}": (Annotated[Decimal, Field(**each)], ...) for number, each in enumerate(LIMITS)}
MONEY: type[BaseModel] = create_model("Money", **FIELDS)
SHAPES = {form.shape: name for name in FAMILIES if (form := builtin_families().get(name).format.tools)}


def test_an_answer() -> None:
    with engine_of(Turn("qwen3", "off", "schema")) as llm:
        for seed in range(6):
            answer = llm.chat("Hi", response_format=MONEY, reasoning=False, seed=seed, max_tokens=4000)
            assert isinstance(answer.parsed, MONEY), answer.parse_error


@pytest.mark.parametrize("family", SHAPES.values())
def test_a_call(family: str) -> None:
    tool = as_tool(MONEY)
    with engine_of(Turn(family, "default", "required")) as llm:
        for seed in range(2):
            answer = llm.chat("Hi", [tool], tool_choice="required", seed=seed, max_tokens=8000)
            assert [call.error for call in answer.tool_calls] == [None]
