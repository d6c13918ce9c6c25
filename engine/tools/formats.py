"""The formats of JSON Schema: what each allows, as a pattern for grammars and as a strict check in linear time. Formats
that are not here say nothing about a value."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from datetime import date
from functools import cache, partial
from typing import Any
from uuid import UUID

# `re` compiles them when they are used: few programs check formats.
_TIME = r"(?ai)([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_DATE = r"(?a)\d{4}-\d{2}-\d{2}"
_DURATION = r"(?a)P(?=[\dT])(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)"
_ISO_DURATION = r"(?a)-?P(?=[\dT])(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+(\.\d+)?S)?)?)"
_LABEL = r"(?ai)[a-z\d]([a-z\d-]{0,61}[a-z\d])?"
_MAILBOX = r"[^\s@\"(),:;<>\[\\\]]{1,64}"
_URI = r"(?ai)[a-z][a-z\d+.-]*:([^\s%<>\"{}|\\^`\x00-\x20\x7f-\U0010ffff]|%[\da-f]{2})*"
_UUID = r"(?ai)[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}"


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return re.fullmatch(_DATE, text) is not None


def _is_time(text: str) -> bool:
    return re.fullmatch(_TIME, text) is not None


def _is_date_time(text: str) -> bool:
    return text[10:11] in ("T", "t") and _is_date(text[:10]) and _is_time(text[11:])


def _is_local(fits: Callable[[str], bool], text: str) -> bool:
    return fits(f"{text}Z")


def _is_either(fits: Callable[[str], bool], text: str) -> bool:
    return fits(text) or _is_local(fits, text)


def _is_hostname(text: str) -> bool:
    return len(text) <= 253 and all(re.fullmatch(_LABEL, label) for label in text.split("."))


def _is_email(text: str) -> bool:
    name, _, host = text.rpartition("@")
    sound = not name.startswith(".") and ".." not in name
    return sound and re.fullmatch(_MAILBOX, name) is not None and _is_hostname(host)


def _is_address(kind: Callable[[str], object], text: str) -> bool:
    try:
        return kind(text) is not None and "%" not in text  # a zone is not part of an address
    except ValueError:
        return False


def _is_uuid(text: str, version: int | None = None) -> bool:
    return re.fullmatch(_UUID, text) is not None and version in (None, UUID(text).version)


FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date-time": _is_date_time,
    "date": _is_date,
    "time": _is_time,
    "date-time-local": partial(_is_local, _is_date_time),
    "time-local": partial(_is_local, _is_time),
    "iso-date-time": partial(_is_either, _is_date_time),
    "iso-time": partial(_is_either, _is_time),
    "duration": lambda text: re.fullmatch(_DURATION, text) is not None,
    "iso-duration": lambda text: re.fullmatch(_ISO_DURATION, text) is not None,
    "email": _is_email,
    "hostname": _is_hostname,
    "ipv4": partial(_is_address, ipaddress.IPv4Address),
    "ipv6": partial(_is_address, ipaddress.IPv6Address),
    "uri": lambda text: re.fullmatch(_URI, text) is not None,
    "uuid": _is_uuid,
    **{f"uuid{version}": partial(_is_uuid, version=version) for version in range(1, 9)},
}
"""Whether a text has the format, by name. With `-local` it has no offset from UTC (OpenAPI's format registry), with
`iso-` it may have one (ajv's formats); an `iso-duration` may be negative, and its seconds have a fraction."""

_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"  # Python's calendar begins with the year 1
_CALENDAR = rf"{_YEAR}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-9])|(0[13-9]|1[0-2])-30|(0[13578]|1[02])-31)"
_HOUR = "([01][0-9]|2[0-3]):[0-5][0-9]"
_CLOCK = rf"{_HOUR}:([0-5][0-9]|60)(\.[0-9]{{1,6}})?"
_OFFSET = f"(Z|[+-]{_HOUR})"
_COUNT = "[0-9]{1,6}"


def _some(*parts: str) -> str:
    """Returns the pattern of these parts in order, of which at least one is there."""
    tails = [parts[number:] for number in range(len(parts))]
    return "(" + "|".join(first + "".join(f"({part})?" for part in rest) for first, *rest in tails) + ")"


def _duration(seconds: str) -> str:
    days, times = _some(f"{_COUNT}Y", f"{_COUNT}M", f"{_COUNT}D"), _some(f"{_COUNT}H", f"{_COUNT}M", seconds)
    return f"P({days}(T{times})?|T{times}|{_COUNT}W)"


_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"


def _ipv6() -> str:
    """Returns the pattern of an IPv6 address (RFC 4291, section 2.2): eight groups, the last two possibly written as an
    IPv4 address, and `::` in place of one or more of them."""
    group = "[0-9a-fA-F]{1,4}"
    last = f"({group}:{group}|{_IPV4})"
    ends = {7 - behind: f"({group}:){{{behind - 2}}}{last}" for behind in range(2, 7)} | {6: group, 7: ""}
    shortened = [f"({group}(:{group}){{0,{before - 1}}})?::{end}" for before, end in ends.items()]
    return "|".join([f"({group}:){{6}}{last}", f"::({group}:){{5}}{last}", *shortened])


PATTERNS: Mapping[str, str] = {
    "date": _CALENDAR,
    "time": _CLOCK + _OFFSET,
    "date-time": f"{_CALENDAR}T{_CLOCK}{_OFFSET}",
    "time-local": _CLOCK,
    "date-time-local": f"{_CALENDAR}T{_CLOCK}",
    "iso-time": f"{_CLOCK}{_OFFSET}?",
    "iso-date-time": f"{_CALENDAR}T{_CLOCK}{_OFFSET}?",
    "duration": _duration(f"{_COUNT}S"),
    "iso-duration": "-?" + _duration(rf"{_COUNT}(\.[0-9]{{1,6}})?S"),
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": _IPV4,
    "ipv6": f"({_ipv6()})",
}
"""What a grammar allows under a format (RFC 3339, 9562, 791, 4291): every value of it, with numbers that end and
letters in the usual case. Which years have a 29th of February is for the check."""


USUAL: Mapping[str, str] = {
    **{f"{name}-local": name for name in ("date-time", "time")},
    **{f"iso-{name}": name for name in ("date-time", "time", "duration")},
}
"""The format of JSON Schema itself that is nearest to another one, for programs that know no others."""


def _fits(fits: Callable[[str], bool], value: object) -> bool:
    return not isinstance(value, str) or fits(value)


@cache
def checker() -> Any:
    """Returns jsonschema's checker of these formats. A value that is no text has any format."""
    from jsonschema import FormatChecker

    made: Any = FormatChecker(formats=())
    for name, fits in FORMATS.items():
        made.checks(name)(partial(_fits, fits))
    return made
