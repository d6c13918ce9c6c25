"""`multipleOf` counts decimals as they are written, in the check and in a grammar."""

import json
import random
from decimal import Decimal

import pytest
from cases.held import answers, takes
from cases.walking import walk
from hypothesis import given
from hypothesis import strategies as st

from engine import JsonSchema
from engine.formats.grammar.json_schema import prepared
from engine.formats.grammar.lark import GrammarText
from engine.formats.grammar.nodes import JsonText
from engine.formats.grammar.response import response_of
from engine.runtime.guidance import matcher
from engine.tools.check import schema_check

STEPS = st.tuples(st.integers(1, 99), st.integers(0, 4)).map(lambda each: Decimal(each[0]).scaleb(-each[1]))


def fits(value: float, step: float) -> bool:
    return schema_check("The parts", {"type": "number", "multipleOf": step})(value) is None


@given(STEPS, st.integers(-(10**7), 10**7), st.integers(1, 10**6))
def test_a_decimal_is_a_multiple_or_is_not(step: Decimal, times: int, more: int) -> None:
    of = float(step)
    assert fits(float(step * times), of)
    beside = step * times + step * Decimal(more) / Decimal(10**6 + 3)
    assert fits(float(beside), of) == (Decimal(str(float(beside))) % Decimal(str(of)) == 0)


def test_every_price() -> None:
    response = response_of(JsonSchema({"type": "number", "multipleOf": 0.01}), matcher)
    assert response is not None
    held = answers(response)
    for cents in range(20_000):
        text = json.dumps(cents / 100)
        assert takes(held, text), text
        assert response.read(text) == cents / 100
    assert not takes(held, "19.995")


@pytest.mark.parametrize("step", [0.01, 0.05, 0.1, 0.25, 0.5, 0.07, 1.5, 5, 1e-5, 0.3])
def test_what_a_grammar_allows_is_a_multiple(step: float) -> None:
    schema = {"type": "number", "multipleOf": step, "minimum": 0, "maximum": 1000}
    held, checked = prepared(schema, matcher.refusal, "It", close=True)
    assert checked in ((), ("$.multipleOf",)), "held, or checked afterwards"
    for seed in range(0 if checked else 20):
        text = walk(GrammarText(lambda text: [text]).text(JsonText(held), {}), random.Random(seed))
        assert text is None or fits(json.loads(text), step), text
