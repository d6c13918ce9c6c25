"""Patterns and grammars that explode are refused within the deadline, in the memory of a child; others go on.

What is tried is what is then done, over the model's own tokens, with the grammar that the others of a turn hold.
"""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import APITimeoutError, BadRequestError

from engine import Engine
from engine.openai import OpenAI
from engine.runtime.guidance import matcher
from engine.runtime.guidance.guide import check_constraint
from engine.runtime.guidance.matcher import Compiler, check
from engine.runtime.guidance.vocabulary import Vocabulary
from engine.support.errors import RequestError
from engine.support.limits import resident_bytes
from engine.support.repetitions import MOST_REPETITIONS, most_repetitions
from engine.testing.scripted import ByteVocab
from engine.types.answer_formats import GBNF, JsonSchema, Lark, Regex
from engine.types.constraint import Constraint, TurnGrammar

DEADLINE = 2.0
SLACK = 10.0
"""What a busy machine may add, in seconds. Without the defence these take minutes."""
MIB = 1 << 20
INTERSECTION = "/(.*a.{16})/ & /(.*b.{15})/ & ~/(.*c.{17})/"
CUBES = "((x{300}){300}){300}"
EXPLODING: dict[str, Any] = {
    "cubes": Regex(CUBES),
    "cubes behind letters": Regex(f"[a-z]{{3}}{CUBES}"),
    "cubes in quotes": Regex(f'"{CUBES}"'),
    "squares": Regex("(x{3000}){300}"),
    "a long text": Regex("x{999999}"),
    "states": Lark(f'start: P A\nP: "x "\nA: {INTERSECTION}'),
    "states behind letters": Lark(f"start: /[a-z]{{5}}/ A\nA: {INTERSECTION}"),
    "names": Lark('start: A\nA: B{300}\nB: C{300}\nC: "x"{300}'),
    "GBNF": GBNF('root ::= (("x"{300}){300}){300}'),
    "a pattern of a schema": JsonSchema({"type": "string", "pattern": f"^{CUBES}$"}),
}
AMBIGUOUS = Lark("start: s\ns: s s | s s s | s s s s | A\nA: /[a-z ]/")
"""It costs more with each token, so a quick machine may hold it in time."""


@pytest.fixture(scope="module", params=[False, True], ids=["here", "isolated"])
def llm(request: pytest.FixtureRequest, builtin_model_path: Path) -> Iterator[Engine]:
    with Engine.load(builtin_model_path, n_ctx=2048, n_sequences=4, n_threads=1, isolated=request.param) as engine:
        engine.chat("Hi", response_format=Regex("[a-z]{3}"), reasoning=False)
        yield engine


@pytest.mark.parametrize("name", EXPLODING)
def test_it_is_refused_within_the_deadline(llm: Engine, name: str) -> None:
    before, began = resident_bytes(), time.monotonic()
    with pytest.raises(RequestError, match=r"compiled in time|MiB to compile|up to [\d,]+ times"):
        llm.chat("Hi", response_format=EXPLODING[name], deadline=DEADLINE)
    assert time.monotonic() - began < DEADLINE + SLACK
    assert resident_bytes() - before < 64 * MIB
    assert llm.chat("Hi", response_format=Regex("[a-z]{3}"), reasoning=False).finish_reason == "stop"


def test_what_costs_more_with_each_token_is_refused_or_answered_in_time(llm: Engine) -> None:
    before, began = resident_bytes(), time.monotonic()
    with contextlib.suppress(RequestError):
        llm.chat("Hi", response_format=AMBIGUOUS, deadline=DEADLINE)
    assert time.monotonic() - began < DEADLINE + SLACK
    assert resident_bytes() - before < 64 * MIB


def test_others_go_on_meanwhile(llm: Engine) -> None:
    """Trials take half of the deadline, 7 seconds: so long would those wait who stood behind them."""

    def explode(name: str) -> None:
        with pytest.raises(RequestError):
            llm.chat("Hi", response_format=EXPLODING[name], deadline=14)

    threads = [threading.Thread(target=explode, args=(name,)) for name in ("squares", "states behind letters", "names")]
    for thread in threads:
        thread.start()
    longest = 0.0
    while any(thread.is_alive() for thread in threads):
        began = time.monotonic()
        llm.chat("Hi", max_tokens=4)
        longest = max(longest, time.monotonic() - began)
    assert 0 < longest < 5


