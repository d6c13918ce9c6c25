"""Prose that a small model writes between the markers of an argument, and tags that say more than the template's: the
value is read, or the call is malformed; it never becomes a part of the value."""

import random
from typing import Any

import pytest
from attacks.markup_values import families
from attacks.slip import judged
from attacks.slips import prose_in_a_gap
from cases.canonical import Call, Turn
from cases.parsing_cases import families_where, run, splits
from cases.writer import call_id, written

from engine.formats.families import TaggedArgumentsSyntax, builtin_families
from engine.formats.parsing import Parser
from engine.types.completion import Completion
from engine.types.events import fold

TOOL: dict[str, Any] = {"name": "trip", "parameters": {"type": "object", "properties": {"to": {"type": "string"}}}}
PROSE = "that is it"
each_tagged = families_where(lambda format_: isinstance(format_.tools, TaggedArgumentsSyntax))


def _syntax(family: str) -> TaggedArgumentsSyntax:
    syntax = builtin_families().get(family).format.tools
    assert isinstance(syntax, TaggedArgumentsSyntax)
    return syntax


def _output(family: str) -> str:
    return written(Turn("", (Call("trip", '{"to": "Rome"}'),)), builtin_families().get(family).format)


def _read(family: str, chunks: list[str]) -> Completion:
    return fold(run(Parser(family, tools=[TOOL]), chunks))


@pytest.mark.parametrize("family", families())
def test_prose_in_any_gap_is_no_part_of_a_call_that_runs_and_is_kept(family: str) -> None:
    format_, chance = builtin_families().get(family).format, random.Random(family)
    for _ in range(40):
        slip = prose_in_a_gap(family, format_, chance)
        assert not judged(slip), (judged(slip), slip)


@pytest.mark.parametrize("key", ["max items", "Now: to"])
@families_where(lambda format_: format_.tools and format_.tools.shape in ("tagged_args", "dictionary", "nested"))
def test_a_key_of_several_words_is_read_where_the_schema_allows_any(family: str, key: str) -> None:
    for parameters, error in (({"additionalProperties": {"type": "string"}}, None), (TOOL["parameters"], "malformed")):
        tool = {"name": "trip", "parameters": {"type": "object", **parameters}}
        output = written(Turn("", (Call("trip", f'{{"{key}": "Rome"}}'),)), builtin_families().get(family).format)
        (call,) = fold(run(Parser(family, tools=[tool]), [output])).tool_calls
        assert call.error == error, output
        assert key in call.arguments


@each_tagged
def test_prose_behind_a_value_is_not_the_value(family: str) -> None:
    closing = _syntax(family).argument[1].strip()
    output = _output(family).replace(closing, f"{closing}\n{PROSE}\n")
    for chunks in splits(output):
        for call in _read(family, chunks).tool_calls:
            assert call.error == "malformed" or call.arguments == '{"to": "Rome"}', output


@families_where(lambda format_: isinstance(format_.tools, TaggedArgumentsSyntax) and format_.tools.value_open)
def test_prose_between_key_and_value_is_not_the_value(family: str) -> None:
    opening = _syntax(family).value_open.strip()
    output = _output(family).replace(opening, f"{PROSE}\n{opening}")
    for chunks in splits(output):
        (call,) = _read(family, chunks).tool_calls
        assert call.error == "malformed", output


@pytest.mark.parametrize("family", ["qwen3-coder", "minimax-m2", "seed-oss"])
def test_a_tag_with_attributes_names_its_parameter(family: str) -> None:
    end = '" ' if _syntax(family).key_end.startswith('"') else " "
    key_end = _syntax(family).key_end.strip()
    output = _output(family).replace(f"to{key_end}", f'to{end}type="string">')
    assert 'type="string"' in output
    for chunks in splits(output):
        (call,) = _read(family, chunks).tool_calls
        assert (call.arguments, call.error) == ('{"to": "Rome"}', None), output


def test_a_closing_tag_that_repeats_the_name_closes_its_value() -> None:
    output = _output("qwen3-coder").replace("</parameter>", "</parameter=to>")
    for chunks in splits(output):
        (call,) = _read("qwen3-coder", chunks).tool_calls
        assert (call.arguments, call.error) == ('{"to": "Rome"}', None)


@families_where(lambda format_: format_.tools and format_.tools.parallel)
def test_an_id_names_one_call(family: str) -> None:
    """A family that writes ids, and a model that writes the first one twice."""
    format_ = builtin_families().get(family).format
    turn = Turn("", (Call("trip", '{"to": "Rome"}'), Call("trip", '{"to": "Oslo"}')))
    first, second = call_id(turn, format_, 0), call_id(turn, format_, 1)
    if not first:
        pytest.skip("the family writes no ids")
    output = written(turn, format_).replace(second, first)
    for chunks in splits(output):
        one, other = _read(family, chunks).tool_calls
        assert one.id != other.id, output
        assert (one.error, other.error) == (None, None)


def test_what_begins_like_a_header_and_is_none_is_text() -> None:
    for output in (' to=trip{"to": "Rome"}', " to=trip", " to=trip\n<|message|>"):
        for chunks in splits(output):
            assert _read("muse-glimmer", chunks).content.startswith(" to=trip")
