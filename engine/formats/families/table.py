"""Reads files of families: the rows, what one row inherits from another, and the line of a mistake."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from engine.support.errors import FamilyError

Table = dict[str, Any]
Place = tuple[str, ...]

NOT_APPLICABLE = "not applicable"
_DECISIONS: tuple[tuple[Place, Place], ...] = (
    (("format",), ("stops", "control", "reasoning", "tools", "continued_end")),
    (
        ("format", "reasoning"),
        ("gate", "off", "after_result", "when_closed", "ends_on_call", "history", "fields"),
    ),
)
"""The fields that a row must state if it has the table: a default that happens to be right is right by accident."""
_WORDS: dict[Place, Place] = {
    ("format", "reasoning"): (NOT_APPLICABLE,),
    ("format", "reasoning", "gate"): (NOT_APPLICABLE,),
    ("format", "continued_end"): (NOT_APPLICABLE,),
    ("format", "tools"): ("generic", "channels"),
}
"""The words that state that a family has no such table. Tools: in the generic form, or through channels."""

_HEADER = re.compile(r"\[([^\[\]]+)\]\s*(?:#.*)?$")
_PART = r"(?:\"[^\"]*\"|'[^']*'|[\w-]+)"
_NAME = re.compile(_PART)
_KEY = re.compile(rf"\s*({_PART}(?:\s*\.\s*{_PART})*)\s*=")


class Mistake(NamedTuple):
    """What is wrong with a file, and in which line."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}."


class _Row(NamedTuple):
    """A table of a file: a family, or a base that families are `like`."""

    owner: "FamilyTables"
    place: Place
    table: Table


class FamilyTables:
    """The rows of one file. `beneath` is another file, whose rows these may be `like`. Raises FamilyError for a file
    that cannot be read; mistakes in its rows are collected in `mistakes`, so that a caller can report all at once."""

    def __init__(self, path: Path, beneath: "FamilyTables | None" = None) -> None:
        self._path = path
        self._beneath = beneath
        self.mistakes: list[Mistake] = []
        self._incomplete: set[Place] = set()
        tables, self._text = _read(path)
        for key in sorted(set(tables) - {"family", "base", "embedding", "suggested"}):
            self._note((key,), f"there is no table `{key}`; every family is a table [family.<name>]")
        self._rows, self._bases = (self._tables(tables, kind) for kind in ("family", "base"))

    def names(self) -> Sequence[str]:
        return tuple(self._rows)

    def bases(self) -> Sequence[str]:
        return tuple(self._bases)

    def row(self, name: str) -> Table | None:
        """Returns a family's table, with inherited fields filled in and None for each table that it states not to have.
        Returns None if one of its `like` names cannot be resolved."""
        table = self._inherited(_Row(self, ("family", name), self._rows[name]), ())
        if table is None:
            return None
        for place, decisions in _DECISIONS:
            part = _part(table, place)
            if not isinstance(part, dict):
                continue
            for decision in decisions:
                if decision not in part:
                    word = f' (or "{NOT_APPLICABLE}")' if NOT_APPLICABLE in _WORDS.get((*place, decision), ()) else ""
                    missing = f"`{decision}` is missing. Write {decision} = ..{word} there"
                    self._note(("family", name, *place), missing)
                    self._incomplete.add((name, *place))
        self._tools_stated(name, table)
        for place, words in _WORDS.items():
            around = _part(table, place[:-1])
            if isinstance(around, dict):
                part = cast("Table", around)
                part[place[-1]] = None if part.get(place[-1]) in words else part.get(place[-1])
        return table

    def is_incomplete(self, name: str, place: Place) -> bool:
        """Whether a family's table lacks decisions: a contradiction found in it may only be a consequence of that."""
        return (name, *place) in self._incomplete

    def origin(self, name: str, place: Place) -> Place | None:
        """Returns the table that states a field of a family: its own or an inherited one; None if there is none."""
        found = self._stating(_Row(self, ("family", name), self._rows[name]), place, ())
        return None if found is None else found.place

    def note(self, name: str, place: Place, complaint: str) -> None:
        """Record a mistake of a family. Its line is that of the field, if this file states it (perhaps in a base), else
        that of the nearest enclosing table."""
        found = self._stating(_Row(self, ("family", name), self._rows[name]), place, ())
        here = found is not None and found.owner is self
        self._note((*(found.place if found and here else ("family", name)), *place), complaint)

    def _note(self, whole: Place, complaint: str) -> None:
        mistake = Mistake(self._path, _line(self._text, whole), f"[{'.'.join(whole)}]: {complaint}")
        if mistake not in self.mistakes:
            self.mistakes.append(mistake)

    def _tables(self, tables: Table, kind: str) -> dict[str, Table]:
        """Returns the rows of one kind; anything that is not a table is a mistake."""
        rows: object = tables.get(kind, {})
        if not isinstance(rows, dict):
            self._note((kind,), f"`{kind}` holds tables only; every row is a table [{kind}.<name>]")
            return {}
        found: dict[str, Table] = {}
        for name, row in cast("dict[str, object]", rows).items():
            if isinstance(row, dict):
                found[name] = cast("Table", row)
            else:
                self._note((kind, name), f"`{kind}` holds tables only; every row is a table [{kind}.<name>]")
        return found

    def _tools_stated(self, name: str, table: Table) -> None:
        stated, channels = _part(table, ("format", "tools")), _part(table, ("format", "channels"))
        if isinstance(stated, str) and (stated == "channels") is not bool(channels):
            complaint = 'tools = "channels" and a table `channels` belong together: state both'
            self.note(name, ("format", "tools"), complaint)

    def _parents(self, row: _Row) -> Iterator[tuple[str, _Row | None]]:
        """Yields the parents of a row (name and row), in order; a later one's fields replace an earlier one's."""
        like = row.table.get("like", [])
        for name in cast("list[object]", like) if isinstance(like, list) else [like]:
            yield repr(name), self._found(row, name)

    def _found(self, row: _Row, name: object) -> _Row | None:
        """Returns the row to which a name refers in `row`: a family before a base, its own file before the file
        beneath. A row that is `like` its own name means the one in the file beneath."""
        if not isinstance(name, str):
            return None
        owner: FamilyTables | None = row.owner
        while owner is not None:
            for kind, rows in (("family", owner._rows), ("base", owner._bases)):
                if name in rows and not (owner is row.owner and row.place == (kind, name)):
                    return _Row(owner, (kind, name), rows[name])
            owner = owner._beneath
        return None

    def _inherited(self, row: _Row, below: tuple[Place, ...]) -> Table | None:
        """Returns a row's table merged over those of its parents; `respell` replaces text in all markers."""
        table = cast("Table", _copied(row.table))
        table.pop("like", None)
        whole: Table = {}
        for name, parent in self._parents(row):
            if parent is None or parent.place in below:
                chain = " -> ".join([*(each[1] for each in below), row.place[1], name.strip("'")])
                bases = ", ".join(dict.fromkeys((*self._bases, *(self._beneath._bases if self._beneath else ()))))
                complaint = f"like = {name} is unknown or circular ({chain}). Name a family or one of the bases {bases}"
                row.owner._note((*row.place, "like"), complaint)
                return None
            changes = parent.place == row.place
            taken = parent.owner._inherited(parent, () if changes else (*below, row.place))
            if taken is None:
                return None
            if not changes:
                taken.pop("detect", None)
            whole = _merged(whole, taken)
        table = _merged(whole, table)
        for old, new in self._respelling(row, table.pop("respell", [])):
            table["format"] = _respelled(table.get("format"), old, new)
        return table

    def _respelling(self, row: _Row, stated: object) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        for pair in cast("list[object]", stated) if isinstance(stated, list) else [stated]:
            match pair:
                case [str(old), str(new)] if old:
                    pairs.append((old, new))
                case _:
                    row.owner._note((*row.place, "respell"), 'respell is a list of pairs of texts: [["old", "new"]]')
        return pairs

    def _stating(self, row: _Row, place: Place, below: tuple[Place, ...]) -> _Row | None:
        """Returns the row that states a field: this one or a parent."""
        if _part(row.table, place) is not None:
            return row
        for _, parent in reversed(list(self._parents(row))):
            if parent is not None and parent.place not in below:
                found = self._stating(parent, place, (*below, row.place))
                if found is not None:
                    return found
        return None


