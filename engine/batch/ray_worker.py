"""`RayWorker`: the class that Ray Data makes actors of, each with an engine of its own.

Knows: the batches that `map_batches` passes and expects, the column names of `ray.data.llm` (`messages`,
`sampling_params`; `generated_text`, `num_input_tokens`, `num_generated_tokens`, `__inference_error__`), how many CPUs
Ray gave to this actor. Does not know: datasets, clusters, files; Ray resumes jobs and restarts actors.
"""

import importlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, Unpack, cast

from engine.batch.bodies import Turn, read_body, turn
from engine.batch.rows import ROW_ERRORS, sort_key
from engine.engine import Engine
from engine.errors import EngineError, RequestError
from engine.options import TurnOptions
from engine.tools import ToolLike
from engine.types import Completion

Json: TypeAlias = dict[str, Any]

_TEXTS = ("generated_text", "reasoning", "finish_reason", "parse_error", "__inference_error__")
_COUNTS = ("num_input_tokens", "num_generated_tokens")
COLUMNS = (*_TEXTS, *_COUNTS, "tool_calls")
"""The columns that are added to each row."""


class Generates(Protocol):
    """What a worker needs from an `Engine`."""

    @property
    def generate(self) -> Callable[..., Sequence[Completion | EngineError]]: ...

    def close(self) -> None: ...


class RayWorker:
    """Answers the rows of a Ray dataset: `dataset.map_batches(RayWorker, fn_constructor_kwargs={"model": ...}, ...)`.

    model: as for `Engine.load`, or a function without parameters that makes an engine. load: options of `Engine.load`;
    without `n_threads` an actor uses as many threads as Ray gave it CPUs. tools, options: for rows without their own.

    A row has `messages`, and may have `sampling_params` (a dictionary with fields of a Chat Completions request,
    including the names of samplers in OpenAI's API, llama.cpp's server and vLLM) and `tools`. Each of the three may be
    JSON text, which Arrow leaves unchanged; Arrow gives the structs of all rows one type, so null keys count as absent.
    Other columns are carried through. Added are `generated_text`, `reasoning`, `tool_calls` (JSON text of OpenAI's
    list), `finish_reason`, `parse_error` (if the answer does not match `response_format`), `num_input_tokens`,
    `num_generated_tokens` and `__inference_error__`, which says why a row has no answer. A text without a value is "".

    Only these arguments are pickled: the first call in each process loads the engine. Raises RequestError for options
    that are not valid. A call raises the error that stops the engine, which ends the job unless Ray was told to retry
    (`actor_task_retry_on_errors`); the next call loads a new engine.
    """

    def __init__(
        self,
        model: str | Path | Callable[[], Generates] | None = None,
        *,
        load: Mapping[str, Any] | None = None,
        tools: Sequence[ToolLike] | None = None,
        **options: Unpack[TurnOptions],
    ) -> None:
        if callable(model) and load:
            raise RequestError(
                "load= is given, but model= is a function, which loads the model itself; leave load= out."
            )
        self._defaults = turn("?", tools, options).options
        self._model = model
        self._load = dict(load or {})
        self._tools = tools
        self._llm: Generates | None = None

    def __getstate__(self) -> Json:
        return {**self.__dict__, "_llm": None}

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        """Returns the batch (columns by name, each with a value for every row: `batch_format="numpy"`) with columns
        added."""
        columns = _columns(batch)
        found: list[Turn | EngineError] = [self._read(row) for row in _rows(columns)]
        asked = [(number, each) for number, each in enumerate(found) if isinstance(each, Turn)]
        asked.sort(key=lambda each: sort_key(each[1]))
        answers: list[Completion | EngineError] = [each if isinstance(each, EngineError) else _NONE for each in found]
        for (number, _), answer in zip(asked, self._answered([each for _, each in asked]), strict=True):
            answers[number] = answer
        added = [_added(answer) for answer in answers]
        return {**columns, **{name: [row[name] for row in added] for name in COLUMNS}}

    def _read(self, row: Json) -> Turn | EngineError:
        """Returns a row's turn, or what is wrong with the row."""
        try:
            params = _given(row, "sampling_params", dict)
            body: Json = {**(params or {}), "messages": _given(row, "messages", list)}
            if (tools := _given(row, "tools", list)) is not None:
                body["tools"] = tools
            asked = read_body("/v1/chat/completions", body, self._defaults, self._tools).turn
            if asked.n > 1:
                raise RequestError(f"n={asked.n} is not valid: a row has one answer; repeat the row.")
        except RequestError as error:
            return error
        return asked

    def _answered(self, turns: Sequence[Turn]) -> Sequence[Completion | EngineError]:
        """Returns the answers. Raises errors that are no fault of a row."""
        if not turns:
            return ()
        rows = [(each.messages, {**each.options, "tools": each.tools}) for each in turns]
        answers = self._engine().generate(rows, on_error="return")
        for answer in answers:
            if isinstance(answer, EngineError) and not isinstance(answer, ROW_ERRORS):
                raise self._ended(answer)
            if isinstance(answer, Completion) and answer.finish_reason == "cancelled":
                raise self._ended(EngineError("The engine was closed while it answered a batch; retry the batch."))
        return answers

    def _ended(self, error: EngineError) -> EngineError:
        """Close the engine and return the error; the next call loads a new engine."""
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.close()
        return error

    def _engine(self) -> Generates:
        if self._llm is None:
            if callable(self._model):
                self._llm = self._model()
            else:
                options: Json = {**_threads(), **self._load}
                self._llm = Engine.load(self._model, **options)
        return self._llm


