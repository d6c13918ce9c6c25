"""A grammar allows every value of a format, in answers and in calls of every shape."""

import re
from datetime import date, timedelta
from functools import cache

import pytest
from cases.held import SHAPES, answers, calls, held, takes, unwritable

from engine import JsonSchema, as_tool
from engine.formats.grammar.response import response_of
from engine.runtime.guidance import matcher
from engine.runtime.guidance.matcher import Matcher
from engine.tools.formats import FORMATS, PATTERNS
from engine.types.tools import Tool

DAYS = [date(2000, 1, 1) + timedelta(days=number) for number in range(146_097)]
LEAP_DAYS = [day for day in DAYS if (day.month, day.day) == (2, 29)]
VALUES = {
    "date": ["0001-01-01", "0999-12-31", "9999-12-31", "2024-02-29"],
    "time": ["00:00:00Z", "23:59:60Z", "12:30:00.123456-08:00", "08:15:30.5+05:45"],
    "date-time": [
        "1985-04-12T23:20:50.52Z",
        "1996-12-19T16:39:57-08:00",
        "1990-12-31T23:59:60Z",
        "2024-02-29T10:00:00Z",
    ],
    "time-local": ["00:00:00", "12:30:00.123456"],
    "date-time-local": ["2024-02-29T10:00:00", "0001-01-01T00:00:00.000001"],
    "iso-time": ["10:00:00", "10:00:00Z", "10:00:00.5-00:30"],
    "iso-date-time": ["2024-02-29T10:00:00", "2024-02-29T10:00:00.000001+14:00", "2024-02-29T10:00:00Z"],
    "duration": ["P3Y6M4DT12H30M5S", "P1Y35D", "PT36H", "P1DT5S", "P2W", "PT1M", "P0D"],
    "iso-duration": ["-P1D", "PT0.5S", "P1Y35DT5.000007S", "-PT0.000001S", "P1DT6H", "PT1H5S"],
    "email": ["joe.bloggs+tag@example.org", "o'hara@x-y.co.uk", "1@b", "a_b-c@sub.example.museum"],
    "hostname": ["localhost", "www.example.org", "xn--bcher-kva.example", "a1-b2.c"],
    "ipv4": ["0.0.0.0", "255.255.255.255", "127.0.0.1", "10.20.30.40"],
    "ipv6": ["::", "::1", "fe80::1", "1:2:3:4:5:6:7:8", "2001:DB8::8:800:200c:417a", "::ffff:192.0.2.128", "1::8"],
    "uuid": [
        "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
        "00000000-0000-0000-0000-000000000000",
        "F" * 8 + "-FFFF" * 3 + "-" + "F" * 12,
    ],
    "uuid4": ["9f1c2d3e-4b5a-4c6d-8e7f-0123456789ab"],
    "uri": [
        "https://example.org/a?b=c&d=%20#e",
        "mailto:a@b.c",
        "urn:isbn:0451450523",
        "file:///a",
        "http://[::1]:80/",
    ],
}


@cache
def tool(name: str) -> Tool:
    field = {"type": "string", "format": name}
    return as_tool({"name": "note", "parameters": {"type": "object", "properties": {"at": field}, "required": ["at"]}})


@cache
def call(family: str, name: str) -> Matcher:
    return calls(family, held(tool(name)))


@cache
def answer(name: str) -> Matcher:
    response = response_of(JsonSchema({"type": "string", "format": name}), matcher)
    assert response is not None
    return answers(response)


def test_every_format_has_values() -> None:
    assert {*FORMATS, "uuid4"} - {f"uuid{version}" for version in range(1, 9)} <= VALUES.keys()
    assert [(name, text) for name, texts in VALUES.items() for text in texts if not FORMATS[name](text)] == []


@pytest.mark.parametrize("name", VALUES)
def test_values_may_be_written(name: str) -> None:
    assert [text for text in VALUES[name] if not takes(answer(name), f'"{text}"')] == []
    why = [
        unwritable(family, call(family, name), tool(name), {"at": text})
        for family in SHAPES.values()
        for text in VALUES[name]
    ]
    assert list(filter(None, why)) == []


def test_every_day_of_four_centuries() -> None:
    """What `isoformat` gives; in calls, of each day of a leap year and of each leap year."""
    pattern = re.compile(PATTERNS["date"])
    assert [day for day in DAYS if not pattern.fullmatch(day.isoformat())] == []
    some = [*DAYS[:366], *LEAP_DAYS]
    assert [day for day in some if not takes(answer("date"), f'"{day.isoformat()}"')] == []
    assert [day for day in some if not takes(answer("date-time"), f'"{day.isoformat()}T10:00:00Z"')] == []
    for shape, family in SHAPES.items():
        texts = [day.isoformat() for day in some]
        why = (unwritable(family, call(family, "date"), tool("date"), {"at": text}) for text in texts)
        assert list(filter(None, why)) == [], shape


WRONG = {
    "date": ["2024-02-30", "2024-04-31", "2024-13-01", "2024-00-10", "2024-01-00", "2024-1-1", "0000-01-01"],
    "time": ["24:00:00Z", "10:60:00Z", "10:00:61Z", "10:00:00"],
    "date-time": ["2024-02-29T10:00:00", "2024-02-29"],
    "time-local": ["10:00:00Z"],
    "date-time-local": ["2024-02-29T10:00:00Z"],
    "iso-time": ["10:00"],
    "iso-date-time": ["2024-02-29"],
    "duration": ["P", "PT", "-P1D", "PT0.5S", "P1WT1S"],
    "iso-duration": ["-P", "P1.5D"],
    "email": ["a", "@b.c"],
    "hostname": ["-a", "a..b"],
    "ipv4": ["256.0.0.1", "1.2.3"],
    "ipv6": ["1.2", "1::2::3", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "::1.2.3", ":::"],
    "uuid": ["0" * 32],
    "uri": ["a"],
}


@pytest.mark.parametrize("name", WRONG)
def test_other_texts_may_not(name: str) -> None:
    assert [text for text in WRONG[name] if takes(answer(name), f'"{text}"')] == []
    for family in SHAPES.values() if name in PATTERNS else ():
        why = (unwritable(family, call(family, name), tool(name), {"at": text}) for text in WRONG[name])
        assert all(why), family
