"""Calls a tool with the arguments that a model wrote."""

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, NamedTuple, TypeAlias

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from engine.errors import RequestError
from engine.parts import whole_characters
from engine.tools.check import ModelArguments, described, failed, sentence
from engine.tools.context import ToolContext
from engine.tools.json_values import json_value
from engine.types import Tool


class ToolOutcome(NamedTuple):
    """The text that the model reads as the result, and whether the tool failed."""

    content: str
    error: bool = False


Threads: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a function in a worker thread."""


def unfit(tool: Tool, arguments: str) -> ToolOutcome | None:
    """Returns the error that the model reads if the arguments do not fit the tool, None if they do. Raises RequestError
    if the tool has no function."""
    call = _bound(tool, arguments, None)
    return call if isinstance(call, ToolOutcome) else None


def run(tool: Tool, arguments: str, context: ToolContext[Any] | None = None) -> ToolOutcome:
    """Call the tool's function with arguments that a model wrote (JSON text), checked first.

    Every failure becomes text that the model can read: "Error: ...". A str or ToolOutcome result is returned unchanged,
    anything else as JSON. An async function runs to completion, in a thread of its own if this thread already runs an
    event loop. Raises RequestError if the tool has no function.
    """
    call = _bound(tool, arguments, context)
    if isinstance(call, ToolOutcome):
        return call
    try:
        result = call()
        return _outcome(finish(result) if inspect.isawaitable(result) else result)
    except Exception as error:  # noqa: BLE001 - a tool is the user's code, and its errors are the model's to read
        return _failure(error)


async def run_async(
    tool: Tool, arguments: str, context: ToolContext[Any] | None = None, threads: Threads = asyncio.to_thread
) -> ToolOutcome:
    """Like `run`, on an event loop: await an async function; call any other in a worker thread, through `threads`."""
    call = _bound(tool, arguments, context)
    if isinstance(call, ToolOutcome):
        return call
    try:
        result = call() if is_async(tool) else await threads(call)
        return _outcome(await result if inspect.isawaitable(result) else result)
    except Exception as error:  # noqa: BLE001 - as above
        return _failure(error)


def is_async(tool: Tool) -> bool:
    """Whether the tool's function is a coroutine function."""
    return inspect.iscoroutinefunction(tool.function)


def error_text(reason: str) -> str:
    """Returns the text that the model reads in place of a result."""
    return f"Error: {reason}"


def _bound(tool: Tool, arguments: str, context: ToolContext[Any] | None) -> Callable[[], Any] | ToolOutcome:
    """Returns a callable that runs the tool, or the error that the model reads if the arguments do not fit."""
    function = tool.function
    if function is None:
        raise RequestError(
            f"The tool {tool.name!r} has no function, so it cannot be run here; run it and append a tool message."
        )
    try:
        values: Any = json_value(arguments)
    except ValueError as error:
        return _unfit(f"they are not JSON: {error}.")
    if isinstance(tool.check, ModelArguments):
        try:
            return tool.check.bind(function, arguments, ToolContext(None) if context is None else context)
        except ValidationError as error:
            return _unfit(sentence(error))
        except Exception as error:  # noqa: BLE001 - a model's own validators are the user's code
            return _unfit(failed(error))
    if not isinstance(values, dict):
        return _unfit("they must be a JSON object.")
    if tool.check and (reason := tool.check(values)):
        return _unfit(reason)
    return lambda: function(**values)


def _unfit(reason: str) -> ToolOutcome:
    return ToolOutcome(error_text(f"the arguments do not fit: {reason}"), error=True)


def _outcome(result: object) -> ToolOutcome:
    if isinstance(result, ToolOutcome):
        return ToolOutcome(whole_characters(result.content), result.error)
    if isinstance(result, str):
        return ToolOutcome(whole_characters(result))
    # Spaced as `tojson` writes the arguments in chat templates, so that all JSON in a prompt looks alike.
    text = json.dumps(to_jsonable_python(result, fallback=str), ensure_ascii=False)
    return ToolOutcome(whole_characters(text))


def _failure(error: Exception) -> ToolOutcome:
    return ToolOutcome(error_text(whole_characters(described(error))), error=True)


def finish(awaitable: Awaitable[Any]) -> Any:
    """Returns the awaitable's result, from sync code. Raises what the awaitable raises."""

    async def wait() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1, "llama-engine tool") as thread:
        return thread.submit(copy_context().run, asyncio.run, wait()).result()
