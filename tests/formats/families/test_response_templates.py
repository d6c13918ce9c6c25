"""Hugging Face's response templates converted into formats: what each shape reads, and what is refused."""

import copy
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from attacks.markup_values import TOOLS, elements
from cases import writer
from cases.canonical import Call, Turn
from cases.parsing_cases import run, splits
from fakes.response_templates import CODER, HARMONY, HERMES, PARIS, SHAPES, stated

from engine.formats.check.family_check import row_check
from engine.formats.families import Family
from engine.formats.families.detect import tables_of
from engine.formats.families.patterns import PatternError, literal, read_pattern
from engine.formats.families.response_template import format_of, given_template, template_in
from engine.formats.parsing import Parser
from engine.support.errors import FamilyError
from engine.types.events import fold
from engine.types.tools import Tool

LOOK = Tool(
    name="look",
    parameters={"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
)


@pytest.mark.parametrize("name", SHAPES)
def test_each_shape_reads_its_output_whole_and_in_pieces(name: str) -> None:
    """Reasoning, the answer and both calls, however the output is cut."""
    shape = SHAPES[name]
    format_ = format_of(shape.template)
    assert (format_.tools.shape if format_.tools else "channels") == shape.shape
    for chunks in splits(shape.output):
        found = fold(run(Parser(format_, tools=[LOOK]), chunks))
        assert found.reasoning == ("Because." if shape.thinks else "")
        assert found.content.strip() == ("It is so." if shape.says else "")
        assert [(call.name, call.error) for call in found.tool_calls] == [("look", None)] * 2
        assert [json.loads(call.arguments) for call in found.tool_calls] == [
            json.loads(PARIS),
            json.loads(shape.second),
        ]


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "channels"])
def test_each_shape_reads_what_is_written_in_it(name: str) -> None:
    """The turns that `families check` writes by a row come back."""
    format_ = format_of(SHAPES[name].template)
    found = row_check(Family(name="hermes", title="stated", verified="", format=format_), tables_of())
    assert [trial for trial in found.tried if trial.problem] == []
    assert len(found.tried) >= (2 if found.untried else 4)


def test_ids_are_kept() -> None:
    for name, ids in (("a list of calls", ["1", "2"]), ("ids in brackets", ["a1", "b2"])):
        found = fold(run(Parser(format_of(SHAPES[name].template), tools=[LOOK]), [SHAPES[name].output]))
        assert [call.id for call in found.tool_calls] == ids
    counted = SHAPES["counted calls"]
    found = fold(run(Parser(format_of(counted.template), tools=[LOOK]), [counted.output]))
    assert [call.id for call in found.tool_calls] == ["functions.look:0", "functions.look:1"]


def test_ends_of_the_vocabulary_are_no_marks() -> None:
    """A close that is an end token ends the turn."""
    call = {"open": "[CALLS]", "close": "</s>", "content": "json", "repeats": True}
    format_ = format_of(stated("<|bot|>", "</s>", tool_calls=call), ["</s>"])
    assert format_.stops == ("</s>",)
    assert format_.tools is not None
    assert format_.tools.section == ("[CALLS]", "")
    explicit = {"start_anchor": "<|bot|>", "fields": {"content": {"open": "<say>", "close": ["</say>", "</s>"]}}}
    found = format_of(explicit, ["</s>"])
    assert (found.content, found.stops) == (("<say>", "</say>"), ("</s>",))


THINKS = "fields.reasoning_content"


@pytest.mark.parametrize(
    ("opening", "output"),
    [
        ("^(?:<think>)?", "Why.</think>So."),
        ("^(?:<think>)?", "<think>Why.</think>So."),
        (r"\A<think>|^", "Why.</think>So."),
        ("^<think>", "<think>Why.</think>So."),
    ],
)
def test_a_pattern_bound_to_the_beginning_opens_there(opening: str, output: str) -> None:
    spec = changed(changed(HERMES, f"{THINKS}.open", None), f"{THINKS}.open_pattern", opening)
    found = fold(run(Parser(format_of(spec), tools=[LOOK]), [output]))
    assert (found.reasoning, found.content) == ("Why.", "So.")
    later = "So.\n<think>Why.</think>" if not opening.endswith(("?", "^")) else "</think>So.\n<think>Why.</think>"
    assert not fold(run(Parser(format_of(spec), tools=[LOOK]), [later])).reasoning


