"""Schemas and grammars that are made to do harm: each is refused by name, or held within bounds; others go on."""

import json
import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from engine import ChatTemplate, Engine
from engine.formats.grammar.json_schema import prepared
from engine.runtime.guidance import matcher as constraint_matcher
from engine.runtime.guidance import trial
from engine.runtime.guidance.matcher import Compiler, grammar_of, masks, refusal
from engine.runtime.guidance.trial import Verdict, refusals
from engine.runtime.guidance.vocabulary import Vocabulary
from engine.support.deadlines import finished_by
from engine.support.errors import RequestError
from engine.testing import ScriptedEngine
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.types.answer_formats import GBNF, Choice, JsonSchema, Lark, Regex

STRING = {"type": "string"}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


def endless() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "array"}
    schema["items"] = schema
    return schema


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no name")


HOSTILE: dict[str, Any] = {
    "too deep objects": JsonSchema(nested(5000)),
    "itself": JsonSchema(endless()),
    "many properties": JsonSchema({"type": "object", "properties": {f"p{n}": STRING for n in range(1500)}}),
    "far too many properties": JsonSchema({"type": "object", "properties": {f"p{n}": STRING for n in range(20_000)}}),
    "an enum far too large": JsonSchema({"enum": [f"value {n}" for n in range(60_000)]}),
    "an empty enum": JsonSchema({"enum": []}),
    "recursion without an end": JsonSchema({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
    "endless object": JsonSchema(
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}},
        }
    ),
    "a reference elsewhere": JsonSchema({"$ref": "https://example.com/schema.json"}),
    "counted repetition": JsonSchema({"type": "string", "pattern": "^(a{1,1000}){1,1000}$"}),
    "a look-ahead": JsonSchema({"type": "string", "pattern": "^(?=a)b"}),
    "a broken pattern": JsonSchema({"type": "string", "pattern": "("}),
    "exponential alternatives": JsonSchema({"type": "string", "pattern": "^(a|b)*a(a|b){40}$"}),
    "long strings": JsonSchema({"type": "string", "minLength": 1_000_000}),
    "many items": JsonSchema({"type": "array", "items": STRING, "minItems": 1_000_000}),
    "an impossible range": JsonSchema({"type": "integer", "minimum": 5, "maximum": 1}),
    "nothing": JsonSchema(False),
    "unions in unions": JsonSchema({"allOf": [{"anyOf": [{"minimum": n}, {"maximum": n}]} for n in range(24)]}),
    "not a schema": JsonSchema({"type": "strng"}),
    "keys that are no texts": JsonSchema({1: 2}),  # pyright: ignore[reportArgumentType]
    "values that are no JSON": JsonSchema({"const": Odd()}),
    "a number that Python does not print": JsonSchema({"type": "integer", "maximum": 10**5000}),
    "no number": JsonSchema({"type": "number", "maximum": math.nan}),
    "half a character": JsonSchema({"const": "\ud83d"}),
    "too many texts to choose": Choice([f"text {n}" for n in range(100_000)]),
    "an empty pattern": Regex(""),
    "a Lark grammar that is none": Lark("start: ("),
    "a Lark grammar without end": Lark('start: "a" start'),
    "a deep Lark grammar": Lark("start: " + "(" * 3000 + '"a"' + ")" * 3000),
    "a GBNF grammar without a root": GBNF('other ::= "a"'),
    "a GBNF grammar of nothing": GBNF("root ::="),
    "a GBNF grammar whose root is empty": GBNF('root ::= # later\nother ::= "a"'),
    "left recursion": GBNF('root ::= root "a" | "b"'),
}


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    vocab = ByteVocab(end=["<|im_end|>"])
    backend = ScriptedBackend(lambda _: "Once upon a time", vocab=vocab, rewrite=True, n_sequences=2)
    with Engine.over(backend, ChatTemplate(None, family="qwen3", control_tokens=vocab.control_tokens)) as engine:
        yield engine


