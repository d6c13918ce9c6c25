"""The parameters that the endpoints share: tools, tool choice, efforts, biases, and the form of an answer."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast, get_args

from engine.openai.problems import bad
from engine.support.errors import RequestError, shown
from engine.tools import as_tools
from engine.types.answer_formats import ResponseFormat
from engine.types.tools import AllowedTools, Tool, ToolName

Json: TypeAlias = dict[str, Any]

_EFFORTS: dict[str, bool | str] = {"none": False, "minimal": "low", "xhigh": "high", "max": "high"}
"""The engine's `reasoning` for the efforts that it does not have under the same name."""
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def fields_of(value: object, param: str) -> Json:
    """Returns an object's fields. Raises Problem for anything else."""
    if not isinstance(value, dict):
        raise bad(f"{param} must be an object, not {shown(value)}.", param, "invalid_type")
    return cast("Json", value)


Tier: TypeAlias = Literal["auto", "default", "flex", "priority"]


def read_tier(tier: Tier, _: str) -> int | None:
    """Returns the engine's `priority`: 0 is that of a request that says nothing."""
    return {"flex": -1, "priority": 1}.get(tier)


def read_effort(value: object, param: str) -> bool | str:
    """Returns the engine's `reasoning` for an effort. Raises Problem for any other value."""
    if not isinstance(value, str) or value not in get_args(Effort):
        raise bad(f"{param} must be one of {', '.join(get_args(Effort))}, not {shown(value)}.", param)
    return _EFFORTS.get(value, value)


def read_biases(value: Mapping[str, float], param: str) -> dict[int, float]:
    """Returns biases by token. Raises Problem for a key that is no token number."""
    try:
        return {int(token): bias for token, bias in value.items()}
    except ValueError as error:
        raise bad(f"The keys of {param} must be token numbers: {error}.", param) from error


def read_tools(items: Sequence[Json], param: str) -> tuple[Tool, ...]:
    """Returns function tools as records. Raises Problem for a tool of another type, and for one that is not valid."""
    for number, item in enumerate(items):
        if (kind := item.get("type")) != "function":
            message = f"{param}[{number}] is of type {shown(kind)}; only functions can be called here."
            raise bad(message, f"{param}[{number}]", "unsupported_parameter")
    try:
        return as_tools(items)
    except RequestError as error:
        raise bad(str(error), param) from error


def read_response_format(value: Any, param: str) -> ResponseFormat | None:
    """Returns the required form of an answer; None for any text."""
    form = fields_of(value, param)
    match form.get("type"):
        case "text":
            return None
        case "json_object":
            schema = form.get("schema")  # llama.cpp's server and llama-cpp-python
            fields = None if schema is None else fields_of(schema, f"{param}.schema")
            return ResponseFormat(type="json_object", json_schema=fields, closed=_closed(form, param))
        case "json_schema":
            inner = fields_of(form.get("json_schema", form), f"{param}.json_schema")
            schema = fields_of(inner.get("schema"), f"{param}.json_schema.schema")
            closed = _closed(inner, f"{param}.json_schema")
            return ResponseFormat(type="json_schema", json_schema=schema, closed=closed)
        case kind:
            raise bad(f"{param}.type is {shown(kind)}; it must be text, json_object or json_schema.", param)


def _closed(form: Json, param: str) -> bool:
    """Returns the field `closed` beside a schema, which is the engine's own."""
    closed = form.get("closed", True)
    if not isinstance(closed, bool):
        raise bad(f"{param}.closed is {shown(closed)}; it must be true or false.", f"{param}.closed")
    return closed


def tool_options(values: Json, tools: Sequence[Tool]) -> Iterator[tuple[str, str, object]]:
    """Yields the engine's options for calls, each with the field that it came from."""
    if "tool_choice" in values and (choice := _tool_choice(values["tool_choice"], tools)) != "auto":
        yield "tool_choice", "tool_choice", choice
    if tools and "parallel_tool_calls" in values:
        yield "parallel_tool_calls", "parallel_tool_calls", values["parallel_tool_calls"]


def _tool_choice(value: Any, tools: Sequence[Tool]) -> str | ToolName | AllowedTools:
    """Returns the engine's `tool_choice`. Raises Problem if it names a tool that the request does not have."""
    names = [tool.name for tool in tools]
    if value == "required" and not names:
        raise bad("tool_choice='required' needs tools.", "tool_choice")
    if value in ("auto", "none", "required"):
        return str(value)
    fields = cast("Json", value) if isinstance(value, dict) else {}
    if fields.get("type") == "allowed_tools":
        return _allowed_tools(fields_of(fields.get("allowed_tools", fields), "tool_choice"), names)
    if (name := _function_name(value)) is None:
        raise bad(
            'tool_choice must be "auto", "none", "required", {"type": "function", "function": {"name": "..."}} or '
            '{"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [...]}}.',
            "tool_choice",
        )
    _check_names([name], names)
    return ToolName(name=name)


def _allowed_tools(value: Json, names: Sequence[str]) -> AllowedTools:
    mode, items = value.get("mode"), value.get("tools")
    if mode not in ("auto", "required") or not isinstance(items, list) or not items:
        raise bad('allowed_tools needs a mode ("auto" or "required") and a list of tools.', "tool_choice")
    functions = [_function_name(item) for item in cast("list[object]", items)]
    allowed = [name for name in functions if name is not None]
    if len(allowed) < len(functions):
        raise bad("tool_choice.allowed_tools.tools may hold only functions.", "tool_choice", "unsupported_parameter")
    _check_names(allowed, names)
    return AllowedTools(names=tuple(allowed), mode=mode)


def _function_name(item: Any) -> str | None:
    match item:
        case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
            return name
        case _:
            return None


def _check_names(chosen: Sequence[str], names: Sequence[str]) -> None:
    for name in chosen:
        if name not in names:
            raise bad(
                f"tool_choice names {shown(name)}, but the tools of this request are {', '.join(names) or 'none'}.",
                "tool_choice",
            )
