"""The scoreboard on real weights judges as it says: its tasks, what is valid, right, and a run-away."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The scoreboard's module, which looks for its neighbours beside it."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    return importlib.import_module("quality")


def said(board: Any, text: str = "", calls: Any = (), ended: str = "stop") -> Any:
    return board.Said(text, list(calls), ended, 1, 0.0)


def test_there_are_ten_tasks_of_each_of_twelve_kinds(board: Any) -> None:
    tasks = board.schema_tasks.TASKS
    assert len({task.question for task in tasks}) == len(tasks) == 120
    kinds = [task.kind for task in tasks]
    assert {kinds.count(kind) for kind in kinds} == {10}
    for task in [*tasks, *board.text_tasks.TASKS]:
        if (schema := board.schema_of(task)) is not None:
            Draft202012Validator.check_schema(schema)


def test_a_cut_answer_is_neither_complete_nor_right_and_digits_are_a_run_away(board: Any) -> None:
    task = next(task for task in board.schema_tasks.TASKS if task.right == {"age": 34})
    whole = board.judged(task, said(board, '{"age": 34}'))
    assert whole == {"complete": True, "valid": True, "closed": False, "right": True, "runaway": False}
    cut = board.judged(task, said(board, '{"age": 34' + "0" * 30, ended="length"))
    assert cut == {"complete": False, "valid": False, "closed": False, "right": False, "runaway": True}
    assert board.judged(task, said(board, "{" + " " * 30, ended="length"))["runaway"]
    assert not board.judged(task, said(board, '{"name": "and so on and so on', ended="length"))["runaway"]
    assert board.judged(task, said(board, '{"age": "34"}'))["valid"] is False
    number = next(task for task in board.schema_tasks.TASKS if task.right == 3600)
    cut = board.judged(number, said(board, "3600", ended="length"))
    assert (cut["valid"], cut["right"]) == (False, False)
    long = board.judged(number, said(board, "3" * 30))
    assert (long["complete"], long["runaway"]) == (True, False)


@pytest.mark.parametrize(
    ("value", "right", "same"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1.0}, {"a": 1}, True),
        ({"a": True}, {"a": 1}, False),
        (["b", "A"], ["a", "b"], True),
        (["a", "a"], ["a", "b"], False),
        (["a"], ["a", "b"], False),
        ("Lamps.", ("lamp", "lamps"), True),
        (None, None, True),
        (False, None, False),
    ],
)
def test_what_is_right(board: Any, value: Any, right: Any, same: bool) -> None:
    assert board.fits(value, right) is same


@pytest.mark.parametrize(
    ("made", "right"),
    [
        ([("f", {"x": 5.0, "to": "new-york"})], True),
        ([("f", {"x": 5})], True),  # "to" may be left out
        ([("f", {"x": 6})], False),
        ([("f", {"to": "New York"})], False),
        ([("f", {"x": 5, "more": 1})], False),
        ([("g", {"x": 5})], False),
        ([("f", {"x": 5}), ("f", {"x": 5})], False),
        ([], False),
    ],
)
def test_which_calls_are_right(board: Any, made: Any, right: bool) -> None:
    assert board.bfcl.right_calls(made, [("f", {"x": [5], "to": ["", "New York"]})]) is right
