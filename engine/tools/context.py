"""What a tool may ask for beside its arguments: a parameter that the model never sees.

Knows: what of a run a tool is shown. Does not know: the agent loop that fills it in.
"""

import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Annotated, Any, Generic, TypeVar, Union, get_args, get_origin

from engine.types import Message, ToolCall

Value_co = TypeVar("Value_co", covariant=True)


@dataclass(frozen=True)  # no slots: typing sets an attribute on instances of a generic class
class ToolContext(Generic[Value_co]):
    """What a tool gets in a parameter that is annotated `ToolContext` or `ToolContext[Database]`.

    The parameter is not in the tool's schema, and a model cannot fill it in. `value` is what `run(..., context=...)`
    was given (None without it). `call` is the call that is being run, `step` the number of its turn, from 0.
    `messages` is the conversation up to and with that call.
    """

    value: Value_co
    call: ToolCall | None = None
    step: int = 0
    messages: Sequence[Message] = ()
    _cancelled: Event = field(default_factory=Event, repr=False, compare=False)

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more: the run was cancelled, or `tool_timeout` has passed. A thread
        cannot be killed, so a long tool should look at this now and then, and return."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        """Let `cancelled` be True from now on."""
        self._cancelled.set()


def is_context(annotation: Any) -> bool:
    """Whether a parameter with this annotation is to be given the `ToolContext`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return is_context(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return any(is_context(choice) for choice in get_args(annotation))
    return annotation is ToolContext or origin is ToolContext
