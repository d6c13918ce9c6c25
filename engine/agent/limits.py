"""The options of a run beyond those of its turns: limits, approval, the tools' context, where it is saved."""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, cast

from engine.support.errors import RequestError, shown
from engine.support.hints import unknown_option
from engine.types.parts import ToolCall
from engine.types.tools import Tool

if TYPE_CHECKING:  # every chat imports these options
    from engine.agent.transcript import Transcript

Approval: TypeAlias = bool | str | dict[str, Any]
Approve: TypeAlias = Callable[[ToolCall], Approval | Awaitable[Approval]]
Rest = TypeVar("Rest", bound=Mapping[str, Any])
Save: TypeAlias = str | Path | Callable[["Transcript"], object]


class RunArguments(TypedDict, total=False):
    """The keyword arguments of a run; see `RunOptions`."""

    max_parallel_tools: int | None
    tool_timeout: float | None
    max_total_tokens: int | None
    stop_on: Sequence[str]
    approve: Approve | None
    context: Any
    save: Save | None
    rerun: bool


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run.

    - `max_steps`: maximum number of turns.
    - `max_total_tokens`: no turn begins once the turns so far took this many tokens, each with its complete prompt
      (`Usage.total_tokens`). The last turn may go beyond; `max_tokens` bounds it.
    - `max_parallel_tools`: how many calls of one turn run at once. None: async tools all at once, others one after the
      other, as they need not be thread-safe. From sync code None and 1 run each call in the caller's own thread.
    - `tool_timeout`: seconds that one call may take. A late call becomes an error that the model reads. An async tool
      is cancelled. A thread cannot be killed: a late sync tool goes on, its result is dropped, `Run.running` lists it,
      and its `ToolContext.cancelled` is True.
    - `stop_on`: names of tools that end the run once they ran without an error.
    - `approve`: called before each call of a function, one at a time, in the order of the calls; sync or async. It
      returns True; False or a string, the reason that the model reads instead of a result; or a dictionary, the
      arguments to use instead, which the history then contains.
    - `context`: the `value` of the `ToolContext` that tools may take as a parameter.
    - `save`: a path, or a function, sync or async, that takes the `Transcript`. Called before and after each call and
      after each turn.
    - `rerun`: when resuming a transcript, run calls again that had started and have no result.

    Raises RequestError for a value that is not valid.
    """

    max_steps: int = 8
    max_parallel_tools: int | None = None
    tool_timeout: float | None = None
    max_total_tokens: int | None = None
    stop_on: Sequence[str] = ()
    approve: Approve | None = None
    context: Any = None
    save: Save | None = None
    rerun: bool = False

    def __post_init__(self) -> None:
        if mistake := next(self._mistakes(), None):
            name, why = mistake
            raise RequestError(f"{name}={shown(getattr(self, name))} is not valid; give {why}.")

    def _mistakes(self) -> Iterator[tuple[str, str]]:
        """Yields the name of each value that is not valid, and what to give instead."""
        if not _is_count(self.max_steps):
            yield "max_steps", "an integer, at least 1"
        for name in ("max_parallel_tools", "max_total_tokens"):
            value = getattr(self, name)
            if value is not None and not _is_count(value):
                yield name, "an integer, at least 1, or None for no limit"
        timeout: Any = self.tool_timeout
        if timeout is not None and not (type(timeout) in (int, float) and 0 < timeout < math.inf):
            yield "tool_timeout", "seconds above 0, or None for no limit"
        if not _are_names(self.stop_on):
            yield "stop_on", "a list of tool names"
        if self.approve is not None and not callable(self.approve):
            yield "approve", "a function that takes a ToolCall"
        if not (self.save is None or isinstance(self.save, str | Path) or callable(self.save)):
            yield "save", "a path, or a function that takes a Transcript"
        if self.rerun not in (True, False):
            yield "rerun", "True or False"

    def check_names(self, tools: Sequence[Tool]) -> None:
        """Raise RequestError for a name in `stop_on` that is not a tool's."""
        names = [tool.name for tool in tools]
        if unknown := [name for name in self.stop_on if name not in names]:
            raise RequestError(
                f"stop_on names {shown(unknown[0])}, but there is no such tool. The tools are: "
                f"{', '.join(names) or 'none'}."
            )

    @property
    def needs_threads(self) -> bool:
        """Whether sync code needs threads for its tools."""
        return self.tool_timeout is not None or (self.max_parallel_tools or 1) > 1


def _are_names(value: object) -> bool:
    if not isinstance(value, list | tuple | set | frozenset):
        return False
    return all(isinstance(name, str) for name in cast("Sequence[object]", value))


def run_options(max_steps: int, options: Mapping[str, Any], rest: type[Rest]) -> tuple[RunOptions, Rest]:
    """Returns the options of the run, and the rest for its turns. Raises RequestError for an unknown option, and for an
    option of the run whose value is not valid."""
    names = RunArguments.__annotations__
    accepted = ["max_steps", *names, *rest.__annotations__]
    own = {name: value for name, value in options.items() if name in names}
    if unknown := sorted(options.keys() - accepted):
        raise RequestError(unknown_option(unknown[0], accepted))
    others: Any = {name: value for name, value in options.items() if name not in names}
    return RunOptions(max_steps, **own), rest(**others)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
