"""Batch rows of `/v1/embeddings`: bodies as a client gets them, failures, going on, and models that cannot do a row."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from files.vector_files import KINDS, write

from engine import BatchInputError, ChatTemplate, Engine, batch
from engine.batch import job
from engine.cli import main
from engine.support.errors import MissingTemplateError, RequestError
from engine.testing.scripted import ScriptedBackend

LONG = "word " * 100  # more tokens than a text may have


def backend() -> ScriptedBackend:
    return ScriptedBackend(lambda _: "Hello.", n_ctx=256, dimensions=16)


@pytest.fixture
def llm() -> Iterator[Engine]:
    with Engine.over(backend(), ChatTemplate(None, family="qwen3")) as llm:
        yield llm


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("vectors") / "bert.gguf", KINDS["bert-mean"])


def vectors(name: str, text: Any, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "input": text, **fields}
    return {"custom_id": name, "method": "POST", "url": "/v1/embeddings", "body": body}


def chat(name: str) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hello!"}]}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}


def run(rows: Sequence[Mapping[str, Any]], out: Path, llm: Engine, **options: Any) -> batch.Report:
    return batch.run(rows, out, llm, quiet=True, **options)


def read(path: Path) -> dict[str, Any]:
    return {row["custom_id"]: row["response"] for row in map(json.loads, path.read_text().splitlines())}


def test_bodies_are_those_that_a_client_gets(tmp_path: Path, llm: Engine) -> None:
    pytest.importorskip("openai")
    bodies: list[dict[str, Any]] = [
        {"input": "red apple", "encoding_format": None},
        {"input": ["red apple", "green apple"], "dimensions": 4},
        {"input": ["red apple"], "encoding_format": "base64", "prefix": "a ", "normalize": False},
        {"input": [llm.tokenize("red"), llm.tokenize("apple")]},
        {"input": LONG, "truncate": True},
    ]
    rows = [{**vectors(str(number), ""), "body": {"model": "m", **body}} for number, body in enumerate(bodies)]
    report = run([*rows, chat("chat")], tmp_path / "out.jsonl", llm)
    assert (report.done, report.failed) == (6, 0)
    written = read(tmp_path / "out.jsonl")
    client: Any = llm.openai_client()
    for number, body in enumerate(bodies):
        response = client.post("/embeddings", body={"model": "m", **body}, cast_to=object)
        assert written[str(number)]["status_code"] == 200
        assert written[str(number)]["body"] == response
    assert written["chat"]["body"]["choices"][0]["message"]["content"] == "Hello."
    assert report.prompt_tokens > sum(written[str(number)]["body"]["usage"]["prompt_tokens"] for number in range(5))


def test_the_progress_of_a_batch_of_vectors_tells_the_tokens_that_were_read() -> None:
    assert "50 tokens/s" in batch.Report(2, 2, 0, ran=2, prompt_tokens=100, seconds=2.0).text()
    assert "cached" not in batch.Report(2, 2, 0, ran=2, prompt_tokens=100, seconds=2.0).text()


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"input": None}, "input is missing"),
        ({"input": []}, "input is missing"),
        ({"input": {"a": 1}}, "input is not valid"),
        ({"input": "a", "dimension": 3}, "did you mean"),
        ({"input": "a", "temperature": 0}, "There is no field 'temperature'"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format is not valid"),
    ],
)
def test_a_row_that_is_not_valid_is_named_before_anything_is_computed(
    tmp_path: Path, body: dict[str, Any], problem: str
) -> None:
    def load(_: batch.Plan) -> Engine:
        raise AssertionError("a model was loaded for an input that is not valid")

    row = {"custom_id": "x", "method": "POST", "url": "/v1/embeddings", "body": body}
    with pytest.raises(BatchInputError, match=f"line 2: (?s:.*)({problem})"):
        batch.run([vectors("a", "b"), row], tmp_path / "out.jsonl", load, quiet=True)


def test_what_the_model_cannot_do_is_a_failed_row_that_names_the_field(tmp_path: Path, llm: Engine) -> None:
    rows = [
        vectors("good", "red"),
        vectors("long", ["red", LONG]),
        vectors("dimensions", "red", dimensions=17),
        vectors("token", [[10**9]]),
        vectors("type", "red", input_type="query"),
    ]
    report = run(rows, tmp_path / "out.jsonl", llm, temperature=0, max_tokens=5)
    assert (report.done, report.failed) == (1, 4)
    failed = read(tmp_path / "out.errors.jsonl")
    assert {response["status_code"] for response in failed.values()} == {400}
    fields = {name: response["body"]["error"]["param"] for name, response in failed.items()}
    assert fields == {"long": "input", "dimensions": "dimensions", "token": "input", "type": "input_type"}
    assert failed["long"]["body"]["error"]["message"].startswith("Text 1 has 500 tokens")


def test_a_batch_goes_on_behind_its_last_whole_line(tmp_path: Path, llm: Engine) -> None:
    """Nothing is computed twice; a row whose content has changed is."""
    rows = [vectors(f"row {number}", f"text {number}") for number in range(20)]
    out = tmp_path / "out.jsonl"
    run(rows, out, llm, in_order=True)
    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:12]) + lines[12][:100])
    second = backend()
    with Engine.over(second, ChatTemplate(None, family="qwen3")) as llm:
        report = run(rows, out, llm, in_order=True)
    assert (report.done, report.ran) == (20, 8)
    assert sorted(second.vectors().texts) == sorted(f"text {number}" for number in range(12, 20))
    assert out.read_bytes() == whole
    with Engine.over(backend(), ChatTemplate(None, family="qwen3")) as llm:
        changed = [vectors("row 0", "another"), *rows[1:]]
        assert run(changed, out, llm, force=True).ran == 1


def test_interrupts(tmp_path: Path, llm: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one gives up the vectors under way, which are no failures."""
    waits, wait = [0], job.wait

    def interrupted(*given: Any, **options: Any) -> Any:
        waits[0] += 1
        if waits[0] <= 2:
            raise KeyboardInterrupt
        return wait(*given, **options)

    monkeypatch.setattr(job, "wait", interrupted)
    rows = [vectors(f"row {number}", [f"text {number}"] * 200) for number in range(200)]
    report = run(rows, tmp_path / "out.jsonl", llm, in_flight=4)
    assert report.interrupted
    assert report.left
    assert not report.failed
    monkeypatch.undo()
    assert run(rows, tmp_path / "out.jsonl", llm).done == 200


