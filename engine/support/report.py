"""Records that tell themselves as a report: as text, and in a notebook."""

from abc import abstractmethod
from collections.abc import Iterable

from engine.support.display import fenced, table_html, visible


class Report:
    """The base of such records."""

    __slots__ = ()

    @abstractmethod
    def text(self) -> str:
        """Returns the report in lines, without control codes."""

    def __str__(self) -> str:
        return self.text()

    def _repr_markdown_(self) -> str:
        return fenced(self.text())


class RowReport(Report):
    """A report in rows, each a name and a value. A row without a name goes with that above."""

    __slots__ = ()

    @abstractmethod
    def rows(self) -> Iterable[tuple[str, str]]:
        """Returns the rows in order."""

    def text(self) -> str:
        return visible("\n".join(aligned(self.rows())))

    def _repr_html_(self) -> str:
        return table_html(self.rows())


def aligned(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Returns a line for each row, with all values in one column."""
    listed = list(rows)
    width = width_of(listed)
    return [f"{name:<{width}}{value}".rstrip() for name, value in listed]


def width_of(rows: Iterable[tuple[str, str]]) -> int:
    """Returns the place of that column."""
    return max((len(name) for name, _ in rows), default=0) + 2
