"""An engine behind a chat element of a notebook, as marimo's `mo.ui.chat` takes one.

Knows: that such an element hands over all messages at each turn, and shows what it gets as HTML. Does not know: marimo.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, cast

from engine.errors import RequestError
from engine.types import Completion, Message

_REMEMBERED = 256


class Talks(Protocol):
    """What answers: an `Engine`, or another that has its agent loop."""

    def stream_run(self, messages: Any, tools: Any = None, **options: Any) -> Awaitable[Any]:
        """A run under way, which gives the run when it is awaited."""
        ...


class _Answer:
    """A run as a notebook shows it. `str` of it is the answer's text."""

    def __init__(self, run: Any) -> None:
        self.run = run

    def __str__(self) -> str:
        completion: Completion = self.run.completion
        return completion.content

    def _repr_html_(self) -> str:
        return self.run._repr_html_()


def chat(
    llm: Talks, *, system: str | None = None, tools: Sequence[Any] | None = None, **options: Any
) -> Callable[..., Awaitable[_Answer]]:
    """A coroutine function for marimo: `mo.ui.chat(engine.notebook.chat(llm))`. Cancelling it (the element's stop
    button) cancels the request.

    It takes the element's messages (with `role` and `content`) and returns an answer that shows itself, with reasoning
    folded and calls as cards; none of the model's text becomes live HTML. What the model wrote in earlier turns is
    remembered here with its reasoning and calls, since the element keeps only HTML. `tools` and `options` are those of
    `Engine.run`. The function raises what `Engine.run` raises, and RequestError when the last message is not a user's.
    """
    known: OrderedDict[tuple[str, ...], tuple[Message, ...]] = OrderedDict()
    head = [] if system is None else [Message(role="system", content=system)]

    async def answer(messages: Sequence[Any], config: object = None) -> _Answer:
        _ = config  # the element's sliders; how answers are drawn is said where this function is made
        asked = tuple(_text(message) for message in messages if _field(message, "role") == "user")
        if not asked or _field(messages[-1], "role") != "user":
            raise RequestError("There is no question: the last message must be a user's.")
        before = known.get(asked[:-1]) or [*head, *map(_message, messages[:-1])]
        run = await llm.stream_run([*before, Message(role="user", content=asked[-1])], tools, **options)
        known[asked] = run.messages
        while len(known) > _REMEMBERED:
            known.popitem(last=False)
        return _Answer(run)

    return answer


def _field(message: object, name: str) -> Any:
    return cast("dict[str, Any]", message).get(name) if isinstance(message, dict) else getattr(message, name, None)


def _message(message: object) -> Message:
    return Message(role=_field(message, "role"), content=_text(message))


def _text(message: object) -> str:
    """The text of a message of the element, whose content may also come as parts."""
    content = _field(message, "content")
    if isinstance(content, str):
        return content
    parts = cast("list[object]", _field(message, "parts") or [])
    return "\n".join(str(_field(part, "text")) for part in parts if _field(part, "type") == "text")