@pytest.mark.filterwarnings("ignore:The pattern:engine.support.errors.EngineWarning")
@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_or_held_within_bounds(llm: Engine, name: str) -> None:
    began, refusal, completion = time.monotonic(), None, None
    try:
        completion = llm.chat("Hi", response_format=HOSTILE[name], max_tokens=60, reasoning=False, seed=1)
    except RequestError as error:
        refusal = str(error)
    if completion is None:
        assert refusal is not None
        assert 10 < len(refusal) < 1500, "a message that names what is wrong"
    else:
        assert completion.finish_reason in ("stop", "length")
        assert completion.parsed is not None or completion.parse_error
    assert time.monotonic() - began < 20
    assert llm.chat("Hi").content == "Once upon a time"


SLOW = Lark('start: P A\nP: "x "\nA: /(.*a.{14})/ & /(.*b.{13})/ & ~/(.*c.{15})/')  # compiles for two minutes


def test_a_short_grammar_that_compiles_for_minutes_is_refused_within_the_deadline(llm: Engine) -> None:
    began = time.monotonic()
    with pytest.raises(RequestError, match="could not be compiled in time"):
        llm.chat("Hi", response_format=SLOW, reasoning=False, deadline=1.0)
    assert time.monotonic() - began < 6
    assert llm.chat("Hi", response_format=Choice(["fine"]), reasoning=False).parsed == "fine"


