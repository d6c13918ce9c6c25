"""Validates the arguments that a model wrote for a tool, with a pydantic model or a JSON Schema.

The only importer of jsonschema, and only when a tool is described by a dictionary.

The caller wrote the schema, but the model wrote the value, so the cost of a check is bounded: patterns are matched by a
linear-time engine, and a value that takes too many steps is rejected.
"""

import json
import logging
import math
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, is_dataclass
from dataclasses import fields as fields_of
from fractions import Fraction
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema

from engine.support.errors import RequestError, shown
from engine.support.recent import characters, recent
from engine.support.repetitions import most_repetitions
from engine.support.warning import warn
from engine.tools.context import ToolContext
from engine.tools.formats import checker
from engine.tools.json_values import plain_json, size
from engine.tools.subschemas import form, subschemas

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_LONGEST_SENTENCE = 400
_REMEMBERED = 16 << 20
"""Bytes of the schemas that are remembered, and of the patterns; a parsed schema takes twenty times its text."""
_STEPS, _STEPS_EACH = 20_000, 100
"""The most schema keywords that a check may apply to one value: a base, plus an allowance for each part of the
value."""


@dataclass(frozen=True, slots=True)
class ModelArguments:
    """A tool's `check` that uses a pydantic model, which also coerces the arguments and binds them to the function.

    `positional` and `keywords` map a function's parameters to the model's fields; both are empty when the model itself
    is the tool. `contexts` are the parameters that receive the `ToolContext`; they are not fields of the model.
    """

    model: type[BaseModel]
    positional: tuple[str, ...] = ()
    keywords: tuple[tuple[str, str], ...] = ()
    contexts: tuple[str, ...] = ()

    def __call__(self, arguments: Any) -> str | None:
        """Returns None if the arguments fit, else a sentence that says what is wrong."""
        try:
            # Through JSON, so that the rules are those of the call itself (from JSON, pydantic reads dates and tuples).
            _ = self._validated(json.dumps(arguments))
        except ValidationError as error:
            return sentence(error)
        except Exception as error:  # noqa: BLE001 - a model's own validators are the user's code
            return failed(error)
        return None

    def _validated(self, arguments: str) -> BaseModel:
        """Returns the arguments as the model reads them. Raises ValueError for infinity and NaN, which pydantic makes
        of texts and which no tool expects."""
        values = self.model.model_validate_json(arguments)
        if (place := _not_finite(values)) is not None:
            raise ValueError(f"{place} must be a finite number")
        return values

    def bind(self, function: Callable[..., Any], arguments: str, context: ToolContext[Any]) -> Callable[[], Any]:
        """Returns a callable that calls the function with these arguments (JSON text). Raises pydantic's
        ValidationError if they do not fit, or whatever a validator of the user's raises."""
        values = self._validated(arguments)
        if function is self.model:
            return lambda: values
        # Arguments that the model left out are not passed, so that the function uses its own defaults.
        args = [getattr(values, field) for field in self.positional if field in values.model_fields_set]
        given = {name: getattr(values, field) for name, field in self.keywords if field in values.model_fields_set}
        given |= dict.fromkeys(self.contexts, context)
        return lambda: function(*args, **given)


def _not_finite(value: Any) -> str | None:
    """Returns the name of the field that holds infinity or NaN; None if none does. Defaults are the caller's own."""
    if isinstance(value, float):
        return None if math.isfinite(value) else "the value"
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        parts = {fields[name].alias or name if name in fields else name: getattr(value, name) for name in _given(value)}
    elif is_dataclass(value):
        own = {field.name: (getattr(value, field.name, None), field.default) for field in fields_of(value)}
        parts = {name: part for name, (part, default) in own.items() if part is not default}
    elif isinstance(value, Mapping):
        parts = {str(key): part for key, part in cast("Mapping[object, Any]", value).items()}
    elif isinstance(value, list | tuple | set | frozenset):
        parts = {str(number): part for number, part in enumerate(cast("Iterable[Any]", value))}
    else:
        return None
    return next((name for name, part in parts.items() if _not_finite(part) is not None), None)


def _given(model: BaseModel) -> Iterable[str]:
    return [*model.model_fields_set, *(model.model_extra or ())]


class _TooManySteps(Exception):
    pass


_Keyword: TypeAlias = Callable[[Any, Any, Any, Any], "Iterable[Any] | None"]


class _Steps(threading.local):
    """The steps left to the check that runs in this thread."""

    left = 0


