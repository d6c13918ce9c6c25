"""A tool is called with the arguments that a model wrote.

Knows: how arguments are bound to a function, sync or async, and that whatever goes wrong becomes text that the model
reads. Does not know: where tools come from, how arguments are judged (`check`), conversations.
"""

import asyncio
import inspect
import json
import threading
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, NamedTuple, TypeAlias

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from engine.errors import RequestError
from engine.tools.check import ModelArguments, described, failed, sentence
from engine.tools.context import ToolContext
from engine.tools.values import json_value
from engine.types import Tool, whole_characters


class ToolOutcome(NamedTuple):
    """What the model reads, and whether the tool failed."""

    content: str
    error: bool = False


Threads: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Calls a function in a worker thread."""


def unfit(tool: Tool, arguments: str) -> ToolOutcome | None:
    """What the model reads because the arguments do not fit the tool; None when they do. Raises RequestError when the
    tool has no function."""
    call = _bound(tool, arguments, None)
    return call if isinstance(call, ToolOutcome) else None


def run(tool: Tool, arguments: str, context: ToolContext[Any] | None = None) -> ToolOutcome:
    """Call the tool's function with arguments that a model wrote (JSON text), checked first.

    Whatever goes wrong becomes text that the model can read: "Error: ...". A str result is given as it is, a
    ToolOutcome as the outcome, everything else as JSON. An async function is run to its end, in a thread of its own
    where this thread already runs an event loop. Raises RequestError when the tool has no function.
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
    """As `run`, on an event loop: an async function is awaited, any other is called in a worker thread, by
    `threads`."""
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
    """What the model reads in place of a result."""
    return f"Error: {reason}"


def _bound(tool: Tool, arguments: str, context: ToolContext[Any] | None) -> Callable[[], Any] | ToolOutcome:
    """The call of the tool's function, or what the model reads because the arguments do not allow it."""
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
    # Spaced as `tojson` writes the arguments in chat templates: one way of writing JSON in one prompt.
    text = json.dumps(to_jsonable_python(result, fallback=str), ensure_ascii=False)
    return ToolOutcome(whole_characters(text))


def _failure(error: Exception) -> ToolOutcome:
    return ToolOutcome(error_text(whole_characters(described(error))), error=True)


def finish(awaitable: Awaitable[Any]) -> Any:
    """The awaitable's result, from sync code. Raises what it raises."""

    async def wait() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    results: list[Any] = []
    errors: list[Exception] = []

    def work() -> None:
        try:
            results.append(asyncio.run(wait()))
        except Exception as error:  # noqa: BLE001 - carried over to the caller's thread
            errors.append(error)

    thread = threading.Thread(target=copy_context().run, args=(work,), name="llama-engine tool")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
