"""Batches whose rows name one of several models."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from files import model_files

from engine import Engine, Engines, RequestError, batch

OPTIONS: dict[str, Any] = {
    "family": "content-only",
    "trust_template": True,
    "preflight": False,
    "n_ctx": 256,
    "kv_unified": False,  # answers are compared
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    shapes = {name: model_files.Shape(seed=seed) for seed, name in enumerate("abc")}
    return {name: model_files.write(folder / f"{name}.gguf", shape=shape) for name, shape in shapes.items()}


def several(files: dict[str, Path]) -> Engines:
    """Engines with room for one."""
    return Engines({name: {"model": path, **OPTIONS, "n_sequences": 2} for name, path in files.items()}, budget="8MB")


def row(number: int, model: str | None) -> dict[str, Any]:
    body = {"model": model, "messages": [{"role": "user", "content": f"hello {number % 3}"}], "max_tokens": 6}
    return {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}


def read(path: Path) -> dict[str, Any]:
    return {each["custom_id"]: each["response"] for each in map(json.loads, path.read_text().splitlines())}


def run(rows: Sequence[dict[str, Any]], out: Path, llm: Any) -> batch.Report:
    return batch.run(rows, out, llm, quiet=True, temperature=0)


def test_each_row_is_answered_by_the_model_that_it_names(files: dict[str, Path], tmp_path: Path) -> None:
    rows = [row(number // 3, "abc"[number % 3]) | {"custom_id": str(number)} for number in range(27)]
    with several(files) as engines:
        report = run(rows, tmp_path / "out.jsonl", engines)
        assert (report.done, report.failed) == (27, 0)
        loads = [engines.state(name).loads for name in "abc"]
        assert max(loads) <= 3, f"loaded {loads} times, though rows of one model come together"
    answers = read(tmp_path / "out.jsonl")
    for name, path in files.items():
        mine = [number for number in range(27) if "abc"[number % 3] == name]
        with Engine.load(path, **OPTIONS) as llm:
            for number in mine:
                body = answers[str(number)]["body"]
                alone = llm.chat(f"hello {number // 3 % 3}", temperature=0, max_tokens=6).content
                assert (body["model"], body["choices"][0]["message"]["content"]) == (name, alone)


def test_it_goes_on_and_refuses_another_model_of_the_name(files: dict[str, Path], tmp_path: Path) -> None:
    rows, out = [row(number, "ab"[number % 2]) for number in range(6)], tmp_path / "out.jsonl"
    with several(files) as engines:
        run(rows, out, engines)
    with several(files) as engines:
        report = run([*rows, row(6, "b")], out, engines)
        assert (report.done, report.ran) == (7, 1)
    swapped = {**files, "b": files["c"]}
    with several(swapped) as engines, pytest.raises(RequestError, match="model"):
        run([*rows, row(6, "b"), row(7, "b")], out, engines)


def test_a_row_without_one_of_the_models_fails(files: dict[str, Path], tmp_path: Path) -> None:
    with several(files) as engines:
        report = run([row(0, "a"), row(1, "z"), row(2, None)], tmp_path / "out.jsonl", engines)
    assert (report.done, report.failed) == (1, 2)
    failed = read(tmp_path / "out.errors.jsonl")
    assert "model is 'z'; the models here are 'a', 'b', 'c'." in failed["1"]["body"]["error"]["message"]
    assert "model is None" in failed["2"]["body"]["error"]["message"]