_steps = _Steps()
_UNCHECKED = (
    "The pattern of a schema is shown to the model but not checked: it uses lookaround or backreferences, which can "
    "take exponential time, or is too large. The log says which. Write it without them, or check the value in the tool "
    "itself."
)
_log = logging.getLogger("engine.tools")


class SchemaArguments:
    """A tool's `check` that uses its JSON Schema."""

    __slots__ = ("_validator",)

    def __init__(self, kind: Any, schema: Mapping[str, Any], resolver: Any) -> None:
        self._validator: Validator = _bounded(kind)(schema, _resolver=resolver, format_checker=checker())

    def __call__(self, arguments: Any) -> str | None:
        """Returns None if the arguments fit, else a sentence that says what is wrong."""
        from jsonschema.exceptions import relevance

        _steps.left = _STEPS + _STEPS_EACH * size(arguments)
        try:
            errors = sorted(self._validator.iter_errors(arguments), key=relevance, reverse=True)
        except _TooManySteps:
            return "checking them takes too many steps: write less, or nest it less."
        except Exception as error:  # noqa: BLE001 - jsonschema raises errors of its own for some numbers and depths
            return failed(error)
        if not errors:
            return None
        place = errors[0].json_path.removeprefix("$").removeprefix(".")
        return shortened(f"{place!r}: {errors[0].message}" if place else errors[0].message) + "."


def schema_arguments(name: str, parameters: object) -> SchemaArguments:
    """Returns the check for the parameter schema that a caller wrote for the tool `name`; cached by schema.

    Raises RequestError if the schema is not JSON, not JSON Schema, not of type object, or has a $ref to something
    outside itself.
    """
    schema = schema_of(name, parameters)
    return _check_of(f"The parameters of tool {name!r}", json.dumps(schema))


def schema_check(what: str, schema: Mapping[str, Any]) -> SchemaArguments:
    """Returns the check for a schema of any type, which messages call `what` (a plural). Raises RequestError like
    `schema_arguments`, except that the type need not be object."""
    return _check_of(what, json.dumps(plain_schema(what, schema)))


def plain_schema(what: str, schema: object) -> Any:
    """Copy a schema as plain JSON of bounded size. Raises RequestError for what is not JSON."""
    try:
        return plain_json(schema)
    except ValueError as error:
        raise RequestError(f"{what} cannot be used as JSON Schema: {error}. Correct or flatten it.") from None


def schema_of(name: str, parameters: object) -> dict[str, Any]:
    """Returns the parameters of the tool `name` as plain JSON. Raises RequestError if they are not a schema of type
    object."""
    schema = plain_schema(f"The parameters of tool {name!r}", parameters)
    if isinstance(schema, dict) and (members := cast("dict[str, Any]", schema)).get("type") == "object":
        return members
    raise RequestError(
        f"The parameters of tool {name!r} are not a schema of type object: {shown(parameters)}. Write "
        '{"type": "object", "properties": {...}, "required": [...]}.'
    )


def _schema_size(what: str, text: str) -> int:
    return len(what) + 20 * len(text)


def _form_size(kind: Any, text: str) -> int:
    del kind
    return characters(text)


