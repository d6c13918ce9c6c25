"""The promises of the parser, held by every case of every family (tests/families/*.toml)."""

import json
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsing_cases import TOOLS, Case, check_expected, check_order, feed_pieces, load, pieces, run, splits

from engine.events import ContentDelta, ReasoningDelta, ToolCallDelta, fold
from engine.families import builtin_families
from engine.parsing import Parser

CASES = load()
FAMILIES = sorted({case.family for case in CASES})
each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_family = pytest.mark.parametrize("family", FAMILIES)


def test_every_family_has_cases() -> None:
    assert set(FAMILIES) == set(builtin_families().names()) - {"content-only"}


@each_case
def test_any_split_gives_what_the_case_says(case: Case) -> None:
    for chunks in splits(case.output):
        parser = case.parser(trace=True)
        events = run(parser, chunks, case.finish)
        check_expected(case, fold(events))
        check_order(events)
        assert "".join(segment.text for segment in parser.trace) == case.output  # nothing is lost
        assert all(a.kind != b.kind for a, b in pairwise(parser.trace))


@each_case
def test_a_vocabulary_with_control_tokens_gives_the_same(case: Case) -> None:
    vocabulary = frozenset(builtin_families().get(case.family).format.control)
    parser = case.parser(control_tokens=vocabulary, prefix=pieces(case.family, case.prefix))
    check_expected(case, fold(feed_pieces(parser, pieces(case.family, case.output), case.finish)))


@each_case
def test_seeding_with_the_prefix_equals_feeding_it(case: Case) -> None:
    whole = case.parser(prefix="")
    already = fold(whole.feed(case.prefix))
    assert not already.parts  # the prefixes hold markers only, so that the two can be compared as wholes
    assert fold([*whole.feed(case.output), *whole.close(case.finish)]) == fold(
        run(case.parser(), [case.output], case.finish)
    )


@each_case
def test_cut_anywhere_nothing_raises_and_nothing_is_retracted(case: Case) -> None:
    whole = fold(run(case.parser(), [case.output], case.finish))
    for at in range(len(case.output)):
        parser = case.parser(trace=True)
        events = run(parser, [case.output[:at]], "length")
        check_order(events)
        cut = fold(events)
        assert "".join(segment.text for segment in parser.trace) == case.output[:at]
        assert cut.finish_reason == "length"
        for index, call in enumerate(cut.tool_calls[:-1]):
            assert call == whole.tool_calls[index]
        for call in cut.tool_calls[-1:]:
            if call.error == "truncated" and not whole.tool_calls[len(cut.tool_calls) - 1].error:
                # A value at whose closing marker the input ends is taken as closed, though more might have followed.
                prefix = call.arguments.removesuffix('"')
                assert whole.tool_calls[len(cut.tool_calls) - 1].arguments.startswith(prefix)
            if call.error is None:
                json.loads(call.arguments)


@each_case
def test_held_back_text_is_bounded(case: Case) -> None:
    """Fed a character at a time, text that is not out yet is a marker's beginning, white space, or a call's header."""
    parser = case.parser(trace=True)
    for at, character in enumerate(case.output, 1):
        parser.feed(character)
        held = case.output[sum(len(segment.text) for segment in parser.trace) : at]
        assert len(held.strip()) <= 120, held


@each_family
def test_a_long_string_argument_streams(family: str) -> None:
    """Of 2,000 characters the first is out within 5 %, and nine tenths within 64 characters of their arrival."""
    if builtin_families().get(family).format.tools is None and builtin_families().get(family).format.channels is None:
        pytest.skip("a family without calls")
    case = next(case for case in CASES if case.family == family and case.name == "one call")
    value = "".join(random.Random(1).choice("abcdefgh ijk.") for _ in range(1999)) + "z"
    before, after = case.output.split("Paris")
    parser = case.parser()
    emitted = len("".join(event.text for event in parser.feed(before) if isinstance(event, ToolCallDelta)))
    arrived_late = 0
    first = None
    out = 0
    for at, character in enumerate(value, 1):
        out += sum(len(event.text) for event in parser.feed(character) if isinstance(event, ToolCallDelta))
        if out and first is None:
            first = at
        arrived_late += at - out > 64
    assert first is not None
    assert first <= 100
    assert arrived_late <= 200
    completion = fold(run(case.parser(), [before + value + after]))
    assert json.loads(completion.tool_calls[0].arguments)["city"] == value
    assert emitted <= len('{"city": "')


@each_family
def test_quoted_control_tokens_are_text(family: str) -> None:
    control = builtin_families().get(family).format.control
    if not control:
        pytest.skip("no marker of this family exists as control token only")
    case = next(case for case in CASES if case.family == family and case.name == "content")
    quoted = f"You write {' and '.join(control)} for it."
    parser = case.parser(control_tokens=frozenset(control), prefix=pieces(family, case.prefix))
    before, after = case.output.split(case.content)
    events = [event for piece in pieces(family, before) for event in parser.feed(*piece)]
    events += [event for character in quoted for event in parser.feed(character)]
    events += [event for piece in pieces(family, after) for event in parser.feed(*piece)]
    assert fold([*events, *parser.close()]).content == quoted


@each_family
@settings(deadline=None)
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
        markers += [*tools.section, *tools.call, *tools.argument, tools.name_end, tools.key_end, tools.arguments_end]
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


@pytest.mark.parametrize("view", ["none", "deepseek-legacy", "exclude"])
@each_case
def test_views_change_only_where_reasoning_goes(case: Case, view: str) -> None:
    plain = fold(run(case.parser(), [case.output], case.finish))
    for chunks in splits(case.output)[:3]:
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
