"""The lines of a batch's input: a JSONL file, standard input, any iterable of dictionaries, or a table. What is no
JSONL file is copied to a temporary one, which vanishes with the process.
"""

import os
import sys
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self, TypeAlias, TypeVar, cast

from engine.batch.rows import dump
from engine.batch.tabular import Frame, is_frame, of_file, of_frame
from engine.support.errors import BatchInputError, RequestError
from engine.support.output_file import Identity, identity

Read = TypeVar("Read")
RowsLike: TypeAlias = "str | Path | Iterable[Mapping[str, Any]] | Frame"


class Source:
    """The lines of an input, which can be read again by offset. A context manager.

    `columns`: those of a table; None for rows that may have columns of their own. `is_typed`: whether the table has
    types that JSON does not have.
    """

    def __init__(self, rows: RowsLike) -> None:
        self.name, self.columns, self._file = _opened(rows)
        is_file = isinstance(rows, str | Path) and Path(rows).suffix.lower() == ".parquet"
        self.is_typed = is_file or is_frame(rows)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _shut(self._file)

    def lines(self) -> Iterator[tuple[int, int, bytes]]:
        """Yields every line that is not blank: its number from 1 on, its offset, its bytes."""
        with _reading(self.name):
            self._file.seek(0)
            offset = 0
            for number, line in enumerate(self._file, 1):
                if line.strip():
                    yield number, offset, line
                offset += len(line)

    def line(self, offset: int) -> bytes:
        """Returns the line at `offset`. May be called from any thread."""
        with self._lock, _reading(self.name):
            self._file.seek(offset)
            return self._file.readline()


def input_identity(rows: RowsLike) -> Identity | None:
    """Returns the identity of the file that the rows are read from; None if they are not in a file."""
    try:
        if isinstance(rows, Path) or (isinstance(rows, str) and rows != "-"):
            return identity(rows)
        if isinstance(rows, str):
            status = os.fstat(sys.stdin.fileno())
            return status.st_dev, status.st_ino, ()
    except (OSError, ValueError):  # `Source` says that a path cannot be read; standard input may have no descriptor
        return None
    return None


def _opened(rows: RowsLike) -> tuple[str, tuple[str, ...] | None, IO[bytes]]:
    """Returns the name of the input in messages, its columns if it is a table, and its lines."""
    if is_frame(rows):
        table = of_frame(rows)
        return "the frame", table.columns, _spooled(_dumped(table.rows))
    if isinstance(rows, Mapping) or not isinstance(cast("object", rows), Iterable | Path):
        kind = type(cast("object", rows)).__name__
        raise RequestError(f"rows must be a path, an iterable of dictionaries or a data frame, not a {kind}.")
    if isinstance(rows, str | Path):
        if str(rows) == "-":
            return "standard input", None, _spooled(_read(sys.stdin.buffer, "standard input"))
        path = Path(rows)
        with _reading(path):
            if (table := of_file(path)) is None:
                return str(path), None, path.open("rb")
        return str(path), table.columns, _spooled(_dumped(_read(table.rows, path)))
    return "the rows", None, _spooled(_dumped(cast("Iterable[object]", rows)))


@contextmanager
def _reading(path: str | Path) -> Generator[None]:
    """Names the input in errors of the block."""
    try:
        yield
    except OSError as error:
        raise BatchInputError(f"{path} cannot be read ({error.strerror or error}). Correct the path.") from error


def _read(rows: Iterable[Read], path: str | Path) -> Iterator[Read]:
    with _reading(path):
        yield from rows


@contextmanager
def _copying() -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise BatchInputError(
            f"The input cannot be copied to {tempfile.tempdir or 'a temporary folder'} ({error.strerror or error}). "
            "Make room there, or set TMPDIR to another folder."
        ) from error


def _shut(file: IO[bytes]) -> None:
    with suppress(OSError):  # all was read, or another error is the one to tell
        file.close()


def _spooled(lines: Iterable[bytes]) -> IO[bytes]:
    with ExitStack() as undo:
        with _copying():
            file = tempfile.TemporaryFile()  # noqa: SIM115 - `Source` closes it
        undo.callback(_shut, file)
        for line in lines:
            with _copying():
                file.write(line)
        with _copying():
            file.flush()
        undo.pop_all()
    return file


def _dumped(rows: Iterable[object]) -> Iterator[bytes]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise BatchInputError(
                f"Row {number} is a {type(row).__name__}, not a dictionary. Pass dictionaries, or a data frame itself."
            )
        try:
            yield dump(dict(cast("Mapping[str, Any]", row))) + b"\n"
        except RequestError as error:
            raise BatchInputError(f"Row {number}: {error}") from error
