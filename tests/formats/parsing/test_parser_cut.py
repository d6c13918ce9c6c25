"""The output ends anywhere: nothing is lost, and a call that was cut inside its arguments never looks complete."""

from collections.abc import Sequence
from itertools import product

from cases.parsing_cases import (
    CASES,
    FAMILIES,
    TOOLS,
    Case,
    check_order,
    each_markup,
    each_with_calls,
    each_with_control,
    each_with_several,
    find,
    one_argument,
    pieces,
    places,
    run,
)

from engine.formats.families import builtin_families
from engine.formats.parsing import Parser
from engine.types.completion import Completion
from engine.types.events import ContentDelta, Event, ReasoningDelta, ToolCallEnd, ToolCallStart, fold
from engine.types.sampling import FinishReason


def _extent(case: Case) -> tuple[list[int], list[int]]:
    """How many characters had come when each call began, and when it was over."""
    parser = case.parser()
    begun: list[int] = []
    over: list[int] = []
    for at, character in enumerate(case.output, 1):
        for event in parser.feed(character):
            if isinstance(event, ToolCallStart):
                begun.append(at)
            elif isinstance(event, ToolCallEnd):
                over.append(at)
    return begun, over


def _text(events: Sequence[Event], kind: type[ContentDelta] | type[ReasoningDelta]) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


@each_markup
def test_cut_anywhere_nothing_is_lost(case: Case) -> None:
    whole = fold(run(case.parser(), [case.output], case.finish))
    begun, over = _extent(case)
    ways: tuple[FinishReason, ...] = ("length", "stop")
    for at, finish in product(places(case, 47), ways):
        parser = case.parser(trace=True)
        events = run(parser, [case.output[:at]], finish)
        check_order(events)
        cut = fold(events)
        trace = parser.trace
        assert "".join(segment.text for segment in trace) == case.output[:at]
        for kind, delta in (("content", ContentDelta), ("reasoning", ReasoningDelta)):
            assert "".join(segment.text for segment in trace if segment.kind == kind) == _text(events, delta)
        assert cut.finish_reason == ("tool_calls" if cut.tool_calls and finish == "stop" else finish)
        if finish == "length":  # no marker's beginning is shown
            assert whole.content.startswith(cut.content.rstrip()), case.output[:at]
            assert whole.reasoning.startswith(cut.reasoning.rstrip()), case.output[:at]
        _check_calls(cut, whole, at, begun, over)


def _check_calls(cut: Completion, whole: Completion, at: int, begun: list[int], over: list[int]) -> None:
    """Calls that were over stay as they are; none that had begun is missing; one that looks complete is."""
    assert len(cut.tool_calls) >= sum(place <= at for place in begun)
    for index, call in enumerate(cut.tool_calls):
        if index < len(over) and over[index] <= at:
            assert call == whole.tool_calls[index]
        elif index < len(whole.tool_calls) and not whole.tool_calls[index].error:
            wanted = whole.tool_calls[index].arguments
            if call.error is None:
                assert call.arguments == wanted or cut.finish_reason == "tool_calls"
            elif call.error == "truncated" or cut.finish_reason == "length":
                assert call.error == "truncated"
                # A value at whose closing marker the input ends is taken as closed, though more might have followed.
                assert wanted.startswith(call.arguments.removesuffix('"'))


@each_with_calls
def test_what_was_emitted_before_a_cut_stays(family: str) -> None:
    """Nothing is healed: a call cut by the limit has the arguments that had come out, and no more."""
    case, before, _ = one_argument(family)
    parser = case.parser()
    came_out = parser.feed(f"{before}Pari")
    completion = fold([*came_out, *parser.close("length")])
    (call,) = completion.tool_calls
    assert (call.name, call.error, completion.finish_reason) == ("get_weather", "truncated", "length")
    assert call.arguments.replace(" ", "") == '{"city":"Pari'


@each_with_several
def test_an_earlier_call_survives_a_later_one_s_cut(family: str) -> None:
    case = find(family, "two calls")
    end = case.output.index("Rome") + 2
    completion = fold(run(case.parser(), [case.output[:end]], "length"))
    first, second = completion.tool_calls
    assert (first.error, first.arguments) == (None, case.calls[0]["arguments"])
    assert (second.error, second.arguments.replace(" ", "")) == ("truncated", '{"city":"Ro')


@each_with_control
def test_a_cut_with_control_tokens_loses_nothing(family: str) -> None:
    """The same where the markers are tokens of the vocabulary: the output ends behind each piece."""
    control = frozenset(builtin_families().get(family).format.control)
    case = next(case for case in CASES if case.family == family and (case.calls or case.content))
    fed = pieces(family, case.output)
    for count in range(len(fed) + 1):
        parser = Parser(family, pieces(family, case.prefix), tools=TOOLS, control_tokens=control, trace=True)
        events = [event for piece in fed[:count] for event in parser.feed(piece.text, piece.special)]
        check_order([*events, *parser.close("length")])
        assert "".join(segment.text for segment in parser.trace) == "".join(piece.text for piece in fed[:count])


def test_the_families_are_many() -> None:
    assert len(FAMILIES) > 80
