"""Sources of tools beside functions: what is connected for as long as a run goes, and may change its tools meanwhile.

Knows: when a source is opened, asked and closed, and that tools are told apart by their names. Does not know: what a
source is connected to (`engine.mcp`), the agent loop.
"""

import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self, TypeAlias, cast, runtime_checkable

from pydantic import BaseModel

from engine.errors import EngineWarning, RequestError
from engine.tools.describe import ToolLike, as_tools
from engine.types import Completion, Tool

Answer: TypeAlias = Callable[..., Awaitable[Completion]]
"""As `Engine.achat`: a source's own requests to the model that runs it."""


@runtime_checkable
class ToolSource(Protocol):
    """Where tools come from that are not the caller's own functions. Its methods may be called from any thread."""

    @property
    def label(self) -> str:
        """What messages call it."""
        ...

    def open_for(self, answer: Answer | None) -> Callable[[], None]:
        """Connect it for a run, unless it is connected; returns what ends that. `answer` is the run's model, None where
        it is not to be asked. Raises EngineError where it cannot be connected."""
        ...

    def tools(self) -> tuple[Tool, ...]:
        """Its tools as they were last listed; raises EngineError while it is not connected."""
        ...

    def refresh(self) -> None:
        """List its tools again, if they may have changed."""
        ...


RunTool: TypeAlias = ToolLike | ToolSource


class Toolbox:
    """The tools of one run: the caller's own, and those of sources, which are connected while it goes.

    Raises RequestError for what is no tool, and for two of one name.
    """

    def __init__(self, items: Sequence[RunTool] | None = None, answer: Answer | None = None) -> None:
        self._sources: list[ToolSource] = []
        own: Any = items
        if isinstance(own, ToolSource):
            raise RequestError(f"tools must be a list of tools; put {own.label} in a list: tools=[...].")
        if isinstance(own, Iterable) and not isinstance(own, str | bytes | Mapping | BaseModel | type):
            given: list[Any] = list(cast("Iterable[Any]", own))
            self._sources = [item for item in given if isinstance(item, ToolSource)]
            own = [item for item in given if not isinstance(item, ToolSource)]
        self._own = as_tools(cast("Any", own))
        self._answer = answer
        self._ends: list[Callable[[], None]] = []
        self.tools: tuple[Tool, ...] = self._own

    @property
    def is_fixed(self) -> bool:
        """Whether the tools are known from the start and stay."""
        return not self._sources

    def open(self) -> None:
        """Connect the sources. Raises EngineError for one that cannot be connected, RequestError for two tools of one
        name; nothing is connected then."""
        try:
            for source in self._sources:
                self._ends.append(source.open_for(self._answer))
            self.tools = self._merged(clash=_refuse)
        except BaseException:
            self.close()
            raise

    def refresh(self) -> None:
        """Take in what sources have changed since. A new tool with a name that is taken is left out, with a warning."""
        if self._ends:
            for source in self._sources:
                source.refresh()
            self.tools = self._merged(clash=_leave_out)

    def close(self) -> None:
        """Let the sources go; the tools stay listed."""
        while self._ends:
            self._ends.pop()()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _merged(self, clash: Callable[[str, str, ToolSource], None]) -> tuple[Tool, ...]:
        found = {tool.name: ("your own", tool) for tool in self._own}
        for source in self._sources:
            for tool in source.tools():
                if tool.name in found:
                    clash(tool.name, found[tool.name][0], source)
                else:
                    found[tool.name] = (f"of {source.label}", tool)
        return tuple(tool for _, tool in found.values())


def _refuse(name: str, first: str, source: ToolSource) -> None:
    raise RequestError(
        f"Two tools are called {name!r}: one {first}, one of {source.label}. A model tells tools apart by their names: "
        'give the server a prefix (prefix="b_"), or name the tools that you want of it (only=[...]).'
    )


def _leave_out(name: str, first: str, source: ToolSource) -> None:
    warnings.warn(
        f"The tool {name!r} that {source.label} now lists is left out: there is one {first}. Give the server a prefix.",
        EngineWarning,
        stacklevel=2,
    )
