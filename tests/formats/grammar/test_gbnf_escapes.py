"""Every escape of llama.cpp's GBNF means its character, in a text and in a set of characters."""

import json

import pytest
from cases.held import answers, takes
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import GBNF, JsonSchema
from engine.formats.grammar.lark import GrammarText
from engine.formats.grammar.response import response_of
from engine.runtime.guidance import matcher
from engine.runtime.guidance.matcher import Matcher

CHARACTERS = st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\u2028\u2029") | st.sampled_from(
    '\n\t\\"[]^-'
)


def start(grammar: str) -> Matcher:
    from cases.walking import as_text, byte_compiler

    response = response_of(GBNF(grammar), matcher)
    assert response is not None
    return byte_compiler().compiled(GrammarText(as_text).text(response.answer.node, {}, response.answer.callers))


@settings(max_examples=60)
@given(CHARACTERS, st.booleans())
def test_a_number_of_unicode_is_its_character(char: str, in_set: bool) -> None:
    spelt = f"\\U{ord(char):08x}" if ord(char) > 0xFFFF else f"\\u{ord(char):04X}"
    held = start(f"root ::= [{spelt}]" if in_set else f'root ::= "a{spelt}b"')
    text = char if in_set else f"a{char}b"
    assert takes(held, text), spelt
    assert not takes(held, text + "x")
    assert not takes(held, ("y" if char != "y" else "z") if in_set else "ab")


@pytest.mark.parametrize(
    ("text", "value"), [(r'"\[x\]"', "[x]"), (r'"\x41[\n"', "A[\n"), (r"[\u0061-\u0063]", "b"), (r"[\[\]]", "]")]
)
def test_other_escapes(text: str, value: str) -> None:
    assert takes(start(f"root ::= {text}"), value)


TUPLE = {"type": "array", "items": [{"type": "integer"}, {"type": "string"}], "additionalItems": False, "minItems": 2}


@pytest.mark.parametrize("draft", ["draft-07", "draft-06", "draft-04"])
def test_tuples_of_older_drafts(draft: str) -> None:
    response = response_of(JsonSchema({"$schema": f"http://json-schema.org/{draft}/schema#", **TUPLE}), matcher)
    assert response is not None
    assert takes(answers(response), '[1,"a"]')
    assert not takes(answers(response), '["a",1]')
    assert response.read('[1,"a"]') == [1, "a"]
    with pytest.raises(ValueError, match="does not fit"):
        response.read(json.dumps(["a", 1]))
