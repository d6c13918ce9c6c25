"""`RayWorker`: the class that Ray Data makes actors of, with the column names of `ray.data.llm`."""

import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, Unpack, cast

from engine.api.engine import Engine
from engine.batch.bodies import Turn, checked_turn, read_body
from engine.batch.rows import ROW_ERRORS, sort_key
from engine.openai.streaming import without_effort
from engine.support.errors import EngineError, RequestError
from engine.tools import ToolLike
from engine.turns.options import TurnOptions
from engine.types.completion import Completion

Json: TypeAlias = dict[str, Any]


class RayWorker:
    """Answers the rows of a Ray dataset: `dataset.map_batches(RayWorker, fn_constructor_kwargs={"model": ...}, ...)`.

    model: as for `Engine.load`, or a function without parameters that makes an engine. load: options of `Engine.load`;
    without `n_threads` an actor uses as many threads as Ray gave it CPUs. tools, options: for rows without their own.
    docs/guides/batches.md has the columns: `messages`, `sampling_params` and `tools` are read, COLUMNS are added.

    Only these arguments are pickled: the first call in each process loads the engine. Raises RequestError for options
    that are not valid. A call raises the error that stops the engine; the next call loads a new one.
    """

    def __init__(
        self,
        model: str | Path | Callable[[], Any] | None = None,
        *,
        load: Mapping[str, Any] | None = None,
        tools: Sequence[ToolLike] | None = None,
        **options: Unpack[TurnOptions],
    ) -> None:
        if callable(model) and load:
            raise RequestError("load= is given, but model= is a function, which loads the model itself: omit load=.")
        self._defaults = checked_turn("?", tools, options).options
        self._model, self._load, self._tools = model, dict(load or {}), tools
        self._llm: Any = None

    def __getstate__(self) -> Json:
        return {**self.__dict__, "_llm": None}

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        """Returns the batch (columns by name: `batch_format="numpy"`) with columns added."""
        columns = _columns(batch)
        names = [name for name in _READ if name in columns]
        rows = zip(*(columns[name] for name in names), strict=True)
        answers = [self._read(dict(zip(names, row, strict=True))) for row in rows]
        turns = {number: turn for number, turn in enumerate(answers) if isinstance(turn, Turn)}
        order = sorted(turns, key=lambda number: sort_key(turns[number]))
        for number, answer in zip(order, self._answered([turns[number] for number in order]), strict=True):
            answers[number] = answer
        added = [_added(answer) for answer in answers]
        return {**columns, **{name: [row[name] for row in added] for name in COLUMNS}}

    def _read(self, row: Json) -> Turn | Completion | EngineError:
        """Returns a row's turn, or what is wrong with the row."""
        try:
            values = {name: _parsed(name, value) for name, value in row.items()}
            body: Json = {name: value for name, value in values.items() if value is not None}
            params: Json = body.pop("sampling_params", {})
            turn = read_body("/v1/chat/completions", {**params, **body}, self._defaults, self._tools)
            if turn.n > 1:
                raise RequestError(f"n={turn.n} is not valid: a row has one answer; repeat the row.")
        except RequestError as error:
            return error
        return turn

    def _answered(self, turns: Sequence[Turn]) -> list[Completion | EngineError]:
        """Returns the answers. Raises errors that are no fault of a row."""
        rows = [(turn.messages, {**turn.options, "tools": turn.tools}) for turn in turns]
        answers = self._generated(rows)
        again = {at: without_effort(rows[at][1], answer) for at, answer in enumerate(answers)}
        efforts = {at: (rows[at][0], options) for at, options in again.items() if options is not None}
        for at, answer in zip(efforts, self._generated(list(efforts.values())), strict=True):
            answers[at] = answer
        return answers

    def _generated(self, rows: Sequence[Any]) -> list[Completion | EngineError]:
        if not rows:
            return []
        if self._llm is None:
            load: Json = {**_threads(), **self._load}
            self._llm = self._model() if callable(self._model) else Engine.load(self._model, **load)
        answers: list[Completion | EngineError] = list(self._llm.generate(rows, on_error="return"))
        for answer in answers:
            closed = isinstance(answer, Completion) and answer.finish_reason == "cancelled"
            error = EngineError("The engine was closed while it answered a batch; retry it.") if closed else answer
            if isinstance(error, EngineError) and not isinstance(error, ROW_ERRORS):
                self._llm.close()
                self._llm = None
                raise error
        return answers


def _columns(batch: object) -> dict[str, Sequence[Any]]:
    """Returns the columns of a batch; arrays of objects become lists, which Ray can write as Arrow types."""
    if not isinstance(batch, Mapping):
        raise RequestError(f'A batch is a {type(batch).__name__}; call map_batches with batch_format="numpy".')
    columns = cast("Mapping[str, Any]", batch)
    if "messages" not in columns:
        raise RequestError(f'There is no column "messages"; the columns are {", ".join(columns) or "none"}.')
    if taken := [name for name in COLUMNS if name in columns]:
        raise RequestError(f'The worker writes a column "{taken[0]}" of its own; rename yours.')
    plain = {name: isinstance(column, list) or column.dtype.kind == "O" for name, column in columns.items()}
    return {name: _lists(column) if plain[name] else column for name, column in columns.items()}


def _lists(value: Any, *, nulls: bool = True) -> Any:
    """Returns nested arrays (Ray's form of lists of structs) as lists; without `nulls`, null keys are left out."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {name: _lists(item, nulls=nulls) for name, item in items if nulls or item is not None}
    if isinstance(value, list | tuple):
        return [_lists(item, nulls=nulls) for item in cast("Sequence[Any]", value)]
    return value


def _parsed(name: str, value: Any) -> Any:
    """Returns the value of a column, parsed if it is JSON text. Raises RequestError for a value of another type."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{name} is text that is not JSON: {error}.") from error
    else:
        value = _lists(value, nulls=False)
    if not isinstance(value, _READ[name]) and (value is not None or name == "messages"):
        wanted = "a dictionary" if _READ[name] is dict else "a list"
        raise RequestError(f"{name} is {value!r:.80}; it must be {wanted}, or JSON text of one.")
    return value


def _added(answer: Completion | Exception | Turn) -> Json:
    """Returns the columns added to a row."""
    whole = answer if isinstance(answer, Completion) else Completion(finish_reason="error")
    usage = whole.usage
    return {
        "generated_text": whole.content,
        "reasoning": whole.reasoning,
        "finish_reason": whole.finish_reason if whole is answer else "",
        "parse_error": whole.parse_error or "",
        "__inference_error__": "" if whole is answer else f"{type(answer).__name__}: {answer}",
        "num_input_tokens": usage.prompt_tokens,
        "num_generated_tokens": usage.completion_tokens,
        "tool_calls": json.dumps([call.openai() for call in whole.tool_calls], ensure_ascii=False),
    }


def _threads() -> dict[str, int]:
    """Returns as many threads as this actor has CPUs; nothing outside Ray, or if Ray gave it none."""
    ray: Any = importlib.import_module("ray") if "ray" in sys.modules else None
    cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 0) if ray and ray.is_initialized() else 0
    return {"n_threads": max(1, int(cpus))} if cpus else {}


_READ: Mapping[str, type] = {"messages": list, "sampling_params": dict, "tools": list}
COLUMNS = tuple(_added(Completion()))
"""The columns that are added to each row."""
