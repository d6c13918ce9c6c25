"""engine.remote.events: calls put together from their deltas."""

import pytest
from fakes.server_streams import HI, Json, call, chunk, in_order, shown, stream, whole

from engine import remote
from engine.support.errors import MalformedEventWarning, RemoteError
from engine.types.events import ContentDelta, Event, Finished, ToolCallDelta, ToolCallEnd, ToolCallStart, fold
from engine.types.parts import ToolCall


def test_a_call_streams() -> None:
    deltas = [call(0, "", "get_weather", "call_1"), call(0, '{"city":'), call(0, ' "Paris"}')]
    assert in_order(remote.events(stream(*deltas, finish="tool_calls"))) == [
        ToolCallStart(0, "call_1", "get_weather", 0),
        ToolCallDelta(0, '{"city":', 0),
        ToolCallDelta(0, ' "Paris"}', 0),
        ToolCallEnd(0, '{"city": "Paris"}', None, 0),
        Finished("tool_calls"),
    ]


def test_reasoning_and_content_end_before_a_call_begins() -> None:
    found = whole({"reasoning_content": "r"}, {"content": "c\n"}, call(0, "{}", "f", "a"), finish="tool_calls")
    assert shown(found) == [("reasoning", "r"), ("text", "c\n"), ("f", "{}")]


def test_content_held_back_comes_before_the_call() -> None:
    assert shown(whole({"content": "<thi"}, call(0, "{}", "f", "a"))) == [("text", "<thi"), ("f", "{}")]


def test_calls_interleaved_by_index_come_one_after_the_other() -> None:
    deltas = [
        call(0, "", "f", "a"),
        call(1, "", "g", "b"),
        call(1, '{"y":'),
        call(0, '{"x"'),
        call(1, " 2}"),
        call(0, ": 1}"),
    ]
    assert shown(whole(*deltas)) == [("f", '{"x": 1}'), ("g", '{"y": 2}')]


def test_a_later_call_does_not_wait_longer_than_it_must() -> None:
    def seen(*deltas: Json) -> list[Event]:
        """What has come out when the last delta is read."""
        events = remote.events([*map(chunk, deltas), {"error": "stop here"}])
        found: list[Event] = []
        with pytest.raises(RemoteError):
            found.extend(events)
        return found

    first = [call(0, "", "f", "a"), call(0, '{"x": {}}')]
    assert ToolCallEnd(0, '{"x": {}}', None, 0) not in seen(*first)
    assert seen(*first, call(1, '{"y', "g", "b"))[-2:] == [ToolCallStart(1, "b", "g", 1), ToolCallDelta(1, '{"y', 1)]
    assert seen(*first, HI)[-1] == ContentDelta("Hi there.", 1)


def test_text_after_a_call_keeps_its_place() -> None:
    deltas = [call(0, "{}", "f", "a"), {"content": "and"}, {"reasoning_content": "hm"}, call(1, "{}", "g", "b")]
    assert shown(whole(*deltas)) == [("f", "{}"), ("text", "and"), ("reasoning", "hm"), ("g", "{}")]


def test_white_space_around_arguments_is_no_part_of_them() -> None:
    deltas = [call(0, " \n", "f", "a"), call(0, '{"x": 1}'), call(0, "\n"), call(1, "{}", "g", "b")]
    assert shown(whole(*deltas)) == [("f", '{"x": 1}'), ("g", "{}")]


@pytest.mark.parametrize("arguments", ["", None, "null"])
def test_no_arguments_are_an_empty_object(arguments: str | None) -> None:
    found = whole(call(0, arguments, "ping", "a"), finish="tool_calls")
    assert found.tool_calls == (ToolCall(id="a", name="ping", arguments="{}"),)


def test_a_name_in_pieces_and_a_header_repeated() -> None:
    split = [call(0, None, "get_", "a"), call(0, None, "weather"), call(0, "{}")]
    assert shown(whole(*split)) == [("get_weather", "{}")]
    repeated = [call(0, "", "f", "a"), call(0, "", "f", "a"), call(0, '{"x"', "f", "a"), call(0, ": 1}", "f", "a")]
    assert shown(whole(*repeated)) == [("f", '{"x": 1}')]


def test_an_id_late_or_missing() -> None:
    late = in_order(remote.events(stream(call(0, "{", "f"), call(0, "}", id_="late"))))
    assert late[0] == ToolCallStart(0, "", "f", 0)
    assert fold(late).tool_calls[0].id == "late"
    before = whole(call(0, None, "f"), call(0, None, id_="soon"), call(0, "{}"))
    assert before.tool_calls[0].id == "soon"
    missing = whole(call(0, "{}", "f"), call(1, "{}", "f"))
    ids = [item.id for item in missing.tool_calls]
    assert all(ids)
    assert len(set(ids)) == 2
    assert ids == [item.id for item in whole(call(0, "{}", "f"), call(1, "{}", "f")).tool_calls]


def test_made_ids_differ_from_response_to_response() -> None:
    def made(**more: str) -> str:
        chunks = [{**item, **more} for item in stream(call(0, "{}", "f"))]
        return fold(remote.events(chunks)).tool_calls[0].id

    assert made(id="one") == made(id="one") != made(id="two")
    assert made(id="") != made(id="")


