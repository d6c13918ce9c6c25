"""The formats of JSON Schema that are checked, strictly and in linear time; the others say nothing about a value."""

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
    "duration": lambda text: re.fullmatch(_DURATION, text) is not None,
    "email": _is_email,
    "hostname": _is_hostname,
    "ipv4": partial(_is_address, ipaddress.IPv4Address),
    "ipv6": partial(_is_address, ipaddress.IPv6Address),
    "uri": lambda text: re.fullmatch(_URI, text) is not None,
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
