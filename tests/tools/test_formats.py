"""What JSON Schema calls checked is checked: formats wherever they stand, and keywords of any draft."""

from typing import Any

import pytest

from engine.formats.grammar.json_schema import prepared
from engine.runtime.guidance.matcher import refusal
from engine.tools.check import schema_check
from engine.tools.formats import FORMATS

FIT = {
    "date-time": ["2024-02-29T23:59:60Z", "2024-01-01t00:00:00.5+01:00"],
    "date": ["2024-02-29"],
    "time": ["12:30:00Z", "12:30:00.123-08:00"],
    "duration": ["P1Y2M3DT4H5M6S", "PT5M", "P2W"],
    "email": ["a.b+c@example.org"],
    "hostname": ["example.org", "xn--bcher-kva.example", "a"],
    "ipv4": ["127.0.0.1"],
    "ipv6": ["::1", "2001:db8::8:800:200c:417a"],
    "uri": ["http://a.example/b?c=%20#d", "urn:isbn:1"],
    "uuid": ["00000000-0000-4000-8000-000000000000"],
    "uuid4": ["00000000-0000-4000-8000-000000000000"],
}
UNFIT = {
    "date-time": ["2024-02-30T00:00:00Z", "2024-01-01T00:00:00", "2024-01-01 00:00:00Z", "2024-01-01T24:00:00Z"],
    "date": ["2023-02-29", "20240101", "2024-W01-1", "2024-1-1", "\u0662\u0660\u0662\u0664-01-01"],
    "time": ["12:30", "12:30:00", "25:00:00Z", "12:30:00+2"],
    "duration": ["P", "PT", "1D", "P1H", "P1W2D"],
    "email": ["a", "@b.c", "a b@c.d", "a..b@c.d", "a@-c.d"],
    "hostname": ["-a.b", "a-.b", "a..b", "", "a_b", "x" * 64, ".".join(["abcdefgh"] * 29)],
    "ipv4": ["256.0.0.1", "01.2.3.4", "1.2.3"],
    "ipv6": ["::g", "1::2::3", "fe80::1%eth0"],
    "uri": ["//a.example", "http://a b", "a", "http://a/%zz", "http://\u00e4.example"],
    "uuid": ["0" * 32, "{00000000-0000-4000-8000-000000000000}", "00000000-0000-4000-8000-00000000000g"],
    "uuid4": ["00000000-0000-1000-8000-000000000000"],
}


@pytest.mark.parametrize("name", FIT)
def test_a_format_is_strict(name: str) -> None:
    assert [text for text in FIT[name] if not FORMATS[name](text)] == []
    assert [text for text in UNFIT[name] if FORMATS[name](text)] == []


BROKEN: list[tuple[dict[str, Any], Any]] = [
    ({"if": {"required": ["k"]}, "then": {"properties": {"d": {"format": "date"}}}}, {"k": 1, "d": "2024-02-31"}),
    ({"patternProperties": {"^a": {}}, "unevaluatedProperties": False}, {"a": 1, "b": 1}),
    (
        {"$ref": "#/$defs/x", "$defs": {"x": {"patternProperties": {"^(a|a)*b$": {}}}}, "unevaluatedProperties": False},
        {"a" * 500: 1},
    ),
    ({"dependencies": {"a": ["b"]}}, {"a": 1}),
    ({"dependencies": {"a": {"required": ["c"]}}}, {"a": 1}),
    ({"type": "string", "format": "uuid7"}, "00000000-0000-4000-8000-000000000000"),
    ({"not": {"format": "ipv4"}}, "127.0.0.1"),
    ({"contains": {"format": "email"}}, ["a", "b"]),
    ({"propertyNames": {"format": "hostname"}}, {"-": 1}),
]


@pytest.mark.parametrize(("schema", "value"), BROKEN)
def test_a_keyword_that_counts_as_checked_is_checked(schema: dict[str, Any], value: Any) -> None:
    assert prepared(schema, refusal, "It", close=False)[1]
    assert schema_check("The parts", schema)(value) is not None


def test_a_format_that_says_nothing_does_not_count_as_checked() -> None:
    assert prepared({"type": "string", "format": "colour"}, refusal, "It", close=False)[1] == ()
