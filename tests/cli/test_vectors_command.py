"""`llama-engine embed` and `rerank`: where texts come from, what is written, and what is refused; and what other
commands say of an embedding model."""

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files.vector_files import KINDS, RERANKERS, write

from engine import Engine
from engine.cli import main

TEXTS = ["hello world", "", "a [SEP] b"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("vectors") / "bert.gguf", KINDS["bert-mean"])


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("ranks") / "rank.gguf", RERANKERS["bert-rank"])


@pytest.fixture(scope="module")
def vectors(model: Path) -> Any:
    with Engine.load(model) as llm:
        return llm.embed(TEXTS)


def rows(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def test_texts_of_arguments_files_and_pipes_have_the_engines_vectors(
    model: Path, vectors: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "texts"
    file.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    piped = os.open(file, os.O_RDONLY)
    with io.TextIOWrapper(io.FileIO(piped), encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        for source in ([], ["--file", str(file)], [*TEXTS[:1], *TEXTS[1:]]):
            assert main(["embed", str(model), *source]) == 0
            written = rows(capsys.readouterr().out)
            assert [each["index"] for each in written] == [0, 1, 2]
            assert np.allclose([each["embedding"] for each in written], vectors, atol=1e-6)


def test_files_of_both_kinds(model: Path, vectors: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    numpy, lines = tmp_path / "vectors.npy", tmp_path / "vectors.jsonl"
    for path in (numpy, lines):
        assert main(["embed", str(model), *TEXTS, "-o", str(path), "--dimensions", "64"]) == 0
    assert capsys.readouterr().out == ""
    loaded = np.load(numpy)
    assert loaded.dtype == np.float32
    assert np.allclose(loaded, vectors, atol=1e-6)
    assert np.allclose([each["embedding"] for each in rows(lines.read_text())], vectors, atol=1e-6)


def test_options_reach_the_engine(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long = "word " * 300
    assert main(["embed", str(model), long, "b", "--prefix", "query: ", "--dimensions", "5", "--truncate"]) == 0
    written = rows(capsys.readouterr().out)
    with Engine.load(model) as llm:
        expected = llm.embed([long, "b"], prefix="query: ", dimensions=5, truncate=True)
    assert np.allclose([each["embedding"] for each in written], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["a", "-o", "x.txt"], "x.txt must end in .npy or .jsonl"),
        (["a", "-o", "none/x.npy"], "x.npy cannot be written"),
        (["a", "--file", "none.txt"], "none.txt cannot be read"),
        (["a", "word " * 300], "Text 1 has"),
        (["a", "--input-type", "query"], "is not known for this model"),
        (["a", "--dimensions", "65"], "dimensions=65 is more"),
        (["a", "--dimensions", "0"], "dimensions=0 is not valid"),
    ],
)
def test_what_is_refused_is_one_line_and_writes_nothing(
    model: Path, arguments: list[str], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["embed", str(model), *arguments]) == 1
    told = capsys.readouterr()
    assert problem in told.err
    assert told.err.count("\n") == 1
    assert (told.out, list(tmp_path.iterdir())) == ("", [])


def test_no_text_at_all_is_refused_before_the_model_is_loaded(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path(os.devnull).open(encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main(["embed", "none.gguf"]) == 1
        assert main(["rerank", "none.gguf", "query"]) == 1
    told = capsys.readouterr().err
    assert "add TEXT, --file FILE" in told
    assert "add DOCUMENT, --file FILE" in told


def test_rerank_prints_the_best_first(reranker: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = ["a panda", "the weather", "bamboo"]
    assert main(["rerank", str(reranker), "what eats bamboo?", *documents, "--top-n", "2"]) == 0
    with Engine.load(reranker) as llm:
        best = llm.rerank("what eats bamboo?", documents, top_n=2)
    expected = [
        {"index": each.index, "score": pytest.approx(each.score), "document": documents[each.index]} for each in best
    ]
    assert rows(capsys.readouterr().out) == expected
    assert main(["rerank", str(model), "query", "a"]) == 1
    assert "no reranker" in capsys.readouterr().err
    assert main(["embed", str(reranker), "a"]) == 1
    assert "is a reranker" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["run", "{}", "Hello"], ["chat", "{}"], ["explain", "{}", "--prompt", "Hello"]])
def test_commands_that_need_a_chat_model_say_so_in_a_line(
    model: Path, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
    assert main([word.format(model) for word in command]) == 1
    told = capsys.readouterr()
    assert "embedding model" in told.err
    assert told.err.count("\n") == 1
