"""The rows of a batch, and an index of them on disk.

Knows: JSONL files, standard input, Parquet files (through pyarrow), any iterable of dictionaries; which rows are valid,
done, failed, and the best order to compute them in. Does not know: what a row contains (`rows`), engines.

Neither rows nor index are kept in memory: an input that cannot be read twice is copied to a temporary file, and the
index is a temporary SQLite database. Both vanish with the process.
"""

import importlib
import json
import os
import sqlite3
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, Self, TypeAlias, cast

from engine.batch.rows import BadRowError, Defaults, Kind, Row, bad_key, bad_line, dump, parse_row, sort_key
from engine.errors import BatchInputError, EngineError, RequestError
from engine.output_file import Identity, identity

RowsLike: TypeAlias = "str | Path | Iterable[Mapping[str, Any]]"
State: TypeAlias = Literal["pending", "done", "failed"]

_MOST_SHOWN = 20
_STATES: Mapping[State, int] = {"pending": 0, "done": 1, "failed": 2}


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that never runs; `line` is its line in the error file."""

    line: bytes


class Source:
    """The lines of an input, which can be read again by offset. A context manager."""

    def __init__(self, rows: RowsLike) -> None:
        self.name, self._file = _opened(rows)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Yields every line that is not blank: its number from 1 on, its offset, its bytes."""
        self._file.seek(0)
        offset = 0
        for number, line in enumerate(self._file, 1):
            if line.strip():
                yield number, offset, line
            offset += len(line)

    def read(self, offset: int, length: int) -> bytes:
        """Returns `length` bytes from `offset` on. May be called from any thread."""
        with self._lock:
            self._file.seek(offset)
            return self._file.read(length)


def input_identity(rows: RowsLike) -> Identity | None:
    """Returns the identity of the file that the rows are read from; None if they are not in a file."""
    try:
        if isinstance(rows, Path) or (isinstance(rows, str) and rows != "-"):
            return identity(rows)
        if rows == "-":
            found = os.fstat(sys.stdin.fileno())
            return found.st_dev, found.st_ino, ()
    except (OSError, ValueError):  # `Source` says that a path cannot be read; standard input may have no descriptor
        return None
    return None


def _opened(rows: RowsLike) -> tuple[str, IO[bytes]]:
    if isinstance(rows, Mapping) or not isinstance(cast("object", rows), Iterable | Path):
        kind = type(cast("object", rows)).__name__
        raise RequestError(f"rows must be a path or an iterable of dictionaries, not a {kind}.")
    if isinstance(rows, str | Path):
        if str(rows) == "-":
            return "standard input", _spooled(sys.stdin.buffer)
        path = Path(rows)
        try:
            if path.suffix.lower() == ".parquet":
                return str(path), _spooled(_dumped(_parquet(path)))
            return str(path), path.open("rb")
        except OSError as error:
            raise BatchInputError(f"{path} cannot be read ({error.strerror or error}). Correct the path.") from error
    return "the rows", _spooled(_dumped(rows))


def _spooled(lines: Iterable[bytes]) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - `Source` closes it
    try:
        file.writelines(lines)
    except BaseException:
        file.close()
        raise
    return file


def _dumped(rows: Iterable[object]) -> Iterator[bytes]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise BatchInputError(
                f"Row {number} is a {type(row).__name__}, not a dictionary. For a data frame pass "
                'df.to_dict("records"), for a table its to_pylist().'
            )
        try:
            yield dump(dict(cast("Mapping[str, Any]", row))) + b"\n"
        except RequestError as error:
            raise BatchInputError(f"Row {number}: {error}") from error


def _parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise BatchInputError(f"{path} needs pyarrow: pip install pyarrow.") from error
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    except importlib.import_module("pyarrow").ArrowException as error:
        raise BatchInputError(f"{path} cannot be read as a Parquet file: {error}") from error


@dataclass(frozen=True, slots=True)
class Plan:
    """The work that an engine is loaded for. `total`: rows of the input, including those that are done already."""

    total: int