_NONE = Completion()


def _columns(batch: object) -> dict[str, Sequence[Any]]:
    """Returns the columns of a batch; arrays of objects become lists, which Ray can write as Arrow types."""
    if not isinstance(batch, Mapping):
        raise RequestError(f'A batch is a {type(batch).__name__}; call map_batches with batch_format="numpy".')
    columns = cast("Mapping[str, Any]", batch)
    if "messages" not in columns:
        raise RequestError(f'There is no column "messages"; the columns are {", ".join(columns) or "none"}.')
    if taken := [name for name in COLUMNS if name in columns]:
        raise RequestError(f'The worker writes a column "{taken[0]}" of its own; rename yours.')
    return {name: _plain(column) if _holds_objects(column) else column for name, column in columns.items()}


def _holds_objects(column: Any) -> bool:
    return isinstance(column, list) or getattr(getattr(column, "dtype", None), "kind", "") == "O"


def _plain(value: Any) -> Any:
    """Returns nested arrays (Ray's form of lists of structs) as lists."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast("Sequence[Any]", value)]
    return value


def _rows(columns: Mapping[str, Sequence[Any]]) -> list[Json]:
    read = {name: columns[name] for name in ("messages", "sampling_params", "tools") if name in columns}
    return [dict(zip(read, values, strict=True)) for values in zip(*read.values(), strict=True)]


def _given(row: Json, name: str, kind: type) -> Any:
    """Returns the value of a column, parsed if it is JSON text. Raises RequestError for a value of another type."""
    value = row.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{name} is text that is not JSON: {error}.") from error
    else:
        value = _without_nulls(value)
    if value is None and name != "messages":
        return None
    if not isinstance(value, kind):
        wanted = "a list" if kind is list else "a dictionary"
        raise RequestError(f"{name} is {value!r:.80}; it must be {wanted}, or JSON text of one.")
    return cast("Any", value)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("Mapping[str, Any]", value).items()
        return {name: _without_nulls(item) for name, item in items if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in cast("Sequence[Any]", value)]
    return value


def _added(answer: Completion | EngineError) -> Json:
    """Returns the columns added to a row."""
    row: Json = {**dict.fromkeys(_TEXTS, ""), **dict.fromkeys(_COUNTS, 0), "tool_calls": "[]"}
    if isinstance(answer, EngineError):
        return {**row, "__inference_error__": f"{type(answer).__name__}: {answer}"}
    usage = answer.usage
    return {
        **row,
        "generated_text": answer.content,
        "reasoning": answer.reasoning,
        "finish_reason": answer.finish_reason,
        "parse_error": answer.parse_error or "",
        "num_input_tokens": usage.prompt_tokens if usage else 0,
        "num_generated_tokens": usage.completion_tokens if usage else 0,
        "tool_calls": json.dumps([call.openai() for call in answer.tool_calls], ensure_ascii=False),
    }


def _threads() -> dict[str, int]:
    """Returns as many threads as this actor has CPUs; nothing outside Ray, or if Ray gave it none."""
    if "ray" not in sys.modules:
        return {}
    ray: Any = importlib.import_module("ray")
    if not ray.is_initialized():
        return {}
    cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 0)
    return {"n_threads": max(1, int(cpus))} if cpus else {}