@pytest.mark.parametrize("repeats", [True, False])
def test_reasoning_that_repeats_may_stand_anywhere(repeats: bool) -> None:
    spec = changed(HERMES, f"{THINKS}.repeats", repeats)
    found = fold(run(Parser(format_of(spec), tools=[LOOK]), ["<think>A</think>So <think>B</think>on."]))
    assert found.reasoning == ("A\nB" if repeats else "A")
    assert ("think" in found.content) is not repeats


@pytest.mark.parametrize("name", ["an element for each argument", "arguments in tags", "pairs"])
def test_an_argument_in_markup_is_text_of_the_value_that_holds_it(name: str) -> None:
    """Also one of the value's own name; or the call has an error."""
    format_ = format_of(SHAPES[name].template)
    verdicts: list[bool] = []
    for text, filling in product(elements(format_.tools), ("{}", "see {} ok", "a\n{}\nb")):
        for given in ({"to": filling.format(text)}, {"to": filling.format(text), "n": 3}):
            output = writer.written(Turn("", (Call("trip", json.dumps(given)),)), format_)
            for cut in ([output], list(output)):
                calls = fold(run(Parser(format_, tools=TOOLS), cut)).tool_calls
                whole = [(call.name, json.loads(call.arguments)) for call in calls if not call.error]
                assert calls
                assert whole in ([], [("trip", given)]), (output, calls)
                verdicts.append(bool(whole))
    assert sum(verdicts) > len(verdicts) / 2


@pytest.mark.parametrize("marks", [("<|say|>", "<|/say|>"), ("<say>", "</say>"), ("[SAY]", "[/SAY]")])
@pytest.mark.parametrize("repeats", [True, False])
def test_an_answer_that_repeats_may_have_text_before_each_part(marks: tuple[str, str], repeats: bool) -> None:
    answer = {"open": marks[0], "close": marks[1], "repeats": repeats}
    format_ = format_of(changed(SHAPES["a list of calls"].template, "fields.content", answer))
    first, second = (f"{marks[0]}{text}{marks[1]}" for text in "AB")
    call = '<|do|>[{"tool": "look", "input": {}}]<|/do|>'
    for between in ("", "\n", call, "<|think|>So.<|/think|>", " x ", f" x {call}y "):
        found = {fold(run(Parser(format_, tools=[LOOK]), cut)).content for cut in splits(first + between + second)}
        assert len(found) == 1
        shown = "".join(found.pop().split())
        if repeats or "x" not in between:
            assert shown in ("AB", "AxB", "AxyB")
        else:
            assert marks[0] in shown


@pytest.mark.parametrize("value", ["true", "null", "3", '{"a": 1}'])
def test_a_value_without_a_parser_is_text(value: str) -> None:
    """Unless the tool's schema names another type."""
    spec = changed(CODER, f"{CALLS}.content_args.value_parser", None)
    output = CODER_CALL.replace("VALUE", value)
    found = fold(run(Parser(format_of(spec)), [output])).tool_calls[0]
    assert found.parsed() == {"other": value}
    typed = {"name": "look", "parameters": {"type": "object", "properties": {"other": {}, "n": {"type": "integer"}}}}
    found = fold(run(Parser(format_of(spec), tools=[typed]), [output.replace("other", "n")])).tool_calls[0]
    assert found.arguments == (f'{{"n": {value}}}' if value == "3" else found.arguments)


def changed(template: dict[str, Any], place: str, value: Any) -> dict[str, Any]:
    """A copy with one value set, or (None) taken away."""
    found = copy.deepcopy(template)
    *path, last = place.split(".")
    table = found
    for key in path:
        table = table[key]
    if value is None:
        del table[last]
    else:
        table[last] = value
    return found