def tool(pattern: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    return {"type": "function", "function": {"name": "f", "parameters": schema, "strict": True}}


BODIES: dict[str, dict[str, Any]] = {
    "guided_regex": {"extra_body": {"guided_regex": CUBES}},
    "guided_regex, no nesting": {"extra_body": {"guided_regex": "(x{3000}){300}"}},
    "guided_grammar": {"extra_body": {"guided_grammar": 'root ::= (("x"{300}){300}){300}'}},
    "a demanded call": {"tools": [tool(f"^{CUBES}$")], "tool_choice": "required"},
    "a strict tool": {"tools": [tool("^(x{3000}){600}$")]},
}


@pytest.mark.filterwarnings("ignore:The pattern:engine.support.errors.EngineWarning")
@pytest.mark.parametrize("name", BODIES)
def test_nor_does_it_pass_through_the_client(llm: Engine, name: str) -> None:
    with OpenAI(llm, timeout=DEADLINE) as client:
        before, began = resident_bytes(), time.monotonic()
        with pytest.raises((BadRequestError, APITimeoutError)):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Hi"}], **BODIES[name])
        assert time.monotonic() - began < DEADLINE + SLACK
        assert resident_bytes() - before < 64 * MIB


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("(x{3}){3}", 9),
        ("a{1,1000}", 1000),
        ("a{5,}", 5),
        ("x{5}{6}", 30),
        ("[(]{7}(a|b){2}", 7),
        (r"\(a{3}\){2}", 3),
        ("((a{2}|b{3}){4}c{5}){6}", 72),
        ('start: (a~3 | b ~ 4..5)~6\na: "x{99}"', 30),
        ("a{2}b{3}", 3),
        ("a {x: 1}", 1),
    ],
)
def test_repetitions_in_repetitions_are_multiplied(text: str, count: int) -> None:
    assert most_repetitions(text) == count


def test_as_many_repetitions_as_a_long_text_has_are_held(llm: Engine) -> None:
    assert most_repetitions("([a-z]{1,100} ){1,1000}") <= MOST_REPETITIONS
    answer = llm.chat("Hi", response_format=Regex("([a-z]{1,100} ){1,1000}"), max_tokens=20, reasoning=False)
    assert answer.finish_reason in ("stop", "length")


def test_a_trial_sees_what_the_first_mask_shows() -> None:
    """In a vocabulary with long tokens a mask looks far ahead."""
    tokens = [*(bytes([byte]) for byte in range(256)), *(b" " * count for count in range(2, 100)), b"<|end|>"]
    grammar = json.dumps({"grammars": [{"lark_grammar": AMBIGUOUS.grammar}]})
    with pytest.raises(RequestError, match="Too many items"):
        check([grammar], Vocabulary(tokens, [len(tokens) - 1], len(tokens) - 1))


def test_the_grammar_behind_reasoning_is_tried() -> None:
    """An answer that only begins after reasoning is not reached from the turn's beginning."""
    fine = '{"grammars": [{"lark_grammar": "start: /a/"}]}'
    wrong = '{"grammars": [{"lark_grammar": "start: /a/ & /b/"}]}'
    vocabulary = Vocabulary.of(ByteVocab())
    constraint = Constraint(TurnGrammar(opening=fine, closed=fine))
    assert len(check_constraint(constraint, vocabulary).sizes) == 2
    with pytest.raises(RequestError):
        check_constraint(Constraint(TurnGrammar(opening=fine, closed=wrong)), vocabulary)


def test_compiled_grammars_are_kept_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher, "MOST_BYTES", 10 * MIB)
    compiler = Compiler(ByteVocab())
    for number in range(8):
        compiler.compiled(f'{{"grammars": [{{"lark_grammar": "start: /a{{{number}}}b/"}}]}}', 4 * MIB)
    assert len(compiler._kept) == 2  # pyright: ignore[reportPrivateUsage]