def _read(path: Path) -> tuple[Table, str]:
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text), text
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FamilyError(f"{path} cannot be read as TOML: {error}. Correct it there.") from error


def _part(table: Table, place: Place) -> object:
    if not place:
        return table
    inner: object = table.get(place[0])
    if isinstance(inner, dict):
        return _part(cast("Table", inner), place[1:])
    return None if place[1:] else inner


def _copied(node: object) -> object:
    return {key: _copied(value) for key, value in cast("Table", node).items()} if isinstance(node, dict) else node


def _merged(below: Table, above: Table) -> Table:
    """Merge two tables; `above` wins, and a word in it replaces a table."""
    merged = dict(below)
    for key, value in above.items():
        under = merged.get(key)
        both = isinstance(under, dict) and isinstance(value, dict)
        merged[key] = _merged(cast("Table", under), cast("Table", value)) if both else value
    return merged


def _respelled(node: Any, old: str, new: str) -> Any:
    match node:
        case str():
            return node.replace(old, new)
        case list():
            return [_respelled(item, old, new) for item in cast("list[Any]", node)]
        case dict():
            return {key: _respelled(value, old, new) for key, value in cast("Table", node).items()}
        case _:
            return node


def _names(dotted: str) -> Place:
    """Returns the parts of a dotted key."""
    return tuple(part.strip("\"'") for part in _NAME.findall(dotted))


def _line(text: str, place: Place) -> int:
    """Returns the number of the line of a field, or else of the header of the nearest enclosing table."""
    found, depth = 1, 0
    table: Place = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            here = table = _names(header.group(1))
        elif key := _KEY.match(line):
            here = (*table, *_names(key.group(1)))
        else:
            continue
        if shared := len(here) if here == place[: len(here)] else 0:
            if shared > depth:
                found, depth = number, shared
        elif here[: len(place)] == place and len(place) > depth:  # a table without a header, only dotted keys
            found, depth = number, len(place)
    return found
