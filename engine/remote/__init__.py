"""Other servers: a Chat Completions stream becomes our events, our messages become a server's request.

    body = remote.request(messages, tools, model="qwen3", reasoning=False)
    for event in remote.events(client.chat.completions.create(**remote.client_arguments(body))):
        ...

    llm = remote.Remote(client, model="qwen3")
    run = llm.run("What is the weather in Paris?", [get_weather])

The caller brings the transport: an `openai` client, httpx, a file.
"""

import inspect
from collections.abc import AsyncIterable, Iterable
from typing import Unpack, cast

from engine.remote.bodies import RequestOptions, client_arguments, request
from engine.remote.chunks import ReadOptions
from engine.remote.server import Remote, RemoteTurn
from engine.support.errors import RequestError, shown
from engine.types.completion import Completion

__all__ = [
    "ReadOptions",
    "Remote",
    "RemoteTurn",
    "RequestOptions",
    "client_arguments",
    "completion",
    "events",
    "request",
]


def events(chunks: Iterable[object] | AsyncIterable[object], **options: Unpack[ReadOptions]) -> RemoteTurn:
    """Returns the events of a Chat Completions stream: with `for` for sync chunks, with `async for` for async ones.

    chunks: dictionaries, objects of an SDK (`model_dump`), lines of server-sent events (text or bytes, with line ends
        or without), or blocks of them cut anywhere; also a complete response that was not streamed.

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
    if not isinstance(cast("object", chunks), Iterable | AsyncIterable) and not hasattr(chunks, "model_dump"):
        remedy = "await it first" if inspect.isawaitable(chunks) else "pass the stream that the server's client returns"
        raise RequestError(f"chunks is {shown(chunks)}, which is not a stream: {remedy}.")
    return RemoteTurn(lambda: chunks, **options)


def completion(response: object, **options: Unpack[ReadOptions]) -> Completion:
    """Returns the completion of a complete response (a dictionary, an object of an SDK, JSON text), or of a sync
    stream, which is read to its end.

    Options, finish reasons and errors are those of `events`; a complete response without a finish reason is "error".
    """
    return events(cast("Iterable[object]", response), **options).result()
