"""Sources of tools (MCP servers): connected for the length of a run, during which their tools may change."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, Self, TypeAlias, cast, runtime_checkable

from pydantic import BaseModel

from engine.support.errors import RequestError
from engine.support.warning import warn
from engine.tools.describe import ToolLike, as_tools
from engine.types.tools import Tool


@runtime_checkable
class ToolSource(Protocol):
    """A provider of tools that are not the caller's own functions. Its methods may be called from any thread."""

    @property
    def label(self) -> str:
        """The source's name in error messages."""
        ...

    def begin_use(self) -> Callable[[], None]:
        """Connect for a run, unless connected already; return a function that ends this use. Raises EngineError if the
        connection fails."""
        ...

    def tools(self) -> tuple[Tool, ...]:
        """Returns the tools as last listed. Raises EngineError while the source is not connected."""
        ...

    def refresh(self) -> None:
        """List the tools again if they may have changed."""
        ...


RunTool: TypeAlias = ToolLike | ToolSource


class Toolbox:
    """The tools of one run: the caller's own, and those of sources, which are connected while the run lasts.

    Raises RequestError for an item that is not a tool, and for duplicate names.
    """

    def __init__(self, items: Sequence[RunTool] | None = None) -> None:
        self._sources: list[ToolSource] = []
        own: Any = items
        if isinstance(own, ToolSource):
            raise RequestError(f"tools must be a list of tools; put {own.label} in a list: tools=[...].")
        if isinstance(own, Iterable) and not isinstance(own, str | bytes | Mapping | BaseModel | type):
            given: list[Any] = list(cast("Iterable[Any]", own))
            self._sources = [item for item in given if isinstance(item, ToolSource)]
            own = [item for item in given if not isinstance(item, ToolSource)]
        self._own = as_tools(cast("Any", own))
        self._ends: list[Callable[[], None]] = []
        self.tools: tuple[Tool, ...] = self._own

    @property
    def is_fixed(self) -> bool:
        """Whether the tools cannot change during the run."""
        return not self._sources

    def open(self) -> None:
        """Connect the sources. If one cannot be connected, raises EngineError; if two tools have the same name,
        RequestError. No source stays connected then."""
        try:
            for source in self._sources:
                self._ends.append(source.begin_use())
            self.tools = self._merged(clash=_refuse)
        except BaseException:
            self.close()
            raise

    def refresh(self) -> None:
        """List the sources' tools again. A new tool whose name is taken is left out, with a warning."""
        if self._ends:
            for source in self._sources:
                source.refresh()
            self.tools = self._merged(clash=_leave_out)

    def close(self) -> None:
        """Disconnect the sources; `tools` stays as it is."""
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
        'give the server a prefix (prefix="b_"), or name the tools that you want from it (only=[...]).'
    )


def _leave_out(name: str, first: str, source: ToolSource) -> None:
    warn(
        f"The tool {name!r} that {source.label} now lists is left out: the name is taken by one {first}. Give the "
        'server a prefix (prefix="b_").',
    )