CALLS = "fields.tool_calls"
CODER_CALL = "<tool_call>\n<function=look>\n<parameter=other>\nVALUE\n</parameter>\n</tool_call>"
REFUSED: list[tuple[Any, str]] = [
    ([], "is not an object"),
    ("text", "is not an object"),
    ({1: 2}, "is not a text"),
    (changed(HERMES, "version", 2), "version: 2 is not known"),
    (changed(HERMES, "start_anchor", None), "start_anchor: it is missing"),
    (changed(HERMES, "start_anchor", 3), "start_anchor: 3 must be a text"),
    (changed(HERMES, "fields", None), "fields: None is not an object"),
    (changed(HERMES, "fields", 7), "fields: 7 is not an object"),
    (changed(HERMES, "extra", 1), "there is no key 'extra'"),
    (changed(HERMES, "fields.mood", {"open": "a"}), "fields.mood: messages have no such field"),
    (changed(HERMES, "fields.thinking", {"open": "a", "close": "b"}), "second field for reasoning"),
    (changed(HERMES, "fields.reasoning_content.close", None), "it has no `close`"),
    (changed(HERMES, "fields.reasoning_content.open", None), "it has no `open`"),
    (changed(HERMES, "fields.reasoning_content.open", []), r"\[\] must be a text|a value of type list"),
    (changed(HERMES, "fields.reasoning_content.open", [1]), "must be a text"),
    (changed(HERMES, "fields.reasoning_content.open", "x" * 300), "a mark has 300 characters"),
    (changed(HERMES, "fields.reasoning_content.open", "</think>"), "'</think>' is its `open` too"),
    (changed(HERMES, "fields.reasoning_content.join", " and "), "' and ' would stand between parts"),
    (changed(changed(HERMES, f"{THINKS}.open", None), f"{THINKS}.open_pattern", "(?:<think>)?"), "may match nothing"),
    (changed(changed(HERMES, f"{CALLS}.open", None), f"{CALLS}.open_pattern", "^<tool_call>"), "binds it to the begin"),
    (changed(HERMES, "fields.content.content", "int"), "'int' makes no text"),
    (changed(HERMES, "fields.content.transform", {}), "only tool_calls may have one"),
    (changed(HERMES, "fields.content.opens", "x"), "there is no key 'opens'"),
    (changed(HERMES, "fields.content.content", {}), "is no content parser's name"),
    (changed(HERMES, f"{CALLS}.open", None), "all text would be calls"),
    (changed(HERMES, f"{CALLS}.open_pattern", "x"), "exclude each other"),
    (changed(HERMES, f"{CALLS}.repeats", "yes"), "must be true or false"),
    (changed(HERMES, f"{CALLS}.content", "kv-lines"), "'kv-lines' cannot be a call's content"),
    (changed(HERMES, f"{CALLS}.content", "pickle"), "'pickle' cannot be a call's content"),
    (changed(HERMES, f"{CALLS}.content_args", []), "is not an object"),
    (changed(HERMES, f"{CALLS}.content_args", {"unquoted_keys": True}), "content_args.unquoted_keys"),
    (changed(HERMES, f"{CALLS}.transform", {"function": {"name": "{content.name}"}}), '"name" and "arguments"'),
    (changed(HERMES, f"{CALLS}.transform", {"function": 3}), "transform.function: 3 is not an object"),
    (changed(HERMES, f"{CALLS}.transform", {"name": "a {x}", "arguments": "{y}"}), "not a placeholder"),
    (changed(HERMES, f"{CALLS}.transform.mode", "{content}"), "transform.mode"),
    (changed(CODER, f"{CALLS}.open_pattern", r"<f=(?P<other>\w+)>"), "must hold the group 'name' once"),
    (changed(CODER, f"{CALLS}.open_pattern", r"<f=(?P<name>(?P<id>\w+))>"), "holds another named group"),
    (changed(CODER, f"{CALLS}.open_pattern", r"<f.*=(?P<name>\w+)>"), "text that may vary"),
    (changed(CODER, f"{CALLS}.open_pattern", r"<(?:f|g|h)=(?P<name>\w+)>"), "several openings differ"),
    (changed(CODER, f"{CALLS}.open_pattern", r"(?i)<f=(?P<name>\w+)>"), "the flag"),
    (changed(CODER, f"{CALLS}.open_pattern", r"<f=(?P<name>\w+>"), "is not closed"),
    (changed(CODER, f"{CALLS}.open_pattern", r"<f=(?P<name>[\w+)>"), "is not closed"),
    (changed(CODER, f"{CALLS}.open_pattern", 5), "5 is not a text"),
    (changed(CODER, f"{CALLS}.content_args.merge_duplicates", True), "merge_duplicates"),
    (changed(CODER, f"{CALLS}.content_args.tag_pattern", None), "must hold the group 'key' once"),
    (changed(CODER, f"{CALLS}.content_args.value_parser", {"name": "int"}), "'int' is not read"),
    (changed(HARMONY, "start_anchor", "assistant:"), "is no marker and a role"),
    (changed(HARMONY, f"{CALLS}.content", "text"), "in channels a call has"),
    (changed(HARMONY, f"{CALLS}.open_pattern", r"<\|channel\|>(?P<name>\w+)<\|message\|>"), "names no recipient"),
]


