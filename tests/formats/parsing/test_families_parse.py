"""The promises of the parser, held by every case of every family (tests/golden/*.toml)."""

import json
import random
import re
from collections.abc import Iterable
from itertools import pairwise

import pytest
from cases.parsing_cases import (
    CASES,
    FAMILIES,
    TOOLS,
    Case,
    answer,
    cases_where,
    check_expected,
    check_order,
    each_case,
    each_family,
    each_markup,
    each_with_calls,
    each_with_control,
    feed_pieces,
    one_argument,
    pieces,
    run,
    splits,
)
from cases.writer import is_bare, stated
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.formats.families import builtin_families
from engine.formats.parsing import Parser
from engine.types.events import ContentDelta, Event, ReasoningDelta, ToolCallDelta, fold

_VALUE = re.compile(r'\{\s*"city":\s*"')


def test_every_family_has_cases() -> None:
    assert set(FAMILIES) == set(builtin_families().names()) - {"content-only"}


@each_family
def test_the_cases_of_a_family_cover_what_models_do(family: str) -> None:
    """No call, one, several, text on both sides, every JSON type, bad and cut arguments, every state of reasoning."""
    format_ = builtin_families().get(family).format
    tools, reasoning = format_.tools, format_.reasoning
    cases = [case for case in CASES if case.family == family]
    wanted = {"content"}
    if tools is not None or format_.channels is not None:
        wanted |= {"one call", "text after a call", "no arguments", "escapes and unicode", "cut inside the arguments"}
        assert any("malformed" in call.values() for case in cases for call in case.calls)
        assert any(
            TOOLS[2].name in call.values() and '"o": {"k": "v"' in str(call) for case in cases for call in case.calls
        )
        if tools is None or not is_bare(tools) or tools.section[0]:
            wanted |= {"text before a call"}
        if tools is None or tools.parallel:
            wanted |= {"two calls"}
    if reasoning is not None:
        wanted |= {"reasoning and content", "reasoning of white space only"}
    if reasoning is not None and not reasoning.implicit:
        wanted |= {"reasoning forced open", "reasoning forced open and cut", "reasoning closed by the prompt"}
    assert wanted <= {case.name for case in cases}


@each_case
def test_any_split_gives_what_the_case_says(case: Case) -> None:
    for chunks in splits(case.output):
        parser = case.parser(trace=True)
        events = run(parser, chunks, case.finish)
        check_expected(case, fold(events))
        check_order(events)
        assert "".join(segment.text for segment in parser.trace) == case.output  # nothing is lost
        assert all(a.kind != b.kind for a, b in pairwise(parser.trace))


@each_markup
def test_a_vocabulary_with_control_tokens_gives_the_same(case: Case) -> None:
    vocabulary = frozenset(builtin_families().get(case.family).format.control)
    parser = case.parser(control_tokens=vocabulary, prefix=pieces(case.family, case.prefix), trace=True)
    check_expected(case, fold(feed_pieces(parser, pieces(case.family, case.output), case.finish)))
    assert "".join(segment.text for segment in parser.trace) == case.output


@each_markup
def test_seeding_with_the_prefix_equals_feeding_it(case: Case) -> None:
    whole = case.parser(prefix="")
    already = fold(whole.feed(case.prefix))
    assert not already.parts  # the prefixes hold markers only, so that the two can be compared as wholes
    assert fold([*whole.feed(case.output), *whole.close(case.finish)]) == fold(
        run(case.parser(), [case.output], case.finish)
    )


@each_with_calls
@pytest.mark.parametrize("alphabet", ["abcdefgh ijk.", "if a<b: </x> #=>;,{[(|"])
def test_a_long_string_argument_streams(family: str, alphabet: str) -> None:
    """Of 500 characters the first is out within 5 %, and nine tenths within 64 characters of their arrival."""
    case, before, after = one_argument(family)
    value = "x" + "".join(random.Random(1).choice(alphabet) for _ in range(498)) + "z"
    parser = case.parser()
    written = _arguments(parser.feed(before))
    first, late = 0, 0
    for at, character in enumerate(value, 1):
        written += _arguments(parser.feed(character))
        begun = _VALUE.match(written)
        out = len(written) - begun.end() if begun else 0
        first = first or (at if out else 0)
        late += at - out > 64
    assert 0 < first <= 25
    assert late <= 50
    completion = fold(run(case.parser(), [before + value + after]))
    assert json.loads(completion.tool_calls[0].arguments)["city"] == value


