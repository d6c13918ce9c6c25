"""A model that breaks off in the mark behind a call's name: the call is that tool's, and truncated; it is never one
without a name, and never run."""

import pytest
from cases.canonical import Call, Turn
from cases.parsing_cases import families_where, run
from cases.writer import stated, written

from engine.formats.families import builtin_families
from engine.formats.parsing import Parser
from engine.types.events import fold

TOOL = {"name": "trip", "parameters": {"type": "object", "properties": {"to": {"type": "string"}}}}
CALL = Call("trip", '{"to": "Rome"}')


@families_where(lambda format_: format_.tools and format_.tools.shape not in ("json", "pythonic"))
def test_no_call_loses_its_name(family: str) -> None:
    format_ = builtin_families().get(family).format
    output = written(Turn("", (CALL,)), format_)
    assert format_.tools is not None
    for place in range(output.rindex("trip") + len("trip") + 1, output.rindex("Rome")):
        parser = Parser(family, tools=[TOOL], trace=True)
        calls = fold([*parser.feed(output[:place]), *parser.close()]).tool_calls
        assert "".join(segment.text for segment in parser.trace) == output[:place]
        assert {call.name for call in calls} <= {"trip"}, output[:place]


@pytest.mark.parametrize("family", ["plamo-3", "kimi-k2", "solar-open", "hunyuan-3", "mistral-small-3.2"])
def test_such_a_call_is_not_run(family: str) -> None:
    format_ = builtin_families().get(family).format
    mark = stated(format_.tools, "id_open", "") or stated(format_.tools, "name_end", "")
    output = written(Turn("", (CALL,)), format_)
    after = output.index(mark) + 2 if family == "mistral-small-3.2" else output.index(mark) + len(mark) - 2
    parser = Parser(family, tools=[TOOL])
    calls = fold([*parser.feed(output[:after]), *parser.close()]).tool_calls
    assert all(call.error for call in calls), calls
    if family != "mistral-small-3.2":  # where so little is text
        assert [(call.name, call.error) for call in calls] == [("trip", "truncated")]


def test_a_call_that_breaks_off_in_its_id_is_not_run() -> None:
    parser = Parser("mistral-small-3.2", tools=[TOOL])
    calls = fold([*parser.feed("[TOOL_CALLS]trip[CALL_ID]abc[AR"), *parser.close()]).tool_calls
    assert [(call.name, call.error) for call in calls] == [("trip", "malformed")]


@families_where(lambda format_: format_.tools)
def test_an_unfinished_name_is_no_call_that_runs(family: str) -> None:
    """It may be the beginning of another: `trip` of `trip_back`."""
    format_ = builtin_families().get(family).format
    output = written(Turn("", (CALL,)), format_)
    for place in range(output.rindex("trip"), output.rindex("trip") + len("trip") + 1):
        calls = fold(run(Parser(family, tools=[TOOL]), [output[:place]])).tool_calls
        assert all(call.error for call in calls), output[:place]