@recent(_REMEMBERED, _schema_size)
def _check_of(what: str, text: str) -> SchemaArguments:
    """The check of a schema as JSON text. Cached: checking a schema takes milliseconds, and every request brings the
    same."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for

    schema: dict[str, Any] = json.loads(text)
    try:
        if not isinstance(schema.get("$schema", ""), str):
            raise ValueError(f"its $schema is {schema['$schema']!r}, not the address of one")
        kind: Any = validator_for(schema, default=Draft202012Validator)
        _check_parts(kind, schema)
        resolver = _resolver(schema)
        _resolve_references(what, schema, resolver)
    except SchemaError as error:
        raise RequestError(f"{what} are not JSON Schema, at {error.message}. Correct them there.") from error
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        # The libraries raise these for mistakes that no metaschema forbids: invalid URIs, odd anchors.
        raise RequestError(f"{what} cannot be read as JSON Schema: {shortened(str(error))}. Correct them.") from error
    _warn_of_patterns(what, schema)
    return SchemaArguments(kind, schema, resolver)


def _check_parts(kind: Any, schema: Mapping[str, Any]) -> None:
    """Raise jsonschema's SchemaError, with a JSON path, for what the metaschema forbids.

    Validating a whole schema takes a millisecond for each part, 7 seconds for 150 kB; but few parts differ in form.
    """
    from jsonschema.exceptions import SchemaError

    for place, part in subschemas(schema):
        if (wrong := _wrong(kind, json.dumps(form(part)))) is not None:
            path, message = wrong
            raise SchemaError(f"{place}{path}: {message}")


@recent(_REMEMBERED, _form_size)
def _wrong(kind: Any, text: str) -> tuple[str, str] | None:
    """Returns where, in the form of a schema, the metaschema forbids something, and what."""
    from jsonschema.exceptions import SchemaError

    try:
        kind.check_schema(json.loads(text), format_checker=_formats_of(kind))
    except SchemaError as error:
        return error.json_path.removeprefix("$"), shortened(error.message)
    return None


@cache
def _formats_of(kind: Any) -> Any:
    """Returns the metaschema's formats, where a pattern is what our engine, or Python's, can read."""
    from jsonschema import FormatChecker

    formats: Any = FormatChecker(formats=())
    formats.checkers.update(kind.FORMAT_CHECKER.checkers)
    formats.checks("regex", raises=re.error)(_is_pattern)
    return formats


def _is_pattern(text: object) -> bool:
    return not isinstance(text, str) or _matcher(text) is not None or bool(re.compile(text))


def _resolver(schema: Mapping[str, Any]) -> Any:
    """Returns what finds references in the schema itself or nowhere, never on the network. The schema is searched for
    its anchors once; the libraries alone would search it for each reference."""
    from referencing import Registry
    from referencing.jsonschema import DRAFT202012, specification_with

    draft: Any = specification_with(schema.get("$schema", ""), default=cast("Any", DRAFT202012))
    resource = draft.create_resource(schema)
    address = resource.id() or ""
    return cast("Any", Registry)().with_resource(address, resource).crawl().resolver(address)


def _resolve_references(what: str, schema: Mapping[str, Any], resolver: Any) -> None:
    from referencing.exceptions import Unresolvable

    references = [part.get("$ref") for _, part in subschemas(schema)]
    for reference in dict.fromkeys(each for each in references if isinstance(each, str)):
        try:
            resolver.lookup(reference)
        except Unresolvable as error:
            raise RequestError(
                f"{what} refer to {reference!r}, which is not in them; define it under $defs."
            ) from error


def unmatched(schema: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yields the JSON path and the text of each pattern that no linear-time engine reads."""
    for place, part in subschemas(schema):
        named = [(f"{place}.patternProperties", each) for each in part.get("patternProperties", ())]
        for path, pattern in [(f"{place}.pattern", part.get("pattern")), *named]:
            if isinstance(pattern, str) and _matcher(pattern) is None:
                yield path, pattern


def _warn_of_patterns(what: str, schema: Mapping[str, Any]) -> None:
    for _, pattern in unmatched(schema):
        _log.warning("Not checked: the pattern %r in %s%s", shortened(pattern), what[0].lower(), what[1:])
        warn(_UNCHECKED)  # one text, since Python keeps each that it shows


def _compiled_size(pattern: str) -> int:
    """Returns about how many bytes a compiled pattern takes; its library allows ten million."""
    return min(10_000_000, 500 * len(pattern) * most_repetitions(pattern))


@recent(_REMEMBERED, _compiled_size)
def _matcher(pattern: str) -> Callable[[object], bool] | None:
    """Returns a function that searches a text for the pattern in linear time; None if no linear-time engine supports
    it."""
    try:
        return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python
    except PatternError:
        return None


def _matches(pattern: str, text: str) -> bool:
    matcher = _matcher(pattern)
    return matcher is None or matcher(text)


@cache
def _bounded(kind: Any) -> Any:
    """The validator class of a draft: every keyword counts as a step, and keywords that may cost more are replaced by
    our own."""
    import jsonschema.validators

    keywords: dict[str, _Keyword] = {**_of_all_drafts(), **kind.VALIDATORS}
    additional = keywords.get("additionalProperties")
    if additional is not None:
        keywords["additionalProperties"] = _additional(additional)
    keywords |= {name: own for name, own in _OWN.items() if name in keywords}

    def counted(keyword: _Keyword) -> _Keyword:
        def apply(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any]:
            _steps.left -= 1
            if _steps.left < 0:
                raise _TooManySteps
            return keyword(validator, value, instance, schema) or ()

        return apply

    return cast("Any", jsonschema.validators).extend(
        kind, {name: counted(keyword) for name, keyword in keywords.items()}
    )