def _arguments(events: Iterable[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, ToolCallDelta))


@each_with_control
def test_quoted_control_tokens_are_text(family: str) -> None:
    control = builtin_families().get(family).format.control
    case, before, after = answer(family)
    quoted = f"You write {' and '.join(control)} for it."
    parser = case.parser(control_tokens=frozenset(control), prefix=pieces(family, case.prefix))
    events = [event for piece in pieces(family, before) for event in parser.feed(piece.text, piece.special)]
    events += [event for character in quoted for event in parser.feed(character)]
    events += [event for piece in pieces(family, after) for event in parser.feed(piece.text, piece.special)]
    assert fold([*events, *parser.close()]).content == quoted


@each_family
@settings(max_examples=4)
@given(data=st.data())
def test_marker_salad_never_raises(family: str, data: st.DataObject) -> None:
    atoms = _atoms(family)
    text = "".join(data.draw(st.lists(st.sampled_from(atoms), max_size=30)))
    finish = data.draw(st.sampled_from(["stop", "length"]))
    parser = Parser(family, tools=TOOLS, trace=True)
    events = run(parser, [text], "stop" if finish == "stop" else "length")
    assert "".join(segment.text for segment in parser.trace) == text
    check_order(events)
    for chunks in splits(text)[1:3]:
        assert fold(run(Parser(family, tools=TOOLS), chunks, "stop" if finish == "stop" else "length")) == fold(events)


def _atoms(family: str) -> list[str]:
    """The markers of a family, whole and broken, and what stands between them."""
    format_ = builtin_families().get(family).format
    markers = [format_.start, *format_.control, *format_.stops, "<think>", "</think>", "<tool_call>", "</tool_call>"]
    if format_.tools:
        tools = format_.tools
        markers += [*tools.section, *tools.call_marks, *stated(tools, "argument", ("", ""))]
        markers += [stated(tools, name, "") for name in ("name_end", "key_end", "arguments_end")]
    if format_.reasoning:
        markers += [format_.reasoning.open, format_.reasoning.close]
    markers = [marker for marker in markers if marker]
    broken = [marker[: len(marker) // 2] for marker in markers] + [marker[1:] for marker in markers]
    json_ = [
        '{"name": "ping", "arguments": {}}',
        '{"name": "',
        '"arguments": {"city": "',
        '"}',
        "}",
        "]",
        "[",
        ",",
        "null",
    ]
    return [
        *markers,
        *broken,
        *json_,
        "ping",
        "get_weather",
        "city",
        " ",
        "\n",
        "x",
        "é",
        "\\",
        '"',
        "to=functions.ping",
    ]


@cases_where(lambda case: bool(case.reasoning) or case.name == "text between calls")
def test_views_change_only_where_reasoning_goes(case: Case) -> None:
    plain = fold(run(case.parser(), [case.output], case.finish))
    for view, chunks in zip(("none", "deepseek-legacy", "exclude"), splits(case.output)[:3], strict=True):
        parser = case.parser(reasoning_format=view)
        viewed = fold(run(parser, chunks, case.finish))
        assert [c.model_dump() for c in viewed.tool_calls] == [c.model_dump() for c in plain.tool_calls]
        assert viewed.reasoning == (plain.reasoning if view == "deepseek-legacy" else "")
        if view == "exclude" or not plain.reasoning:
            assert viewed.content.endswith(plain.content)
        else:
            assert plain.reasoning in viewed.content
            assert viewed.content.endswith(plain.content)


def test_events_carry_text_in_parts() -> None:
    events = run(
        Parser("qwen3"), ["<think>\na\n</think>\n\nb\n<tool_call>\n", '{"name": "f", "arguments": {}}\n</tool_call>c']
    )
    texts = [(type(event), event.part) for event in events if isinstance(event, ReasoningDelta | ContentDelta)]
    assert texts == [(ReasoningDelta, 0), (ContentDelta, 1), (ContentDelta, 3)]
