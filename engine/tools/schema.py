"""A pydantic model's JSON Schema as tool descriptions show it: no titles, no references, keys in the usual order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from engine.tools.subschemas import Schema, mapped

_PREFIX = "#/$defs/"
_FIRST = ("$ref", "type", "description", "enum", "const")
_LAST = ("default", "properties", "required")
_NULL = {"type": "null"}


class TypeSchema(GenerateJsonSchema):
    """Writes the schema of a type, as exactly as pydantic itself writes and reads its values. A default that JSON
    cannot represent is omitted, without a warning: the call still uses it."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as pydantic declares it

    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> dict[str, Any]:
        """Returns the schema of a time of a day: with an offset from UTC, without, or either, as the type says."""
        return _offset(super().datetime_schema(schema), schema.get("tz_constraint"))

    def time_schema(self, schema: core_schema.TimeSchema) -> dict[str, Any]:
        """Returns the schema of a time: see `datetime_schema`."""
        return _offset(super().time_schema(schema), schema.get("tz_constraint"))

    def timedelta_schema(self, schema: core_schema.TimedeltaSchema) -> dict[str, Any]:
        """Returns the schema of a duration, which may be negative and have a fraction of a second."""
        stated = super().timedelta_schema(schema)
        return {**stated, "format": "iso-duration"} if stated.get("format") == "duration" else stated

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> dict[str, Any]:
        """Returns the schema of a decimal: a number if it has bounds, which say nothing of a text; a text of sign,
        digits and point if the digits are counted, which a number cannot say; else either."""
        text = {"type": "string", "pattern": _decimal(schema)}
        if "max_digits" in schema or "decimal_places" in schema:
            return text
        number = super().decimal_schema(schema)["anyOf"][0] if self.mode == "validation" else None
        if number is None:
            return text
        return number if schema.keys() & _BOUNDS else {"anyOf": [number, text]}


def _offset(schema: dict[str, Any], constraint: str | int | None) -> dict[str, Any]:
    if "format" not in schema or constraint not in (None, "naive"):
        return schema
    name = schema["format"]
    return {**schema, "format": f"{name}-local" if constraint == "naive" else f"iso-{name}"}


_BOUNDS = frozenset(["ge", "gt", "le", "lt", "multiple_of"])
_MOST_DIGITS = 19
"""Before the point, and behind it, if the type says nothing: as many as numbers have under a constraint."""


def _decimal(schema: core_schema.DecimalSchema) -> str:
    """Returns the pattern of a decimal as text."""
    places, most = schema.get("decimal_places"), schema.get("max_digits")
    least = max(schema.get("ge", -1), schema.get("gt", -1))
    behind = range(1, min(_MOST_DIGITS if places is None else places, most or _MOST_DIGITS) + 1)
    if most is None or places is not None:
        whole = _MOST_DIGITS if most is None else max(most - len(behind), 0)
        fraction = rf"\.[0-9]{{1,{len(behind)}}}"
        spelt = f"[0-9]{{1,{whole}}}" + (f"({fraction})?" if behind else "")
        if not whole:
            spelt = f"0{fraction}"  # pydantic counts the digit of a plain 0
    else:
        parts = [rf"[0-9]{{1,{most - size}}}\.[0-9]{{{size}}}" for size in behind if size < most]
        spelt = "|".join([f"[0-9]{{1,{most}}}", *parts])
    return f"^{'' if least >= 0 else '-?'}({spelt})$"


def model_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Returns the schema of the model's input. Only recursive definitions stay under $defs; all others are inlined.

    A nullable property whose default is null is shown without the null: leaving it out means the same, and models make
    fewer mistakes that way. Raises pydantic's error for a model that has no schema.
    """
    schema = model.model_json_schema(schema_generator=TypeSchema)
    definitions: dict[str, dict[str, Any]] = schema.pop("$defs", {})
    cleaner = _Cleaner(definitions, frozenset(name for name in definitions if _reaches(name, name, definitions)))
    if name := _target(schema):
        schema = definitions[name]
    cleaned = cleaner.clean(schema)
    # The model does not need to read `additionalProperties: false` at the top: the check refuses extra arguments
    # anyway.
    if cleaned.get("additionalProperties") is False:
        del cleaned["additionalProperties"]
    kept = {name: cleaner.clean(definitions[name]) for name in sorted(cleaner.recursive) if name in definitions}
    return {**cleaned, "$defs": kept} if kept else cleaned


def _target(schema: Mapping[str, Any]) -> str | None:
    reference = schema.get("$ref")
    return reference.removeprefix(_PREFIX) if isinstance(reference, str) and reference.startswith(_PREFIX) else None


def _reaches(start: str, goal: str, definitions: Mapping[str, Any]) -> bool:
    """Whether the definition `start` refers to `goal`, directly or through other definitions."""
    seen: set[str] = set()
    todo: list[object] = [definitions[start]]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            members = cast("dict[str, Any]", item)
            name = _target(members)
            if name == goal:
                return True
            if name is not None and name not in seen:
                seen.add(name)
                todo.append(definitions[name])
            todo.extend(members.values())
        elif isinstance(item, list):
            todo.extend(cast("list[object]", item))
    return False


@dataclass(frozen=True, slots=True)
class _Cleaner:
    definitions: Mapping[str, dict[str, Any]]
    recursive: frozenset[str]

    def clean(self, schema: Schema) -> dict[str, Any]:
        """Returns a schema without titles, with each reference replaced by its definition."""
        members = _without_null(dict(schema))
        name = _target(members)
        if name is not None and name not in self.recursive:
            members = {**self.definitions[name], **{key: value for key, value in members.items() if key != "$ref"}}
        kept = {key: value for key, value in members.items() if key not in ("title", "discriminator")}
        return _ordered(mapped(kept, lambda _, part: self.clean(part), "$"))


def _without_null(members: dict[str, Any]) -> dict[str, Any]:
    choices: Any = members.get("anyOf", ())
    if "default" not in members or members["default"] is not None or _NULL not in choices:
        return members
    rest = [choice for choice in choices if choice != _NULL]
    others = {key: value for key, value in members.items() if key not in ("anyOf", "default")}
    return {**rest[0], **others} if len(rest) == 1 else {**others, "anyOf": rest}


def _ordered(members: dict[str, Any]) -> dict[str, Any]:
    middle = [key for key in members if key not in _FIRST and key not in _LAST]
    return {key: members[key] for key in (*_FIRST, *middle, *_LAST) if key in members}
