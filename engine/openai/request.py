"""A request's body, read by its endpoint's table of fields into options of the engine."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from pydantic import ConfigDict, ValidationError
from pydantic_core import SchemaValidator

from engine.openai.parameters import Json, read_tools, tool_options
from engine.openai.problems import bad
from engine.support.errors import did_you_mean, shown
from engine.support.validation import validator
from engine.tools import refuse_constant
from engine.types.tools import Tool

Rule: TypeAlias = Literal["honoured", "ignored", "refused"]
Reader: TypeAlias = Callable[[Any, str], object]
"""Converts a field's value into the option's; None leaves the option out. Raises Problem, which names the field."""
Options: TypeAlias = Iterable[tuple[str, str, object]]
"""Options of the engine: each option, the field that it came from, its value."""
TEMPLATE_FIELD = "chat_template_kwargs"


class Field(NamedTuple):
    """One field. `kind`: the type of its values. `note`: what it does, or why it has no effect. `neutral`: values that
    request nothing, which are neither refused nor reported as ignored (None always is one). `option`: the engine's
    option that it is, if it is one alone."""

    name: str
    rule: Rule
    kind: Any
    note: str
    neutral: tuple[object, ...] = ()
    option: str = ""
    read: Reader | None = None


Table: TypeAlias = Mapping[str, Field]


@dataclass(frozen=True, slots=True)
class Request:
    """A body that was read. `values`: its honoured fields; `ignored`: the names of those without effect; `options`: the
    engine's options; `names`: the field that each option came from."""

    body: Json
    values: Json
    ignored: tuple[str, ...]
    tools: tuple[Tool, ...]
    options: Json
    names: dict[str, str]

    @property
    def model(self) -> str | None:
        return self.values.get("model")

    @property
    def n(self) -> int:
        return self.values.get("n", 1)

    @property
    def stream(self) -> bool:
        return self.values.get("stream", False)

    @property
    def include_usage(self) -> bool:
        return bool(self.values.get("stream_options", {}).get("include_usage"))


def read_body(content: bytes) -> Json:
    """Returns a request's body. Raises Problem if it is not a JSON object."""
    try:
        body: Any = json.loads(content, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise bad(f"The body of the request is not JSON: {error}.", code="invalid_json") from error
    if not isinstance(body, dict):
        raise bad(f"The body of a request must be a JSON object, not a {type(body).__name__}.", code="invalid_json")
    return cast("Json", body)


def read_request(table: Table, body: Json, own: Callable[[Json], Options]) -> Request:
    """Read a body. `own` returns the options that are not one field each, and raises Problem for what is missing.
    Raises Problem for what is unknown, refused, or not valid."""
    values, ignored = _sorted_fields(table, body)
    special = tuple(own(values))
    _check_stream_options(values, counts="input" not in table)
    tools = read_tools(values.get("tools", []), "tools")
    options, names = _merged((*special, *tool_options(values, tools), *_row_options(table, values)))
    return Request(body, values, ignored, tools, options, names)


def _sorted_fields(table: Table, body: Json) -> tuple[Json, tuple[str, ...]]:
    """Returns the honoured fields that request something, and the names of the ignored ones."""
    values: Json = {}
    ignored: list[str] = []
    for name, value in body.items():
        row = _row(table, name)
        if value is None or value in row.neutral:
            continue
        _check(row, value)
        if row.rule == "refused":
            raise bad(f"{name} is not supported: {row.note}.", name, "unsupported_parameter")
        if row.rule == "ignored":
            ignored.append(name)
        else:
            values[name] = value
    return values, tuple(ignored)


def _row(table: Table, name: str) -> Field:
    if (row := table.get(name)) is not None:
        return row
    hint = did_you_mean(name, table, "see the table in docs/reference/openai-fields.md for those there are.")
    raise bad(f"There is no field {shown(name)}; {hint}", name, "unknown_parameter")


@cache
def _validator(kind: Any) -> SchemaValidator:
    return validator(kind, ConfigDict(strict=True))


def _check(row: Field, value: object) -> None:
    try:
        _validator(row.kind).validate_python(value)
    except ValidationError as error:
        first = max(error.errors(include_url=False), key=lambda each: len(each["loc"]))  # the nearest of a union
        place = next((f"[{step}]" for step in first["loc"] if isinstance(step, int)), "")
        message = f"{row.name}{place} is not valid: {first['msg'][:1].lower()}{first['msg'][1:]}."
        raise bad(message, f"{row.name}{place}", "invalid_type") from error


def _check_stream_options(values: Json, *, counts: bool) -> None:
    """Raise Problem for `stream_options` that mean nothing; `counts`: the endpoint has `include_usage`."""
    options: Json | None = values.get("stream_options")
    if options is None:
        return
    if not values.get("stream"):
        raise bad("stream_options is for streams; leave it out, or set stream=true.", "stream_options")
    for name, value in options.items():
        field = f"stream_options.{name}"
        if name != "include_obfuscation" and not (counts and name == "include_usage"):
            raise bad(f"stream_options has no field {shown(name)}.", field, "unknown_parameter")
        if not isinstance(value, bool | None):
            raise bad(f"{field} must be true or false, not {shown(value)}.", field, "invalid_type")


def _row_options(table: Table, values: Json) -> Iterator[tuple[str, str, object]]:
    """Yields the options of fields that are one alone, and those in the template's variables."""
    for name, row in table.items():
        if name not in values:
            continue
        if name == TEMPLATE_FIELD:
            yield from _template_options(values[name])
        elif row.option and (value := row.read(values[name], name) if row.read else values[name]) is not None:
            yield row.option, name, value


def _template_options(variables: Json) -> Iterator[tuple[str, str, object]]:
    rest = dict(variables)
    if isinstance(rest.get("enable_thinking"), bool):
        yield "reasoning", TEMPLATE_FIELD, rest.pop("enable_thinking")
    if rest:
        yield "template_kwargs", TEMPLATE_FIELD, rest


def _merged(triples: Options) -> tuple[Json, dict[str, str]]:
    """Returns the options, and the field that each came from. Raises Problem for two fields that ask for different
    values of one option."""
    options: Json = {}
    names: dict[str, str] = {}
    for option, field, value in triples:
        if option in options and options[option] != value:
            raise bad(f"{names[option]} and {field} are given and differ; give one of them.", field)
        options[option], names[option] = value, field
    return options, names
