"""The suite `forms`: a good server passes, and each way to be bad fails by its own name."""

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from fakes.checked_servers import CITY, GOOD, Answering

from benchmarks.check import LocalExchange, Record, Reply, forms
from engine import Engine
from engine.support.errors import RemoteError

Json = dict[str, Any]


def failed(exchange: Answering) -> list[Record]:
    return [record for record in forms(exchange) if record.failed]


def spoilt(change: Callable[[Json], object]) -> Answering:
    """A server that spoils each message."""
    return Answering(lambda body, choice: change(choice["message"]) and None)


def test_a_good_server_passes() -> None:
    found = list(forms(Answering()))
    assert {record.verdict for record in found} == {"ok"}
    assert len(found) == 3 * 5 * 3 * 2
    assert len({tuple(record.case.values()) for record in found}) == len(found)


def calls(name: str, arguments: str, count: int = 1) -> Callable[[Json, Json], None]:
    """Makes every answer that should be a call this one."""

    def change(body: Json, choice: Json) -> None:
        if body.get("tool_choice", "none") != "none":
            call = {"type": "function", "function": {"name": name, "arguments": arguments}}
            choice["message"]["tool_calls"] = [{**call, "id": f"call{number}"} for number in range(count)]

    return change


def ignores_tool_choice(body: Json, choice: Json) -> None:
    """Calls the weather whatever is asked for, as long as there are tools."""
    if "tools" in body:
        function = {"name": "get_weather", "arguments": GOOD["get_weather"]}
        choice["message"] |= {"content": None, "tool_calls": [{"id": "a", "type": "function", "function": function}]}
        choice["finish_reason"] = "tool_calls"


def never_calls(body: Json, choice: Json) -> None:
    del choice["message"]["tool_calls"], choice["finish_reason"]
    choice["message"]["content"], choice["finish_reason"] = CITY, "stop"


def test_a_tool_choice_that_is_ignored_fails() -> None:
    found = failed(Answering(ignores_tool_choice))
    assert {record.case["tools"] for record in found} == {"none", "named"}
    assert len(found) == 2 * 18
    assert all(record.why.startswith("tool_choice: ") for record in found)


def test_a_call_that_does_not_come_fails() -> None:
    def change(body: Json, choice: Json) -> None:
        if "tool_calls" in choice["message"]:
            never_calls(body, choice)

    found = failed(Answering(change))
    assert {(record.case["tools"], record.why) for record in found} == {
        ("required", "tool_choice: required, yet nothing was called"),
        ("named", "tool_choice: named, yet nothing was called"),
    }


@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("get_weather", '{"city": "Paris"', "is not JSON"),
        ("get_weather", '["Paris"]', "is not an object"),
        ("get_weather", '{"city": "Paris"}', "arguments: .*unit"),
        ("get_weather", '{"city": "Paris", "unit": "kelvin"}', "arguments: .*kelvin"),
        ("multiply", '{"a": 1.5, "b": 2}', "arguments: .*integer"),
        ("other", "{}", "call: there is no tool 'other'"),
    ],
)
def test_calls_that_do_not_fit_fail(name: str, arguments: str, why: str) -> None:
    found = [record for record in failed(Answering(calls(name, arguments))) if record.case["tools"] == "required"]
    assert len(found) == 18
    for record in found:
        assert_matches(why, record.why)


def assert_matches(pattern: str, text: str) -> None:
    assert re.search(pattern, text), text


def test_ids_of_calls() -> None:
    def change(body: Json, choice: Json) -> None:
        for call in choice["message"].get("tool_calls", []):
            del call["id"]

    found = failed(Answering(change))
    assert {record.case["tools"] for record in found} == {"auto", "required", "named"}
    assert {record.why for record in found} == {"call: an id is missing, or stands twice"}


def test_content_that_does_not_fit_its_schema_fails() -> None:
    def change(message: Json) -> None:
        if message["content"]:
            message["content"] = '{"city": "Paris", "large": "very"}'

    found = failed(spoilt(change))
    assert {record.case["format"] for record in found} == {"json_schema"}
    assert {record.case["tools"] for record in found} == {"no tools", "none"}
    assert all("content: " in record.why for record in found)


@pytest.mark.parametrize("content", ["The city is Paris.", "[1]", f"```json\n{CITY}\n```"])
def test_content_that_is_no_object_fails(content: str) -> None:
    def change(message: Json) -> None:
        if message["content"]:
            message["content"] = content

    assert {record.case["format"] for record in failed(spoilt(change))} == {"json_object", "json_schema"}


@pytest.mark.parametrize("leaked", ["<think>\nI think.</think>", "<tool_call>", "[TOOL_CALLS]", "<|channel|>"])
def test_markup_in_the_content_fails(leaked: str) -> None:
    def change(message: Json) -> None:
        message["content"] = (message["content"] or "") + leaked

    found = [record for record in failed(spoilt(change)) if record.case["format"] == "any"]
    assert len(found) == 3 * 5 * 2
    assert all(record.why.startswith("channel: ") for record in found)


