"""A tool is called with the arguments that a model wrote.

Knows: pydantic's checks (functions, model classes), JSON Schema's (dictionaries), and that whatever goes wrong becomes
text that the model reads. Does not know: where tools come from, conversations. The only importer of jsonschema, and
only when a tool is described by a dictionary.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ValidationError

from engine.errors import RequestError

if TYPE_CHECKING:
    from jsonschema.protocols import Validator
import asyncio
import inspect
import threading
from collections.abc import Awaitable
from contextvars import copy_context
from typing import NamedTuple

from pydantic_core import to_jsonable_python

from engine.types import Tool, whole_characters

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


class ToolOutcome(NamedTuple):
    """What the model reads, and whether the tool failed."""

    content: str
    error: bool = False


def run(tool: Tool, arguments: str) -> ToolOutcome:
    """Call the tool's function with arguments that a model wrote (JSON text), checked first.

    Whatever goes wrong becomes text that the model can read: "Error: ...". A str result is given as it is, everything
    else as JSON. An async function is run to its end, in a thread of its own where this thread already runs an event
    loop. Raises RequestError when the tool has no function.
    """
    call = _bound(tool, arguments)
    if isinstance(call, ToolOutcome):
        return call
    try:
        result = call()
        return _outcome(_finish(result) if inspect.isawaitable(result) else result)
    except Exception as error:  # noqa: BLE001 - a tool is the user's code, and its errors are the model's to read
        return _failure(error)


async def run_async(tool: Tool, arguments: str) -> ToolOutcome:
    """As `run`, on an event loop: an async function is awaited, any other is called in a worker thread."""
    call = _bound(tool, arguments)
    if isinstance(call, ToolOutcome):
        return call
    try:
        result = call() if is_async(tool) else await asyncio.to_thread(call)
        return _outcome(await result if inspect.isawaitable(result) else result)
    except Exception as error:  # noqa: BLE001 - as above
        return _failure(error)


def is_async(tool: Tool) -> bool:
    """Whether the tool's function is a coroutine function."""
    return inspect.iscoroutinefunction(tool.function)


def error_text(reason: str) -> str:
    """What the model reads in place of a result."""
    return f"Error: {reason}"


def _bound(tool: Tool, arguments: str) -> Callable[[], Any] | ToolOutcome:
    """The call of the tool's function, or what the model reads because the arguments do not allow it."""
    function = tool.function
    if function is None:
        raise RequestError(
            f"The tool {tool.name!r} has no function, so it cannot be run here; run it and append a tool message."
        )
    try:
        if isinstance(tool.check, ModelArguments):
            return tool.check.bind(function, arguments)
        values: Any = json.loads(arguments)
    except ValidationError as error:
        return _unfit(sentence(error))
    except (ValueError, RecursionError) as error:
        return _unfit(f"they are not JSON: {error}.")
    if not isinstance(values, dict):
        return _unfit("they must be a JSON object.")
    if tool.check and (reason := tool.check(values)):
        return _unfit(reason)
    return lambda: function(**values)


def _unfit(reason: str) -> ToolOutcome:
    return ToolOutcome(error_text(f"the arguments do not fit: {reason}"), error=True)


def _outcome(result: object) -> ToolOutcome:
    if isinstance(result, str):
        return ToolOutcome(whole_characters(result))
    # Spaced as `tojson` writes the arguments in chat templates: one way of writing JSON in one prompt.
    text = json.dumps(to_jsonable_python(result, fallback=str), ensure_ascii=False)
    return ToolOutcome(whole_characters(text))


def _failure(error: Exception) -> ToolOutcome:
    reason = f"{type(error).__name__}: {error}".removesuffix(": ")
    return ToolOutcome(error_text(whole_characters(reason)), error=True)


def _finish(awaitable: Awaitable[Any]) -> Any:
    """The awaitable's result, from sync code."""

    async def finish() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(finish())
    results: list[Any] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            results.append(asyncio.run(finish()))
        except Exception as error:  # noqa: BLE001 - carried over to the caller's thread
            errors.append(error)

    thread = threading.Thread(target=copy_context().run, args=(work,), name="llama-engine tool")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
