"""A server's sampling requests: the run's model answers them within limits, or they are refused as the protocol
requires.

Knows: which requests a text model can answer, how many of them a run answers, that a server's text is not trusted. Does
not know: connections, engines; it gets a function that answers.
"""

import asyncio
from typing import TYPE_CHECKING

from engine.errors import EngineError, RequestError
from engine.tools.sources import Answer
from engine.types import Completion, Message

if TYPE_CHECKING:
    from mcp.types import CreateMessageRequestParams, CreateMessageResult, ErrorData

_REFUSED = -1  # the specification's code for "User rejected sampling request"
_MODEL = "llama-engine"


class Budget:
    """The limits of one run: `requests` answered in all, and `tokens` generated for them in all."""

    def __init__(self, answer: Answer, requests: int, tokens: int) -> None:
        self._answer = answer
        self._requests = requests
        self._tokens = tokens
        self._under_way: set[asyncio.Future[Completion]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = False

    async def answer(self, asked: "CreateMessageRequestParams") -> "CreateMessageResult | ErrorData":
        """Returns the answer, or the error that the protocol requires. Called on one event loop only."""
        if self._over or self._requests < 1:
            return refusal("User rejected sampling request: this run answers no more requests.")
        if self._tokens < 1:
            return refusal("User rejected sampling request: the tokens that this run answers with are used up.")
        try:
            messages = _messages(asked)
        except RequestError as error:
            return _error(str(error))
        self._requests -= 1
        most = max(min(asked.max_tokens, self._tokens), 1)
        self._tokens -= most  # unused tokens are given back below
        used = most
        options = {"max_tokens": most, "temperature": asked.temperature, "stop": tuple(asked.stop_sequences or ())}
        work = asyncio.ensure_future(self._answer(messages, **options))
        self._loop = asyncio.get_running_loop()
        self._under_way.add(work)
        try:
            completion = await work
            used = completion.usage.completion_tokens if completion.usage else most
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self._over or (task is not None and task.cancelling()):
                raise
            return refusal("User rejected sampling request: the run is over.")
        except EngineError as error:
            used = 0
            return _error(str(error))
        finally:
            self._under_way.discard(work)
            self._tokens += most - used
        return _result(completion)

    def end(self) -> None:
        """End the budget with its run: nothing more is generated. May be called from any thread."""
        self._over = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        for work in tuple(self._under_way):
            work.cancel()


def refusal(reason: str) -> "ErrorData":
    """Returns the error for a request that the user does not allow."""
    from mcp.types import ErrorData

    return ErrorData(code=_REFUSED, message=reason)


def _error(reason: str) -> "ErrorData":
    from mcp.types import INVALID_PARAMS, ErrorData

    return ErrorData(code=INVALID_PARAMS, message=reason)


def _messages(asked: "CreateMessageRequestParams") -> list[Message]:
    """Returns the request as a conversation. The server's system prompt becomes the beginning of the first user
    message, because the engine trusts system messages as the application's own, and guards a user's text."""
    if asked.tools:
        raise RequestError("Sampling with tools is not supported; leave `tools` out.")
    messages: list[Message] = []
    for message in asked.messages:
        blocks = message.content if isinstance(message.content, list) else [message.content]
        texts: list[str] = []
        for block in blocks:
            if block.type != "text":
                raise RequestError(f"Sampling takes text only; the request has content of the type {block.type!r}.")
            texts.append(block.text)
        messages.append(Message(role=message.role, content="\n".join(texts)))
    if asked.system_prompt:
        first = messages.pop(0).content if messages and messages[0].role == "user" else ""
        messages.insert(0, Message(role="user", content=f"{asked.system_prompt}\n\n{first}".strip()))
    if not messages or messages[-1].role != "user":
        raise RequestError("The last message of a sampling request must be the user's.")
    return messages


def _result(completion: Completion) -> "CreateMessageResult":
    from mcp.types import CreateMessageResult, TextContent

    ends = {"length": "maxTokens"}
    reason = ends.get(completion.finish_reason, "endTurn")
    text = TextContent(type="text", text=completion.content)
    return CreateMessageResult(role="assistant", content=text, model=_MODEL, stop_reason=reason)
