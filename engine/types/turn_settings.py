"""`TurnSettings`: all that a caller says of a turn, checked, with the default of each option."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from engine.types.messages import DocumentLike
from engine.types.sampling import (
    DEFAULT_REASONING_FORMAT,
    JsonLayout,
    Overflow,
    Progress,
    Reasoning,
    ReasoningFormat,
    SamplingParams,
)
from engine.types.tools import AllowedChoice

AdaptersLike: TypeAlias = Sequence[str] | Mapping[str, float]
"""Names of adapters, or names with their scales."""
RESERVE = 256
"""The default number of tokens reserved for a constrained answer."""


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """What a turn is made of, beside its messages and tools: `engine.turns.options.TurnOptions` says what each option
    means. `engine.turns.options.turn_settings` makes it of a caller's options, once; a raw completion (`suffix`,
    `files`), a score (`special`) and a pinned prefix are made of it too.

    `sampling` has the model's and the engine's defaults in it; `given`: the options of sampling that the caller gave.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    given: frozenset[str] = frozenset()
    response_format: Any = None
    json_layout: JsonLayout | None = None
    close_at_limit: bool = True
    answer_reserve: int = RESERVE
    tool_choice: AllowedChoice = "auto"
    strict_tools: bool = False
    parallel_tool_calls: bool | None = None
    builtin_tools: Sequence[str] = ()
    reasoning: Reasoning | None = None
    reasoning_format: ReasoningFormat = DEFAULT_REASONING_FORMAT
    reasoning_budget: int | None = None
    restore_reasoning: bool = True
    template_kwargs: Mapping[str, Any] | None = None
    documents: Sequence[DocumentLike] | None = None
    continue_final_message: bool = False
    overflow: Overflow = "error"
    summary_tokens: int | None = None
    suffix: str | None = None
    files: Mapping[str, str] | None = None
    special: bool = False
    priority: int = 0
    deadline: float | None = None
    progress: Progress | None = None
    adapters: AdaptersLike | None = None
    cache_salt: str | None = None


PLAIN = TurnSettings()
"""What holds where a caller says nothing."""
