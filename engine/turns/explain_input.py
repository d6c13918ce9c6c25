"""What `explain` is told of a turn."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.types.constraint import Constraint
from engine.types.messages import Message
from engine.types.prompt import Piece, Prompt
from engine.types.tools import Tool, ToolChoice


@dataclass(frozen=True, slots=True)
class ExplainInput:
    """What to explain: a rendered conversation and, optionally, what the model wrote. `sampling`: what the
    answer's tokens are drawn with, and who said so."""

    conversation: Sequence[Message]
    prompt: Prompt
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = "auto"
    builtin_tools: Sequence[str] = ()
    output: str | Sequence[Piece] | None = None
    tokens: Sequence[int] = ()
    constraint: Constraint | None = None
    sampling: str = ""
