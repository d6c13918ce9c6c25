"""Rows damaged at random: each becomes a line of the output or of the error file, and none stops the batch.

    LLAMA_ENGINE_BATCH_ROWS=20000 python -m pytest tests/batch/test_hostile_rows.py

runs more of them.
"""

import copy
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engine import ChatTemplate, Engine, batch
from engine.testing.scripted import ByteVocab, ScriptedBackend

ROWS = int(os.environ.get("LLAMA_ENGINE_BATCH_ROWS", "300"))
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "max_tokens": 4,
}
RESPONSES_BODY: dict[str, Any] = {
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "u"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "r"},
    ],
    "max_output_tokens": 4,
}
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    2**31,
    10**30,
    1.5,
    1e308,
    "",
    "x",
    "\ud800",
    "<|im_end|>",
    "\0",
    "required",
    [],
    [[]],
    [None],
    ["x"],
    {},
    {"": 1},
    {"type": "function"},
    {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    {"messages": 1, "tools": 2, "add_generation_prompt": {}},
    {"$ref": "#"},
    {"function": {"name": "f"}},
]
RAW = [
    b"",
    b"{",
    b"nul",
    b"\xff",
    b'"x"',
    b"[1]",
    b'{"a":NaN}',
    b"[" * 2000,
    b'{"prompt":"x","prompt":"y"}',
    b"\xef\xbb\xbf{}",
    b"9" * 5000,
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside a value."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    elif isinstance(value, list):
        items = list(enumerate(value))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return (
        [path, *(found for key, inner in items for found in places(inner, (*path, key)))] if path or items else [path]
    )


def damaged(row: dict[str, Any], rng: random.Random) -> bytes:
    """A row with up to three of its values replaced, removed or added to."""
    row = copy.deepcopy(row)
    for _ in range(rng.randrange(4)):
        if not row:
            break
        path = rng.choice([path for path in places(row) if path])
        inside: Any = row
        for step in path[:-1]:
            inside = inside[step]
        match rng.randrange(4):
            case 0:
                del inside[path[-1]]
            case 1 if isinstance(inside, dict):
                inside[rng.choice(["extra", "name", "type", "prompt", "error"])] = copy.deepcopy(rng.choice(VALUES))
            case _:
                inside[path[-1]] = copy.deepcopy(rng.choice(VALUES))
    line = json.dumps(row).encode()
    return line[: rng.randrange(len(line))] if rng.random() < 0.05 else line


def rows(rng: random.Random, kind: str) -> list[bytes]:
    found = [line for line in RAW if line]
    for number in range(ROWS):
        if kind == "openai":
            url, body = (CHAT, BODY) if number % 3 else (RESPONSES, RESPONSES_BODY)
            whole: dict[str, Any] = {"method": "POST", "url": url, "body": body}
        else:
            whole = {"messages": BODY["messages"]} if number % 2 else {"prompt": "u", "tag": [1, {"a": None}]}
        found.append(damaged({"custom_id": f"r{number}", **whole}, rng))
    return [line for line in found if line.strip()]


@pytest.mark.parametrize("kind", ["openai", "simple"])
def test_every_row_becomes_a_line(tmp_path: Path, kind: str) -> None:
    lines = rows(random.Random(26), kind)
    first = {"custom_id": "first", "method": "POST", "url": CHAT, "body": BODY}
    good = first if kind == "openai" else {"custom_id": "first", "prompt": "u"}
    (tmp_path / "in.jsonl").write_bytes(b"\n".join([json.dumps(good).encode(), *lines]))
    backend = ScriptedBackend(lambda _: "Yes.", vocab=ByteVocab(["<|im_start|>"]), n_sequences=8, n_ctx=2000)
    with Engine.over(backend, ChatTemplate(None, family="qwen3")) as llm:
        report = batch.run(tmp_path / "in.jsonl", tmp_path / "out.jsonl", llm, skip_bad=True, quiet=True)
        again = batch.run(tmp_path / "in.jsonl", tmp_path / "out.jsonl", llm, skip_bad=True, quiet=True)
    assert report.total == len(lines) + 1
    assert (report.done + report.failed, report.left) == (report.total, 0)
    assert (again.ran, again.done, again.failed) == (0, report.done, report.failed)
    done = [json.loads(line) for line in (tmp_path / "out.jsonl").read_bytes().splitlines()]
    failed = [json.loads(line) for line in (tmp_path / "out.errors.jsonl").read_bytes().splitlines()]
    assert (len(done), len(failed)) == (report.done, report.failed)
    assert min(len(done), len(failed)) > ROWS / 10, "the damage is too much or too little to tell anything"
    assert max(Counter(row["custom_id"] for row in done).values()) == 1
