"""Reads tables row by row: CSV by the standard library, Parquet by pyarrow, and data frames as they are.

Frames are known by their methods, so none of their libraries is imported: pandas has `iloc`, polars `iter_rows`, and
whatever else speaks Arrow's PyCapsule interface is read through pyarrow.
"""

import csv
import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

from engine.support.errors import BatchInputError, RequestError
from engine.support.extras import install

SEPARATORS = {".csv": ",", ".tsv": "\t"}
SHEETS = frozenset({".xlsx", ".xlsm", ".xlsb", ".xls", ".ods", ".feather", ".arrow"})
"""Tables that no batch writes."""
_SEPARATED = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
_AS_UTF8 = "Save it as UTF-8."
_CHUNK = 256
_LONGEST = (1 << 31) - 1  # characters of a value: as many as every platform takes


@runtime_checkable
class Frame(Protocol):
    """A data frame: of pandas, of polars, a table of pyarrow, or of another library that speaks Arrow."""

    @property
    def shape(self) -> Any:
        """How many rows and columns it has."""
        ...


def is_table(path: Path) -> bool:
    """Whether a file of this name is a table, not lines of JSON."""
    return path.suffix.lower() in {*SEPARATORS, ".parquet"}


class Tabular(NamedTuple):
    """A table that is being read: the names of its columns, and its rows."""

    columns: tuple[str, ...]
    rows: Iterator[Mapping[str, Any]]


def is_pandas(frame: Any) -> bool:
    return hasattr(frame, "iloc") and hasattr(frame, "columns")


def is_polars(frame: Any) -> bool:
    return hasattr(frame, "iter_rows") and hasattr(frame, "hstack")


def is_frame(rows: object) -> TypeGuard[Frame]:
    """Whether these rows are a data frame."""
    if is_pandas(rows) or is_polars(rows):
        return True
    return hasattr(rows, "__arrow_c_stream__") and isinstance(rows, Frame) and len(rows.shape) == 2  # not one column


def of_frame(frame: Any) -> Tabular:
    """Reads a frame; columns that are no texts are named as `str` writes them. Raises RequestError for two columns of
    one name."""
    if not is_pandas(frame) and not is_polars(frame):
        table = arrow_table(frame)
        return _of_batches(table.schema, table.to_batches(max_chunksize=_CHUNK))
    names = _distinct([str(name) for name in frame.columns], "The frame")
    values = _pandas_rows(frame) if is_pandas(frame) else frame.iter_rows()
    return Tabular(names, (dict(zip(names, row, strict=True)) for row in values))


def _pandas_rows(frame: Any) -> Iterator[Sequence[Any]]:
    """Yields the values of each row; all of pandas' nulls are None."""
    for start in range(0, len(frame), _CHUNK):
        part = frame.iloc[start : start + _CHUNK]
        columns = [part.iloc[:, number] for number in range(part.shape[1])]
        yield from zip(*(column.astype(object).where(column.notna(), None) for column in columns), strict=True)


def of_file(path: Path) -> Tabular | None:
    """Reads a CSV or Parquet file; None for any other, by its ending. Raises BatchInputError for one that cannot be
    read, OSError for one that cannot be opened."""
    ending = path.suffix.lower()
    if ending in SEPARATORS:
        return _of_csv(path, SEPARATORS[ending])
    if ending in SHEETS:
        raise BatchInputError(f"{path}: batches read no {ending} files. Save it as .csv (UTF-8) or .parquet.")
    if ending == ".parquet":
        return _of_parquet(path)
    with path.open("rb") as file:
        if b"\0" in file.read(_PEEK):
            raise BatchInputError(f"{path} is no text. A batch reads .csv, .tsv, .parquet and lines of JSON, in UTF-8.")
    return None


_PEEK = 1024


def _of_csv(path: Path, separator: str) -> Tabular:
    lines = _csv_lines(path, separator)
    first = next(lines, None)
    if first is None:
        raise BatchInputError(f"{path} is empty; its first line must name the columns.")
    names = _distinct(first[1], str(path))
    if len(names) == 1 and (other := next((each for each in ";\t|" if each != separator and each in names[0]), None)):
        raise BatchInputError(
            f"{path}: its first line has no {_SEPARATED[separator]} but {_SEPARATED[other]} between the columns. Save "
            "it with commas as .csv, or with tabs as .tsv."
        )

    def rows() -> Iterator[Mapping[str, Any]]:
        for number, values in lines:
            if len(values) != len(names):
                raise BatchInputError(
                    f"{path}, line {number}: {len(values)} values, but the first line names {len(names)} columns. "
                    "Put values with separators or line ends in quotes."
                )
            yield dict(zip(names, values, strict=True))

    return Tabular(names, rows())


def _csv_lines(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the values of each line that is not blank, and its number in the file."""
    longest = csv.field_size_limit(_LONGEST)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=separator, strict=True)
            try:
                for values in reader:
                    if values:
                        yield reader.line_num, values
            except UnicodeDecodeError as error:
                raise BatchInputError(f"{path} is not UTF-8 text ({error}). {_AS_UTF8}") from error
            except csv.Error as error:
                raise BatchInputError(f"{path}, line {reader.line_num + 1} cannot be read: {error}.") from error
    finally:
        csv.field_size_limit(longest)


def _of_parquet(path: Path) -> Tabular:
    parquet, broken = pyarrow("parquet", path), pyarrow().ArrowException
    try:
        file = parquet.ParquetFile(path)
    except broken as error:
        raise _no_parquet(path, error) from error

    def batches() -> Iterator[Any]:
        try:
            with file:
                yield from file.iter_batches(batch_size=_CHUNK)
        except broken as error:
            raise _no_parquet(path, error) from error

    return _of_batches(file.schema_arrow, batches())


def _of_batches(schema: Any, batches: Any) -> Tabular:
    names = _distinct(list(schema.names), "The table")
    return Tabular(names, (row for batch in batches for row in batch.to_pylist()))


def _no_parquet(path: Path, error: Exception) -> BatchInputError:
    return BatchInputError(f"{path} cannot be read as a Parquet file: {error}")


def arrow_table(source: Any) -> Any:
    """Returns the table in a Parquet file, or of a frame, with the types that it has."""
    if isinstance(source, Path):
        return pyarrow("parquet", source).read_table(source)
    return pyarrow().table(source)


def pyarrow(module: str = "", path: Path | None = None) -> Any:
    """Returns pyarrow, or a module of it. Raises BatchInputError if it is not installed."""
    try:
        return importlib.import_module(f"pyarrow.{module}".rstrip("."))
    except ImportError as error:
        wanted = "This frame" if path is None else str(path)
        raise BatchInputError(f"{wanted} needs pyarrow: {install('parquet')}.") from error


def _distinct(names: list[str], where: str) -> tuple[str, ...]:
    twice = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
    if twice is not None:
        raise RequestError(f"{where} has two columns called {twice!r}; rename one.")
    return tuple(names)
