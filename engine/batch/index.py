"""What is known of every row of an input, in flat arrays: its digests, its offset, its state, the place of its line."""

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.batch.bodies import Texts
from engine.batch.rows import BadRowError, Defaults, Kind, Row, bad_key, bad_line, digest, parse_row, sort_key
from engine.batch.source import Source
from engine.support.errors import BatchInputError, EngineError

State: TypeAlias = Literal["done", "failed"]

_MOST_SHOWN = 20
_PENDING = 0
_STATES: Mapping[State, int] = {"done": 1, "failed": 2}
_SORT = 27
_NONE = -1


@dataclass(frozen=True, slots=True)
class Plan:
    """The work that an engine is loaded for. `total`: rows of the input, including those that are done already;
    `vectors`: those that ask for vectors, not for an answer. `models`: the models that rows name."""

    total: int
    vectors: int = 0
    models: tuple[str, ...] = ()


class Index:
    """Every row of a source: about 300 bytes each. `several`: rows of one model come together. For one thread at
    a time."""

    def __init__(self, source: Source, defaults: Defaults, *, several: bool = False) -> None:
        self._source = source
        self._defaults = defaults
        self._keys: list[bytes] = []
        self._by_key: dict[bytes, int] = {}
        self._by_name: dict[bytes, int] = {}
        self._sorts = bytearray()
        self._valid = bytearray()
        self._states = bytearray()
        self._numbers = array("Q")
        self._offsets = array("Q")
        self._places = array("q")
        self._vectors = 0
        self._several = several
        self._models: dict[str | None, int] = {}
        self._model = array("H")
        self.kind: Kind | None = None

    def build(self, *, skip_bad: bool) -> None:
        """Read and check every row. Raises BatchInputError, which lists the bad lines, unless `skip_bad`."""
        problems: list[str] = []
        for number, offset, line in self._source.lines():
            try:
                row = self._parsed(line, number, len(self._keys))
            except BadRowError as error:
                if len(problems) < _MOST_SHOWN:
                    problems.append(f"line {number}: {error}")
                self._add(number, offset, bad_key(line, number), error.name, None, None)
            else:
                self.kind = row.kind
                self._vectors += isinstance(row.request, Texts)
                self._add(number, offset, row.key, row.name, sort_key(row.request), row.request.model)
        if problems and not (skip_bad and any(self._valid)):
            raise BatchInputError(_list_of(self._source.name, self._valid.count(0), len(self._valid), problems))
        if not self._valid:
            raise BatchInputError(f"{self._source.name} has no rows.")

    def _parsed(self, line: bytes, number: int, index: int) -> Row:
        """Returns the row `index`. Raises BadRowError for one that is not valid on its own or among the others."""
        row = parse_row(line, number, self._defaults)
        if self.kind not in (None, row.kind):
            raise BadRowError(
                f"This row has the {row.kind} format, but earlier rows have the {self.kind} format; use only one.",
                row.name,
                row.columns,
            )
        first = self._by_name.get(_name_digest(row.name))
        if first is not None and first != index and self._valid[first]:
            raise BadRowError(
                f'custom_id "{row.name}" is used on line {self._numbers[first]} already; rename one.',
                row.name,
                row.columns,
            )
        return row

    def _add(
        self, number: int, offset: int, key: bytes, name: str | None, sort: bytes | None, model: str | None
    ) -> None:
        """Add a row; `sort` is None for one that is not valid."""
        if self._several:
            self._model.append(min(self._models.setdefault(model, len(self._models)), 0xFFFF))
        self._by_key.setdefault(key, row := len(self._keys))
        self._keys.append(key)
        if name is not None:
            self._by_name.setdefault(named := _name_digest(name), row)
            if sort is not None:  # a valid row has the name, whichever came first
                self._by_name[named] = row
        self._sorts += sort or bytes(_SORT)
        self._valid.append(sort is not None)
        self._states.append(_PENDING)
        self._numbers.append(number)
        self._offsets.append(offset)
        self._places.append(_NONE)

    def plan(self) -> Plan:
        """Returns the numbers of rows."""
        return Plan(len(self._valid), self._vectors, tuple(name for name in self._models if name is not None))

    def count(self, state: State) -> int:
        """Returns how many rows are in this state."""
        return self._states.count(_STATES[state])

    def clear(self) -> None:
        """Make all rows pending."""
        self._states = bytearray(len(self._states))

    def mark(self, key: bytes, state: State, place: int, *, over: bool) -> None:
        """Record that the line at offset `place` of a file is this row's. `over`: even if the row is done."""
        row = self._by_key.get(key)
        if row is not None and (over or self._states[row] != _STATES["done"]):
            self._states[row] = _STATES[state]
            self._places[row] = place

    def is_at(self, key: bytes, state: State, place: int) -> bool:
        """Whether the recorded line of this row is the one at `place`."""
        row = self._by_key.get(key)
        return row is not None and (self._states[row], self._places[row]) == (_STATES[state], place)

    def has_name(self, name: str | None) -> bool:
        """Whether the input has a row with this custom_id."""
        return name is not None and _name_digest(name) in self._by_name

    def has_changed(self, key: bytes, name: str | None) -> bool:
        """Whether the input has a row with this custom_id, but with other content."""
        return key not in self._by_key and self.has_name(name)

    def places(self, state: State) -> Iterator[int]:
        """Yields the offsets of the lines of rows in this state, in the order of the input."""
        wanted = _STATES[state]
        return (place for place, each in zip(self._places, self._states, strict=True) if each == wanted)

    def outcomes(self) -> Iterator[tuple[int, State | None, int]]:
        """Yields for each row, in the order of the input, its offset there, its state, and the place of its line in the
        file of that state."""
        names: dict[int, State] = {number: state for state, number in _STATES.items()}
        for offset, state, place in zip(self._offsets, self._states, self._places, strict=True):
            yield offset, names.get(state), place

    def retry(self) -> None:
        """Make failed rows pending again, except those that were never valid."""
        for row, state in enumerate(self._states):
            if state == _STATES["failed"] and self._valid[row]:
                self._states[row] = _PENDING

    def work(self, *, group: bool) -> Iterator[Row | bytes]:
        """Yields the rows that are pending now: first the error lines of those that are not valid, then (with `group`)
        rows of one model, and of the same beginning, together. Raises EngineError if the input has changed."""
        pending = (row for row, state in enumerate(self._states) if state == _PENDING)
        width = _SORT if group else 0
        order = array("i", sorted(pending, key=lambda row: self._sort(row, width)))
        return (self._read(row) for row in order)

    def _sort(self, row: int, width: int) -> bytes:
        model = self._model[row].to_bytes(2) if self._several and width else b""
        return bytes(self._valid[row : row + 1] + model + self._sorts[_SORT * row : _SORT * row + width])

    def _read(self, index: int) -> Row | bytes:
        line, number = self._source.line(self._offsets[index]), self._numbers[index]
        read: Row | bytes
        try:
            read = self._parsed(line, number, index)
            key = read.key
        except BadRowError as error:
            key = bad_key(line, number)
            read = bad_line(key, self.kind or "simple", error.name, error.columns, str(error), self._defaults.result)
        if key != self._keys[index]:
            raise EngineError(f"{self._source.name} changed at line {number} while it was read. Run it again.")
        return read


def _name_digest(name: str) -> bytes:
    return digest(b"name " + name.encode(errors="surrogatepass"))


def _list_of(name: str, bad: int, total: int, problems: list[str]) -> str:
    more = f"\n  ... and {bad - len(problems)} more" if bad > len(problems) else ""
    return (
        f"{bad} row{'' if bad == 1 else 's'} of {name} cannot be run, so nothing was computed:\n  "
        + "\n  ".join(problems)
        + f"{more}\nCorrect them"
        + (", or pass skip_bad=True (--skip-bad) to write them to the error file." if bad < total else ".")
    )
