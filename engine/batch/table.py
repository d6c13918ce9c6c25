"""What a batch answered as a table: the columns of the input, then the answer, the fields of a schema, and the errors.

It is made of the lines that the batch wrote, and written as CSV or Parquet, or joined to the frame that was given.
"""

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

from engine.batch.column_prompt import cell_text
from engine.batch.files import Files
from engine.batch.index import Index
from engine.batch.judged import RowQuestions
from engine.batch.rows import columns_of
from engine.batch.source import Source
from engine.batch.tabular import SEPARATORS, arrow_table, is_pandas, is_polars, pyarrow
from engine.formats.grammar.response import response_of
from engine.runtime.guidance import matcher
from engine.support.errors import EngineError
from engine.tools import ToolLike
from engine.types.parts import whole_characters

Cells: TypeAlias = dict[str, Any]

_FORMULA = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # the last four: full-width ones
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_ANSWER, _CALLS, _FINISH, _ERROR, _PARSED = "answer", "tool_calls", "finish_reason", "error", "parsed"
_LEFT = "The batch was interrupted before this row."


@dataclass(frozen=True, slots=True)
class Added:
    """The columns that a batch adds. `fields`: the column of each field of the schema; empty if it names none, or if
    there is no schema. `parsed`: the column of a value that is no object of such fields."""

    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    parsed: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return _ANSWER, *self.fields.values(), *self.parsed, *self.calls, _FINISH, _ERROR

    def cells(self, line: Mapping[str, Any] | None, failure: str | None) -> Cells:
        """Returns the columns of a row: what its line says, or why it has none."""
        cells: Cells = dict.fromkeys(self.names)
        if failure is not None:
            return {**cells, _ERROR: failure}
        answer = cast("Mapping[str, Any]", line)["completion"]
        value: Any = answer["parsed"]
        cells |= {
            _ANSWER: _one_line(answer["content"], value),
            _FINISH: answer["finish_reason"],
            _ERROR: answer["parse_error"],
        }
        if isinstance(value, Mapping):
            parsed = cast("Mapping[str, Any]", value)
            made_up = answer.get("made_up", ())
            known = {name: column for name, column in self.fields.items() if name not in made_up}
            cells |= {column: _cell(parsed.get(name)) for name, column in known.items()}
        cells |= dict.fromkeys(self.parsed, _cell(cast("object", value)))
        return cells | dict.fromkeys(self.calls, json.dumps(answer["tool_calls"], ensure_ascii=False))


def _failure(line: Mapping[str, Any] | None) -> str | None:
    """Returns why a row has no answer; None for one that has."""
    failure = {"message": _LEFT} if line is None else line["error"]
    return None if failure is None else ": ".join(failure[name] for name in ("code", "message") if name in failure)


def _one_line(content: str, value: object) -> str:
    """Returns the text of an answer; JSON, of which this is the value, on one line, as a row of a file is."""
    is_json = isinstance(value, Mapping | list)
    return cell_text(json.loads(content)) if is_json and "\n" in content else content


def _cell(value: object) -> object:
    """Returns a value as a cell: scalars as they are, everything else as JSON text."""
    return value if value is None or isinstance(value, str | bool | int | float) else cell_text(value)


def added_columns(response_format: object, tools: Sequence[ToolLike]) -> Added:
    """Returns the columns for answers of this form. A field called like a column of every answer has `parsed_` before
    its name."""
    response = response_of(response_format, matcher)
    schema = response.schema if response is not None else None
    fields = _properties(schema or {})
    own = {_ANSWER, _CALLS, _FINISH, _ERROR}
    columns = {name: f"{_PARSED}_{name}" if name in own else name for name in fields}
    return Added(columns, () if fields or schema is None else (_PARSED,), (_CALLS,) if tools else ())