def test_slow_grammars_do_not_hold_up_others(llm: Engine) -> None:
    def slow(number: int) -> None:
        with pytest.raises(RequestError):
            llm.chat("Hi", response_format=Lark(SLOW.grammar + f"\n// {number}"), reasoning=False, deadline=3.0)

    threads = [threading.Thread(target=slow, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    assert llm.chat("Hi", response_format=Choice(["quick"]), reasoning=False).parsed == "quick"
    assert time.monotonic() - began < 3
    for thread in threads:
        thread.join()


def test_one_child_serves_all_trials_until_one_is_too_slow() -> None:
    child = _process()
    assert refusals([_lark('start: "one"'), _lark("start: (")])[0] is None
    assert _process() == child
    with pytest.raises(RequestError), finished_by(time.monotonic() + 0.3):
        refusals([_lark(SLOW.grammar)])
    assert _process() != child


def _process() -> int:
    assert refusals([_lark(f'start: "{time.monotonic()}"')]) == [None]
    return trial._idle[-1].child.process.pid  # pyright: ignore[reportPrivateUsage]


def _lark(grammar: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": grammar}]})


def test_without_a_child_constraints_work_all_the_same(llm: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_idle", deque[object]())
    monkeypatch.setattr("sys.executable", "")
    assert llm.chat("Hi", response_format=Choice(["alone"]), reasoning=False).parsed == "alone"
    with pytest.raises(RequestError, match="cannot be enforced"):
        llm.chat("Hi", response_format=Lark("start: (  "), reasoning=False)


@pytest.mark.parametrize("grammar", ['start: P A\nP: "x "\nA: /a/ & /b/', "start: P P A\nP: /[xyz]/\nA: /a+/ & /b+/"])
def test_a_grammar_that_cannot_go_on_is_an_error(llm: Engine, grammar: str) -> None:
    with pytest.raises(RequestError, match="cannot be"):
        llm.chat("Hi", response_format=Lark(grammar), reasoning=False, seed=1)
    assert llm.chat("Hi").content == "Once upon a time"


def test_a_grammar_that_slows_down_with_each_token_ends_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint_matcher, "_SLOW", 0.005)  # a tenth, so that it is reached at once
    vocab = ByteVocab(end=["<|im_end|>"])
    matcher = Compiler(vocab).compiled(_lark("start: s\ns: s s | s s s | s s s s | A\nA: /[a-z ]/"))

    def go_on() -> None:
        for _ in range(1000):
            masks([matcher])
            matcher.check()
            assert matcher.consume(vocab.tokenize("a", special=False)[0])

    with pytest.raises(RequestError, match=r"so ambiguous|Too many items"):
        go_on()


@pytest.mark.parametrize("count", [1_000, 10_000])
def test_as_many_choices_as_promised(llm: Engine, count: int) -> None:
    options = [f"option number {number:05d} abcdef" for number in range(count)]
    completion = llm.chat("Hi", response_format=Choice(options), reasoning=False, seed=3)
    assert completion.parsed in options


def test_control_tokens_of_any_number_may_stand_in_a_grammar() -> None:
    vocab = ByteVocab([*(f"<|pad{n}|>" for n in range(1000)), "<think>", "</think>"], end=["<|im_end|>"])
    backend = ScriptedBackend(lambda _: "<think>\nWell\n</think>\n\nb", vocab=vocab, rewrite=True)
    with Engine.over(backend, ChatTemplate(None, family="qwen3", control_tokens=vocab.control_tokens)) as engine:
        completion = engine.chat("Hi", response_format=Choice(["a", "b"]))
        assert (completion.reasoning, completion.parsed) == ("Well", "b")
        named = Lark('start: "a" <|pad999|>')
        assert engine.complete("Hi", response_format=named).finish_reason == "stop"


def test_the_innermost_culprit_of_a_large_schema_is_found_at_once(llm: Engine) -> None:
    members: dict[str, Any] = {f"p{n}": {**STRING, "maxLength": n} for n in range(90)}
    members["p50"] = {"type": "object", "properties": {"deep": {"$ref": "#/$defs/none"}}}
    orders: list[int] = []
    usual = trial._tried  # pyright: ignore[reportPrivateUsage]

    def counted(grammars: list[str], vocabulary: Vocabulary) -> list[Verdict]:
        orders.append(len(grammars))
        return usual(grammars, vocabulary)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial, "_tried", counted)
        with pytest.raises(RequestError, match=r"p50\.properties\.deep"):
            prepared({"type": "object", "properties": members}, refusal, "It", close=False)
    assert len(orders) <= 5


def test_a_neighbour_goes_on_beside_hostile_schemas() -> None:
    """Compiling takes place outside the loop and outside Python's lock."""
    vocab = ByteVocab(end=["<|im_end|>"])
    backend = ScriptedBackend(lambda _: "a" * 4000, vocab=vocab, rewrite=True, n_sequences=2, n_ctx=8000, delay=0.0005)
    template = ChatTemplate(None, family="qwen3", control_tokens=vocab.control_tokens)
    with Engine.over(backend, template) as engine:
        gaps: list[float] = []

        def read() -> None:
            last = time.perf_counter()
            for _ in engine.stream("Tell me", repetition_limit=0):
                now = time.perf_counter()
                gaps.append(now - last)
                last = now

        reader = threading.Thread(target=read)
        reader.start()
        for size in (1498, 1499, 1500):
            schema = JsonSchema({"type": "object", "properties": {f"p{n}": STRING for n in range(size)}})
            engine.chat("Hi", response_format=schema, max_tokens=20, reasoning=False)
        reader.join()
        assert len(gaps) > 1000
        assert max(gaps) < 1.0


@pytest.mark.parametrize("grammar", ["root ::=", "root ::= \n", 'root ::= # later\nother ::= "a"'])
def test_a_grammar_of_nothing_is_refused(grammar: str) -> None:
    with pytest.raises(RequestError, match="`root` is empty"):
        grammar_of(GBNF(grammar))


def test_a_root_on_the_next_line_is_read() -> None:
    assert grammar_of(GBNF('root ::=\n  "a" | other\nother ::= "b"'))


@pytest.mark.parametrize(
    "pattern", [r"^(?=.*\d)\w+$", r"^(?!a)b", r"(?<=a)b", r"(?<!a)b", r"^(a)\1$", r"^(?P<x>a)(?P=x)$"]
)
def test_patterns_that_nothing_checks_are_refused_with_their_place(pattern: str) -> None:
    engine = ScriptedEngine(["{}"])
    inner = {"type": "object", "properties": {"b": {"type": "string", "pattern": pattern}}}
    schema = {"type": "object", "properties": {"a": inner}}
    place = r"\$\.properties\.a\.properties\.b\.pattern"
    with engine, pytest.raises(RequestError, match=place):
        engine.chat("Hi", response_format=JsonSchema(schema))


def test_a_pattern_of_unicode_classes_holds_an_answer_and_a_call() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": r"^\p{Lu}\p{L}+$"}},
        "required": ["a"],
    }
    with ScriptedEngine(['{"a": "Åse"}', '{"a": "åse"}']) as engine:
        assert engine.chat("Hi", response_format=JsonSchema(schema)).parsed == {"a": "Åse"}
    tool = {"name": "f", "parameters": schema}
    with ScriptedEngine(["{}"]) as engine:
        assert engine.explain("Hi", tools=[tool], tool_choice="required").constraint is not None
