"""The lines of a batch's input: a JSONL file, standard input, a Parquet file (through pyarrow), any iterable of
dictionaries. What cannot be read twice is copied to a temporary file, which vanishes with the process.
"""

import importlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self, TypeAlias, cast

from engine.batch.rows import dump
from engine.errors import BatchInputError, RequestError
from engine.output_file import Identity, identity

RowsLike: TypeAlias = "str | Path | Iterable[Mapping[str, Any]]"


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

    def line(self, offset: int) -> bytes:
        """Returns the line at `offset`. May be called from any thread."""
        with self._lock:
            self._file.seek(offset)
            return self._file.readline()


def input_identity(rows: RowsLike) -> Identity | None:
    """Returns the identity of the file that the rows are read from; None if they are not in a file."""
    try:
        if isinstance(rows, Path) or (isinstance(rows, str) and rows != "-"):
            return identity(rows)
        if rows == "-":
            status = os.fstat(sys.stdin.fileno())
            return status.st_dev, status.st_ino, ()
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
