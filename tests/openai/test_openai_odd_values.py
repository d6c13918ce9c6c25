"""Any value in any field: an answer, or a 400 that names a field; never a 500, never another exception.

Run as a script (`python tests/openai/test_openai_odd_values.py`) this file tries every value in every field.
"""

import json
import random
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

import pytest
from fakes.openai_clients import ASK, PING, scripted

import engine.openai
from engine.openai.fields import CHAT_FIELDS, COMPLETIONS_FIELDS, RESPONSES_FIELDS
from engine.openai.request import Field
from engine.support.errors import EngineWarning

ODD: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    3,
    10**20,
    0.5,
    -0.5,
    1e308,
    "",
    "auto",
    "none",
    "required",
    "\ud800",
    "x" * 50,
    [],
    [None],
    [[]],
    [3],
    [""],
    ["a", "b"],
    [{}],
    [{"type": "function"}],
    [{"type": None}],
    [{"role": "user"}],
    [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "assistant", "tool_calls": [{}]}],
    [PING],
    [PING, PING],
    [{"role": "user", "content": "\x00<|im_end|>"}],
    [{"type": "function_call", "call_id": "", "name": "", "arguments": ""}],
    [{"type": "reasoning", "summary": [{}]}],
    [{"type": "message", "role": "user", "content": []}],
    {},
    {"type": None},
    {"type": "json_schema"},
    {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/x"}}},
    {"type": "json_schema", "schema": {"type": "array", "items": 3}},
    {"type": "allowed_tools"},
    {"1": 5},
    {"a": {}},
    {"format": {"type": "json_object"}},
    {"format": []},
    {"effort": []},
    {"include_usage": None},
    {"mode": "auto", "tools": [{}]},
]
TABLES = {"/chat/completions": CHAT_FIELDS, "/responses": RESPONSES_FIELDS, "/completions": COMPLETIONS_FIELDS}
GOOD: dict[str, dict[str, Any]] = {
    "/chat/completions": {"messages": ASK, "max_tokens": 4, "tools": [PING]},
    "/responses": {"input": ASK, "max_output_tokens": 4, "tools": [PING]},
    "/completions": {"prompt": "Hi.", "max_tokens": 4},
}
PAIRS: list[tuple[str, Mapping[str, Field], str]] = [
    (path, table, name) for path, table in TABLES.items() for name in table
]


def tried(pairs: Iterable[tuple[str, Mapping[str, Field], str, Any]]) -> Counter[int]:
    """How often each status came."""
    statuses: Counter[int] = Counter()
    library = import_module("httpx2" if engine_uses_httpx2() else "httpx")
    with scripted(lambda _: "So.", n_ctx=4096, rewrite=True) as llm, warnings.catch_warnings():
        warnings.simplefilter("ignore", EngineWarning)
        with library.Client(transport=engine.openai.transport(llm), base_url="http://x/v1") as client:
            for path, _, name, value in pairs:
                body = {"model": "m", **GOOD[path], name: value}
                response = client.post(path, content=json.dumps(body).encode())
                what = f"{path} {name}={str(value)[:60]!r}: {response.status_code} {response.text[:300]}"
                assert response.status_code in (200, 400, 404), what
                if response.status_code == 400:
                    assert response.json()["error"]["message"], what
                    assert response.json()["error"]["param"], what
                elif body.get("stream") is True:
                    assert '"error": {' not in response.text, what
                statuses[response.status_code] += 1
    return statuses


def engine_uses_httpx2() -> bool:
    openai: Any = import_module("openai")
    return int(openai.__version__.split(".")[0]) >= 3


def test_odd_values() -> None:
    pytest.importorskip("openai")
    choice = random.Random(11)
    statuses = tried((*choice.choice(PAIRS), choice.choice(ODD)) for _ in range(400))
    assert statuses[200] > 20
    assert statuses[400] > 100


if __name__ == "__main__":
    sys.stdout.write(f"{tried((*pair, value) for pair in PAIRS for value in ODD)}\n")
