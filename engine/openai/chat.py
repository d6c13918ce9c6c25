"""Chat Completions from elsewhere: a server's stream as our events, our messages as a server's request.

Knows: what may be handed in. Does not know: transports; the caller brings one (an `openai` client, httpx, a file).

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
    """The events of a Chat Completions stream: sync in, sync out; async in, async out.

    chunks: dictionaries, objects of an SDK (`model_dump`), lines of server-sent events (text or bytes, with their ends
        or without), or blocks of them cut anywhere; also a whole response, not streamed.
    tools: what was declared, if calls are to be judged (`unknown_tool`, `invalid_arguments`); None judges JSON only.
    choice: which of several (`n` > 1) to follow.
    family: read the content as this family's raw output, for servers that parse nothing (calls in it too); None knows
        `<think>` and its like at the start.
    in_reasoning: the prompt ended inside reasoning, and the server sends what follows as it is: no opening marker.

    Reasoning is found wherever the server puts it: in a field of its own (`reasoning_content`, `reasoning`, `thinking`,
    `reasoning_details`; the first that has text is followed), inline in the content, or in both, which gives one copy.
    Each call's events come together: a later call's wait until the earlier is over. A call's id comes with its end
    where the server sends it late or never.

    The last event is `Finished`. "content_filter" becomes "error", as does a reason that is not known; a stream that
    ends without any is "stop" after `[DONE]` and else "error", since it was cut. Arguments that are no JSON are
    `truncated` after an end other than "stop" and "tool_calls", else `malformed`. The usage is None when the server
    sent none.

    What makes no sense (data that is not JSON, fields of a wrong type) is left out with a `MalformedEventWarning` and
    counted in `malformed`. Raises RemoteError when the server sends an error, RequestError for chunks that are none of
    the above; what the transport raises passes through.
    """
    diagnostics = Diagnostics()
    reader = TurnReader(diagnostics, tools=tools, choice=choice, family=family, in_reasoning=in_reasoning)
    if isinstance(chunks, Iterable) or hasattr(chunks, "model_dump"):
        return Events(cast("Iterable[object]", chunks), reader, diagnostics)
    if isinstance(cast("object", chunks), AsyncIterable):
        return AsyncEvents(chunks, reader, diagnostics)
    wrong = "await it first" if inspect.isawaitable(chunks) else "hand over the stream that the server's client gives"
    raise RequestError(f"chunks is {chunks!r}, which is no stream: {wrong}.")


def completion(
    response: object,
    *,
    tools: Sequence[ToolLike] | None = None,
    choice: int = 0,
    family: str | Family | Format | None = None,
    in_reasoning: bool = False,
) -> Completion:
    """A whole response (a dictionary, an object of an SDK, JSON text), or a sync stream read to its end, as a
    completion.

    Options, finish reasons and errors are those of `events`; a whole response without a finish reason is "error".
    """
    chunks = cast("Iterable[object]", response)
    return fold(events(chunks, tools=tools, choice=choice, family=family, in_reasoning=in_reasoning))