class Index:
    """Every row of a source: its key, its offset, its state. For one thread at a time. A context manager."""

    def __init__(self, source: Source, defaults: Defaults) -> None:
        self._source = source
        self._defaults = defaults
        # "" is a temporary database of this connection's own, on disk once it outgrows the cache.
        self._db = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        self._db.execute("PRAGMA temp_store=FILE")
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.execute(
            "CREATE TABLE rows (number INTEGER PRIMARY KEY, key TEXT UNIQUE, name TEXT, start INTEGER, length INTEGER,"
            " sort BLOB, problem TEXT, state INTEGER DEFAULT 0, place INTEGER)"
        )
        self._db.execute("CREATE INDEX names ON rows (name)")
        self.kind: Kind = "simple"
        self.bad = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def build(self, *, skip_bad: bool) -> None:
        """Read and check every row. Raises BatchInputError, which lists the bad lines, unless `skip_bad`."""
        problems: list[str] = []
        kind: Kind | None = None
        self._db.execute("BEGIN")
        for number, start, line in self._source.lines():
            try:
                row = self._checked(line, number, kind)
                kind = row.kind
                self._add(number, row.key, row.name, start, len(line), sort_key(row.turn), None)
            except BadRowError as error:
                self.bad += 1
                if len(problems) < _MOST_SHOWN:
                    problems.append(f"line {number}: {error}")
                self._add(number, bad_key(line, number), error.name, start, len(line), b"", str(error))
        self._db.execute("COMMIT")
        self.kind = kind or "simple"
        if self.bad and not skip_bad:
            raise BatchInputError(_said(self._source.name, self.bad, problems))
        if not self.plan().total:
            raise BatchInputError(f"{self._source.name} has no rows.")

    def _checked(self, line: bytes, number: int, kind: Kind | None) -> Row:
        row = parse_row(line, number, self._defaults)
        if kind is not None and row.kind != kind:
            raise BadRowError(
                f"This row has the {row.kind} format, but earlier rows have the {kind} format; use only one.",
                row.name,
                row.columns,
            )
        first = self._db.execute("SELECT number FROM rows WHERE name = ? AND problem IS NULL", (row.name,)).fetchone()
        if first is not None:
            raise BadRowError(
                f'custom_id "{row.name}" is used on line {first[0]} already; rename one.', row.name, row.columns
            )
        return row

    def _add(self, *values: object) -> None:
        self._db.execute(
            "INSERT INTO rows (number, key, name, start, length, sort, problem) VALUES (?, ?, ?, ?, ?, ?, ?)", values
        )

    def plan(self) -> Plan:
        """Returns the number of rows."""
        return Plan(self._db.execute("SELECT COUNT(*) FROM rows").fetchone()[0])

    def count(self, state: State) -> int:
        """Returns how many rows are in this state."""
        return self._db.execute("SELECT COUNT(*) FROM rows WHERE state = ?", (_STATES[state],)).fetchone()[0]

    def begin(self) -> None:
        """Clear all states and begin a transaction, in which they are marked again; `commit` ends it."""
        self._db.execute("BEGIN")
        self._db.execute("UPDATE rows SET state = 0, place = NULL")

    def commit(self) -> None:
        self._db.execute("COMMIT")

    def mark(self, key: str, state: State, place: int, *, over: bool) -> bool:
        """Record that the line at offset `place` of a file is this row's. `over`: even if the row is done. Returns
        False if nothing was recorded."""
        condition = "" if over else " AND state != 1"
        changed = self._db.execute(
            f"UPDATE rows SET state = ?, place = ? WHERE key = ?{condition}", (_STATES[state], place, key)
        )
        return changed.rowcount == 1

    def is_at(self, key: str, state: State, place: int) -> bool:
        """Whether the recorded line of this row is the one at `place`."""
        found = self._db.execute("SELECT state, place FROM rows WHERE key = ?", (key,)).fetchone()
        return found == (_STATES[state], place)

    def has_name(self, name: str | None) -> bool:
        """Whether the input has a row with this custom_id."""
        return self._db.execute("SELECT 1 FROM rows WHERE name = ? LIMIT 1", (name,)).fetchone() is not None

    def places(self, state: State) -> Iterator[int]:
        """Yields the offsets of the lines of rows in this state, in the order of the input."""
        found = self._db.execute("SELECT place FROM rows WHERE state = ? ORDER BY number", (_STATES[state],))
        return (place for (place,) in found)

    def retry(self) -> None:
        """Make failed rows pending again, except those that were never valid."""
        self._db.execute("UPDATE rows SET state = 0 WHERE state = 2 AND problem IS NULL")

    def work(self, *, group: bool) -> Iterator[Row | BadRow]:
        """Yields the pending rows: those that are not valid first, then (with `group`) rows with the same beginning
        together.

        No state may change meanwhile. Raises EngineError if the input has changed.
        """
        order = "problem IS NULL, sort, number" if group else "problem IS NULL, number"
        pending = self._db.execute(
            f"SELECT key, name, number, start, length, problem FROM rows WHERE state = 0 ORDER BY {order}"
        )
        for key, name, number, start, length, problem in pending:
            line = self._source.read(start, length)
            if problem is not None:
                yield BadRow(bad_line(key, self.kind, name, _columns(line), problem))
                continue
            row = parse_row(line, number, self._defaults)
            if row.key != key:
                raise EngineError(f"{self._source.name} changed at line {number} while it was read. Run it again.")
            yield row


def _columns(line: bytes) -> Mapping[str, Any]:
    """Returns the readable columns of a row that is not valid."""
    try:
        found: object = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return {}
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _said(name: str, bad: int, problems: list[str]) -> str:
    more = f"\n  ... and {bad - len(problems)} more" if bad > len(problems) else ""
    return (
        f"{bad} row{'' if bad == 1 else 's'} of {name} cannot be run, so nothing was computed:\n  "
        + "\n  ".join(problems)
        + f"{more}\nCorrect them, or pass skip_bad=True (--skip-bad) to write them to the error file."
    )
