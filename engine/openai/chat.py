"""Chat Completions of other servers: a server's stream becomes our events, our messages become a server's request.

Knows: what callers may pass. Does not know: transports; the caller brings one (an `openai` client, httpx, a file).

    body = chat.request(messages, tools, model="qwen3", reasoning=False)
    for event in chat.events(client.chat.completions.create(**chat.client_arguments(body))):
        ...

    remote = chat.Remote(lambda body: client.chat.completions.create(**chat.client_arguments(body)), model="qwen3")
    run = remote.run("What is the weather in Paris?", [get_weather])
"""

import inspect
from collections.abc import AsyncIterable, Iterable, Sequence
from typing import cast, overload

from engine.errors import RequestError
from engine.events import fold
from engine.families import Family, Format
from engine.openai.reader import TurnReader
from engine.openai.remote import AsyncEvents, Events, Remote, RemoteTurn
from engine.openai.request import RequestOptions, client_arguments, request
from engine.openai.wire import Diagnostics
from engine.tools import ToolLike
from engine.types import Completion

__all__ = [
    "AsyncEvents",
    "Events",
    "Remote",
    "RemoteTurn",
    "RequestOptions",
    "client_arguments",
    "completion",
    "events",
    "request",
]


@overload
def events(
    chunks: Iterable[object],
    *,
    tools: Sequence[ToolLike] | None = None,
    choice: int = 0,
    family: str | Family | Format | None = None,
    in_reasoning: bool = False,
) -> Events: ...


@overload
def events(
    chunks: AsyncIterable[object],
    *,
    tools: Sequence[ToolLike] | None = None,
    choice: int = 0,
    family: str | Family | Format | None = None,
    in_reasoning: bool = False,
) -> AsyncEvents: ...


def events(
    chunks: Iterable[object] | AsyncIterable[object],
    *,
    tools: Sequence[ToolLike] | None = None,
    choice: int = 0,
    family: str | Family | Format | None = None,
    in_reasoning: bool = False,
) -> Events | AsyncEvents:
    """Returns the events of a Chat Completions stream: a sync iterator for sync chunks, an async one for async chunks.

    chunks: dictionaries, objects of an SDK (`model_dump`), lines of server-sent events (text or bytes, with line ends
        or without), or blocks of them cut anywhere; also a complete response that was not streamed.
    tools: the tools of the request, to check calls against (`unknown_tool`, `invalid_arguments`); None checks only that
        arguments are JSON.
    choice: the index of the choice to read (`n` > 1).
    family: parse the content as this family's raw output, calls included, for servers that parse nothing; None parses
        only `<think>` and similar markup at the start.
    in_reasoning: the prompt ended inside reasoning, and the server sends the output without the opening marker.

    Reasoning may be in a field of its own (`reasoning_content`, `reasoning`, `thinking`, `reasoning_details`; the first
    that has text is read), inline in the content, or in both, which gives one copy. The events of a call are not
    interleaved with others: a later call's wait until the earlier is over. If the server sends a call's id late or
    never, the id comes with the call's end.

    The last event is `Finished`. "content_filter" and unknown reasons become "error". A stream without a finish reason
    becomes "stop" after `[DONE]`, otherwise "error", since it was cut. Arguments that are not JSON are `truncated` if
    the turn ended by anything but "stop" and "tool_calls", otherwise `malformed`. The usage is None if the server sent
    none.

    Malformed input (data that is not JSON, fields of a wrong type) is left out with a `MalformedEventWarning` and
    counted in `malformed`. Raises RemoteError if the server sends an error, RequestError for chunks of any other kind;
    errors of the transport pass through.
    """
    diagnostics = Diagnostics()
    reader = TurnReader(diagnostics, tools=tools, choice=choice, family=family, in_reasoning=in_reasoning)
    if isinstance(chunks, Iterable) or hasattr(chunks, "model_dump"):
        return Events(cast("Iterable[object]", chunks), reader, diagnostics)
    if isinstance(cast("object", chunks), AsyncIterable):
        return AsyncEvents(chunks, reader, diagnostics)
    remedy = "await it first" if inspect.isawaitable(chunks) else "pass the stream that the server's client returns"
    raise RequestError(f"chunks is {chunks!r}, which is not a stream: {remedy}.")


def completion(
    response: object,
    *,
    tools: Sequence[ToolLike] | None = None,
    choice: int = 0,
    family: str | Family | Format | None = None,
    in_reasoning: bool = False,
) -> Completion:
    """Returns the completion of a complete response (a dictionary, an object of an SDK, JSON text), or of a sync
    stream, which is read to its end.

    Options, finish reasons and errors are those of `events`; a complete response without a finish reason is "error".
    """
    chunks = cast("Iterable[object]", response)
    return fold(events(chunks, tools=tools, choice=choice, family=family, in_reasoning=in_reasoning))
