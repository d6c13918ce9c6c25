"""A tool's arguments: whether they fit, and the call they make.

Knows: pydantic's checks (functions, model classes) and JSON Schema's (dictionaries). Does not know: where tools come
from, or what a model reads. The only importer of jsonschema, and only when a tool is described by a dictionary.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ValidationError

from engine.errors import RequestError

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

_LONGEST_SENTENCE = 400


@dataclass(frozen=True, slots=True)
class ModelArguments:
    """A tool's `check` by a pydantic model, which also coerces and binds.

    `positional` and `keywords` map a function's parameters to the model's fields; both are empty when the model itself
    is the tool.
    """

    model: type[BaseModel]
    positional: tuple[str, ...] = ()
    keywords: tuple[tuple[str, str], ...] = ()

    def __call__(self, arguments: Any) -> str | None:
        """None when they fit, else a sentence."""
        try:
            # Through JSON, so that the rules are those of the call itself (from JSON, pydantic reads dates and tuples).
            self.model.model_validate_json(json.dumps(arguments))
        except ValidationError as error:
            return sentence(error)
        except RecursionError:
            return "they nest too deep."
        return None

    def bind(self, function: Callable[..., Any], arguments: str) -> Callable[[], Any]:
        """The call, ready to be made, of arguments as JSON text. Raises pydantic's ValidationError."""
        values = self.model.model_validate_json(arguments)
        if function is self.model:
            return lambda: values
        # What was left out stays out: the function's own defaults are not copied.
        args = [getattr(values, field) for field in self.positional if field in values.model_fields_set]
        given = {name: getattr(values, field) for name, field in self.keywords if field in values.model_fields_set}
        return lambda: function(*args, **given)


@dataclass(frozen=True, slots=True)
class SchemaArguments:
    """A tool's `check` by its JSON Schema."""

    validator: "Validator"

    def __call__(self, arguments: Any) -> str | None:
        """None when they fit, else a sentence."""
        from jsonschema.exceptions import relevance

        try:
            errors = sorted(self.validator.iter_errors(arguments), key=relevance, reverse=True)
        except RecursionError:
            return "they nest too deep."
        if not errors:
            return None
        place = errors[0].json_path.removeprefix("$").removeprefix(".")
        return shortened(f"{place!r}: {errors[0].message}" if place else errors[0].message) + "."


def schema_arguments(name: str, parameters: object) -> SchemaArguments:
    """The check of a schema that a caller wrote for the tool `name`.

    Raises RequestError when it is not JSON Schema, not of type object, or refers to what it does not hold.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError
    from jsonschema.validators import validator_for
    from referencing import Registry

    if not isinstance(parameters, Mapping) or cast("Mapping[str, Any]", parameters).get("type") != "object":
        found = shortened(repr(cast("object", parameters)))
        raise RequestError(
            f"The parameters of tool {name!r} are not a schema of type object: {found}. Write "
            '{"type": "object", "properties": {...}, "required": [...]}.'
        )
    schema = dict(cast("Mapping[str, Any]", parameters))
    kind: Any = validator_for(schema, default=Draft202012Validator)
    try:
        # The format checker refuses patterns that Python cannot compile, which would fail only when a call is checked.
        kind.check_schema(schema, format_checker=kind.FORMAT_CHECKER)
    except SchemaError as error:
        raise RequestError(
            f"The parameters of tool {name!r} are not JSON Schema, at {error.json_path}: {shortened(error.message)}. "
            "Correct them there."
        ) from error
    # An empty registry: a $ref is found in the schema itself or nowhere, never on the network.
    registry: Any = cast("Any", Registry)()
    _resolve_references(name, schema, registry)
    return SchemaArguments(kind(schema, registry=registry))


def _resolve_references(name: str, schema: Mapping[str, Any], registry: Any) -> None:
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    resolver = registry.resolver_with_root(DRAFT202012.create_resource(schema))
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable as error:
            raise RequestError(
                f"The parameters of tool {name!r} refer to {reference!r}, which is not in them; define it under $defs."
            ) from error


def _references(schema: object) -> list[str]:
    """Every $ref in a schema."""
    found: list[str] = []
    todo = [schema]
    while todo:
        item = todo.pop()
        if isinstance(item, Mapping):
            members = cast("Mapping[str, object]", item)
            if isinstance(reference := members.get("$ref"), str):
                found.append(reference)
            todo.extend(members.values())
        elif isinstance(item, list | tuple):
            todo.extend(cast("Sequence[object]", item))
    return found


def sentence(error: ValidationError) -> str:
    """What does not fit, argument by argument."""
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


def shortened(text: str) -> str:
    """The text, cut where it grows too long for a message."""
    return text if len(text) <= _LONGEST_SENTENCE else f"{text[: _LONGEST_SENTENCE - 3]}..."
