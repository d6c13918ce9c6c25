"""All that a turn's parser is made of, as one record that another process can make the parser from.

Knows: what of it cannot cross: the functions behind tools. Does not know: where the parser runs, or who reads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from engine.events import Event, ToolCallEnd, ToolCallStart
from engine.families import Format
from engine.parsing import Parser
from engine.parsing.emitter import arguments_value
from engine.parsing.piece import Piece
from engine.types import ReasoningFormat, ResponseFormat, Tool, ToolChoice


@dataclass(frozen=True)
class ParserRecipe:
    """Called, it makes the parser; the fields are that one's parameters. Pickled, its tools lose their functions and
    the checks of arguments: `Checked` makes up for these where the events arrive."""

    format: Format
    prefix: str | Sequence[Piece] = ""
    tools: tuple[Tool, ...] | None = None
    tool_choice: ToolChoice = "auto"
    reasoning_format: ReasoningFormat = "deepseek"
    parallel_tool_calls: bool = True
    response_format: ResponseFormat | None = None
    control_tokens: frozenset[str] | None = None
    trace: bool = False
    id_salt: str = ""

    def __call__(self) -> Parser:
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        return Parser(options.pop("format"), options.pop("prefix"), **options)

    def __reduce__(self) -> tuple[Any, ...]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.tools is not None:
            values["tools"] = tuple(map(_bare, self.tools))
        return ParserRecipe, tuple(values.values())

    def checked(self) -> "Checked":
        """What judges the arguments of a turn's calls whose parser ran elsewhere."""
        return Checked(self.tools or ())


class Checked:
    """Completes the events of one turn: whether each call's arguments are what its tool takes."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._names: dict[int, str] = {}

    def __call__(self, events: Sequence[Event]) -> tuple[Event, ...]:
        return tuple(map(self._completed, events))

    def _completed(self, event: Event) -> Event:
        if isinstance(event, ToolCallStart):
            self._names[event.index] = event.name
        elif isinstance(event, ToolCallEnd) and event.error is None:
            tool = self._tools.get(self._names.get(event.index, ""))
            if tool is not None and tool.check is not None and not _takes(tool.check, event.arguments):
                return replace(event, error="invalid_arguments")
        return event


def _takes(check: Callable[[Any], str | None], arguments: str) -> bool:
    try:
        return check(arguments_value(arguments)) is None
    except RecursionError:
        return True  # as deep as the parser could read, with less of the stack left: judged there


def _bare(tool: Tool) -> Tool:
    return tool.model_copy(update={"function": None, "check": _fits})


def _fits(_arguments: object) -> None:
    """Judged elsewhere."""
