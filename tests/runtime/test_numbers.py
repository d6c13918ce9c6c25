"""Numbers under a JSON constraint end: whatever tokens a model prefers, and digits in texts are left alone."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import ChatTemplate, Engine, JsonSchema, Regex
from engine.runtime.guidance.matcher import Compiler, masks
from engine.runtime.guidance.numbers import Digits
from engine.testing import ByteVocab, ScriptedBackend

COMPILER = Compiler(ByteVocab())


def written(schema: Any, wishes: str, most: int = 120) -> str:
    """What a model writes that wants these characters, over and over, and else whatever is allowed."""
    grammar = json.dumps({"grammars": [{"json_schema": {**schema, "x-guidance": {"whitespace_flexible": False}}}]})
    matcher, text = COMPILER.compiled(grammar), b""
    for place in range(most):
        if matcher.is_over:
            break
        (row,) = masks([matcher])
        allowed = {byte for byte in range(256) if int(row[byte // 32]) >> (byte % 32) & 1}
        wanted = ord(wishes[place % len(wishes)])
        token = wanted if wanted in allowed else min(allowed, default=None)
        if token is None:
            break
        assert matcher.consume(token)
        text += bytes([token])
    return text.decode()


@given(st.text("0123456789.eE+-", min_size=1, max_size=8), st.sampled_from(["number", "integer"]))
def test_no_number_is_written_without_an_end(wishes: str, kind: str) -> None:
    text = written({"type": "array", "items": {"type": kind}, "minItems": 1, "maxItems": 1}, wishes)
    (value,) = json.loads(text)
    assert math.isfinite(value)
    assert len(text) <= 2 + 1 + 19 + 1 + 21 + 4


def test_digits_in_a_text_are_left_alone() -> None:
    assert written({"type": "array", "items": {"type": "string"}}, '["' + "7" * 200).count("7") > 90
    assert written({"type": "string", "pattern": "^[0-9]{30}$"}, '"' + "5" * 30) == '"' + "5" * 30 + '"'


def test_a_regular_expression_of_digits_is_held_as_it_is() -> None:
    with Engine.over(
        ScriptedBackend(["4" * 40], vocab=ByteVocab(["<|im_start|>", "<|im_end|>"])), ChatTemplate(None, family="qwen3")
    ) as llm:
        assert llm.chat("Hi", response_format=Regex("[0-9]{40}"), reasoning=False).parsed == "4" * 40


def test_what_a_model_writes_in_a_number_ends_through_the_whole_engine() -> None:
    wishes = '{"a": 1' + "1" * 100
    with Engine.over(
        ScriptedBackend([wishes], rewrite=True, vocab=ByteVocab(["<|im_start|>", "<|im_end|>"])),
        ChatTemplate(None, family="qwen3"),
    ) as llm:
        schema = JsonSchema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
        answer = llm.chat("Hi", response_format=schema, reasoning=False, max_tokens=200)
    assert answer.finish_reason == "stop"
    assert answer.parsed is not None
    assert str(answer.parsed["a"]).startswith("1" * 19)
    assert len(str(answer.parsed["a"])) <= 19


@pytest.mark.parametrize(
    ("text", "many"),
    [
        ("1" * 18, False), ("1" * 19, True), ("1" * 19 + ".", False), ("1." + "1" * 20, False), ("1." + "1" * 21, True),
        ("1e1", False),
        ("1e11", True), ("1E-11", True), ("1e", False), ("e" + "1" * 18, False), ("1" * 20 + ",", False),
        ("x" + "1" * 19, True),
    ],
)  # fmt: skip
def test_digits_are_counted_however_the_text_is_cut(text: str, many: bool) -> None:
    for cut in range(len(text) + 1):
        digits = Digits()
        digits.feed(text[:cut].encode())
        digits.feed(text[cut:].encode())
        assert digits.are_many is many, cut


@pytest.mark.parametrize("kind", ["time", "date-time", "duration"])
@pytest.mark.parametrize("wishes", ['"0', '"P1', '"2024-01-01T10:00:00.0', '"10:30:00.1', '"P99M9', '"PT7'])
def test_a_time_is_written_with_an_end(kind: str, wishes: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": kind}}, "required": ["a"]}
    backend = ScriptedBackend(
        ['{"a":' + wishes + wishes[-1] * 200], rewrite=True, vocab=ByteVocab(["<|im_start|>", "<|im_end|>"])
    )
    with Engine.over(backend, ChatTemplate(None, family="qwen3")) as llm:
        answer = llm.chat("Hi", response_format=JsonSchema(schema), reasoning=False, max_tokens=160, seed=3)
    assert answer.finish_reason == "stop", answer.content
    assert answer.parsed is not None, answer.parse_error
