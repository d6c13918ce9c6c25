"""Batches over a scripted backend: formats, resuming, failures, interrupts, locks."""

import datetime
import json
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine import BatchInputError, ChatTemplate, DiskFullError, Engine, EngineError, RequestError, batch
from engine.batch import job, lines
from engine.runtime.loop.config import LoopOptions
from engine.testing.scripted import ByteVocab, ScriptedBackend

LONG = "much " * 2000  # more than the context holds


def scripted(prompt: str) -> str:
    question = prompt.rsplit("user\n", 1)[-1].split("<|im_end|>", maxsplit=1)[0]
    return f"<think>\nI know.\n</think>\n\nThe answer to {question}."


@contextmanager
def engine(**options: Any) -> Generator[Engine]:
    backend = ScriptedBackend(scripted, vocab=ByteVocab(["<|im_start|>"]), **options)
    with Engine.over(backend, ChatTemplate(None, family="qwen3")) as llm:
        yield llm


@pytest.fixture
def llm() -> Iterator[Engine]:
    with engine() as made:
        yield made


def asked(name: str, text: str, **body: Any) -> dict[str, Any]:
    """A row in OpenAI's format."""
    whole = {"model": "m", "messages": [{"role": "user", "content": text}], **body}
    return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": whole}


def asked_response(name: str, text: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": "/v1/responses", "body": {"model": "m", "input": text, **body}}


def write(path: Path, rows: Sequence[Mapping[str, Any] | str]) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def names(path: Path) -> list[str]:
    return sorted(row["custom_id"] for row in read(path))


def run(rows: Any, out: Path, llm: Any, **options: Any) -> batch.Report:
    return batch.run(rows, out, llm, quiet=True, **options)


# --- formats


def test_openai_rows_come_back_as_openai_writes_them(tmp_path: Path, llm: Engine) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    rows = [asked("a", "one", seed=None, user="me"), asked("b", "two", n=2, tools=[tool], max_completion_tokens=500)]
    report = run(write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", llm, in_order=True)
    assert (report.total, report.done, report.failed, report.left) == (2, 2, 0, 0)
    one, two = read(tmp_path / "out.jsonl")
    assert list(one) == ["id", "custom_id", "response", "error"]
    assert one["id"].startswith("batch_req_")
    assert (one["custom_id"], one["error"]) == ("a", None)
    assert list(one["response"]) == ["status_code", "request_id", "body"]
    assert one["response"]["status_code"] == 200
    body = one["response"]["body"]
    assert body["object"] == "chat.completion"
    assert isinstance(body["created"], int)
    [choice] = body["choices"]
    assert choice["index"] == 0
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    said = {"role": "assistant", "content": "The answer to one.", "refusal": None, "reasoning_content": "I know."}
    assert choice["message"] == said
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] > 0
    assert [each["index"] for each in two["response"]["body"]["choices"]] == [0, 1]
    assert not (tmp_path / "out.errors.jsonl").exists()


def test_rows_of_responses_come_back_as_responses(tmp_path: Path, llm: Engine) -> None:
    rows = [asked_response("a", "one", instructions="i"), asked("b", "two"), asked_response("c", LONG)]
    report = run(write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl", llm, in_order=True)
    assert (report.done, report.failed) == (2, 1)
    one, two = read(tmp_path / "out.jsonl")
    assert list(one) == ["id", "custom_id", "response", "error"]
    assert (one["custom_id"], one["error"], one["response"]["status_code"]) == ("a", None, 200)
    body = one["response"]["body"]
    assert (body["object"], body["status"], body["instructions"]) == ("response", "completed", "i")
    assert [item["content"][0]["text"] for item in body["output"]] == ["I know.", "The answer to one."]
    assert body["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert two["response"]["body"]["object"] == "chat.completion"
    [row] = read(tmp_path / "out.errors.jsonl")
    error = row["response"]["body"]["error"]
    assert (row["response"]["status_code"], error["code"], error["param"]) == (400, "context_length_exceeded", "input")


def test_an_effort_is_on_where_a_model_has_only_on_and_off(tmp_path: Path, llm: Engine) -> None:
    """Noted once for each field, in the report. A position that the model has is taken as it is, without a note."""
    rows = [
        asked("a", "one", reasoning_effort="low"),
        asked("b", "two", reasoning_effort="high"),
        asked_response("c", "three", reasoning={"effort": "low"}),
        asked("d", "four", reasoning_effort="none"),
    ]
    report = run(rows, tmp_path / "out.jsonl", llm, in_order=True, in_flight=1)
    assert (report.done, report.failed) == (4, 0)
    assert sorted(report.notes) == [
        f"{field}: this model has no efforts, so reasoning is on" for field in ("reasoning.effort", "reasoning_effort")
    ]
    assert run([{"prompt": "one"}], tmp_path / "simple.jsonl", llm, reasoning="high").notes == (
        "reasoning: this model has no efforts, so reasoning is on",
    )
    assert run([{"prompt": "one"}], tmp_path / "on.jsonl", llm, reasoning=True).notes == ()


def test_simple_rows_carry_their_columns(tmp_path: Path, llm: Engine) -> None:
    rows = [
        {"prompt": "one", "tag": {"a": [1, None]}, "ü": "line\u2028break"},
        {"custom_id": "mine", "messages": [{"role": "user", "content": "two"}], "x": float("nan")},
    ]
    run(rows, tmp_path / "out.jsonl", llm, in_order=True, system="Be brief.")
    raw = (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    assert len(raw.splitlines()) == 2
    one, two = map(json.loads, raw.splitlines())
    assert one["custom_id"] == "row-1"
    assert (one["tag"], one["ü"]) == ({"a": [1, None]}, "line\u2028break")
    assert one["completion"]["content"] == "The answer to one."
    assert one["completion"]["reasoning"] == "I know."
    assert one["completion"]["timings"].keys() == {"prompt_ms", "predicted_ms"}
    assert (two["custom_id"], two["x"], two["error"]) == ("mine", None, None)


def test_parquet(tmp_path: Path, llm: Engine) -> None:
    with pytest.raises(BatchInputError, match=r"'\.\[parquet\]'|cannot be read as a Parquet file"):
        run(write(tmp_path / "in.parquet", ["no"]), tmp_path / "out.jsonl", llm)
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"prompt": ["one", "two"], "n": [1, 2]})
    parquet.write_table(table, tmp_path / "in.parquet")
    run(tmp_path / "in.parquet", tmp_path / "out.jsonl", llm, in_order=True)
    assert [row["n"] for row in read(tmp_path / "out.jsonl")] == [1, 2]


def test_parquet_of_openai_rows_and_dates(tmp_path: Path, llm: Engine) -> None:
    """Parquet gives every row the fields of all rows, with nulls, and JSON has no dates."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        asked("a", "one", temperature=0.5),
        asked("b", "two", max_tokens=50, stop=["x"]),
        asked_response("c", "three"),
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "openai.parquet")
    assert run(tmp_path / "openai.parquet", tmp_path / "a.jsonl", llm).done == 3
    simple = [{"prompt": "one", "day": datetime.date(2026, 1, 2), "price": Decimal("1.50")}]
    parquet.write_table(pyarrow.Table.from_pylist(simple), tmp_path / "simple.parquet")
    assert run(tmp_path / "simple.parquet", tmp_path / "b.jsonl", llm).done == 1
    [row] = read(tmp_path / "b.jsonl")
    assert (row["day"], row["price"]) == ("2026-01-02", "1.50")


def test_rows_of_data_frames_and_arrays(tmp_path: Path, llm: Engine) -> None:
    """What `df.to_dict("records")` and NumPy hold; the same rows are the same work the next time."""
    values = {"day": datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC), "vector": np.array([1.5, np.nan])}
    rows = [{"prompt": "one", "whole": np.int64(3), "half": np.float32(0.5), "path": Path("a"), **values}]
    for ran in (1, 0):
        assert run(iter(rows), tmp_path / "out.jsonl", llm).ran == ran
    [row] = read(tmp_path / "out.jsonl")
    assert (row["whole"], row["half"], row["path"], row["vector"]) == (3, 0.5, "a", [1.5, None])
    assert row["day"] == "2026-01-02T03:00:00Z"


def test_answers_are_json_where_the_row_says_so(tmp_path: Path) -> None:
    """On the built-in model, whose tokens are drawn under the grammar."""
    schema = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"], "additionalProperties": False}
    format_ = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    with Engine.load(n_sequences=2, n_ctx=512) as llm:
        run([asked("a", "?", response_format=format_, max_tokens=200)], tmp_path / "a.jsonl", llm, temperature=0)
        run([{"prompt": "?"}], tmp_path / "b.jsonl", llm, temperature=0, response_format=format_, max_tokens=200)
    [choice] = read(tmp_path / "a.jsonl")[0]["response"]["body"]["choices"]
    assert json.loads(choice["message"]["content"])["x"] in (1, 2)
    assert read(tmp_path / "b.jsonl")[0]["completion"]["parsed"]["x"] in (1, 2)


# --- what is not valid

BAD: list[tuple[str, Mapping[str, Any] | str, str]] = [
    ("no JSON", "{", "not JSON"),
    ("NaN", '{"prompt": "x", "y": NaN}', "NaN is not a number"),
    ("a list", "[]", "a list; a row is a JSON object"),
    ("deep", '{"prompt": "x", "y": ' + "[" * 200_000 + "]" * 200_000 + "}", "not JSON"),
    ("method", {**asked("x", "y"), "method": "GET"}, '"POST"'),
    (
        "url",
        {**asked("x", "y"), "url": "/v1/images"},
        "/v1/images.*/v1/chat/completions, /v1/responses, /v1/embeddings",
    ),
    ("url, a number", {**asked("x", "y"), "url": 7}, '"url" is a number'),
    ("a body of the other endpoint", {**asked("x", "y"), "url": "/v1/responses"}, "messages"),
    ("previous", asked_response("x", "y", previous_response_id="r"), "rows are independent"),
    ("body", {**asked("x", "y"), "body": []}, '"body" is a list'),
    ("key", {**asked("x", "y"), "extra": 1}, '"extra"'),
    ("custom_id", {**asked("x", "y"), "custom_id": True}, '"custom_id" is True; it must be a string or a number'),
    ("no custom_id", {**asked("x", "y"), "custom_id": None}, '"custom_id" is None'),
    ("no messages", asked("x", "y", messages=None), "messages is missing"),
    ("unknown", asked("x", "y", temprature=1), "temprature"),
    ("stream", asked("x", "y", stream=True), "stream is true"),
    ("n", asked("x", "y", n=0), "n=0 is not valid"),
    ("prompt", {"custom_id": "x", "prompt": 3}, 'the openai format|"prompt" is a number'),
]


@pytest.mark.parametrize(("row", "message"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_a_bad_row_is_named_before_anything_is_computed(
    tmp_path: Path, row: Mapping[str, Any] | str, message: str
) -> None:
    def load(_: batch.Plan) -> Engine:
        raise AssertionError("a model was loaded for an input that is not valid")

    source = write(tmp_path / "in.jsonl", [asked("good", "one"), "", row])
    with pytest.raises(BatchInputError, match=f"line 3: (?s:.*)({message})"):
        run(source, tmp_path / "out.jsonl", load)
    assert not (tmp_path / "out.jsonl").exists()


def test_duplicate_names_are_named_by_both_lines(tmp_path: Path, llm: Engine) -> None:
    source = write(tmp_path / "in.jsonl", [asked("a", "one"), asked("b", "two"), asked("a", "one")])
    with pytest.raises(BatchInputError, match='line 3: custom_id "a" is used on line 1 already'):
        run(source, tmp_path / "out.jsonl", llm)


def test_skipped_rows_are_error_rows_and_stay_so(tmp_path: Path, llm: Engine) -> None:
    source = write(tmp_path / "in.jsonl", [asked("a", "one"), "{", asked("b", "two", n=0), asked("a", "again")])
    for options in ({}, {"retry_failed": True}):
        report = run(source, tmp_path / "out.jsonl", llm, skip_bad=True, **options)
        assert (report.done, report.failed, report.left) == (1, 3, 0)
        failed = read(tmp_path / "out.errors.jsonl")
        assert {row["custom_id"] for row in failed} == {None, "b", "a"}
        assert {row["error"]["code"] for row in failed} == {"invalid_row"}
        assert all(row["response"] is None for row in failed)


def test_rows_that_are_not_dictionaries(tmp_path: Path, llm: Engine) -> None:
    for rows, message in (({"prompt": "x"}, "iterable of dictionaries"), (["x"], "Row 1 is a str"), ([], "no rows")):
        with pytest.raises(RequestError, match=message):
            run(rows, tmp_path / "out.jsonl", llm)
    with pytest.raises(BatchInputError, match="cannot be read"):
        run(tmp_path / "missing.jsonl", tmp_path / "out.jsonl", llm)
    with pytest.raises(BatchInputError, match="Row 1: A row contains a value that JSON does not have"):
        run([{"prompt": "x", "y": object()}], tmp_path / "out.jsonl", llm)
    circle: dict[str, Any] = {"prompt": "x"}
    circle["y"] = [circle]
    for row in (circle, {"prompt": "x", "y": {float("nan"): 1}}):
        with pytest.raises(BatchInputError, match="Row 1: A row contains itself"):
            run([row], tmp_path / "out.jsonl", llm)


# --- going on


def test_a_torn_tail_is_cut_and_its_row_computed_again(tmp_path: Path, llm: Engine) -> None:
    rows = [{"prompt": f"q{number}"} for number in range(6)]
    out = tmp_path / "out.jsonl"
    run(rows, out, llm)
    whole = out.read_bytes()
    for length in (1, len(whole) // 2, len(whole) - 1):
        out.write_bytes(whole[:length])
        kept = whole[:length].count(b"\n")
        report = run(rows, out, llm)
        assert report.ran == 6 - kept
        assert len(names(out)) == len(set(names(out))) == 6


def test_lines_that_no_batch_wrote_are_removed(tmp_path: Path, llm: Engine) -> None:
    rows = [{"prompt": f"q{number}"} for number in range(4)]
    out = tmp_path / "out.jsonl"
    run(rows, out, llm)
    first, *rest = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"\0" * 40 + b"\n" + first[:30] + b"\n" + b"".join(rest) + rest[0])
    assert run(rows, out, llm).ran == 1
    assert len(names(out)) == len(set(names(out))) == 4


def test_a_changed_row_is_computed_again_and_the_input_may_grow(tmp_path: Path, llm: Engine) -> None:
    out = tmp_path / "out.jsonl"
    run([asked("a", "one"), asked("b", "two"), asked("gone", "x")], out, llm)
    rows = [asked("c", "three"), asked("b", "changed"), asked("a", "one")]
    before = out.read_bytes()
    with pytest.raises(RequestError, match=r"has answers to 1 row that changed in the input since.*\(--force\)"):
        run(rows, out, llm, in_order=True)
    assert out.read_bytes() == before
    report = run(rows, out, llm, in_order=True, force=True)
    assert (report.ran, report.done) == (2, 3)
    said = {row["custom_id"]: row["response"]["body"]["choices"][0]["message"]["content"] for row in read(out)}
    assert said == {
        "c": "The answer to three.",
        "b": "The answer to changed.",
        "a": "The answer to one.",
        "gone": "The answer to x.",
    }
    assert list(said) == ["c", "b", "a", "gone"]


def test_a_failed_row_may_change_and_rows_may_be_added(tmp_path: Path, llm: Engine) -> None:
    out = tmp_path / "out.jsonl"
    run([asked("a", "one"), asked("b", LONG)], out, llm)
    report = run([asked("b", "shorter"), asked("a", "one"), asked("c", "three")], out, llm)
    assert (report.done, report.failed, report.ran) == (3, 0, 2)
    assert names(out) == ["a", "b", "c"]
    assert not (tmp_path / "out.errors.jsonl").exists()


def test_a_number_is_a_name(tmp_path: Path, llm: Engine) -> None:
    """As its text, so the same row with a string for a name is the same row."""
    out = tmp_path / "out.jsonl"
    assert run([{"custom_id": 7, "prompt": "one"}, {"custom_id": 1.5, "prompt": "two"}], out, llm).done == 2
    assert names(out) == ["1.5", "7"]
    assert run([{"custom_id": "7", "prompt": "one"}, {"custom_id": "1.5", "prompt": "two"}], out, llm).ran == 0
    with pytest.raises(BatchInputError, match='line 2: custom_id "7" is used on line 1 already'):
        run([asked("7", "one"), {**asked("x", "two"), "custom_id": 7}], tmp_path / "b.jsonl", llm)


def test_a_success_replaces_the_failure(tmp_path: Path, llm: Engine) -> None:
    out, rows = tmp_path / "out.jsonl", [asked("a", "one"), asked("b", LONG)]
    report = run(rows, out, llm)
    assert (report.done, report.failed) == (1, 1)
    [row] = read(tmp_path / "out.errors.jsonl")
    assert row["response"]["status_code"] == 400
    assert row["response"]["body"]["error"]["code"] == "context_length_exceeded"
    assert run(rows, out, llm).ran == 0
    assert run(rows, out, llm, retry_failed=True).failed == 1
    assert len(read(tmp_path / "out.errors.jsonl")) == 1
    with engine(n_ctx=16_000) as larger:
        report = run(rows, out, larger, retry_failed=True)
    assert (report.done, report.failed, report.ran) == (2, 0, 1)
    assert names(out) == ["a", "b"]
    assert not (tmp_path / "out.errors.jsonl").exists()


def test_another_job_is_refused(tmp_path: Path, llm: Engine) -> None:
    out, rows = tmp_path / "out.jsonl", [{"prompt": "one"}]
    run(rows, out, llm, temperature=0)
    with pytest.raises(RequestError, match="another job; it differs in: options"):
        run(rows, out, llm, temperature=1)
    with pytest.raises(RequestError, match="another job; it differs in: system"):
        run(rows, out, llm, temperature=0, system="Be brief.")
    backend = ScriptedBackend(scripted, vocab=ByteVocab(["<|im_start|>"]))
    with (
        Engine.over(backend, ChatTemplate(None, family="llama-3")) as other,
        pytest.raises(RequestError, match=r"differs in: family, (sampling, )?template"),
    ):
        run(rows, out, other, temperature=0)
    assert run(rows, out, llm, temperature=2, force=True).ran == 1
    assert run(rows, out, llm, temperature=2, force=True).ran == 0
    assert len(read(out)) == 1


def test_a_full_disk_stops_the_batch_and_leaves_whole_lines(
    tmp_path: Path, llm: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"prompt": f"q{number}"} for number in range(40)]
    write_, room = lines.os.write, [2500]

    def limited(fd: int, data: memoryview) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        part = data[: room[0]]
        room[0] -= len(part)
        return write_(fd, part)

    monkeypatch.setattr(lines.os, "write", limited)
    with pytest.raises(DiskFullError, match=r"No space left on device\. Make room, and run the same command"):
        run(rows, tmp_path / "out.jsonl", llm)
    monkeypatch.undo()
    kept = (tmp_path / "out.jsonl").read_bytes()
    assert kept.endswith(b"}\n")
    assert 0 < len(kept) < 2500
    report = run(rows, tmp_path / "out.jsonl", llm)
    assert report.ran == 40 - kept.count(b"\n")
    assert len(names(tmp_path / "out.jsonl")) == 40


def test_a_disk_that_cannot_be_synced_stops_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, progress = lines.os.fsync, list[batch.Report]()

    def failing(fd: int) -> None:
        if progress:
            raise OSError(28, "No space left on device")
        fsync(fd)

    monkeypatch.setattr(job, "_SYNC_SECONDS", 0.01)
    monkeypatch.setattr(job, "_WAKE_SECONDS", 0.01)
    monkeypatch.setattr(lines.os, "fsync", failing)
    rows = [{"prompt": f"q{number}"} for number in range(2000)]
    with engine(delay=0.01) as slow, pytest.raises(DiskFullError):
        batch.run(rows, tmp_path / "out.jsonl", slow, on_progress=progress.append)
    assert progress[-1].done < 1000


def test_a_closed_engine_ends_the_batch_and_fails_no_row(tmp_path: Path) -> None:
    with engine() as llm:
        pass
    with pytest.raises(EngineError, match="closed"):
        run([{"prompt": "one"}], tmp_path / "out.jsonl", llm)
    assert not read(tmp_path / "out.jsonl")
    assert not read(tmp_path / "out.errors.jsonl")


# --- interrupts


@pytest.mark.parametrize("times", [1, 2])
def test_interrupts(tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first lets what runs finish, the second does not; either way the same call goes on."""
    rows = [{"prompt": f"q{number}"} for number in range(30)]
    waits, wait = [0], job.wait

    def interrupted(*given: Any, **options: Any) -> Any:
        waits[0] += 1
        if 3 <= waits[0] < 3 + times:
            raise KeyboardInterrupt
        return wait(*given, **options)

    monkeypatch.setattr(job, "wait", interrupted)
    monkeypatch.setattr(job, "_WAKE_SECONDS", 0.05)
    with engine(delay=0.01) as slow:
        report = run(rows, tmp_path / "out.jsonl", slow, in_flight=4)
    assert report.interrupted
    assert report.left
    assert (report.done >= 4) == (times == 1)
    monkeypatch.undo()
    with engine() as llm:
        again = run(rows, tmp_path / "out.jsonl", llm)
    assert again.done == 30
    assert again.ran == 30 - report.done
    assert len(names(tmp_path / "out.jsonl")) == len(set(names(tmp_path / "out.jsonl"))) == 30


# --- order and load


def test_rows_that_begin_alike_are_computed_together(tmp_path: Path) -> None:
    documents = [f"Document {number}. " + f"{number} lorem ipsum " * 30 for number in range(6)]
    rows = [{"prompt": f"{documents[number % 6]} Question {number}?"} for number in range(48)]
    cached: dict[bool, int] = {}
    for group in (False, True):
        with engine(n_sequences=3, n_ctx=3 * 1200) as llm:
            report = run(rows, tmp_path / f"{group}.jsonl", llm, group=group, in_flight=3)
        assert report.done == 48
        cached[group] = report.cached_tokens
    assert cached[True] > 1.5 * cached[False], cached


def test_rows_in_flight_are_bounded_and_many(tmp_path: Path) -> None:
    under_way, most = [0], [0]
    lock = threading.Lock()

    with engine(n_sequences=4, delay=0.001) as llm:
        choices = llm.choices

        def counted(*given: Any, offline: bool = False, **options: Any) -> Any:
            assert offline, "nobody reads a batch token by token"
            with lock:
                under_way[0] += 1
                most[0] = max(most[0], under_way[0])
            streams = choices(*given, offline=offline, **options)
            result = streams[0].result

            def ended(*_: Any) -> Any:
                try:
                    return result()
                finally:
                    with lock:
                        under_way[0] -= 1

            streams[0].result = ended  # type: ignore[method-assign]
            return streams

        llm.choices = counted  # type: ignore[method-assign]
        run([{"prompt": f"q{number}"} for number in range(60)], tmp_path / "out.jsonl", llm, in_flight=7)
    assert most[0] == 7


def test_a_full_queue_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_WAKE_SECONDS", 0.02)
    backend = ScriptedBackend(scripted, vocab=ByteVocab(["<|im_start|>"]), n_sequences=2, delay=0.001)
    options = LoopOptions(max_waiting=1)
    with Engine.over(backend, ChatTemplate(None, family="qwen3"), options=options) as llm:
        report = run([{"prompt": f"q{number}"} for number in range(20)], tmp_path / "out.jsonl", llm, in_flight=12)
    assert (report.done, report.failed) == (20, 0)


def test_progress_and_the_growing_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads the output while it grows finds whole lines; progress says how far it is."""
    monkeypatch.setattr(job, "_WAKE_SECONDS", 0.02)
    out, told = tmp_path / "out.jsonl", list[batch.Report]()

    def look(report: batch.Report) -> None:
        told.append(report)
        if out.exists():
            for line in out.read_bytes().splitlines(keepends=True):
                assert json.loads(line)

    with engine(delay=0.002) as slow:
        batch.run([{"prompt": f"q{number}"} for number in range(20)], out, slow, on_progress=look)
    assert len(told) >= 3
    assert [report.done for report in told] == sorted(report.done for report in told)
    assert "20 of 20 rows (100 %)" in told[-1].text()


def test_an_output_that_grows_is_synced_every_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not where nothing was added."""
    file, synced = lines.Lines(tmp_path / "x.jsonl"), list[int]()
    monkeypatch.setattr(lines.os, "fsync", synced.append)
    for added in (0, 1, 1):
        if added:
            file.append(b"{}\n")
        file.sync()
    assert len(synced) == 2
    file.close()
    synced.clear()
    monkeypatch.setattr(job, "_SYNC_SECONDS", 0.01)
    monkeypatch.setattr(job, "_WAKE_SECONDS", 0.01)
    with engine(delay=0.01) as slow:
        run([{"prompt": f"q{number}"} for number in range(3)], tmp_path / "out.jsonl", slow, in_flight=1)
    assert len(synced) > 3
