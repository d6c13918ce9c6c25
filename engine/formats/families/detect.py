"""Which family a model belongs to: rules over its chat template, or over architecture and name if it has none."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self, TypeAlias, cast

from pydantic import ValidationError

from engine.formats.families.mistakes import complaints
from engine.formats.families.schema import Family, Format, quoted
from engine.formats.families.table import FamilyTables, Mistake
from engine.support import _data
from engine.support.errors import FamilyError, did_you_mean, shown


@dataclass(frozen=True, slots=True)
class Detection:
    """A family, and the sentence that says why it was chosen. `response_template`: what became of the model's response
    template; "" if it has none."""

    family: Family
    reason: str
    response_template: str = ""


class Families:
    """The families that a model may belong to, in order of precedence: `Families(rows)`, or `Families.load(path)`.

    `builtin_families().extended(own)` tries your own families first, then the shipped ones; pass it to
    `Engine.load(family=..)` or `ChatTemplate(family=..)`.
    """

    def __init__(self, rows: Sequence[Family]) -> None:
        if isinstance(cast("object", rows), str | Path):
            raise FamilyError("Families takes rows; Families.load(path) reads them from a file.")
        self._rows = {row.name: row for row in rows}

    def __repr__(self) -> str:
        return f"<Families: {len(self._rows)}, from {' to '.join([*self._rows][:: max(1, len(self._rows) - 1)])}>"

    @classmethod
    def load(cls, path: Path | str | None = None) -> Self:
        """Read a truth table: the shipped one, or a file of your own.

        Its rows may be `like` shipped ones; a row that is `like` its own name changes the shipped row. Raises
        FamilyError listing every mistake: the file, the line, the field and what to write. (Contradictions between
        tables are reported only once each table is valid by itself.)
        """
        tables = tables_of(path)
        rows = [_row(name, tables) for name in tables.names()]
        if tables.mistakes:
            raise FamilyError(_told(tables.mistakes))
        return cls([row for row in rows if row is not None])

    def names(self) -> tuple[str, ...]:
        return tuple(self._rows)

    def find(self, name: str) -> Family | None:
        """Returns the family of that name; None if there is none."""
        return self._rows.get(name)

    def get(self, name: str) -> Family:
        """Returns the family of that name. Raises FamilyError listing the known names if there is none."""
        if name not in self._rows:
            known = f"known are {', '.join(sorted(self._rows))} (models.toml)."
            raise FamilyError(f"There is no family {shown(name)}; {did_you_mean(name, self._rows, known)}")
        return self._rows[name]

    def extended(self, other: "Families") -> "Families":
        """Returns these families with `other` added; those of `other` replace families of the same name and are tried
        first."""
        return Families([*other._rows.values(), *(row for row in self._rows.values() if row.name not in other._rows)])

    def detect(self, template: str | None, architecture: str = "", name: str = "") -> Detection:
        """Returns the family of a model. Its template decides; architecture and name only if it has no template.

        The first row whose rule matches wins, so models.toml lists more specific rows first. If none matches, the
        family is `content-only`, even if these families do not include it.
        """
        return next(self.candidates(template, architecture, name))

    def candidates(self, template: str | None, architecture: str = "", name: str = "") -> Iterator[Detection]:
        """Yields every family whose rule matches, in order of precedence, and `content-only` in the end."""
        for row in self._rows.values():
            rule = row.detect
            if template is not None:
                matches = bool(rule.template) and all(text in template for text in rule.template)
                if matches and not any(text in template for text in rule.template_not):
                    yield Detection(row, f"its chat template contains {quoted(rule.template)}")
            elif architecture in rule.architectures:
                parts = [part for part in rule.names if part.casefold() in name.casefold()]
                if parts or not rule.names:
                    yield Detection(row, f"it has no chat template; architecture {architecture!r}, name {name!r}")
        other = self._rows.get("content-only", _CONTENT_ONLY)
        yield Detection(other, "no family in models.toml matches its chat template")


def for_vocabulary(family: Family, tokens: Collection[str]) -> Family:
    """Returns a family with the suffix that a vocabulary adds to its markers, if it does."""
    spelt = re.compile(re.escape(family.suffixed.removesuffix(">")) + r"(:[\w.-]+)>")
    ends = {match[1] for token in tokens if (match := spelt.fullmatch(token))} if family.suffixed else set[str]()
    if len(ends) != 1 or family.suffixed in tokens:
        return family
    text = re.sub("(?=｜?>)(?<!｜)", ends.pop(), family.format.model_dump_json(exclude_unset=True))
    return family.model_copy(update={"format": Format.model_validate_json(text), "suffixed": ""})


FamilyLike: TypeAlias = str | Family | Format | Families
"""The ways to choose a family: a name, a record of your own, or the families in which to look for it."""


@cache
def builtin_families() -> Families:
    """The shipped truth table, read once."""
    return Families.load()


def tables_of(path: Path | str | None = None) -> FamilyTables:
    """Returns the tables of a file, on top of the shipped ones; without a path, the shipped ones."""
    shipped = FamilyTables(_data.models_toml())
    return shipped if path is None else FamilyTables(Path(path), beneath=shipped)


def _row(name: str, tables: FamilyTables) -> Family | None:
    """Returns a row as a record, or None if it has mistakes, which are added to the tables' list."""
    if (table := tables.row(name)) is None:
        return None
    try:
        return Family.model_validate({**table, "name": name})
    except ValidationError as error:
        for found in complaints(error, Family):
            if not (found.contradicts and tables.is_incomplete(name, found.place[:-1])):
                tables.note(name, found.place, found.text)
        return None


def _told(mistakes: Sequence[Mistake]) -> str:
    """Returns the text of one mistake, or of a list of them in the order of the file."""
    if len(mistakes) == 1:
        return str(mistakes[0])
    lines = [str(mistake) for mistake in sorted(mistakes, key=lambda each: each.line)]
    return "\n".join([f"{mistakes[0].path} has {len(mistakes)} mistakes:", *lines])


_CONTENT_ONLY = Family(name="content-only", title="any other template", verified="", format=Format())
