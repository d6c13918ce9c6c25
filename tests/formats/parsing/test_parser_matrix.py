"""What every family must survive, made from its own cases: a turn that begins in the prompt at any place, calls without
their wrapper, markup quoted in an answer, a cut among control tokens, and costs that grow with the output."""

import json
from collections.abc import Sequence

import pytest
from cases.parsing_cases import (
    CASES,
    FAMILIES,
    TOOLS,
    Case,
    answer,
    check_order,
    each_family,
    each_with_control,
    each_with_several,
    families_where,
    feed_pieces,
    find,
    pieces,
    places,
    run,
    splits,
)
from cases.writer import stated
from growth import GRACE, Run, growth, sample

from engine.formats.families import Format, builtin_families
from engine.formats.parsing import Parser
from engine.types.completion import Completion
from engine.types.events import Event, ToolCallEnd, fold
from engine.types.prompt import Piece

SOME = ("one call", "reasoning and call", "text after a call", "every JSON type", "reasoning forced open", "content")
UNMARKED = {"olmo-3": "its calls stand a line each, in no list", "llama-3": "its calls have no markers"}
"""Families whose calls are not known by anything but their markers, or have none."""


def _cases(family: str) -> list[Case]:
    return [case for case in CASES if case.family == family and case.name in SOME]


@each_family
def test_a_turn_may_begin_in_the_prompt_at_any_place(family: str) -> None:
    """The output's events are those of the whole turn less the prompt's: text goes on at its very character, white
    space included; a call that the prompt has begun comes whole."""
    for case in _cases(family):
        kinds, over, whole = _whole(case)
        for place in places(case, 29):
            begun, rest = case.output[:place], case.output[place:]
            parser = Parser(family, case.prefix + begun, tools=TOOLS, trace=True)
            events = run(parser, [rest], case.finish)
            check_order(events)
            found = fold(events)
            of = {kind: "".join(_of(kind, kinds, case.output)[place:]) for kind in ("content", "reasoning")}
            assert (found.content, found.reasoning) == (of["content"], of["reasoning"]), (case, begun)
            begun_before = sum(end <= place for end in over)
            assert _calls(found) == _calls(whole)[begun_before:], (case, begun)
            assert "".join(segment.text for segment in parser.trace) == rest


def _whole(case: Case) -> tuple[list[str], list[int], Completion]:
    """What each character of the output is taken for, where each call is over, and the completion."""
    parser = case.parser(trace=True)
    over = [
        at
        for at, character in enumerate(case.output, 1)
        for event in parser.feed(character)
        if isinstance(event, ToolCallEnd)
    ]
    parser = case.parser(trace=True)
    whole = fold(run(parser, [case.output], case.finish))
    return [segment.kind for segment in parser.trace for _ in segment.text], over, whole


def _of(kind: str, kinds: list[str], text: str) -> list[str]:
    return [character if found == kind else "" for character, found in zip(text, kinds, strict=True)]


def _calls(completion: Completion) -> list[tuple[str, str, str | None]]:
    return [(call.name, call.arguments, call.error) for call in completion.tool_calls]


@families_where(lambda format_: format_.tools and format_.tools.section[0])
def test_a_call_without_its_wrapper(family: str) -> None:
    """The opening mark of the section, its closing mark, or both left out: the call is a call, and no marker is
    shown."""
    syntax = builtin_families().get(family).format.tools
    assert syntax is not None
    if family in UNMARKED:
        pytest.skip(UNMARKED[family])
    case = find(family, "one call")
    openings = [text.strip() for text in (syntax.section[0], *syntax.section_also) if text.strip() in case.output]
    closing = syntax.section[1].strip()
    before, _, after = case.output.partition(max(openings, key=len))
    body, _, rest = after.rpartition(closing) if closing and closing != "```" else (after, "", "")
    for output in (before + after, before + body + rest, case.output.removesuffix(closing)):
        for chunks in splits(output)[:4]:
            completion = fold(run(case.parser(), chunks))
            (call,) = completion.tool_calls
            assert (call.name, json.loads(call.arguments), call.error) == ("get_weather", {"city": "Paris"}, None)
            assert not completion.content.strip(), output


