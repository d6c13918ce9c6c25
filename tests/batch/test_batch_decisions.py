"""Rows that are judged: questions about each, answers as columns with their probabilities, nothing generated."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from engine import (
    BatchInputError,
    Calibration,
    ChatTemplate,
    ChoiceQuestion,
    Decision,
    Engine,
    RequestError,
    ScoreQuestion,
    batch,
)
from engine.cli import commands, main
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.types.decisions import ChoiceAnswer

QUESTIONS: dict[str, Any] = {
    "angry": "The customer is angry.",
    "queue": ChoiceQuestion("Which queue?", {"billing": "money", "access": "logging in"}),
    "urgent": ScoreQuestion("How urgent?", ["low", "high"]),
}
COLUMNS = """angry angry_probability queue queue_confidence queue_probabilities urgent urgent_score urgent_confidence
urgent_probabilities error""".split()  # noqa: SIM905
MAILS = [("7", "I want my money back!"), ("8", "I cannot log in."), ("9", "long " * 900), ("10", "Nobody knows.")]
ASKED = [
    {"type": "predicate", "name": "angry", "instructions": "The customer is angry."},
    {
        "type": "choice",
        "name": "queue",
        "instructions": "Which queue?",
        "choices": [{"value": "billing", "description": "money"}, {"value": "access", "description": "logging in"}],
    },
    {"type": "score", "name": "urgent", "instructions": "How urgent?", "levels": [{"label": "low"}, {"label": "high"}]},
]


def said(prompt: str) -> str:
    """What the scripted model goes on with: an answer to the question, and none where nobody knows."""
    begun = prompt.rpartition("</think>\n\n")[2]
    about = "money" in prompt.partition("Which")[0].partition("Statement")[0]
    if "Nobody" in prompt and "queue" in prompt:
        return "?"
    answers = {"angry": "yes" if about else "no", "queue": "billing" if about else "access", "urgent": "high"}
    answer = next(each for name, each in answers.items() if name in prompt.rpartition("user\n")[2])
    return answer.removeprefix(begun) if answer.startswith(begun) else "?"


def engine(reply: Any = said, **options: Any) -> Engine:
    backend = ScriptedBackend(reply, vocab=ByteVocab(["<|im_start|>"]), n_sequences=2, n_ctx=1024, **options)
    return Engine.over(backend, ChatTemplate(None, family="qwen3"))


@pytest.fixture
def llm() -> Iterator[Engine]:
    with engine() as made:
        yield made


@pytest.fixture
def mails(tmp_path: Path) -> Path:
    return write(tmp_path / "mails.csv", ["id", "text"], *map(list, MAILS))


def write(path: Path, *rows: list[str]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def run(rows: Any, out: Path, llm: Any, **options: Any) -> batch.Report:
    given: dict[str, Any] = {"prompt": "{text}", "decide": QUESTIONS, **options}
    return batch.run(rows, out, llm, quiet=True, **given)


def test_answers_are_columns_with_their_probabilities(tmp_path: Path, llm: Engine, mails: Path) -> None:
    before = llm.metrics.prompt_tokens
    report = run(mails, tmp_path / "out.csv", llm)
    assert (report.done, report.failed, report.completion_tokens) == (3, 1, 0)
    assert report.prompt_tokens == llm.metrics.prompt_tokens - before > 0
    first, second, failed, unknown = read(tmp_path / "out.csv")
    assert list(first) == ["id", "text", *COLUMNS]
    assert [first[name] for name in COLUMNS] == [
        "true", "1.0", "billing", "1.0", '{"billing": 1.0, "access": 0.0}', "high", "1.0", "1.0",
        '{"low": 0.0, "high": 1.0}', "",
    ]  # fmt: skip
    assert (second["angry"], second["angry_probability"], second["queue"]) == ("false", "0.0", "access")
    assert failed["error"].startswith("ContextOverflowError: ")
    assert {failed[name] for name in COLUMNS[:-1]} == {""}
    assert (unknown["queue"], unknown["queue_probabilities"], unknown["urgent"]) == ("", "", "high")
    assert unknown["error"].startswith("queue: The model gives all options together")


def test_lines_have_the_whole_answers_and_failed_rows_none(tmp_path: Path, llm: Engine, mails: Path) -> None:
    assert run(mails, tmp_path / "out.jsonl", llm, in_order=True).failed == 1
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    answers = lines[0]["decision"]["answers"]
    assert answers["angry"] == {"type": "predicate", "probability": 1.0, "value": True, "mass": 1.0}
    assert answers["queue"]["probabilities"][0] == {"value": "billing", "probability": 1.0}
    assert (answers["urgent"]["value"], answers["urgent"]["score"]) == ("high", 1.0)
    assert lines[0]["decision"]["usage"]["output_tokens"] == 0
    assert lines[2]["decision"]["answers"]["queue"]["type"] == "refusal"
    assert "completion" not in lines[0]
    (failed,) = map(json.loads, (tmp_path / "out.errors.jsonl").read_text(encoding="utf-8").splitlines())
    assert (failed["decision"], failed["error"]["code"]) == (None, "ContextOverflowError")


def test_frames_and_parquet_have_typed_columns(tmp_path: Path, llm: Engine) -> None:
    frames: Any = pytest.importorskip("pandas")
    mails = frames.DataFrame({"text": [text for _, text in MAILS[:2]]}, index=["a", "b"])
    found: Any = batch.run(mails, llm=llm, prompt="{text}", decide=QUESTIONS, quiet=True)
    assert (list(found.index), list(found.angry), list(found.urgent_score)) == (["a", "b"], [True, False], [1.0, 1.0])
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    run(mails, tmp_path / "out.parquet", llm)
    kinds = {field.name: str(field.type) for field in parquet.read_table(tmp_path / "out.parquet").schema}
    assert (kinds["angry"], kinds["angry_probability"], kinds["queue"]) == ("bool", "double", "string")


class Severity(IntEnum):
    LOW = 1
    HIGH = 3


class Mail(BaseModel):
    angry: bool
    queue: Literal["billing", "access"]
    urgent: Severity


def test_types_and_odd_options_are_columns_too(tmp_path: Path, llm: Engine, mails: Path) -> None:
    run(mails, tmp_path / "out.csv", llm, decide=Mail)
    assert list(read(tmp_path / "out.csv")[0])[2:] == COLUMNS
    assert [row["urgent"] for row in read(tmp_path / "out.csv")][:2] == ["high", "high"]
    alike = {"angry": ChoiceQuestion("Is anybody angry?", [True, "true"])}

    def reply(prompt: str) -> str:
        return "true (truth value)".removeprefix(prompt.rpartition("</think>\n\n")[2])

    with engine(reply) as odd:
        run(mails, tmp_path / "alike.csv", odd, decide=alike)
    first = read(tmp_path / "alike.csv")[0]
    assert (first["angry"], first["angry_probabilities"]) == ("true", '{"true (truth value)": 1.0, "true": 0.0}')


def test_a_calibration_changes_the_columns(tmp_path: Path, llm: Engine, mails: Path) -> None:
    fit = fitted("queue", ("billing", "access"), "access")
    run(mails, tmp_path / "out.csv", llm, calibration=fit)
    assert float(read(tmp_path / "out.csv")[0]["queue_confidence"]) < 1.0
    with pytest.raises(RequestError, match="another job"):
        run(mails, tmp_path / "out.csv", llm)


def fitted(name: str, options: tuple[str, str], right: str) -> Calibration:
    rows = tuple((option, 0.6 if option == options[0] else 0.4) for option in options)
    decided: Any = [Decision({name: ChoiceAnswer(options[0], 0.6, rows)}, None)] * 12
    fit = Calibration.fit(decided, [{name: right}] * 12)
    # A script is certain of each token; only a high temperature makes its answers less so.
    return Calibration(questions={name: fit.questions[name].model_copy(update={"temperature": 30.0})})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.5}, "temperature= says nothing"),
        ({"max_tokens": 5}, "max_tokens= says nothing"),
        ({"schema": {"type": "object"}}, "response_format= says nothing"),
        ({"tools": [run]}, "tools= says nothing"),
        ({"decide": None, "calibration": fitted("queue", ("billing", "access"), "access")}, "give them with decide="),
        ({"decide": 3}, "is no question"),
        ({"calibration": "x.json"}, "Calibration.load"),
        ({"calibration": fitted("other", ("billing", "access"), "access")}, "does not ask so"),
        ({"calibration": fitted("queue", ("billing", "else"), "else")}, "does not ask so"),
        ({"decide": {"a": "It is so.", "a_probability": "It is so."}}, 'would write a column "a_probability"'),
        ({"decide": {"error": "It is so."}}, 'would write a column "error"'),
        ({"decide": {"text": "It is so."}}, 'writes a column "text" of its own'),
    ],
)
def test_what_cannot_be_judged_is_refused_before_anything_is_read(
    tmp_path: Path, llm: Engine, mails: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError) as error:
        run(mails, tmp_path / "out.csv", llm, **options)
    assert message in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["mails.csv"]
    assert llm.metrics.prompt_tokens == 0


def test_rows_of_openai_s_form_and_a_column_called_decision_are_refused(tmp_path: Path, llm: Engine) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    rows: list[dict[str, Any]] = [{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}]
    with pytest.raises(BatchInputError, match="this one has OpenAI's form"):
        run(rows, tmp_path / "out.jsonl", llm, prompt=None)
    with pytest.raises(BatchInputError, match='writes a column "decision" of its own'):
        run([{"prompt": "x", "decision": 1}], tmp_path / "out.jsonl", llm, prompt=None)


def test_other_questions_are_another_job(tmp_path: Path, llm: Engine, mails: Path) -> None:
    run(mails, tmp_path / "out.csv", llm)
    other = {**QUESTIONS, "urgent": ScoreQuestion("How urgent is it?", ["low", "high"])}
    for questions in (other, None):
        with pytest.raises(RequestError, match="another job; it differs in: options"):
            run(mails, tmp_path / "out.csv", llm, decide=questions)


KILLED = """
import os, signal, sys
from pathlib import Path
from engine import batch
from test_batch_decisions import QUESTIONS, engine, said
count = [0]
def reply(prompt):
    count[0] += 1
    return os.kill(os.getpid(), signal.SIGKILL) if count[0] == 60 else said(prompt)