@pytest.mark.parametrize(
    ("reason", "tools"),
    [("stop", {"auto", "required"}), ("tool_calls", {"no tools", "none"})],
)
def test_finish_reasons(reason: str, tools: set[str]) -> None:
    """OpenAI's own API says "stop" after a call that was named."""
    found = failed(Answering(lambda body, choice: choice.update(finish_reason=reason)))
    assert {record.case["tools"] for record in found} == tools
    assert all(record.why.startswith(f"finish_reason: {reason}") for record in found)


def test_no_finish_reason_fails() -> None:
    found = failed(Answering(lambda body, choice: choice.update(finish_reason=None)))
    assert len(found) == 90
    assert {record.why for record in found} == {"finish_reason: there is none"}


def test_an_answer_without_choices_fails() -> None:
    found = failed(Answering(lambda body, choice: Reply(200, ({},)) if body["max_tokens"] > 16 else None))
    assert all("answer: there are no choices" in record.why for record in found if record.case["stream"] == "no")
    assert len(found) == 90


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new, 1)


def halved(data: bytes) -> bytes:
    return data[: len(data) // 2]


def with_an_error(data: bytes) -> bytes:
    return b'data: {"error": {"message": "lost"}}\n\n' + data


@pytest.mark.parametrize(
    ("wire", "why"),
    [
        (replaced(b"data: [DONE]\n\n", b""), r"stream: it does not end with \[DONE\]"),
        (halved, r"stream: it does not end with \[DONE\]"),
        (replaced(b'"delta": {}', b'"delta": {]'), "stream: 1 events in it are no JSON objects"),
        (replaced(b'"delta"', b'"message"'), "stream: a whole message came"),
        (with_an_error, "stream: an error in it: .*lost"),
    ],
)
def test_streams_that_break_fail(wire: Callable[[bytes], bytes], why: str) -> None:
    found = failed(Answering(wire=wire))
    assert {record.case["stream"] for record in found} == {"yes"}
    assert len(found) == 45
    for record in found:
        assert_matches(why, record.why)


def test_pieces_of_calls_without_an_index_fail() -> None:
    found = failed(Answering(wire=lambda data: data.replace(b'{"index": 0, "function"', b'{"function"')))
    assert {record.case["tools"] for record in found} == {"auto", "required", "named"}
    assert all("stream: a piece of a call has no index" in record.why for record in found)


def test_pieces_that_are_lost_are_seen() -> None:
    found = failed(Answering(wire=lambda data: data.replace(json.dumps(CITY[3:]).encode(), b'""')))
    assert {(record.case["tools"], record.case["stream"]) for record in found} == {("no tools", "yes"), ("none", "yes")}


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(400, "refused"), (422, "refused"), (501, "refused"), (500, "failed"), (0, "unknown"), (429, "unknown")],
)
def test_statuses(status: int, verdict: str) -> None:
    """A server may refuse a combination; one that fails at it is at fault, one that is busy is not."""

    def change(body: Json, choice: Json) -> Reply | None:
        return Reply(status, ({"error": "no"},)) if "chat_template_kwargs" in body else None

    found = list(forms(Answering(change)))
    assert {record.verdict for record in found if record.case["reasoning"] == "as it is"} == {"ok"}
    assert {record.verdict for record in found if record.case["reasoning"] != "as it is"} == {verdict}
    assert sum(record.failed for record in found) == (60 if status == 500 else 0)


def test_answers_that_were_cut_off_are_unknown() -> None:
    def change(body: Json, choice: Json) -> None:
        choice["message"] = {"content": '{"city": "Pa'}
        choice["finish_reason"] = "length"

    found = list(forms(Answering(change)))
    assert {record.verdict for record in found} == {"unknown"}
    assert "--max-tokens" in found[0].why


def test_what_is_wrong_in_an_answer_that_was_cut_off_still_fails() -> None:
    def change(body: Json, choice: Json) -> None:
        ignores_tool_choice(body, choice)
        choice["finish_reason"] = "length"

    assert {record.case["tools"] for record in failed(Answering(change))} == {"none", "named"}


def test_reasoning_that_was_turned_off_and_comes_is_unknown() -> None:
    """The field is not OpenAI's, and a server need not know it."""
    found = list(forms(spoilt(lambda message: message.update(reasoning_content="I think."))))
    assert {record.verdict for record in found if record.case["reasoning"] == "off"} == {"unknown"}
    assert {record.verdict for record in found if record.case["reasoning"] != "off"} == {"ok"}


def test_an_empty_answer_is_unknown() -> None:
    def change(message: Json) -> None:
        if "tool_calls" not in message:
            message["content"] = ""

    found = list(forms(spoilt(change)))
    empty = [record for record in found if record.case["tools"] == "none" and record.case["format"] == "any"]
    assert {record.verdict for record in empty} == {"unknown"}


def test_a_server_that_answers_nothing_is_an_error() -> None:
    with pytest.raises(RemoteError, match="plain question"):
        list(forms(Answering(lambda body, choice: Reply(400))))


def test_an_engine_of_this_process_keeps_its_form(llm: Engine) -> None:
    """The first few: docs/guides/other-servers.md runs them all."""
    found = list(itertools.islice(forms(LocalExchange(llm), max_tokens=256), 12))
    assert [record for record in found if record.verdict not in ("ok", "unknown")] == []
    assert sum(record.verdict == "ok" for record in found) > 9
