"""Files of families, read: the rows, what one row takes over from another, and the line of a mistake.

Knows: TOML, `like` and `respell`, which decisions every row must state, and where in the file a field stands. Does not
know: what a field means; `families` makes records of the rows.
"""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from engine.errors import FamilyError

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
"""What a row must say of every request, if it has the table: a value that is right by default is right by accident."""
_WORDS: dict[Place, Place] = {
    ("format", "reasoning"): (NOT_APPLICABLE,),
    ("format", "reasoning", "gate"): (NOT_APPLICABLE,),
    ("format", "continued_end"): (NOT_APPLICABLE,),
    ("format", "tools"): ("generic", "channels"),
}
"""The words that stand for a table which a family does not have. Tools: in the generic form, or by its channels."""

_HEADER = re.compile(r"\[(.+)\]\s*$")
_HEADER_PART = re.compile(r'"[^"]*"|[^.]+')
_KEY = re.compile(r"([\w-]+)\s*=")


class FamilyTables:
    """The rows of one file. `beneath` is a file whose rows these may be `like`."""

    def __init__(self, path: Path, beneath: "FamilyTables | None" = None) -> None:
        self._path = path
        self._beneath = beneath
        self._rows, self._text = _read(path)
        self._known = {**beneath._rows, **self._rows} if beneath else self._rows

    def names(self) -> Sequence[str]:
        return tuple(self._rows)

    def row(self, name: str) -> Table:
        """A family's table: what it took over filled in, the words for what it has not as None.

        Raises FamilyError where a row that it is `like` is not there, or where a decision is missing.
        """
        table = self._inherited(name)
        for place, decisions in _DECISIONS:
            part = _part(table, place)
            if not isinstance(part, dict):
                continue
            for decision in decisions:
                if decision not in part:
                    say = f' (or "{NOT_APPLICABLE}")' if NOT_APPLICABLE in _WORDS.get((*place, decision), ()) else ""
                    raise self.fault(name, place, f"nothing says `{decision}`. Write {decision} = ..{say} there")
        self._tools_stated(name, table)
        for place, words in _WORDS.items():
            around = _part(table, place[:-1])
            if isinstance(around, dict):
                part = cast("Table", around)
                part[place[-1]] = None if part.get(place[-1]) in words else part.get(place[-1])
        return table

    def fault(self, name: str, place: Sequence[str], complaint: str) -> FamilyError:
        """The error for a field, or for the nearest table around it in the file."""
        whole = ("family", name, *place)
        return FamilyError(f"{self._path}:{_line(self._text, whole)}: [{'.'.join(whole)}]: {complaint}.")

    def _tools_stated(self, name: str, table: Table) -> None:
        stated, channels = _part(table, ("format", "tools")), _part(table, ("format", "channels"))
        if isinstance(stated, str) and (stated == "channels") is not bool(channels):
            complaint = 'tools = "channels" and a table `channels` belong together: state both'
            raise self.fault(name, ("format", "tools"), complaint)

    def _inherited(self, name: str, below: Place = ()) -> Table:
        """A family's table over that of the family it is `like`; `respell` replaces text in all markers.

        A row that is `like` its own name changes the row beneath.
        """
        if name not in self._known or name in below:
            chain = " -> ".join(map(str, (*below, name)))
            raise self.fault(below[0], ("like",), f"like = {name!r} leads nowhere ({chain}). Name another family")
        table = cast("Table", _copied(self._known[name]))
        like = table.pop("like", None)
        if like is not None:
            changes = like == name and self._beneath is not None and name in self._beneath.names()
            parent = (
                self._beneath._inherited(like) if changes and self._beneath else self._inherited(like, (*below, name))
            )
            if not changes:
                parent.pop("detect", None)
            table = _merged(parent, table)
        for old, new in self._respelling(name, table.pop("respell", [])):
            table["format"] = _respelled(table.get("format"), old, new)
        return table

    def _respelling(self, name: str, stated: object) -> list[tuple[str, str]]:
        pairs: list[tuple[str, str]] = []
        for pair in cast("list[object]", stated) if isinstance(stated, list) else [stated]:
            match pair:
                case [str(old), str(new)] if old:
                    pairs.append((old, new))
                case _:
                    raise self.fault(name, ("respell",), 'respell is a list of pairs of texts: [["old", "new"]]')
        return pairs


def _read(path: Path) -> tuple[dict[str, Table], str]:
    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FamilyError(f"{path} cannot be read as TOML: {error}. Correct it there.") from error
    if unknown := set(tables) - {"family"}:
        raise FamilyError(f"{path}: unknown tables {sorted(unknown)}; every family is a table [family.<name>].")
    rows = cast("dict[str, Table]", tables.get("family", {}))
    if not isinstance(rows, dict) or not all(isinstance(row, dict) for row in rows.values()):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise FamilyError(f"{path}: `family` holds tables only; every family is a table [family.<name>].")
    return rows, text


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
    """The tables as one, `above` winning; a word over a table replaces it."""
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


def _line(text: str, place: Place) -> int:
    """The number of the line that holds a field, or that opens the nearest table around it."""
    found, depth = 1, 0
    table: Place = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            table = tuple(part.strip('"') for part in _HEADER_PART.findall(header.group(1)))
        elif key := _KEY.match(line):
            table_and_key = (*table, key.group(1))
            if place[: len(table_and_key)] == table_and_key and len(table_and_key) > depth:
                found, depth = number, len(table_and_key)
            continue
        if table and place[: len(table)] == table and len(table) > depth:
            found, depth = number, len(table)
    return found
