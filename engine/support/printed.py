"""How records print: what says something, without fields at their default and without long numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import Any, cast

from pydantic import BaseModel

_DIGITS = 4


class Printed:
    """The base of records that print so: dataclasses (with `repr=False`, which would write another) and pydantic's."""

    __slots__ = ()

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={_shown(value)}" for name, value in self._told())
        return f"{type(self).__name__}({told})"

    def __str__(self) -> str:
        return repr(self)

    def _told(self) -> Iterator[tuple[str, object]]:
        """Yields the fields to print. A field that repeats others is left out by the record's own class."""
        for name, default in _defaults(self):
            value = getattr(self, name)
            if value is not default and (type(value) is not type(default) or value != default):
                yield name, value


def _defaults(record: Any) -> Iterator[tuple[str, object]]:
    """Yields the names of the fields that may be printed, and their defaults: MISSING where there is none."""
    if isinstance(record, BaseModel):
        for name, field in type(record).model_fields.items():
            if field.repr:
                yield name, MISSING if field.is_required() else field.get_default(call_default_factory=True)
    else:
        for field in fields(record):
            if field.repr:
                yield field.name, field.default if field.default_factory is MISSING else field.default_factory()


def _shown(value: object) -> str:
    """Returns a value's `repr`, with four digits of each float: 0.0148, not 0.014791829999012407."""
    if isinstance(value, float):
        short = f"{value:.{_DIGITS}g}"
        return repr(float(short)) if abs(value) < 10**_DIGITS else repr(round(value, 1))
    if type(value) is dict:
        members = cast("Mapping[object, object]", value).items()
        return f"{{{', '.join(f'{key!r}: {_shown(each)}' for key, each in members)}}}"
    if type(value) is tuple:
        items = [_shown(each) for each in cast("tuple[object, ...]", value)]
        return f"({', '.join(items)}{',' * (len(items) == 1)})"
    return repr(value)
