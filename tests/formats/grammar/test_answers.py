"""`response_format` and `tool_choice` on the built-in model and on scripts, from the face: what comes back, and when
the constraint sleeps. Several of these are named for what users of other stacks report."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from engine import ChatTemplate, Completion, ContentDelta, Engine, RequestError
from engine.formats.grammar.lark import GrammarText
from engine.formats.grammar.nodes import JsonText
from engine.formats.grammar.response import response_of
from engine.runtime.guidance import matcher
from engine.runtime.guidance.matcher import Compiler
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.tools import as_tool
from engine.types.answer_formats import GBNF, Choice, JsonSchema, Lark, Regex, ResponseFormat
from engine.types.tools import AllowedTools, ToolName


class City(BaseModel):
    name: str = Field(max_length=12)
    population: int = Field(ge=0, le=99)


@dataclass
class Point:
    x: Annotated[int, Field(ge=0, le=99)]
    y: Annotated[int, Field(ge=0, le=99)]


class Row(TypedDict):
    a: Literal["x", "y"]


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"sunny in {city}"


def multiply(a: Annotated[int, Field(ge=0, le=999)], b: Annotated[int, Field(ge=0, le=999)]) -> int:
    """Multiply two numbers."""
    return a * b


@pytest.fixture(scope="module")
def llm() -> Iterator[Engine]:
    with Engine.load(n_ctx=4096, n_sequences=4) as engine:
        yield engine


def scripted(reply: str, family: str = "qwen3", then: str | None = None, **options: Any) -> Engine:
    control = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>"]
    if family == "gpt-oss":
        control = list(ChatTemplate(None, family=family).format.control)
    vocab = ByteVocab(control, end=["<|im_end|>"])
    template = ChatTemplate(None, family=family, control_tokens=vocab.control_tokens)
    replies = [reply, *[reply if then is None else then] * 50]
    return Engine.over(ScriptedBackend(replies, vocab=vocab, rewrite=True, **options), template)


ANSWERS: list[tuple[Any, Callable[[Any], bool]]] = [
    (City, lambda value: isinstance(value, City)),
    (Point, lambda value: isinstance(value, Point)),
    (Row, lambda value: value["a"] in "xy"),
    (Literal["red", "green"], lambda value: value in ("red", "green")),
    (JsonSchema({"enum": [1, None, "a"]}), lambda value: value in (1, None, "a")),
    (Choice(["yes", "no"]), lambda value: value.strip() in ("yes", "no")),
    (Regex(r"[a-f]{3}-\d{2}"), lambda value: len(value) == 6),
    (Lark('start: "left" | "right"'), lambda value: value in ("left", "right")),
    (GBNF('root ::= "a" [0-9]'), lambda value: value[0] == "a"),
    ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": 7}}}, lambda value: value == 7),
    (ResponseFormat(type="json_schema", json_schema={"type": "boolean"}), lambda value: value in (True, False)),
]


@pytest.mark.parametrize(
    ("wanted", "fits"), ANSWERS, ids=lambda value: getattr(value, "__name__", type(value).__name__)
)
@pytest.mark.parametrize("reasoning", [None, False])
def test_the_answer_is_what_was_asked_for(llm: Engine, wanted: Any, fits: Any, reasoning: bool | None) -> None:
    completion = llm.chat("Who are you?", response_format=wanted, reasoning=reasoning, seed=7, max_tokens=300)
    assert completion.finish_reason == "stop"
    assert completion.parse_error is None
    assert completion.parsed is not None or completion.content.strip() == "null"
    assert completion.parsed is None or fits(completion.parsed)
    assert bool(completion.reasoning) == (reasoning is None)


def test_a_required_tool_that_the_model_would_not_choose_is_called(llm: Engine) -> None:
    assert not llm.chat("Hello!", [get_weather, multiply], temperature=0).tool_calls
    for choice in ("required", ToolName(name="multiply"), AllowedTools(names=("multiply",))):
        completion = llm.chat("Hello!", [get_weather, multiply], temperature=0, tool_choice=choice, max_tokens=300)
        assert completion.finish_reason == "tool_calls"
        assert all(call.error is None for call in completion.tool_calls)
        assert completion.reasoning
        if choice != "required":
            assert {call.name for call in completion.tool_calls} == {"multiply"}


def test_tools_and_a_schema_at_once(llm: Engine) -> None:
    """A call, or an answer of the schema."""
    called = llm.chat("What is 3 times 4?", [multiply], response_format=City, temperature=0, max_tokens=300)
    assert called.tool_calls or isinstance(called.parsed, City)
    assert called.parsed is not None or called.parse_error == "The model called tools instead of giving an answer."


def test_a_run_ends_with_the_schema() -> None:
    call = '<tool_call>\n{"name": "multiply", "arguments": {"a": 3, "b": 4}}\n</tool_call>'
    answer = '{"name": "Oslo", "population": 7}'
    with scripted(call, then=answer) as engine:
        run = engine.run("What is 3 times 4?", [multiply], response_format=City, reasoning=False)
    assert run.completion.parsed == City(name="Oslo", population=7)
    assert [message.content for message in run.messages if message.role == "tool"] == ["12"]


def test_every_way_of_generating_takes_it(llm: Engine) -> None:
    wanted: Any = {"response_format": Choice(["yes", "no"]), "max_tokens": 200, "seed": 3}
    every: list[Completion] = [
        *(stream.result() for stream in llm.choices("Well?", 2, **wanted)),
        *llm.generate(["One?", "Two?"], **wanted),
        llm.stream("Well?", **wanted).result(),
        llm.complete("The answer is", **wanted),
    ]
    assert {completion.parsed for completion in every} <= {"yes", "no"}


def test_isolated_too() -> None:
    with Engine.load(n_ctx=1024, isolated=True) as engine:
        assert isinstance(engine.chat("Hi", response_format=City, max_tokens=200, seed=1).parsed, City)
        with pytest.raises(RequestError, match="cannot be enforced"):
            engine.chat("Hi", response_format=Lark("start: ("))


def test_strict_tools_hold_a_call_that_went_wrong() -> None:
    bad = '<tool_call>\n{"name": "multply", "arguments": {"a": "x"}}\n</tool_call>'
    with scripted(bad) as engine:
        free = engine.chat("Go", [multiply], seed=1)
        held = engine.chat("Go", [multiply], seed=1, strict_tools=True)
    assert free.tool_calls[0].error == "unknown_tool"
    assert (held.tool_calls[0].name, held.tool_calls[0].error) == ("multiply", None)


def test_a_strict_tool_holds_its_calls_alone() -> None:
    bad = '<tool_call>\n{"name": "multiply", "arguments": {"a": "x", "b": 2}}\n</tool_call>'
    strict = as_tool(multiply).model_copy(update={"strict": True})
    with scripted(bad) as engine:
        assert engine.chat("Go", [multiply], seed=1).tool_calls[0].error == "invalid_arguments"
        assert engine.chat("Go", [strict], seed=1).tool_calls[0].error is None


def test_no_second_call_where_calls_are_not_parallel() -> None:
    call = '<tool_call>\n{"name": "multiply", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    with scripted(f"{call}\n{call.replace('1', '3')}") as engine:
        for parallel in (True, False):
            for choice in ("required", ToolName(name="multiply")):
                completion = engine.chat(
                    "Go", [multiply], tool_choice=choice, parallel_tool_calls=parallel, reasoning=False, seed=1
                )
                assert len(completion.tool_calls) == 1 + parallel


def test_only_the_allowed_tools_are_called() -> None:
    call = '<tool_call>\n{"name": "multiply", "arguments": {"a": 1, "b": 2}}\n</tool_call>'
    with scripted(call) as engine:
        tools = [multiply, get_weather]
        assert engine.chat("Go", tools, tool_choice="required", seed=1).tool_calls[0].name == "multiply"
        for mode in ("auto", "required"):
            choice = AllowedTools(names=("get_weather",), mode=mode)
            completion = engine.chat(
                "Go", tools, tool_choice=choice, parallel_tool_calls=False, reasoning=False, seed=1, max_tokens=300
            )
            assert [each.name for each in completion.tool_calls] == ["get_weather"]


def test_the_reserve_is_half_of_max_tokens_at_most() -> None:
    with scripted("<think>\n" + "and so on " * 500) as engine:
        completion = engine.chat("Go", response_format=Choice(["no", "maybe"]), max_tokens=100, seed=1)
    assert completion.parsed in ("no", "maybe")
    assert 30 < len(completion.reasoning) < 60


def test_strict_tools_leave_prose_alone() -> None:
    with scripted("I write <b>and</b> {}") as engine:
        assert engine.chat("Go", [multiply], strict_tools=True).content == "I write <b>and</b> {}"


def test_the_reasoning_may_say_anything() -> None:
    thought = 'Maybe <tool_call> or {"a": 1}, or "yes"?'
    with scripted(f"<think>\n{thought}\n</think>\n\nno way") as engine:
        completion = engine.chat("Go", response_format=Choice(["no", "maybe"]), seed=1)
    assert (completion.reasoning, completion.parsed) == (thought, "no")


def test_reasoning_that_never_closes_leaves_room_for_the_call() -> None:
    with scripted("<think>\n" + "and so on " * 500) as engine:
        completion = engine.chat(
            "Go",
            [multiply],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=600,
            answer_reserve=200,
            seed=1,
        )
    assert completion.finish_reason == "tool_calls"
    assert completion.tool_calls[0].error is None
    assert 350 < len(completion.reasoning) < 450


def test_end_reasoning_wakes_the_constraint() -> None:
    with scripted("<think>\n" + "and so on " * 2000, delay=0.001, n_ctx=30_000) as engine:
        stream = engine.stream("Go", response_format=Choice(["no", "maybe"]), seed=1)
        events = iter(stream)
        for _ in range(5):
            next(events)
        stream.end_reasoning()
        assert stream.result(20).parsed in ("no", "maybe")


def test_a_turn_that_ends_while_it_reasons_answers_all_the_same() -> None:
    with scripted("<think>\nWell, that is") as engine:
        completion = engine.chat("Go", response_format=Choice(["no", "maybe"]), seed=1)
    assert completion.reasoning == "Well, that is"
    assert completion.parsed in ("no", "maybe")


def test_required_never_ends_in_prose() -> None:
    with scripted("I would rather not call anything.") as engine:
        for seed in range(5):
            completion = engine.chat(
                "Go", [multiply], tool_choice="required", parallel_tool_calls=False, reasoning=False, seed=seed
            )
            assert completion.tool_calls
            assert not completion.content.strip()


def test_gpt_oss_answers_in_its_final_channel() -> None:
    # The first token is forced: every message begins so.
    reply = "analysis<|message|>I think so.<|end|><|start|>assistant<|channel|>analysis<|message|>{"
    with scripted(reply, "gpt-oss") as engine:
        completion = engine.chat("Go", response_format=Choice(["yes", "no"]), seed=1)
    assert completion.parsed in ("yes", "no")
    assert completion.reasoning == "I think so."


def test_no_white_space_without_end() -> None:
    with scripted('{"name":' + " " * 3000) as engine:
        completion = engine.chat("Go", response_format=City, reasoning=False, seed=1, max_tokens=2000)
    assert "  " * 60 not in completion.content


def test_an_answer_that_is_cut_off_says_so() -> None:
    with scripted("") as engine:
        completion = engine.chat("Go", response_format=City, reasoning=False, max_tokens=5, seed=1)
    assert (completion.finish_reason, completion.parsed) == ("length", None)
    assert completion.parse_error == "The answer is incomplete: the turn ended with 'length'."


def test_what_the_grammar_cannot_hold_is_checked_afterwards() -> None:
    schema = {
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 1},
        "maxItems": 6,
        "uniqueItems": True,
    }
    with scripted("") as engine:
        every = [engine.chat("Go", response_format=JsonSchema(schema), reasoning=False, seed=n) for n in range(40)]
    wrong = [completion for completion in every if completion.parsed is None and completion.finish_reason == "stop"]
    assert wrong
    assert all(len(completion.parsed) == len(set(completion.parsed)) for completion in every if completion.parsed)
    assert "non-unique" in (wrong[0].parse_error or "")


def test_a_prefill_is_taken_in_first() -> None:
    messages = [{"role": "user", "content": "Go"}, {"role": "assistant", "content": "ye"}]
    with scripted("") as engine:
        completion = engine.chat(messages, continue_final_message=True, response_format=Choice(["yes", "no"]), seed=1)
        assert completion.content == "s"
        with pytest.raises(RequestError, match="the beginning of the answer"):
            engine.chat(messages, continue_final_message=True, response_format=Choice(["no"]), seed=1)


def test_the_object_so_far() -> None:
    with scripted('{"name": "Oslo", "population": 7}', delay=0.005) as engine:
        stream = engine.stream("Go", response_format=City, reasoning=False)
        seen: list[Any] = [stream.partial for event in stream if isinstance(event, ContentDelta)]
    assert {"name": "Oslo"} in seen
    assert stream.completion.parsed == City(name="Oslo", population=7)


def test_stop_strings_end_an_answer() -> None:
    with scripted('{"name": "Oslo STOP", "population": 7}') as engine:
        completion = engine.chat("Go", response_format=City, reasoning=False, stop=["STOP"])
        assert (completion.content, completion.parsed) == ('{"name": "Oslo ', None)
        assert completion.parse_error


def test_a_processor_that_forbids_everything_allowed_fails_by_name(llm: Engine) -> None:
    tokens = [token for text in ("yes", "no", "y", "n") for token in llm.tokenize(text)]

    def forbid(_: Sequence[int], logits: Any) -> None:
        logits[tokens] = -float("inf")

    with pytest.raises(RequestError, match="logits processor forbids every token"):
        llm.complete("Well:", response_format=Regex("(y|n)"), logits_processors=[forbid])
    assert llm.complete("Well:", response_format=Regex("(y|n)")).parsed in ("y", "n")


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"type": "json"}, "for a JSON Schema write JsonSchema"),
        ("json", "has no JSON Schema"),
        (7, "has no JSON Schema"),
        (JsonSchema({"$ref": "#/nowhere"}), "does not exist"),
        (Choice([]), "one or more texts"),
        (ContentDelta, "JSON"),
    ],
)
def test_what_is_no_format_is_refused(llm: Engine, wanted: Any, says: str) -> None:
    if wanted is ContentDelta:
        assert llm.chat("Hi", response_format=wanted, max_tokens=200, seed=1).finish_reason in ("stop", "length")
        return
    with pytest.raises(RequestError, match=says):
        llm.chat("Hi", response_format=wanted)


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        ("any", "is not valid; use"),
        ({"type": "function"}, "is not valid; use"),
        (ToolName(name="divide"), "names 'divide'"),
        ({"type": "function", "function": {"name": "divide"}}, "names 'divide'"),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}, "is not valid; use"),
    ],
)
def test_what_is_no_choice_is_refused(llm: Engine, choice: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        llm.chat("Hi", [multiply], tool_choice=choice)


def one_line(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


LARGE = "x" * 9000


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("", {'{"a": 1, "b": [2]}', '{"a":1,"b":[2]}'}),
        (LARGE, {f'{{"a":{one}1,{two}"b":{three}[2]}}' for one, two, three in product(("", " "), repeat=3)}),
    ],
)
def test_json_on_one_line_has_no_more_than_a_blank_between_its_parts(told: str, expected: set[str]) -> None:
    """All of them or none, as the first one is; not so in large schemas, which would take twice as long."""
    schema = one_line(a={"enum": [1]}, b={"enum": [[2]]}) | {"description": told}
    with scripted('{\n  "a" : 1,\n  "b": 2}') as engine:
        every = {
            engine.chat(
                "Go", response_format=JsonSchema(schema), json_layout="compact", reasoning=False, seed=seed
            ).content
            for seed in range(50)
        }
    assert every == expected


@pytest.mark.parametrize("blank", ["", " "])
def test_behind_the_first_colon_what_must_follow_is_written_at_once(blank: str) -> None:
    compiler = Compiler(ByteVocab())
    grammar = GrammarText(lambda text: [text]).text(JsonText(one_line(a={"enum": [1]}, b={"enum": [[2]]})), {})
    place = compiler.compiled(grammar)
    assert bytes(compiler.table.bytes[token][0] for token in place.forced()) == b'{"a":'
    assert place.consume_text(f"{blank}1")
    assert bytes(compiler.table.bytes[token][0] for token in place.forced()) == f',{blank}"b":{blank}[2]}}'.encode()


def test_the_bound_of_llguidance_is_one_that_knows_the_separators() -> None:
    (bound,) = re.findall(r'"llguidance>=(\d+)\.(\d+)', (Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert (1, 8) <= tuple(map(int, bound)) <= tuple(map(int, version("llguidance").split(".")[:2]))


def test_a_rule_of_gbnf_may_be_named_start(llm: Engine) -> None:
    grammar = GBNF('root ::= start "-start" [start] # the start\nstart ::= "a" | "b"')
    parsed = llm.complete("Well:", response_format=grammar, seed=1).parsed
    assert parsed is not None
    assert re.fullmatch("[ab]-start[start]", parsed)


@pytest.mark.parametrize("options", [(text for text in "ab"), "yes", None, {}, ["a", ""], 7])
def test_what_is_no_list_of_texts_is_refused(llm: Engine, options: Any) -> None:
    with pytest.raises(RequestError, match="list of one or more texts"):
        llm.complete("Well:", response_format=Choice(options))


def test_tools_that_are_allowed_are_named() -> None:
    with pytest.raises(RequestError, match="names no tool"):
        AllowedTools(names=())


@pytest.mark.parametrize(
    ("wanted", "content", "fits"),
    [
        (Choice(["a", "b "]), "b ", "b "),
        (Choice(["a", "b "]), "b", None),
        (Choice(["a", "b "]), "ab", None),
        (Regex("[0-9]+"), "12", "12"),
        (Regex("[0-9]+"), "12 ", None),
        (Regex("a|ab"), "ab", "ab"),
        (Lark('start: "x" start | "y"'), "xxy", "xxy"),
        (Lark('start: "x" start | "y"'), "xx", None),
        (GBNF('root ::= "x" [0-9]'), "x1", "x1"),
        (GBNF('root ::= "x" [0-9]'), "", None),
    ],
)
def test_answers_that_are_no_json_are_checked_too(wanted: Any, content: str, fits: str | None) -> None:
    response = response_of(wanted, matcher)
    assert response is not None
    if fits is not None:
        assert response.read(content) == fits
        return
    with pytest.raises(ValueError, match=r"^The answer "):
        response.read(content)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"},
        {"type": "array", "items": {"type": "integer"}},
    ],
)
def test_a_plain_json_schema_is_one(schema: dict[str, Any]) -> None:
    assert response_of(schema, matcher) is not None
    for wrong in ({"type": "json"}, {"type": ["object"]}, {"a": 1}):
        with pytest.raises(RequestError, match=r"JsonSchema\(\{"):
            response_of(wrong, matcher)


def test_what_a_type_needs_is_worked_out_once() -> None:
    class Point(BaseModel):
        x: int

    first = response_of(Point, matcher)
    assert response_of(Point, matcher) is first
    assert response_of(list[Point], matcher) is response_of(list[Point], matcher), "written anew at each call"

    class Other(Point):
        y: int

    Other.__name__, Other.__qualname__ = Point.__name__, Point.__qualname__  # as a cell of a notebook, run again
    again = response_of(Other, matcher)
    assert again is not None
    assert again.schema is not None
    assert set(again.schema["properties"]) == {"x", "y"}
    no_hash = Annotated[int, ["a list has no hash"]]
    assert response_of(no_hash, matcher) is not None


def test_types_that_python_calls_equal_keep_their_own_schema() -> None:
    pairs = [(int | str, str | int), (list[int | str], list[str | int])]
    for one, other in pairs:
        assert one == other
        first, second = response_of(one, matcher), response_of(other, matcher)
        assert first is not None
        assert second is not None
        assert first.schema != second.schema