@cache
def _of_all_drafts() -> dict[str, _Keyword]:
    """Returns the keywords that are checked in a schema of any draft: callers mix them, and none changed its
    meaning."""
    from jsonschema import Draft7Validator, Draft202012Validator

    newest: Any = Draft202012Validator
    older: Any = Draft7Validator
    names = ("if", "contains", "propertyNames", "dependentRequired", "dependentSchemas", "unevaluatedItems")
    found = {name: newest.VALIDATORS[name] for name in (*names, "unevaluatedProperties")}
    return {**found, "dependencies": older.VALIDATORS["dependencies"]}


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterable[Any]:
    from jsonschema.exceptions import ValidationError as Unfit

    del schema
    if validator.is_type(instance, "string") and not _matches(pattern, instance):
        yield Unfit(f"{shortened(repr(instance))} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Mapping[str, Any], instance: Any, schema: Any) -> Iterable[Any]:
    del schema
    if validator.is_type(instance, "object"):
        for pattern, inner in patterns.items():
            for key, value in instance.items():
                if _matches(pattern, key):
                    yield from validator.descend(value, inner, path=key, schema_path=pattern)


def _additional(usual: _Keyword) -> _Keyword:
    """The keyword `additionalProperties`, with our own matching of `patternProperties`."""

    def additional(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any] | None:
        patterns: Mapping[str, Any] = schema.get("patternProperties") or {}
        if patterns and validator.is_type(instance, "object"):
            instance = {
                key: item for key, item in instance.items() if not any(_matches(pattern, key) for pattern in patterns)
            }
            schema = {key: item for key, item in schema.items() if key != "patternProperties"}
        return usual(validator, value, instance, schema)

    return additional


def _unique(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterable[Any]:
    from jsonschema.exceptions import ValidationError as Unfit

    del schema
    listed = wanted and validator.is_type(instance, "array")
    if listed and len({json.dumps(item, sort_keys=True) for item in instance}) < len(instance):
        yield Unfit(f"{shortened(repr(instance))} has non-unique elements")


def _multiple(validator: Any, of: Any, instance: Any, schema: Any) -> Iterable[Any]:
    """The keyword `multipleOf`, of numbers as they are written: 19.99 is a multiple of 0.01, in binary it is not."""
    from jsonschema.exceptions import ValidationError as Unfit

    del schema
    if validator.is_type(instance, "number") and (Fraction(str(instance)) / Fraction(str(of))).denominator != 1:
        yield Unfit(f"{instance!r} is not a multiple of {of!r}")


def _unevaluated(validator: Any, value: Any, instance: Any, schema: Any) -> Iterable[Any] | None:
    return _linear_unevaluated()(validator, value, instance, schema)


@cache
def _linear_unevaluated() -> _Keyword:
    """Returns jsonschema's keyword, with patterns matched in linear time instead of by Python's backtracking engine."""
    from jsonschema import Draft202012Validator

    usual = cast("Any", Draft202012Validator).VALIDATORS["unevaluatedProperties"]
    names = {"re": SimpleNamespace(search=_matches)}
    found = usual.__globals__["find_evaluated_property_keys_by_schema"]
    own = FunctionType(found.__code__, scope := {**found.__globals__, **names})
    scope[found.__name__] = own  # it calls itself
    return cast("_Keyword", FunctionType(usual.__code__, {**usual.__globals__, found.__name__: own}))


_OWN: Mapping[str, _Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "uniqueItems": _unique,
    "multipleOf": _multiple,
    "unevaluatedProperties": _unevaluated,
}


def sentence(error: ValidationError) -> str:
    """Returns what does not fit, argument by argument, as one sentence."""
    parts: list[str] = []
    for item in error.errors(include_url=False):
        place = ".".join(str(step) for step in item["loc"])
        if item["type"] == "missing":
            parts.append(f"{place!r} is missing")
        elif item["type"] == "extra_forbidden":
            parts.append(f"{place!r} is not an argument of this tool")
        else:
            written = "" if isinstance(item["input"], dict | list) or not place else f" (not {item['input']!r})"
            parts.append(f"{place!r}: {item['msg']}{written}" if place else item["msg"])
    return shortened("; ".join(parts)) + "."


def failed(error: Exception) -> str:
    """Returns the sentence for arguments on which the check itself raised an error."""
    return "they nest too deep." if isinstance(error, RecursionError) else f"checking them failed: {described(error)}."


def described(error: BaseException) -> str:
    """Returns an exception's type and message; only the type if its `__str__` fails."""
    try:
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    except Exception:  # noqa: BLE001 - `__str__` is the user's code too
        return type(error).__name__


def shortened(text: str) -> str:
    """Returns the text, cut if it is too long for a message."""
    return text if len(text) <= _LONGEST_SENTENCE else f"{text[: _LONGEST_SENTENCE - 3]}..."
