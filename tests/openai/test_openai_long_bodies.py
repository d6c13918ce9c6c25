"""A long value of a wrong type, in any field: answered or refused soon.

Run as a script (`python tests/openai/test_openai_long_bodies.py`) this file tries every value in every field, and
writes the processor time of the slow ones.
"""

import itertools
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from fakes.openai_clients import scripted
from pydantic import ConfigDict, ValidationError

from engine.openai.api import Api
from engine.openai.fields import CHAT_FIELDS, COMPLETIONS_FIELDS, DECISIONS_FIELDS, EMBEDDINGS_FIELDS, RESPONSES_FIELDS
from engine.openai.problems import Problem
from engine.openai.streaming import Turn, cancel
from engine.support.errors import RequestError
from engine.support.validation import validator
from engine.turns.options import sampling_params

SIZE = 300_000
MOST = 5.0
"""Seconds of processor time, on a busy machine; a quiet one takes 0.3. Without the defence a field takes minutes."""
ASKED = '"messages": [{"role": "user", "content": "x"}]'
ENDPOINTS: dict[str, tuple[Any, str]] = {
    "/chat/completions": (CHAT_FIELDS, ASKED),
    "/responses": (RESPONSES_FIELDS, '"input": "x"'),
    "/completions": (COMPLETIONS_FIELDS, '"prompt": "x"'),
    "/embeddings": (EMBEDDINGS_FIELDS, '"input": "x"'),
    "/decisions": (
        DECISIONS_FIELDS,
        '"input": "x", "questions": [{"type": "predicate", "name": "a", "predicate": "b"}]',
    ),
}
VALUES = {
    "text": f'"{"x" * SIZE}"',
    "lists": f"[{','.join(['[1]'] * (SIZE // 4))}]",
    "numbers": f"[{','.join(map(str, range(SIZE // 7)))}]",
    "texts": "[" + ",".join(['"x"'] * (SIZE // 4)) + "]",
    "objects": "[" + ",".join(['{"a":1}'] * (SIZE // 8)) + "]",
    "object": "{" + ",".join(f'"{number}":1' for number in range(SIZE // 9)) + "}",
    "name": '{"type":"' + "x" * SIZE + '"}',
}
FIELDS = [(path, field) for path, (table, _) in ENDPOINTS.items() for field in table]


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with scripted() as llm:
        yield Api(llm)


def seconds(api: Api, path: str, field: str, kind: str) -> float:
    """Returns the processor time that a body takes until its turns begin, or it is refused."""
    base = "" if f'"{field}":' in ENDPOINTS[path][1] else f"{ENDPOINTS[path][1]}, "
    body = f'{{{base}"{field}": {VALUES[kind]}}}'.encode()
    began = time.thread_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            work = api.handle("POST", path, {}, body)
            if isinstance(work, Turn):
                cancel(work.begin())
        except Problem:
            pass
    return time.thread_time() - began


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a_long_value_of_a_wrong_type_is_refused_soon(path: str, api: Api) -> None:
    """Each field gets one of the values."""
    fields = zip(ENDPOINTS[path][0], itertools.cycle(VALUES), strict=False)
    took = {(field, kind): seconds(api, path, field, kind) for field, kind in fields}
    slow = {place: round(spent, 2) for place, spent in took.items() if spent > MOST}
    assert not slow


def test_the_first_wrong_item_is_told_not_each_of_them() -> None:
    for kind in (list[str], tuple[int, ...] | None, str | list[str] | list[int], dict[str, list[bool]]):
        wrong: Any = [[1]] * 1000
        with pytest.raises(ValidationError) as told:
            validator(kind, ConfigDict(strict=True)).validate_python({"a": wrong} if "dict" in str(kind) else wrong)
        assert len(told.value.errors()) <= 3
    with pytest.raises(RequestError, match="stop_tokens=") as refused:
        sampling_params({"stop_tokens": [[1]] * 1000})
    assert isinstance(refused.value.__cause__, ValidationError)
    assert len(refused.value.__cause__.errors()) == 1


if __name__ == "__main__":
    with scripted() as engine:
        for (path, field), kind in itertools.product(FIELDS, VALUES):
            if (spent := seconds(Api(engine), path, field, kind)) > MOST / 2:
                sys.stdout.write(f"{spent:5.2f} {path} {field} {kind}\n")
