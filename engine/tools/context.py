"""The context of a tool's call: a parameter that the model never sees."""

import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin

from engine.types.media import MediaKind
from engine.types.messages import Message
from engine.types.parts import ToolCall

Value_co = TypeVar("Value_co", covariant=True)


@dataclass(frozen=True)  # no slots: typing sets an attribute on instances of a generic class
class ToolContext(Generic[Value_co]):
    """The value of a tool's parameter that is annotated `ToolContext` or `ToolContext[Database]`.

    The parameter is not in the tool's schema, and a model cannot fill it in. `value` is the `context` argument of `run`
    (default None). `call` is the call that is being run, `step` the number of its turn, from 0. `messages` is the
    conversation up to and including that call. `media` are the kinds of media ("image", "audio") in results that the
    model takes.
    """

    value: Value_co
    call: ToolCall | None = None
    step: int = 0
    messages: Sequence[Message] = ()
    media: frozenset[MediaKind] = frozenset()
    _cancelled: Event = field(default_factory=Event, repr=False, compare=False)

    @property
    def cancelled(self) -> bool:
        """Whether the result is no longer needed: the run was cancelled, or `tool_timeout` has passed. A thread cannot
        be killed, so a long-running tool should check this regularly and return when it is True."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Set `cancelled`."""
        self._cancelled.set()


def is_context(annotation: Any) -> bool:
    """Whether a parameter with this annotation receives the `ToolContext`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return is_context(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return any(is_context(choice) for choice in get_args(annotation))
    return annotation is ToolContext or origin is ToolContext