def test_an_embedding_model_makes_vectors_and_fails_chats_by_name(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    texts = ["hello world", "a", "the quick brown fox jumps over the lazy dog", "what is a panda?", "0123456789"]
    rows = [*(vectors(text, text) for text in texts), chat("chat")]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["batch", str(source), "-o", str(out), "-m", str(model), "--quiet"]
    assert main(command) == 3
    with Engine.load(model) as llm:
        expected = llm.embed(texts)
    made = np.array([read(out)[text]["body"]["data"][0]["embedding"] for text in texts])
    assert np.diagonal(made @ expected.T).min() > 0.9999
    assert np.triu(made @ expected.T, 1).max() < 0.999, "else the comparison would say nothing"
    error = read(tmp_path / "out.errors.jsonl")["chat"]["body"]["error"]
    assert "embedding model" in error["message"]
    assert (error["param"], error["code"]) == ("model", "model_has_no_chat_template")
    assert main(command) == 3, "the same command finds nothing left to do"


def test_a_batch_of_chats_alone_is_refused_for_an_embedding_model(tmp_path: Path, model: Path) -> None:
    with Engine.load(model) as llm, pytest.raises(MissingTemplateError, match="embedding model"):
        run([chat("a")], tmp_path / "out.jsonl", llm)
    assert list(tmp_path.iterdir()) == []


def test_vectors_made_otherwise_are_not_mixed(tmp_path: Path, builtin_model_path: Path) -> None:
    """Another pooling, another longest text: refused, or computed anew; chats do not depend on either."""
    out, rows = tmp_path / "out.jsonl", [vectors("a", "red"), vectors("b", "green")]
    with Engine.load(builtin_model_path, n_ctx=512) as llm:
        run(rows, out, llm)
        made = read(out)
        assert run(rows, out, llm).ran == 0
    others: list[dict[str, Any]] = [{"pooling": "last", "n_ctx": 512}, {"n_ctx": 256}]
    for options in others:
        with Engine.load(builtin_model_path, **options) as llm:
            with pytest.raises(RequestError, match=r"differs in: vectors\. .*force=True \(--force\)"):
                run([*rows, vectors("c", "blue")], out, llm)
            assert read(out) == made
            chats = tmp_path / f"{next(iter(options))}.jsonl"
            assert run([chat("a")], chats, llm, max_tokens=2).done == 1
            assert run([chat("a"), *rows[1:]], chats, llm, max_tokens=2).ran == 1
    with Engine.load(builtin_model_path, n_ctx=512, pooling="last") as llm:
        assert run([chat("a")], tmp_path / "n_ctx.jsonl", llm, max_tokens=2).ran == 0
        with pytest.raises(RequestError, match="differs in: vectors"):  # which the chats did not make forgotten
            run([chat("a"), *rows[1:]], tmp_path / "n_ctx.jsonl", llm, max_tokens=2)
        assert run(rows, out, llm, force=True).ran == 2
        assert read(out) != made