def test_one_id_for_two_calls_is_given_once() -> None:
    found = whole(call(0, "{}", "f", "same"), call(1, "{}", "g", "same"))
    first, second = (item.id for item in found.tool_calls)
    assert first == "same" != second != ""


def test_servers_that_number_every_call_alike() -> None:
    same = [call(0, '{"x": 1}', "f", "a"), call(0, '{"x": 2}', "f", "b"), call(0, "{}", "g", "c")]
    assert [item.id for item in whole(*same).tool_calls] == ["a", "b", "c"]
    none = [call(None, '{"x"', "f", "a"), call(None, ": 1}"), call(None, "{}", "g"), call(None, "{}", "g")]
    assert shown(whole(*none)) == [("f", '{"x": 1}'), ("g", "{}"), ("g", "{}")]
    by_id = [call(None, "{", "f", "a"), call(None, "{", "g", "b"), call(None, "}", id_="a"), call(None, "}", id_="b")]
    assert shown(whole(*by_id)) == [("f", "{}"), ("g", "{}")]
    renamed = [call(0, '{"x": 1}', "f"), call(0, "{}", "g")]
    assert shown(whole(*renamed)) == [("f", '{"x": 1}'), ("g", "{}")]


def test_an_id_that_changes_without_a_name_means_nothing() -> None:
    deltas = [call(0, "", "f", "a"), call(0, '{"x"', id_="b"), call(0, ": 1}", id_="c")]
    assert whole(*deltas).tool_calls == (ToolCall(id="a", name="f", arguments='{"x": 1}'),)


def test_arguments_as_an_object() -> None:
    item = {"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": "é"}}}
    assert shown(whole({"tool_calls": [item]})) == [("f", '{"x": "é"}')]


def test_the_old_function_call() -> None:
    first, second = {"name": "f", "arguments": ""}, {"arguments": '{"x": 1}'}
    found = whole({"function_call": first}, {"function_call": second}, finish="function_call")
    assert shown(found) == [("f", '{"x": 1}')]
    assert found.finish_reason == "tool_calls"


def test_a_call_with_free_text_is_malformed_and_kept() -> None:
    item = {"index": 0, "id": "a", "type": "custom", "custom": {"name": "shell", "input": "ls -l"}}
    assert whole({"tool_calls": [item]}).tool_calls == (
        ToolCall(id="a", name="shell", arguments="ls -l", error="malformed"),
    )


@pytest.mark.parametrize(
    ("finish", "error"),
    [("length", "truncated"), (None, "truncated"), ("stop", "malformed"), ("tool_calls", "malformed")],
)
def test_arguments_that_are_not_json(finish: str | None, error: str) -> None:
    found = whole(call(0, "{}", "f", "a"), call(1, '{"x": "Par', "g", "b"), finish=finish)
    assert [(item.arguments, item.error) for item in found.tool_calls] == [("{}", None), ('{"x": "Par', error)]


def test_a_call_cut_before_its_arguments_is_truncated_and_one_after_them_is_whole() -> None:
    assert whole(call(0, "", "f", "a"), finish="length").tool_calls[0].error == "truncated"
    complete = whole(call(0, '{"x": 1}', "f", "a"), finish="length")
    assert complete.tool_calls[0].error is None
    assert complete.finish_reason == "length"


def test_the_beginning_of_a_null_that_is_none_is_malformed() -> None:
    found = whole(call(0, "n", "f", "a"), call(0, "ul"))
    assert found.tool_calls == (ToolCall(id="a", name="f", arguments="nul", error="malformed"),)


def test_more_after_the_arguments_end_is_malformed() -> None:
    assert whole(call(0, '{"x": 1}', "f", "a"), call(0, "}")).tool_calls == (
        ToolCall(id="a", name="f", arguments='{"x": 1}}', error="malformed"),
    )


def test_arguments_for_a_call_that_is_over_are_told() -> None:
    deltas = [call(0, "{}", "f", "a"), call(1, "{", "g", "b"), call(0, "\n"), call(0, "}"), call(1, "}")]
    with pytest.warns(MalformedEventWarning, match="after the end of the call of 'f'"):
        found = whole(*deltas)
    assert shown(found) == [("f", "{}"), ("g", "{}")]


def test_a_call_without_a_name() -> None:
    assert whole(call(0, "{}", id_="a")).tool_calls == (ToolCall(id="a", name="", arguments="{}", error="malformed"),)


def test_calls_are_judged_by_the_tools() -> None:
    def ping(times: int) -> None:
        """Ping."""

    deltas = [call(0, '{"times": "x"}', "ping", "a"), call(1, "{}", "pong", "b"), call(2, '{"times": 2}', "ping", "c")]
    assert [item.error for item in whole(*deltas, tools=[ping]).tool_calls] == [
        "invalid_arguments",
        "unknown_tool",
        None,
    ]
    assert [item.error for item in whole(*deltas).tool_calls] == [None, None, None]
