"""The parameters that Chat Completions and Responses share: tools, tool choice, and the form of an answer."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

from engine.errors import RequestError
from engine.openai.problems import bad
from engine.tools import as_tools
from engine.types import AllowedTools, ResponseFormat, Tool, ToolName

Json: TypeAlias = dict[str, Any]

REASONING: dict[str, bool | str] = {"none": False, "minimal": "low", "xhigh": "high", "max": "high"}
"""The engine's `reasoning` for the efforts that it does not have under the same name."""
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def read_effort(given: object, param: str) -> bool | str:
    """Returns the engine's `reasoning` for an effort. Raises Problem for any other value."""
    if not isinstance(given, str) or given not in get_args(Effort):
        raise bad(f"{param} must be one of {', '.join(get_args(Effort))}, not {given!r}.", param)
    return REASONING.get(given, given)


def read_tools(given: Sequence[Json], param: str) -> tuple[Tool, ...]:
    """Returns function tools as records. Raises Problem for a tool of another type, and for one that is not valid."""
    for number, item in enumerate(given):
        if (kind := item.get("type")) != "function":
            message = f"{param}[{number}] is of type {kind!r}; only functions can be called here."
            raise bad(message, f"{param}[{number}]", "unsupported_parameter")
    try:
        return as_tools(given)
    except RequestError as error:
        raise bad(str(error), param) from error


def read_response_format(given: Any, param: str) -> ResponseFormat | None:
    """Returns the required form of an answer; None for any text."""
    form = fields_of(given, param) if given is not None else {"type": "text"}
    match form.get("type"):
        case "text":
            return None
        case "json_object":
            schema = form.get("schema")  # llama.cpp's server and llama-cpp-python
            held = None if schema is None else fields_of(schema, f"{param}.schema")
            return ResponseFormat(type="json_object", json_schema=held)
        case "json_schema":
            schema = fields_of(form.get("json_schema", form), f"{param}.json_schema").get("schema")
            return ResponseFormat(type="json_schema", json_schema=fields_of(schema, f"{param}.json_schema.schema"))
        case kind:
            raise bad(f"{param}.type is {kind!r}; it must be text, json_object or json_schema.", param)


def merged(found: Iterable[tuple[str, str, object]]) -> tuple[Json, dict[str, str]]:
    """Returns engine options, and the field that each came from, of triples (option, field, value). Raises Problem for
    two fields that ask for different values of one option."""
    options: Json = {}
    names: dict[str, str] = {}
    for option, field, value in found:
        if option in options and options[option] != value:
            raise bad(f"{names[option]} and {field} are given and differ; give one of them.", field)
        options[option], names[option] = value, field
    return options, names


def fields_of(given: object, param: str) -> Json:
    """Returns an object's fields. Raises Problem for anything else."""
    if not isinstance(given, dict):
        raise bad(f"{param} must be an object, not {given!r}.", param, "invalid_type")
    return cast("Json", given)


def read_tool_choice(given: Any, tools: Sequence[Tool]) -> str | ToolName | AllowedTools:
    """Returns the engine's `tool_choice`. Raises Problem if it names a tool that the request does not have."""
    names = [tool.name for tool in tools]
    match given:
        case "auto" | "none" | "required" as mode:
            if mode == "required" and not names:
                raise bad("tool_choice='required' needs tools.", "tool_choice")
            return str(mode)
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            _there([name], names)
            return ToolName(name=name)
        case {"type": "allowed_tools"}:
            return _allowed_tools(fields_of(given.get("allowed_tools", given), "tool_choice"), names)
        case _:
            raise bad(
                'tool_choice must be "auto", "none", "required", {"type": "function", "function": {"name": "..."}} or '
                '{"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [...]}}.',
                "tool_choice",
            )


def _allowed_tools(given: Json, names: Sequence[str]) -> AllowedTools:
    mode, items = given.get("mode"), given.get("tools")
    if mode not in ("auto", "required") or not isinstance(items, list) or not items:
        raise bad('allowed_tools needs a mode ("auto" or "required") and a list of tools.', "tool_choice")
    allowed = [_allowed(item) for item in cast("list[object]", items)]
    _there(allowed, names)
    return AllowedTools(names=tuple(allowed), mode=mode)


def _allowed(item: Any) -> str:
    match item:
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return name
        case _:
            raise bad(
                "tool_choice.allowed_tools.tools may hold only functions.", "tool_choice", "unsupported_parameter"
            )


def _there(asked: Sequence[str], names: Sequence[str]) -> None:
    for name in asked:
        if name not in names:
            raise bad(
                f"tool_choice names {name!r}, but the tools of this request are {', '.join(names) or 'none'}.",
                "tool_choice",
            )
