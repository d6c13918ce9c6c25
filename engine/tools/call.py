"""Calls a tool with the arguments that a model wrote."""

import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from contextvars import copy_context
from typing import Any, NamedTuple, TypeAlias, cast

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from engine.support.errors import RequestError
from engine.support.warning import warn
from engine.tools.check import ModelArguments, described, failed, sentence
from engine.tools.context import ToolContext
from engine.tools.json_values import json_value
from engine.types.media import Audio, EncodedMedia, Image, ImageLink, MediaBudget
from engine.types.messages import Message
from engine.types.parts import AudioPart, ImagePart, MediaPart, TextPart, whole_characters
from engine.types.tools import Tool


class ToolOutcome(NamedTuple):
    """The text that the model reads as the result, and whether the tool failed. `parts`: the same with pictures and
    sounds in their places, for a model that takes them; empty without any."""

    content: str
    error: bool = False
    parts: tuple[TextPart | ImagePart | AudioPart | EncodedMedia, ...] = ()

    @property
    def shown(self) -> tuple[TextPart | ImagePart | AudioPart, ...]:
        """The parts of an outcome of `run`, which are decoded."""
        return tuple(part for part in self.parts if not isinstance(part, EncodedMedia))


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
    an `Image`, an `Audio` or a list with one as parts if `context.media` has its kind, anything else as JSON. What a
    generator yields is a list. An async function runs to completion, in a thread of its own if this thread already runs
    an event loop. Raises RequestError if the tool has no function.
    """
    call = _bound(tool, arguments, context)
    if isinstance(call, ToolOutcome):
        return call
    try:
        result = call()
        result = finish(_awaited(result)) if inspect.isawaitable(result) or inspect.isasyncgen(result) else result
        return _for_model(_outcome(_whole(result, context)), context)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a tool is the user's code; its errors are the model's
        return _failure(error)


async def run_async(
    tool: Tool, arguments: str, context: ToolContext[Any] | None = None, threads: Threads | None = None
) -> ToolOutcome:
    """Like `run`, on an event loop: await an async function; call any other in a worker thread, through `threads`, and
    read there what a generator yields."""
    import asyncio

    call = _bound(tool, arguments, context)
    if isinstance(call, ToolOutcome):
        return call
    try:
        thread = threads or asyncio.to_thread
        result = call() if is_async(tool) else await thread(lambda: _whole(call(), context))
        result = await _awaited(result)
        if inspect.isgenerator(result):
            result = await thread(lambda: _whole(result, context))
        outcome = _outcome(result)
        return await asyncio.to_thread(_for_model, outcome, context) if outcome.parts else outcome
    except (Exception, SystemExit) as error:  # noqa: BLE001 - as above
        return _failure(error)


def is_async(tool: Tool) -> bool:
    """Whether the tool's function is a coroutine function, or an async generator."""
    return inspect.iscoroutinefunction(tool.function) or inspect.isasyncgenfunction(tool.function)


def error_text(reason: str) -> str:
    """Returns the text that the model reads in place of a result."""
    return f"Error: {reason}"


def tool_error(reason: str) -> ToolOutcome:
    """Returns the outcome of a call that failed, or was not made."""
    return ToolOutcome(error_text(reason), error=True)


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


def _whole(result: object, context: ToolContext[Any] | None) -> object:
    """Returns all that a generator yields, unless its call is cancelled; else the result itself."""
    if not inspect.isgenerator(result):
        return result
    items: list[object] = []
    with closing(result):
        for item in result:
            if context is not None and context.cancelled:
                raise RequestError("the call was cancelled while its results were read.")
            items.append(item)
    return items


async def _awaited(result: Any) -> Any:
    """Returns what an awaitable returns, or all that an async generator yields; else the result itself."""
    if inspect.isawaitable(result):
        result = await result
    if not inspect.isasyncgen(result):
        return result
    async with aclosing(result):
        return [item async for item in result]


def _unfit(reason: str) -> ToolOutcome:
    return tool_error(f"the arguments do not fit: {reason}")


def _outcome(result: object) -> ToolOutcome:
    if isinstance(result, ToolOutcome):
        return result._replace(content=whole_characters(result.content))
    items = cast("Sequence[object]", result) if isinstance(result, list | tuple) else [result]
    if any(isinstance(item, Image | Audio) for item in items):
        parts = tuple(map(_part, items))
        texts = (part.text if isinstance(part, TextPart) else unshown(part) for part in parts)
        return ToolOutcome("\n".join(texts), parts=parts)
    return ToolOutcome(_text(cast("object", result)))


def _text(result: object) -> str:
    # Spaced as `tojson` writes the arguments in chat templates, so that all JSON in a prompt looks alike.
    is_text = isinstance(result, str)
    text = result if is_text else json.dumps(to_jsonable_python(result, fallback=_words), ensure_ascii=False)
    return whole_characters(text)


def _words(value: object) -> str:
    """Returns the text of what JSON has no form for. Of an object that has none either the model would read an
    address."""
    kind = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        warn(
            f"A tool returned an object of the class {kind.__name__}, of which the model reads nothing but the name; "
            "return a text, a dictionary, a dataclass or a pydantic model."
        )
        return f"<{kind.__name__}>"
    return str(value)


def _part(item: object) -> TextPart | ImagePart | AudioPart:
    if isinstance(item, Image):
        return ImagePart(image=item)
    return AudioPart(audio=item) if isinstance(item, Audio) else TextPart(text=_text(item))


def _for_model(outcome: ToolOutcome, context: ToolContext[Any] | None) -> ToolOutcome:
    """Returns an outcome with the parts that the model takes, decoded; the others, and broken ones, named."""
    takes = frozenset[str]() if context is None else context.media
    budget = _budget(() if context is None else context.messages)
    parts = tuple(_decoded(part, takes, budget) for part in outcome.parts)
    return outcome._replace(parts=parts if any(isinstance(part, MediaPart) for part in parts) else ())


def _budget(messages: Sequence[Message]) -> MediaBudget:
    """Returns what is left for pictures and sounds of servers in a conversation: it would otherwise grow with each
    call."""
    budget = MediaBudget()
    for media in (each for message in messages for each in message.media if not isinstance(each, ImageLink)):
        media.count(budget)
    return budget


def _decoded(
    part: TextPart | ImagePart | AudioPart | EncodedMedia, takes: frozenset[str], budget: MediaBudget
) -> TextPart | ImagePart | AudioPart:
    if isinstance(part, TextPart):
        return part
    if (part.kind if isinstance(part, EncodedMedia) else part.type) not in takes:
        return TextPart(text=unshown(part))
    if not isinstance(part, EncodedMedia):
        return part
    try:
        return _part(part.decoded(budget))
    except RequestError as error:
        return TextPart(text=unshown(part, str(error)))


def unshown(part: ImagePart | AudioPart | EncodedMedia, why: str = "this model does not take it.") -> str:
    """Returns what a model reads in place of a picture or a sound."""
    about = part.about if isinstance(part, EncodedMedia) else part.media.about
    return f"({about[:1].upper()}{about[1:]}: not shown, as {why})"


def _failure(error: BaseException) -> ToolOutcome:
    return tool_error(whole_characters(described(error)))


def finish(awaitable: Awaitable[Any]) -> Any:
    """Returns the awaitable's result, from sync code. Raises what the awaitable raises."""
    import asyncio

    async def wait() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1, "llama-engine tool") as thread:
        return thread.submit(copy_context().run, asyncio.run, wait()).result()
