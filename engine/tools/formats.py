"""The formats of JSON Schema that are checked, strictly and in linear time; the others say nothing about a value."""

import ipaddress
import re
from collections.abc import Callable, Mapping
from datetime import date
from functools import cache, partial
from typing import Any
from uuid import UUID

_TIME = re.compile(
    r"([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII | re.IGNORECASE
)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_DURATION = re.compile(r"P(?=[\dT])(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)", re.ASCII)
_LABEL = re.compile(r"[a-z\d]([a-z\d-]{0,61}[a-z\d])?", re.ASCII | re.IGNORECASE)
_MAILBOX = re.compile(r"[^\s@\"(),:;<>\[\\\]]{1,64}")
_URI = re.compile(
    r"[a-z][a-z\d+.-]*:([^\s%<>\"{}|\\^`\x00-\x20\x7f-\U0010ffff]|%[\da-f]{2})*", re.ASCII | re.IGNORECASE
)
_UUID = re.compile(r"[\da-f]{8}(-[\da-f]{4}){3}-[\da-f]{12}", re.ASCII | re.IGNORECASE)


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return _DATE.fullmatch(text) is not None


def _is_time(text: str) -> bool:
    return _TIME.fullmatch(text) is not None


def _is_date_time(text: str) -> bool:
    return text[10:11] in ("T", "t") and _is_date(text[:10]) and _is_time(text[11:])


def _is_hostname(text: str) -> bool:
    return len(text) <= 253 and all(_LABEL.fullmatch(label) for label in text.split("."))


def _is_email(text: str) -> bool:
    name, _, host = text.rpartition("@")
    return _MAILBOX.fullmatch(name) is not None and not name.startswith(".") and ".." not in name and _is_hostname(host)


def _is_address(kind: Callable[[str], object], text: str) -> bool:
    try:
        return kind(text) is not None and "%" not in text  # a zone is not part of an address
    except ValueError:
        return False


def _is_uuid(text: str, version: int | None = None) -> bool:
    return _UUID.fullmatch(text) is not None and version in (None, UUID(text).version)


FORMATS: Mapping[str, Callable[[str], bool]] = {
    "date-time": _is_date_time,
    "date": _is_date,
    "time": _is_time,
    "duration": lambda text: _DURATION.fullmatch(text) is not None,
    "email": _is_email,
    "hostname": _is_hostname,
    "ipv4": partial(_is_address, ipaddress.IPv4Address),
    "ipv6": partial(_is_address, ipaddress.IPv6Address),
    "uri": lambda text: _URI.fullmatch(text) is not None,
    "uuid": _is_uuid,
    **{f"uuid{version}": partial(_is_uuid, version=version) for version in range(1, 9)},
}
"""Whether a text has the format, by name."""


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
