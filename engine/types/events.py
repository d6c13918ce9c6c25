"""Events: the closed union of what a model's output is parsed into, and their fold into a completion.

Plain frozen dataclasses, since there are one or more for every token.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from engine.support.guided import Guided
from engine.support.printed import Printed
from engine.types.completion import Completion, Usage
from engine.types.parts import CallError, ReasoningPart, ResultPart, TextPart, ToolCall
from engine.types.sampling import FinishReason


@dataclass(frozen=True, slots=True, repr=False)
class ReasoningDelta(Guided, Printed):
    """More reasoning text, markers removed."""

    text: str
    part: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class ContentDelta(Guided, Printed):
    """More visible text, markers removed."""

    text: str
    part: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class ToolCallStart(Guided, Printed):
    """A call began and its name is complete. `index` counts the calls of one turn from 0."""

    index: int
    id: str
    name: str
    part: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class ToolCallDelta(Guided, Printed):
    """A fragment of the call's arguments; the fragments of one call concatenate to JSON text."""

    index: int
    text: str
    part: int = 0
    step: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class ToolCallEnd(Guided, Printed):
    """The call is over. `arguments` is their complete JSON text, or with `error` "malformed" the raw text as written,
    or with "truncated" the prefix that arrived. `id` is set only if the family writes it after the arguments; then the
    call's start had ""."""

    index: int
    arguments: str
    error: CallError | None = None
    part: int = 0
    step: int = 0
    id: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class ToolResult(Guided, Printed):
    """A tool's result (agent loop only). `content` is what the model reads; `error`: the tool failed; `parts`: the same
    with pictures and sounds, if it has any; `name`: the tool's. `ran`: when the tool began and when its outcome was
    there, in seconds after the calls began to be answered; None if it was not called. Results that differ only there
    are equal."""

    index: int
    id: str
    content: str
    error: bool = False
    part: int = 0
    step: int = 0
    parts: tuple[ResultPart, ...] = ()
    name: str = ""
    ran: tuple[float, float] | None = field(default=None, repr=False, compare=False)

    @property
    def seconds(self) -> float | None:
        """The seconds from the tool's begin to its outcome."""
        return None if self.ran is None else self.ran[1] - self.ran[0]


@dataclass(frozen=True, slots=True, repr=False)
class Summarised(Guided, Printed):
    """Old messages were replaced by a summary, which the model wrote for this turn (`overflow="summarise"`); later
    turns use it again. `text` is the summary, `messages` how many it stands for. `failure`: why none could be written;
    they were dropped."""

    text: str
    messages: int
    failure: str = ""
    step: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Finished(Guided, Printed):
    """The turn is over. A parser's own `Finished` has no usage but `dropped_calls`; the runtime fills in the rest."""

    reason: FinishReason
    usage: Usage | None = None
    step: int = 0


Event: TypeAlias = (
    ReasoningDelta | ContentDelta | ToolCallStart | ToolCallDelta | ToolCallEnd | ToolResult | Summarised | Finished
)


@dataclass(slots=True)
class _Call:
    id: str
    name: str
    fragments: list[str]
    error: CallError | None = "truncated"


def fold(events: Iterable[Event]) -> Completion:
    """Returns the completion that the events of one turn describe. A call that never ended is `truncated`; tool results
    are not part of it."""
    parts: dict[int, ReasoningPart | TextPart | ToolCall] = {}
    texts: dict[int, tuple[type[ReasoningPart | TextPart], list[str]]] = {}
    calls: dict[int, tuple[int, _Call]] = {}
    reason: FinishReason = "stop"
    usage: Usage | None = None
    for event in events:
        match event:
            case ReasoningDelta(text, part):
                texts.setdefault(part, (ReasoningPart, []))[1].append(text)
            case ContentDelta(text, part):
                texts.setdefault(part, (TextPart, []))[1].append(text)
            case ToolCallStart(index, id_, name, part):
                calls[index] = (part, _Call(id_, name, []))
            case ToolCallDelta(index, text):
                calls[index][1].fragments.append(text)
            case ToolCallEnd(index, arguments, error, id=id_):
                call = calls[index][1]
                call.fragments, call.error = [arguments], error
                call.id = id_ or call.id
            case ToolResult() | Summarised():
                pass
            case Finished(reason, usage):
                pass
    for part, (kind, fragments) in texts.items():
        parts[part] = kind(text="".join(fragments))
    for part, call in calls.values():
        parts[part] = ToolCall(id=call.id, name=call.name, arguments="".join(call.fragments), error=call.error)
    return Completion(
        parts=tuple(parts[key] for key in sorted(parts)),
        finish_reason=reason,
        usage=Usage() if usage is None else usage,
    )