@each_with_several
def test_a_good_call_after_a_malformed_one(family: str) -> None:
    case = find(family, "malformed arguments, then a good call")
    *_, bad, good = fold(run(case.parser(), [case.output])).tool_calls
    assert bad.error == "malformed"
    assert (good.name, good.error) in (("get_weather", None), ("ping", None))


def _is_begun_by_control(format_: Format) -> bool:
    """Whether calls begin with a control token, always."""
    tools = format_.tools
    if stated(tools, "whole_objects", default=False):
        return False
    begun = (*tools.section[:1], *tools.call_marks[:1]) if tools else ()
    return any(marker in text for marker in format_.control for text in begun)


@families_where(_is_begun_by_control)
def test_a_whole_call_quoted_in_an_answer(family: str) -> None:
    """Control tokens spelt out in an answer are text, and so is the call between them; in reasoning as well. By the
    character, and whole."""
    format_ = builtin_families().get(family).format
    control = frozenset(format_.control)
    case, before, after = answer(family)
    quoted = f"Write {find(family, 'one call').output.strip()} for it."
    fed = [*pieces(family, before), Piece(quoted), *pieces(family, after)]
    for feed in (feed_pieces, feed_whole):
        parser = case.parser(control_tokens=control, prefix=pieces(family, case.prefix))
        assert fold(feed(parser, fed)).content == quoted
    if format_.reasoning is not None:
        case = find(family, "reasoning and content")
        before, after = case.output.split(case.reasoning)
        fed = [*pieces(family, before), Piece(quoted), *pieces(family, after)]
        for feed in (feed_pieces, feed_whole):
            parser = case.parser(control_tokens=control, prefix=pieces(family, case.prefix))
            assert fold(feed(parser, fed)).reasoning == quoted


def feed_whole(parser: Parser, fed: Sequence[Piece]) -> list[Event]:
    """All events of the pieces, each fed at once."""
    return [*(event for piece in fed for event in parser.feed(piece.text, piece.special)), *parser.close()]


@each_with_control
def test_a_cut_among_control_tokens_shows_no_marker(family: str) -> None:
    """The output ends behind any character: what is shown is a beginning of what the whole output shows."""
    control = frozenset(builtin_families().get(family).format.control)
    for case in _cases(family):
        fed = pieces(family, case.output)
        prefix = pieces(family, case.prefix)
        whole = fold(feed_pieces(case.parser(control_tokens=control, prefix=prefix), fed, case.finish))
        for count, piece in enumerate(fed):
            for end in [len(piece.text)] if piece.special else range(1 + count % 7, len(piece.text) + 1, 7):
                parser = case.parser(control_tokens=control, prefix=prefix)
                cut = fold(feed_pieces(parser, [*fed[:count], Piece(piece.text[:end], piece.special)], "length"))
                assert whole.content.startswith(cut.content.rstrip()), (case, fed[:count], piece.text[:end])
                assert whole.reasoning.startswith(cut.reasoning.rstrip()), (case, fed[:count], piece.text[:end])
                assert [call.name for call in cut.tool_calls] == [call.name for call in whole.tool_calls][
                    : len(cut.tool_calls)
                ]


@each_family
def test_the_cost_grows_with_the_output(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for each in sample(family, 3):
        assert growth(monkeypatch, each) <= 2 * GRACE, each


@pytest.mark.parametrize("family", ["minicpm-5", "deepseek-v4", "glm-4.5", "qwen3-coder"])
def test_white_space_inside_an_argument_costs_linear_time(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its beginning, in its middle and at its end, where a closing marker or a quotation might follow."""
    case = find(family, "one call")
    begin = case.output.index("Paris")
    for place in (begin, begin + 2, begin + len("Paris")):
        each = Run(case, place, " ")
        assert growth(monkeypatch, each) <= 2 * GRACE, each


def test_the_families_are_many() -> None:
    assert len(FAMILIES) > 80