with engine(reply) as llm:
    rows = [{"prompt": f"Mail {n}: my money"} for n in range(24)]
    batch.run(rows, sys.argv[1], llm, quiet=True, decide=QUESTIONS)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_killed_batch_goes_on(tmp_path: Path, llm: Engine) -> None:
    rows = [{"prompt": f"Mail {n}: my money"} for n in range(24)]
    out = tmp_path / "out.csv"
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(out)],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    there = (tmp_path / "out.csv.jsonl").read_bytes().count(b"\n")
    assert 0 < there < 24
    assert run(rows, out, llm, prompt=None).ran == 24 - there
    run(rows, tmp_path / "whole.csv", llm, prompt=None)
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_an_interrupt_stops_what_is_read_and_writes_nothing_of_it(tmp_path: Path) -> None:
    out, rows = tmp_path / "out.jsonl", [{"prompt": f"Mail {n}: my money"} for n in range(40)]
    asked: dict[str, Any] = {f"q{n}": f"The customer is angry, {n}." for n in range(60)}
    interrupts = iter([True, True])

    def interrupt(_: batch.Report) -> None:
        if llm.metrics.prompt_tokens and next(interrupts, False):
            raise KeyboardInterrupt

    with engine(delay=0.05) as llm:
        began = time.monotonic()
        report = batch.run(rows, out, llm, decide=asked, on_progress=interrupt)
        assert time.monotonic() - began < 20
        assert report.interrupted
        assert report.left > 30
        assert llm.metrics.running == 0
        for line in out.read_text(encoding="utf-8").splitlines():
            assert len(json.loads(line)["decision"]["answers"]) == 60