@pytest.mark.parametrize(("template", "complaint"), REFUSED, ids=[complaint[:40] for _, complaint in REFUSED])
def test_what_cannot_be_expressed_is_refused_by_name(template: Any, complaint: str) -> None:
    with pytest.raises(FamilyError, match=complaint) as refused:
        format_of(template)
    assert "Leave response_template out" in str(refused.value)


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = {"a": value}
    return value


def cyclic() -> dict[str, Any]:
    table = copy.deepcopy(HERMES)
    table["fields"]["again"] = table
    return table


CATASTROPHIC = [
    "(a+)+$",
    "(?:a|aa)+$",
    r"(\w+\s?)*<x>",
    "(?:" * 900 + "a" + ")" * 900,
    "(?:a|b)" * 200,
    "(a?)" * 400,
    "a{1,100000}" * 100,
    "[" * 1_900,
    "(" * 1_900,
    "\\",
    "*a",
    "(?P<name>",
    "(?P<>x)",
    "a" * 100_000,
]


@pytest.mark.parametrize("pattern", CATASTROPHIC, ids=lambda pattern: pattern[:20])
def test_hostile_patterns_are_refused_quickly(pattern: str) -> None:
    """A pattern is read, never run: how it would match does not matter."""
    begun = time.perf_counter()
    for key in ("open", "close"):
        field = {"close": "</x>", "open": "<x>", "content": "text"}
        del field[key]
        template = stated("<|bot|>", "<|end|>", thinking={**field, f"{key}_pattern": pattern})
        with pytest.raises(FamilyError, match="response template"):
            format_of(template)
    with pytest.raises(FamilyError, match="response template"):
        format_of({**changed(HERMES, "start_anchor", None), "start_anchor_pattern": pattern})
    assert time.perf_counter() - begun < 1.0


@pytest.mark.parametrize(
    "template",
    [
        changed(HERMES, "defaults", nested(5_000)),
        changed(HERMES, f"{CALLS}.transform", nested(400)),
        cyclic(),
        changed(HERMES, "defaults", {str(number): number for number in range(100_000)}),
        changed(HERMES, "defaults", {"role": "x" * 10_000_000}),
        changed(HERMES, "fields.content.close", ["<|end|>"] * 100_000),
        changed(HERMES, "fields.content", HERMES),
        changed(HERMES, "fields.content", object()),
    ],
    ids=["deep", "deep transform", "cyclic", "wide", "long", "many marks", "a template inside", "an object"],
)
def test_hostile_templates_are_refused_quickly(template: Any) -> None:
    begun = time.perf_counter()
    with pytest.raises(FamilyError, match="response template"):
        format_of(template)
    assert time.perf_counter() - begun < 1.0


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"eos_token": "<|im_end|>", "response_template": HERMES}), encoding="utf-8")
    given = given_template(path)
    assert (given.spec, given.chosen) == (HERMES, True)
    assert str(path) in given.origin
    path.write_text(json.dumps(HERMES), encoding="utf-8")
    assert given_template(str(path)).spec == HERMES
    for text in ("{", "[]", "{}", "[" * 100_000, "\N{LATIN SMALL LETTER E WITH ACUTE}"):
        path.write_text(text, encoding="latin-1")
        with pytest.raises(FamilyError, match="is no JSON file with a response template"):
            given_template(path)
    with pytest.raises(FamilyError, match="cannot be read: No such file"):
        given_template(tmp_path / "none.json")
    assert template_in(b'{"response_template": null}') is None


def test_patterns_as_marks() -> None:
    def read(pattern: str) -> list[str | None]:
        return [literal(parts) for parts in read_pattern(pattern)]

    assert read(r"<\|a\|>\s*b\n") == ["<|a|>\nb\n"]
    assert read("a(?:b|c)d?") == ["abd", "ab", "acd", "ac"]
    assert read(r"[ ]x[|]\Z") == [" x|"]
    assert read(r"a.*?b") == [None]
    assert [part.kind for part in read_pattern(r"a(?P<x>\d+)(?P<y>.)(?=z)")[0]] == ["text", "counter", "group", "ahead"]
    with pytest.raises(PatternError, match="closes no group"):
        read_pattern("a)b")
