"""The parameters that Chat Completions and Responses share: tools, the choice among them, the form of an answer.

Knows: how each is spelt in OpenAI's API, in both endpoints. Does not know: the rest of a body.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

from engine.errors import RequestError
from engine.openai.problems import bad
from engine.tools import as_tools
from engine.types import AllowedTools, ResponseFormat, Tool, ToolName

Json: TypeAlias = dict[str, Any]

REASONING: dict[str, bool | str] = {"none": False, "minimal": "low", "xhigh": "high", "max": "high"}
"""The engine's `reasoning` for those efforts that it has no word for."""


def read_tools(given: Sequence[Json], param: str) -> tuple[Tool, ...]:
    """Function tools as records. Raises Problem for another type, and for one that is not valid."""
    for number, item in enumerate(given):
        if (kind := item.get("type")) != "function":
            message = f"{param}[{number}] is of type {kind!r}; only functions can be called here."
            raise bad(message, f"{param}[{number}]", "unsupported_parameter")
    try:
        return as_tools(given)
    except RequestError as error:
        raise bad(str(error), param) from error


def read_response_format(given: Any, param: str) -> ResponseFormat | None:
    """What an answer must be; None for any text."""
    form = fields_of(given, param) if given is not None else {"type": "text"}
    match form.get("type"):
        case "text":
            return None
        case "json_object":
            return ResponseFormat(type="json_object")
        case "json_schema":
            schema = fields_of(form.get("json_schema", form), f"{param}.json_schema").get("schema")
            return ResponseFormat(type="json_schema", json_schema=fields_of(schema, f"{param}.json_schema.schema"))
        case kind:
            raise bad(f"{param}.type is {kind!r}; it is text, json_object or json_schema.", param)


def fields_of(given: object, param: str) -> Json:
    """An object's fields. Raises Problem for what is none."""
    if not isinstance(given, dict):
        raise bad(f"{param} is an object, not {given!r}.", param, "invalid_type")
    return cast("Json", given)


def read_tool_choice(given: Any, tools: Sequence[Tool]) -> str | ToolName | AllowedTools:
    """The engine's `tool_choice`. Raises Problem for one that names what is no tool of the request."""
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
                'tool_choice is "auto", "none", "required", {"type": "function", "function": {"name": "..."}} or '
                '{"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [...]}}.',
                "tool_choice",
            )


def _allowed_tools(given: Json, names: Sequence[str]) -> AllowedTools:
    mode, items = given.get("mode"), given.get("tools")
    if mode not in ("auto", "required") or not isinstance(items, list) or not items:
        raise bad('allowed_tools has a mode ("auto" or "required") and a list of tools.', "tool_choice")
    allowed = [_allowed(item) for item in cast("list[object]", items)]
    _there(allowed, names)
    return AllowedTools(names=tuple(allowed), mode=mode)


def _allowed(item: Any) -> str:
    match item:
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return name
        case _:
            raise bad("tool_choice.allowed_tools.tools holds functions only.", "tool_choice", "unsupported_parameter")


def _there(asked: Sequence[str], names: Sequence[str]) -> None:
    for name in asked:
        if name not in names:
            raise bad(
                f"tool_choice names {name!r}, and the tools of this request are {', '.join(names) or 'none'}.",
                "tool_choice",
            )
