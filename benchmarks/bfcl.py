"""BFCL's tasks (Berkeley Function-Calling Leaderboard), read from the wheel of the package `bfcl-eval`:

    pip download --no-deps bfcl-eval

Nothing of it is copied here, and its code is not run.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast
from zipfile import ZipFile

from text_tasks import CallTask

KINDS = {"simple": "simple_python", "multiple": "multiple", "parallel": "parallel", "irrelevance": "irrelevance"}
"""Our names of BFCL's categories, and its own."""
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}


def tasks(wheel: Path, most: int) -> list[CallTask]:
    """Returns the first tasks of each category, at most so many of each.

    One call is demanded of `simple` and `multiple`, any number of `parallel`; under `auto` the same tasks of `simple`
    and `multiple` again; none is right in `irrelevance`.
    """
    found: list[CallTask] = []
    with ZipFile(wheel) as archive:
        for kind, name in KINDS.items():
            answers: dict[str, Any] = {}
            if kind != "irrelevance":
                answers = {row["id"]: row["ground_truth"] for row in _rows(archive, f"possible_answer/BFCL_v4_{name}")}
            made = [_task(kind, row, answers.get(row["id"], [])) for row in _rows(archive, f"BFCL_v4_{name}")[:most]]
            found += made
    freely = [task for task in found if task.kind in ("simple", "multiple")]
    return [*found, *(task._replace(kind=f"{task.kind}, auto", choice="auto") for task in freely)]


def _rows(archive: ZipFile, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in archive.read(f"bfcl_eval/data/{name}.json").decode().splitlines()]


def _task(kind: str, row: dict[str, Any], answers: list[dict[str, Any]]) -> CallTask:
    question = row["question"][0][-1]["content"]
    tools = [{"type": "function", "function": _function(function)} for function in row["function"]]
    calls = [(plain(name), wanted) for call in answers for name, wanted in call.items()]
    return CallTask(kind, question, tools, calls, "auto" if kind == "irrelevance" else "required", kind == "parallel")


def plain(name: str) -> str:
    """Returns a function's name without dots, which OpenAI's API does not take."""
    return name.replace(".", "_")


def _function(function: dict[str, Any]) -> dict[str, Any]:
    about = {"name": plain(function["name"]), "description": function["description"]}
    return {**about, "parameters": _schema(function["parameters"])}


def _schema(schema: Any) -> Any:
    """Returns a schema of BFCL's with the names that JSON Schema has for its types."""
    if isinstance(schema, list):
        return [_schema(each) for each in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    made = {key: _schema(value) for key, value in cast("dict[str, Any]", schema).items()}
    kind = made.get("type")
    if kind == "any":
        del made["type"]
    elif isinstance(kind, str):
        made["type"] = _TYPES.get(kind, kind)
    return made


def right_calls(made: Sequence[tuple[str, Any]], wanted: Sequence[tuple[str, dict[str, list[Any]]]]) -> bool:
    """Whether the calls made, as names and arguments, are those wanted, in any order."""
    left = list(wanted)
    for name, arguments in made:
        for at, (other, allowed) in enumerate(left):
            if name == other and _fit(arguments, allowed):
                del left[at]
                break
        else:
            return False
    return not left


def _fit(arguments: Any, allowed: dict[str, list[Any]]) -> bool:
    """Whether each argument has one of the values allowed; an argument may be left out where "" is allowed."""
    if not isinstance(arguments, dict) or not set(cast("dict[str, Any]", arguments)) <= set(allowed):
        return False
    given = cast("dict[str, Any]", arguments)
    return all(
        any(_same(given[name], value) for value in values) if name in given else "" in values
        for name, values in allowed.items()
    )


def _same(given: Any, wanted: Any) -> bool:
    """Whether two values are equal: texts without regard to case, blanks and punctuation, 5 as 5.0."""
    if isinstance(given, bool) or isinstance(wanted, bool):
        return given is wanted
    if isinstance(given, str) and isinstance(wanted, str):
        return _letters(given) == _letters(wanted)
    if isinstance(given, list) and isinstance(wanted, list):
        pairs = cast("list[Any]", given), cast("list[Any]", wanted)
        return len(pairs[0]) == len(pairs[1]) and all(map(_same, *pairs))
    if isinstance(given, dict) and isinstance(wanted, dict):
        return _fit(given, cast("dict[str, list[Any]]", wanted))
    return given == wanted


def _letters(text: str) -> str:
    return re.sub(r"[\W_]", "", text).casefold()
