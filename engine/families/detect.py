"""Which family a model is of: rules over its chat template, or over architecture and name where it has none.

Knows: the rules' order, and how rows of a table become records. Does not know: what a field of a format means.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self, TypeAlias

from pydantic import ValidationError

from engine import _data
from engine.errors import FamilyError, did_you_mean
from engine.families.schema import Family, Format, quoted
from engine.families.table import FamilyTables


@dataclass(frozen=True, slots=True)
class Detection:
    """A family, and the sentence that says why it was chosen."""

    family: Family
    reason: str


class Families:
    """Families to recognise a model's by, in order of precedence: `Families(rows)`, or `Families.load(path)`.

    `builtin_families().extended(own)` asks one's own first, then the shipped ones; give it to `Engine.load(family=..)`
    or `ChatTemplate(family=..)`.
    """

    def __init__(self, rows: Sequence[Family]) -> None:
        self._rows = {row.name: row for row in rows}

    @classmethod
    def load(cls, path: Path | str | None = None) -> Self:
        """Read a truth table: the shipped one, or a file of your own.

        Its rows may be `like` shipped ones; one that is `like` its own name changes that row.
        Raises FamilyError naming the file, the line and the field at fault.
        """
        tables = FamilyTables(_data.models_toml())
        if path is not None:
            tables = FamilyTables(Path(path), beneath=tables)
        return cls([_row(name, tables) for name in tables.names()])

    def names(self) -> tuple[str, ...]:
        return tuple(self._rows)

    def get(self, name: str) -> Family:
        """The family of that name. Raises FamilyError listing the known ones."""
        if name not in self._rows:
            known = f"known are {', '.join(sorted(self._rows))} (models.toml)."
            raise FamilyError(f"There is no family {name!r}; {did_you_mean(name, self._rows, known)}")
        return self._rows[name]

    def extended(self, other: "Families") -> "Families":
        """These families with the other's added; the other's win and are asked first."""
        return Families([*other._rows.values(), *(row for row in self._rows.values() if row.name not in other._rows)])

    def detect(self, template: str | None, architecture: str = "", name: str = "") -> Detection:
        """The family of a model. Its template decides; architecture and name serve when it has none.

        The first row whose rule holds wins, so models.toml lists the more specific first. Nothing matching gives
        `content-only`, whether it is one of these families or not.
        """
        for row in self._rows.values():
            rule = row.detect
            if template is not None:
                matches = bool(rule.template) and all(text in template for text in rule.template)
                if matches and not any(text in template for text in rule.template_not):
                    return Detection(row, f"its chat template contains {quoted(rule.template)}")
            elif architecture in rule.architectures:
                parts = [part for part in rule.names if part.casefold() in name.casefold()]
                if parts or not rule.names:
                    return Detection(row, f"it has no chat template; architecture {architecture!r}, name {name!r}")
        other = self._rows.get("content-only", _CONTENT_ONLY)
        return Detection(other, "no family in models.toml matches its chat template")


FamilyLike: TypeAlias = str | Family | Format | Families
"""What callers may name a family by: a name, a record of their own, or families to find it among."""


@cache
def builtin_families() -> Families:
    """The shipped truth table, read once."""
    return Families.load()


def _row(name: str, tables: FamilyTables) -> Family:
    table = tables.row(name)
    try:
        return Family(name=name, **table)
    except ValidationError as error:
        first = error.errors()[0]
        field = first.get("ctx", {}).get("field", "")
        place = (*(str(item) for item in first["loc"]), *([field] if field else []))
        raise tables.fault(name, place, f"{first['msg']}. Correct it there") from error


_CONTENT_ONLY = Family(name="content-only", title="any other template", verified="", format=Format())
