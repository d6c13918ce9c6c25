"""What `inspect` says of models that make vectors; of chat models see tests/api/test_engine.py."""

import json
from pathlib import Path

import pytest
from files.vector_files import KINDS, RERANKERS, write

from engine import Engine
from engine.cli import main


@pytest.mark.parametrize("name", [*KINDS, *RERANKERS])
def test_an_embedding_model_or_a_reranker_says_what_it_makes(name: str, tmp_path: Path) -> None:
    kind = (KINDS | RERANKERS)[name]
    with Engine.load(write(tmp_path / "m.gguf", kind), n_ctx=200, preflight=False) as llm:
        found = llm.inspect()
        assert llm.embedder.facts == found.vectors
    assert found.vectors is not None
    assert found.vectors.pooling == kind.pooling.name.lower()
    assert found.vectors.dimensions == (len(kind.labels) or 64)
    assert (found.architecture, found.n_ctx, found.n_ctx_train) == (kind.architecture, 200, 256)
    assert (found.generates, found.family, found.markers) == (False, "", ())
    text = found.text()
    assert "200 tokens a text, trained on 256" in text
    assert ("llm.rerank" if kind.labels else "64 numbers of a text of up to 200 tokens, pooling") in text
    assert "it does not chat" in text
    assert "chat template" not in text


def test_the_command_shows_the_prompts_that_the_model_wants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "nomic-embed-text-v1.5.gguf", KINDS["nomic-mean"])
    assert main(["inspect", str(path)]) == 0
    assert "before a query 'search_query: ', before a document 'search_document: '" in capsys.readouterr().out
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["vectors"] == {
        "pooling": "mean",
        "dimensions": 64,
        "longest": 256,
        "positions": "trained on 256 tokens",
        "query": "search_query: ",
        "document": "search_document: ",
    }


def test_a_chat_model_says_what_vectors_it_makes_beside_its_family(builtin_model_path: Path) -> None:
    with Engine.load(builtin_model_path, pooling="last", n_ctx=512) as llm:
        found = llm.inspect()
    assert found.family == "qwen3"
    assert "256 numbers of a text of up to 512 tokens, pooling last" in found.text()