# --- the command line

TWICE = '{"type": "predicate", "name": "a", "instructions": "x"}'


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: object, **__: Any) -> Engine:
        return engine()

    monkeypatch.setattr(commands, "load", load)


@pytest.mark.usefixtures("loaded")
def test_the_command_takes_questions_as_the_client_does(tmp_path: Path, mails: Path) -> None:
    (tmp_path / "questions.json").write_text(json.dumps(ASKED))
    fitted("queue", ("billing", "access"), "access").save(tmp_path / "fit.json")
    command = ["batch", str(mails), "--prompt-column", "text", "--decide", str(tmp_path / "questions.json"), "--quiet"]
    assert main([*command, "-o", str(tmp_path / "out.csv")]) == 3
    rows = read(tmp_path / "out.csv")
    assert [rows[0][name] for name in ("angry", "queue", "urgent")] == ["true", "billing", "high"]
    calibrated = [*command, "-o", str(tmp_path / "fit.csv"), "--calibration", str(tmp_path / "fit.json")]
    assert main(calibrated) == 3
    assert float(read(tmp_path / "fit.csv")[0]["queue_confidence"]) < 1.0


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "has no questions"),
        ("{}", "they are a list"),
        ('[{"type": "vote", "name": "a"}]', "[0].type must be"),
        ("[3]", "[0]"),
        ('[{"type": "predicate", "instructions": "x"}]', "[0].name is None"),
        (f"[{TWICE}, {TWICE}]", "[1].name is 'a'"),
        ("[]", "1 to 400 questions"),
    ],
)
def test_a_file_of_questions_that_is_none_is_refused_by_its_place(
    tmp_path: Path, mails: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    (tmp_path / "questions.json").write_text(content)
    command = ["batch", str(mails), "--prompt-column", "text", "--decide", str(tmp_path / "questions.json")]
    assert main([*command, "-o", str(tmp_path / "out.csv"), "--quiet"]) in (1, 2)
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()
