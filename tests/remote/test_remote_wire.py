"""engine.remote.wire: event streams as lines, as blocks cut anywhere, with what does not belong into them."""

import json
from collections.abc import Iterable
from itertools import pairwise

import pytest
from fakes.server_streams import call, chunk, in_order, pieces, sse, stream
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import remote
from engine.support.errors import MalformedEventWarning, RemoteError
from engine.types.completion import Completion
from engine.types.events import Finished, fold

# U+2028 ends a line for str.splitlines, and not in an event stream.
TURN = stream(
    {"reasoning_content": "héh\u2028é 🦙"}, {"content": "data: a\n\ndata: b"}, call(0, '{"é": "\\n"}', "f", "call_1")
)
WANTED = fold(remote.events(TURN))


def read(items: Iterable[object]) -> Completion:
    return fold(in_order(remote.events(items)))


def data(item: object) -> str:
    return f"data: {json.dumps(item, ensure_ascii=False)}"


def test_the_stream_that_is_compared_with_holds_something() -> None:
    assert (WANTED.reasoning, WANTED.content) == ("héh\u2028é 🦙", "data: a\n\ndata: b")
    assert WANTED.tool_calls[0].parsed() == {"é": "\n"}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_with_their_ends(end: str) -> None:
    assert read([line + end for line in sse(TURN).split("\n")]) == WANTED


def test_lines_without_their_ends() -> None:
    lines = sse(TURN).split("\n")
    assert read(lines) == WANTED
    assert read([line.encode() for line in lines]) == WANTED
    assert read([line for line in lines if line]) == WANTED  # as some clients give them
    assert read(json.dumps(item) for item in TURN) == WANTED  # one JSON a line


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_whole_stream_as_one_text_or_one_block(end: str) -> None:
    text = sse(TURN, end)
    assert read(text) == WANTED
    assert read(text.encode()) == WANTED
    assert read([bytearray(b"\xef\xbb\xbf" + text.encode())]) == WANTED


@settings(max_examples=60)
@given(cuts=st.lists(st.integers(1, 4000), max_size=20), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_blocks_cut_anywhere(cuts: list[int], end: str) -> None:
    text = sse(TURN, end)
    assert read(pieces(text, cuts)) == WANTED
    whole = text.encode()
    places = sorted({0, len(whole), *(cut % len(whole) for cut in cuts)})
    assert read(whole[a:b] for a, b in pairwise(places)) == WANTED


def test_one_byte_at_a_time() -> None:
    whole = sse(TURN).encode()
    assert read(whole[at : at + 1] for at in range(len(whole))) == WANTED


def test_comments_and_other_fields_are_nothing() -> None:
    noise = ": OPENROUTER PROCESSING\n\n:\nevent: message\nid: 7\nretry: 300\ndata:\n\n"
    blocks = [noise + event + "\n\n" for event in sse(TURN).split("\n\n")]
    assert read(blocks) == WANTED
    lines = [": ping", "event: message", *sse(TURN).split("\n")]
    assert read(lines) == WANTED


def test_data_over_several_lines_is_one_event() -> None:
    spread = "".join(f"data: {line}\n" for line in json.dumps(chunk({"content": "Hi"}, "stop"), indent=1).split("\n"))
    assert read([spread + "\ndata: [DONE]\n\n"]).content == "Hi"
    windows = (spread + "\n").replace("\n", "\r\n")
    assert read(windows[at : at + 1] for at in range(len(windows))).content == "Hi"


def test_nothing_is_read_after_done() -> None:
    def lines() -> Iterable[str]:
        yield from [data(chunk({"content": "Hi"})), "", "data: [DONE]"]
        raise AssertionError("read on")

    assert list(remote.events(lines()))[-1] == Finished("stop")
    text = sse([chunk({"content": "Hi"})]) + data(chunk({"content": "?"})) + "\n\n"
    assert read(text).content == "Hi"


def test_a_stream_that_breaks_off_is_an_error() -> None:
    assert read([data(chunk({"content": "Hi"}))]).finish_reason == "error"
    assert read([data(chunk({"content": "Hi"})), "data: [DONE]"]).finish_reason == "stop"


@pytest.mark.parametrize("odd", ["data: {not json", "data: [1]", "data: 3", "hello", "data: {\n\ndata: }", "data: {\n"])
def test_what_is_no_event_is_left_out_told_and_counted(odd: str) -> None:
    first, last = data(chunk({"content": "Hi"})), data(chunk({"content": "!"}, "stop"))
    for items in ([f"{first}\n\n{odd}\n\n{last}\n\ndata: [DONE]\n\n"], [first, "", *odd.split("\n"), "", last, ""]):
        events = remote.events(items)
        with pytest.warns(MalformedEventWarning, match="not a JSON object"):
            found = fold(events)
        assert (found.content, found.finish_reason) == ("Hi!", "stop")
        assert events.malformed == (2 if odd == "data: {\n\ndata: }" else 1)


def test_without_blank_lines_an_event_after_a_broken_one_is_found() -> None:
    with pytest.warns(MalformedEventWarning, match="not json"):
        found = read(["data: {not json", data(chunk({"content": "Hi"}, "stop"))])
    assert found.content == "Hi"


def test_a_broken_event_at_the_end_and_one_that_never_ends() -> None:
    with pytest.warns(MalformedEventWarning, match="half"):
        assert read([data(chunk({"content": "Hi"}, "stop")) + '\n\ndata: {"half']).content == "Hi"
    events = remote.events('data: {"never": \n' * 250 + "\n" + data(chunk({"content": "Hi"}, "stop")))
    with pytest.warns(MalformedEventWarning, match=r"(?s)never.*\.\.\."):
        assert fold(events).content == "Hi"
    assert events.malformed == 3


def test_bytes_that_are_not_utf_8_are_replaced() -> None:
    broken = data(chunk({"content": "aXb"}, "stop")).encode().replace(b"X", b"\xff")
    assert read([broken, b""]).content == "a\ufffdb"


@pytest.mark.parametrize(
    "items",
    [
        ['data: {"error": {"code": 500, "message": "out of memory", "type": "server_error"}}', ""],
        ['error: {"code": 500, "message": "out of memory", "type": "server_error"}\n\n'],
        ['{"error": {"code": 500, "message": "out of memory", "type": "server_error"}}'],
        ["{", '  "error": {', '    "code": 500, "type": "server_error",', '    "message": "out of memory"', "  }", "}"],
    ],
)
def test_an_error_is_found_however_it_comes(items: list[str]) -> None:
    with pytest.raises(RemoteError, match=r"\(500, server_error\): out of memory\.") as caught:
        read(items)
    assert (caught.value.code, caught.value.type) == (500, "server_error")