def _properties(schema: Mapping[str, Any]) -> list[str]:
    """Returns the names of an object's properties. A recursive model is a reference to its own definition."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    return list(schema.get("$defs", {}).get(name, schema).get("properties", {}))


def _unformulated(text: str) -> str:
    """Returns a cell that no spreadsheet computes. Source: OWASP, "CSV Injection"."""
    return f"'{text}" if text[:1] in _FORMULA and not _NUMBER.fullmatch(text) else text


class Table:
    """The rows of a batch, in the order of the input, each with the line that it got."""

    def __init__(self, source: Source, index: Index, files: Files, added: Added | RowQuestions) -> None:
        self._source, self._index, self._files, self._added = source, index, files, added

    def write(self, file: IO[bytes], path: Path, rows: object, *, quote_formulas: bool = False) -> None:
        """Write the table as CSV or Parquet, by the ending of `path`. `rows` is the input, whose types Parquet
        keeps. `quote_formulas`: a cell of CSV that a spreadsheet would compute has an apostrophe before it."""
        separator = SEPARATORS.get(path.suffix.lower())
        if separator is None:
            pyarrow("parquet", path).write_table(self._arrow(rows), file)
            return
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, delimiter=separator)
        columns = self._columns()
        writer.writerow([*columns, *self._added.names])
        for row, cells in self._rows():
            values = [*map(row.get, columns), *map(cells.get, self._added.names)]
            texts = ["" if value is None else whole_characters(cell_text(value)) for value in values]
            writer.writerow(map(_unformulated, texts) if quote_formulas else texts)
        text.detach()

    def joined(self, frame: Any) -> Any:
        """Returns the frame, of the same library, with the columns that the batch adds."""
        return joined(frame, self.added())

    def added(self) -> dict[str, list[Any]]:
        """Returns the columns that the batch adds, each of one type."""
        cells = [cells for _, cells in self._rows()]
        return {name: _uniform([each[name] for each in cells]) for name in self._added.names}

    def _rows(self) -> Iterator[tuple[Cells, Cells]]:
        """Yields the columns of each row in the input, and those that are added."""
        with self._files.out.reader() as done, self._files.errors.reader() as failed:
            for offset, state, place in self._index.outcomes():
                row = columns_of(self._source.line(offset))
                if state is None:
                    yield row, self._added.cells(None, _failure(None))
                    continue
                file = done if state == "done" else failed
                file.seek(place)
                line = json.loads(file.readline())
                yield row, self._added.cells(line, _failure(line))

    def _columns(self) -> list[str]:
        """The names of the input's columns, in the order in which they come."""
        if self._source.columns is not None:
            return list(self._source.columns)
        names = (name for _, _, line in self._source.lines() for name in columns_of(line))
        return [name for name in dict.fromkeys(names) if name not in self._added.names]

    def _arrow(self, rows: object) -> Any:
        """Returns the table as one of pyarrow; an input that has types keeps them."""
        if not self._source.is_typed:
            read = [row for row, _ in self._rows()]
            columns = {name: _uniform([row.get(name) for row in read]) for name in self._columns()}
            return pyarrow().table(_arrays({**columns, **self.added()}))
        table = arrow_table(Path(rows) if isinstance(rows, str | Path) else rows)
        if table.num_rows != self._index.plan().total:
            raise EngineError(f"{self._source.name} changed while the batch was running. Run it again.")
        return _with_columns(table, self.added())


def joined(frame: Any, columns: Mapping[str, list[Any]]) -> Any:
    """Returns a frame with these columns behind its own; rows and index stay as they are."""
    if is_pandas(frame):
        return frame.assign(**columns)
    if not is_polars(frame):
        return _with_columns(arrow_table(frame), columns)
    new: Any = frame.__class__
    text = new({"": [""]}).dtypes[0]
    empty = {name: text for name, values in columns.items() if all(value is None for value in values)}
    return frame.hstack(new(columns, schema_overrides=empty))


def _with_columns(table: Any, columns: Mapping[str, list[Any]]) -> Any:
    for name, array in _arrays(columns).items():
        table = table.append_column(name, array)
    return table


def _arrays(columns: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Returns the columns as arrays of pyarrow; one without any value is text."""
    arrow = pyarrow()
    text = {name: arrow.string() for name, values in columns.items() if all(value is None for value in values)}
    return {name: arrow.array(values, type=text.get(name)) for name, values in columns.items()}


def _uniform(values: list[Any]) -> list[Any]:
    """Returns the values of a column as values of one type: booleans, integers of 64 bits, numbers, or text."""
    kinds: set[type] = {type(value) for value in values if value is not None}
    is_long = int in kinds and any(type(value) is int and value.bit_length() > 63 for value in values)
    if kinds == {int, float} and not is_long:
        return [None if value is None else float(value) for value in values]
    if len(kinds) == 1 and kinds <= {bool, int, float} and not is_long:
        return values
    return [None if value is None else whole_characters(cell_text(value)) for value in values]
