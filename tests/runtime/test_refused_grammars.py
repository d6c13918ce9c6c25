"""What is said of a wrong pattern or grammar: the parser's reason, and the place in the text that was written."""

from typing import Any

import pytest

from engine import ChatTemplate, Engine, JsonSchema, Lark, Regex, RequestError
from engine.testing import ScriptedBackend

WRONG: list[tuple[Any, str]] = [
    (Regex("(ab"), "the pattern '(ab' is wrong at character 1: unclosed group. Correct it there."),
    (Regex(r"\d{4}-(\d{2}"), "is wrong at character 7: unclosed group. Correct it there."),
    (Regex("a{3,1}"), "is wrong at character 2: invalid repetition count range"),
    (Regex("[z-a]"), "is wrong at character 2: invalid character class range"),
    (Regex("(?<=a)b"), "is wrong at character 1: look-around, including look-ahead and look-behind, is not supported"),
    (Lark("start: A B\nA: /a/"), 'line 1, column 8: unknown name: "B". Correct it there.'),
    (Lark("start: A\nA: /a/ /b{3,1}/"), "the pattern 'b{3,1}' is wrong at character 2"),
    (Lark("start: 'x"), "line 1, column 8: lexer error. Correct it there."),
    (Lark(""), "no start rule found. Correct it there."),
]


@pytest.mark.parametrize(("given", "told"), WRONG, ids=lambda each: str(each)[:30])
def test_a_wrong_grammar_is_told_with_its_reason_and_place(given: Any, told: str) -> None:
    with (
        Engine.over(ScriptedBackend(["x"]), ChatTemplate(None, family="qwen3")) as llm,
        pytest.raises(RequestError) as error,
    ):
        llm.chat("x", response_format=given)
    assert told in str(error.value)
    assert "Simplify" not in str(error.value)


def test_a_schema_is_told_by_its_place() -> None:
    with (
        Engine.over(ScriptedBackend(["x"]), ChatTemplate(None, family="qwen3")) as llm,
        pytest.raises(RequestError, match=r"cannot be held at \$"),
    ):
        llm.chat("x", response_format=JsonSchema({"$ref": "#/$defs/x"}))
