"""`RayWorker` as a plain callable: columns in and out, errors, pickles. No Ray; tests/batch/test_ray.py has that."""

import json
import pickle
import re
from typing import Any

import numpy as np
import pytest
from fakes.ray_engines import said, scripted

from engine import Completion, DecodeError, EngineError, RequestError
from engine.batch import RayWorker
from engine.batch.ray_worker import COLUMNS

Column = list[Any]


def asked(*questions: str) -> Column:
    return [[{"role": "user", "content": question}] for question in questions]


def nested(columns: dict[str, Column]) -> dict[str, Any]:
    """The columns as Ray gives them: arrays, and arrays of objects where the values are no numbers."""

    def array(values: Column) -> Any:
        if all(isinstance(value, int | float) for value in values):
            return np.array(values)
        found = np.empty(len(values), dtype=object)
        found[:] = [np.array(value, dtype=object) if isinstance(value, list) else value for value in values]
        return found

    return {name: array(values) for name, values in columns.items()}


def test_rows_get_answers_and_keep_their_columns() -> None:
    worker = RayWorker(scripted())
    tags = [{"a": [1, None]}, {"a": [2, 3]}]
    given = nested({"messages": asked("one", "two"), "tag": tags, "number": [1.5, 2.5]})
    out = worker(given)
    assert list(out) == ["messages", "tag", "number", *COLUMNS]
    assert out["generated_text"] == [said("one"), said("two")]
    assert out["reasoning"] == ["I know.", "I know."]
    assert out["finish_reason"] == ["stop", "stop"]
    assert out["__inference_error__"] == out["parse_error"] == ["", ""]
    assert all(count > 0 for name in ("num_input_tokens", "num_generated_tokens") for count in out[name])
    assert out["number"] is given["number"]
    assert out["tag"] == tags
    assert out["messages"] == asked("one", "two")


def test_answers_stand_in_the_order_of_their_rows() -> None:
    """Rows that begin alike are computed together, and come back where they were."""
    questions = [f"{'abc'[number % 3] * 300} {number}" for number in range(30)]
    out = RayWorker(scripted())(nested({"messages": asked(*questions)}))
    assert out["generated_text"] == [said(question) for question in questions]


class Recorder:
    """An engine that answers nothing and remembers what it was asked."""

    def __init__(self, *answers: Completion | EngineError) -> None:
        self.rows: Column = []
        self._answers = answers
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def generate(self, rows: Column, on_error: str) -> Column:
        assert on_error == "return"
        self.rows += rows
        return [
            self._answers[number % len(self._answers)] if self._answers else Completion() for number in range(len(rows))
        ]


SCHEMA: dict[str, Any] = {"type": "object", "properties": {"x": {}}}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
FORMAT: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}


@pytest.mark.parametrize("as_text", [False, True])
def test_what_a_row_says_reaches_the_engine(as_text: bool) -> None:
    """Arrow gives every row the keys of all rows, with nulls; JSON text it leaves alone."""
    recorder = Recorder()
    first: dict[str, Any] = {"temperature": 0.5, "max_tokens": 3, "repetition_penalty": 1.5, "stop_token_ids": [7]}
    second: dict[str, Any] = {"response_format": FORMAT, "seed": 5}
    none: dict[str, Any] = dict.fromkeys([*first, *second])
    if not as_text:  # another row's schema has a property "y"
        schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "y": None}}
        second["response_format"] = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    params: Column = [first, second] if as_text else [{**none, **first}, {**none, **second}]
    tools: Column = [[TOOL], None]
    columns: dict[str, Column] = {"messages": asked("a", "b"), "sampling_params": params, "tools": tools}
    if as_text:
        columns = {name: [json.dumps(value) for value in values] for name, values in columns.items()}
    RayWorker(lambda: recorder, tools=[{"name": "default"}], temperature=1.0)(nested(columns))
    (one, of_one), (two, of_two) = sorted(recorder.rows, key=lambda row: row[0][0].content)
    assert [one[0].content, two[0].content] == ["a", "b"]
    assert [tool.name for tool in of_one.pop("tools")] == ["f"]
    assert of_one == {"temperature": 0.5, "max_tokens": 3, "repeat_penalty": 1.5, "stop_tokens": [7]}
    assert [tool.name for tool in of_two.pop("tools")] == ["default"]
    assert of_two.pop("response_format").json_schema == SCHEMA
    assert of_two == {"temperature": 1.0, "seed": 5}


def test_calls_are_written_as_openai_has_them() -> None:
    parts = [{"type": "tool_call", "id": "c1", "name": "f", "arguments": '{"x": 1}'}]
    made = Completion.model_validate({"parts": parts, "finish_reason": "tool_calls"})
    out = RayWorker(lambda: Recorder(made))({"messages": asked("a")})
    [call] = json.loads(out["tool_calls"][0])
    assert (call["id"], call["function"]) == ("c1", {"name": "f", "arguments": '{"x": 1}'})


BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": "no"}, "messages is text that is not JSON"),
    ({"messages": None}, "messages is None; it must be a list"),
    ({"messages": [{"role": "me", "content": ""}]}, r"messages\[0\]"),
    ({"messages": []}, "messages is missing"),
    ({"sampling_params": {"temprature": 1}}, "temprature"),
    ({"sampling_params": {"n": 2}}, "n=2 is not valid"),
    ({"sampling_params": {"stream": True}}, "stream is true"),
    ({"sampling_params": [1]}, r"sampling_params is \[1\]; it must be a dictionary"),
    ({"tools": [{"type": "web_search"}]}, "tools"),
    ({"messages": asked("much " * 2000)[0]}, "ContextOverflowError"),
]


@pytest.mark.parametrize(("row", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_row_fails_alone(row: dict[str, Any], message: str) -> None:
    columns = {name: [value, None] for name, value in row.items()}
    columns["messages"] = [row.get("messages", asked("a")[0]), asked("good")[0]]
    out = RayWorker(scripted())(nested(columns))
    failed, fine = out["__inference_error__"]
    assert re.search(message, failed), failed
    assert fine == ""
    assert out["generated_text"] == ["", said("good")]


def test_an_error_of_one_row_is_a_value_and_one_of_the_engine_is_raised() -> None:
    broken = DecodeError("llama.cpp said 1")
    out = RayWorker(lambda: Recorder(Completion(), broken))({"messages": asked("a", "b")})
    assert sorted(out["__inference_error__"]) == ["", "DecodeError: llama.cpp said 1"]
    for answer, message in (
        (EngineError("llama.cpp died"), "llama.cpp died"),
        (Completion(finish_reason="cancelled"), "closed while"),
    ):
        made = [Recorder(answer), Recorder(Completion())]
        loads = iter(made)
        worker = RayWorker(lambda loads=loads: next(loads))
        with pytest.raises(EngineError, match=message):
            worker({"messages": asked("a")})
        assert made[0].closed
        assert worker({"messages": asked("a")})["__inference_error__"] == [""], "the next call has another engine"


def test_an_effort_is_on_where_a_model_has_only_on_and_off() -> None:
    """Of each row for itself, and the answers stand where their rows do."""
    efforts: Column = [{"reasoning_effort": "low"}, None, {"temperature": -1}, {"reasoning_effort": "none"}]
    out = RayWorker(scripted())({"messages": asked("a", "b", "c", "d"), "sampling_params": efforts})
    assert out["generated_text"] == [said("a"), said("b"), "", said("d")]
    assert [bool(error) for error in out["__inference_error__"]] == [False, False, True, False]


def test_a_null_in_a_column_leaves_what_the_parameters_say() -> None:
    engine = Recorder()
    rows = {"messages": asked("a", "b"), "sampling_params": [{"tools": [TOOL]}, None], "tools": [None, None]}
    RayWorker(lambda: engine)(rows)
    assert sorted(len(options["tools"]) for _, options in engine.rows) == [0, 1]


def test_batches_that_are_none() -> None:
    worker = RayWorker(scripted())
    with pytest.raises(RequestError, match='no column "messages"; the columns are prompt'):
        worker({"prompt": ["x"]})
    with pytest.raises(RequestError, match='writes a column "generated_text" of its own'):
        worker({"messages": asked("x"), "generated_text": ["y"]})
    rows: Any = [{"messages": []}]
    with pytest.raises(RequestError, match='batch_format="numpy"'):
        worker(rows)
    assert worker({"messages": []})["generated_text"] == []


def test_options_are_checked_where_the_worker_is_made() -> None:
    wrong: dict[str, Any] = {"temprature": 1}
    with pytest.raises(RequestError, match="temprature"):
        RayWorker(**wrong)
    with pytest.raises(RequestError, match="load= is given, but model= is a function"):
        RayWorker(scripted(), load={"n_sequences": 2})


def test_the_spec_travels_and_the_engine_does_not() -> None:
    worker = RayWorker(scripted(), max_tokens=500)
    size = len(pickle.dumps(worker))
    assert worker({"messages": asked("a")})["generated_text"] == [said("a")]
    packed = pickle.dumps(worker)
    assert len(packed) == size
    assert pickle.loads(packed)({"messages": asked("b")})["generated_text"] == [said("b")]


def test_a_model_is_loaded_by_the_first_call() -> None:
    """The built-in model, with options of `Engine.load`; a path that is none is told then, too."""
    worker = pickle.loads(pickle.dumps(RayWorker(load={"n_sequences": 2, "n_ctx": 256}, temperature=0, max_tokens=8)))
    out = worker({"messages": asked("Hello!", "Who are you?")})
    assert out["__inference_error__"] == ["", ""]
    assert all(0 < count <= 8 for count in out["num_generated_tokens"])
    with pytest.raises(EngineError, match=r"missing\.gguf"):
        RayWorker("missing.gguf")({"messages": asked("a")})
