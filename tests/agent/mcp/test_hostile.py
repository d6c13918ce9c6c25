"""Servers that attack: each ends by name within its time, takes little memory, and stops no other thread for long."""

import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("mcp")

from engine.agent.mcp import intake
from engine.agent.mcp.intake import Events, Intake, Lines, Meter, Refused

SUPPORT = Path(__file__).parents[2] / "helpers"
SECONDS = 2.0  # of both time limits in mcp_measured.py
LATE = "did not answer within 2 seconds"
LONG = "it sent a message of more than 8,388,608 bytes"
MANY = "it sent a message of more than 30,000 values"

SERVERS = [
    ("stdio", "endless", LONG),
    ("stdio", "values", MANY),
    ("stdio", "icons", "its result has more than 8,000 values"),
    ("stdio", "tools", MANY),
    ("stdio", "pages", "it sent more than 16,777,216 bytes before it had listed its tools"),
    ("stdio", "empty-pages", "more than 100 pages"),
    ("stdio", "references", "fine"),  # what a schema refers to is checked once, however often it refers to it
    ("stdio", "mute", LATE),
    ("stdio", "blocks", MANY),
    ("stdio", "wrong-blocks", "its result has more than 1,000 blocks"),
    ("stdio", "wrong-parts", "x"),
    ("stdio", "structured", '{"a": [1, 1'),
    ("stdio", "deep", "it sent a message that nests deeper than 200 levels"),
    ("stdio", "wide", ""),  # eight million characters: in time or late
    ("stdio", "envelope", "it sent a message that cannot be read"),
    ("stdio", "broken", "it sent a message that cannot be read: Invalid JSON"),
    ("http", "endless", LONG),
    ("http", "blocks", MANY),
    ("http", "broken", "Failed to parse JSON response"),
    ("http", "wide", ""),
    ("http", "gzip", "it answered with the content encoding 'gzip', though none was asked for"),
    ("http", "utf-7", "it answered in the character set 'utf-7'"),
    ("http", "headers", "RemoteProtocolError"),
    ("http", "hints", LATE),
    ("http", "drip", LATE),
    ("http", "event", LONG),
    ("http", "event-lines", ""),
    ("http", "events", ""),
    ("http", "redirect", LONG),
]


@contextlib.contextmanager
def started(over: str, mode: str) -> Generator[list[str] | str]:
    """The server of mcp_hostile.py that mcp_measured.py is to connect to."""
    command = [sys.executable, "-I", str(SUPPORT / "mcp_hostile.py"), over, mode]
    if over == "stdio":
        yield command
        return
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def client() -> Generator[subprocess.Popen[str]]:
    """A process that connects to one server after the other."""
    command = [sys.executable, str(SUPPORT / "mcp_measured.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory in /proc")
@pytest.mark.parametrize(("over", "mode", "words"), SERVERS, ids=[f"{over}-{mode}" for over, mode, _ in SERVERS])
def test_a_server_that_attacks_ends_by_name(client: subprocess.Popen[str], over: str, mode: str, words: str) -> None:
    """The bounds on time leave room for a busy machine."""
    assert client.stdin is not None
    assert client.stdout is not None
    with started(over, mode) as server:
        client.stdin.write(json.dumps(server) + "\n")
        client.stdin.flush()
        line = client.stdout.readline()
    assert line, "the client's process died of it"
    report: dict[str, Any] = json.loads(line)
    assert words in report["result"], report
    assert report["honest"] == "fine", report
    assert report["seconds"] < SECONDS + 15, report
    assert report["grown"] < (160 if mode == "wide" else 64), report
    assert report["stop"] < 0.5, report


def fed(feed: Any, data: bytes, draw: random.Random | None) -> str:
    """Why the data are refused, whole or in pieces as drawn; "" if they are not."""
    try:
        at = 0
        while at < len(data):
            length = draw.randrange(1, 4) if draw else len(data)
            feed(data[at : at + length])
            at += length
    except Refused as refused:
        return str(refused)
    return ""


def value(draw: random.Random, depth: int = 0) -> Any:
    """A JSON value of odd texts."""
    if depth > 4 or draw.random() < 0.5:
        return "".join(draw.choice('",:[]{}\\\n\u00e4\U0001f600x') for _ in range(draw.randrange(6)))
    if draw.random() < 0.5:
        return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    return {value(draw, 9): value(draw, depth + 1) for _ in range(draw.randrange(4))}


def parts(item: Any) -> int:
    """The texts, brackets and commas of a value as JSON."""
    if isinstance(item, str):
        return 1
    pairs = cast("dict[Any, Any]", item).items() if isinstance(item, dict) else ()
    items = [each for pair in pairs for each in pair] if pairs else cast("list[Any]", [*item])
    return 1 + max(len(pairs or items) - 1, 0) + sum(map(parts, items))


def test_parts_are_counted_at_any_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(7)
    refused = 0
    for _ in range(600):
        item = value(draw)
        monkeypatch.setattr(intake, "MESSAGE_PARTS", most := draw.choice([1, 3, 8, 20]))
        data = json.dumps(item, ensure_ascii=draw.random() < 0.5).encode()
        too_many = parts(item) > most
        refused += too_many
        for pieces in (None, draw):
            lines = Lines(Intake(lambda _: None))
            for feed in (Meter().feed, lines.feed, Events().feed):
                assert bool(fed(feed, data, pieces)) is too_many, (item, most)
    assert 50 < refused < 550


def test_a_line_or_an_event_ends_the_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MESSAGE_PARTS", 5)
    draw = random.Random(8)
    lines = Lines(Intake(lambda _: None))
    assert not fed(lines.feed, b'[1,2,3]\n["\n' * 50, draw)
    for end in (b"\n", b"\r\n", b"\r"):
        event = end.join([b"data: [1,", b"data: 2]", b"", b""])
        assert not fed(Events().feed, event * 50, draw), end
        assert fed(Events().feed, event.replace(end * 2, end) * 3, draw), end
    assert fed(Meter().feed, b"[1,2]\n\n" * 3, draw)


def test_only_lines_that_are_messages_are_handed_on() -> None:
    taken = Intake(lambda _: None)
    lines = Lines(taken)
    assert bytes(lines.feed(b'log "x\n{"level": 5}\n{"jsonrpc": "2.0"')) == b""
    assert taken.noise == '{"level": 5}'
    assert bytes(lines.feed(b'}\n\n[{"jsonrpc": 1}]\n{"json')) == b'{"jsonrpc": "2.0"}\n[{"jsonrpc": 1}]\n'


def test_once_refused_nothing_more_is_read() -> None:
    told: list[Exception] = []
    taken = Intake(told.append)
    with taken.listing():
        taken.take(b"x" * intake.LISTING_BYTES, len)
        for _ in range(3):
            with pytest.raises(Refused, match="before it had listed its tools"):
                taken.take(b"x", len)
    with pytest.raises(Refused):
        taken.take(b"x", len)
    assert len(told) == 1
