"""Batches of tables: CSV, Parquet and frames in and out, prompts made of columns, fields of a schema as columns."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from engine import BatchInputError, ChatTemplate, Engine, EngineError, RequestError, batch
from engine.batch.column_prompt import column_prompt
from engine.batch.rows import Defaults, parse_row
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.types.answer_formats import Choice

LONG = "much " * 2000  # more than the context holds


def scripted(prompt: str) -> str:
    question = prompt.rsplit("user\n", 1)[-1].split("<|im_end|>", maxsplit=1)[0]
    return f"<think>\nI know.\n</think>\n\nSo: {question}"


def engine(reply: Callable[[str], str] = scripted, **options: Any) -> Engine:
    backend = ScriptedBackend(reply, vocab=ByteVocab(["<|im_start|>"]), n_sequences=2, **options)
    return Engine.over(backend, ChatTemplate(None, family="qwen3"))


@pytest.fixture
def llm() -> Iterator[Engine]:
    with engine() as made:
        yield made


def run(rows: Any, out: Path, llm: Any, **options: Any) -> batch.Report:
    return batch.run(rows, out, llm, quiet=True, **options)


def write(path: Path, *rows: list[str]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows(rows)
    return path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",", strict=True))


# --- CSV


@pytest.mark.parametrize("ending", ["csv", "tsv", "CSV"])
def test_a_table_comes_back_with_its_columns_and_in_its_order(tmp_path: Path, llm: Engine, ending: str) -> None:
    """Whatever a value holds; a failed row has its error, and nothing is changed for the sake of a spreadsheet."""
    odd = ['a "b", c', "two\nlines\r\nand\rmore", "tab\there", "=1+1", "", " ü\u2028 ", "{id} {{x}}"]
    rows = [[str(number), text] for number, text in enumerate([*odd, LONG], 7)]
    source = write(tmp_path / f"in.{ending.lower()}", ["id", "text"], *rows)
    out = tmp_path / f"out.{ending}"
    report = run(source, out, llm, prompt="Say {text}!")
    assert (report.done, report.failed) == (len(odd), 1)
    found = read(out.rename(tmp_path / f"read.{ending.lower()}"))
    assert list(found[0]) == ["id", "text", "answer", "finish_reason", "error"]
    assert [[row["id"], row["text"]] for row in found] == rows
    assert [row["answer"] for row in found] == [*(f"So: Say {text}!" for text in odd), ""]
    assert [row["finish_reason"] for row in found] == ["stop"] * len(odd) + [""]
    assert [row["error"][:22] for row in found] == [""] * len(odd) + ["ContextOverflowError: "]


@pytest.mark.parametrize("padding", [0, 30])
def test_each_row_has_its_own_answer_though_the_lines_were_sorted(tmp_path: Path, llm: Engine, padding: int) -> None:
    """Also where all lines have one length, so that each place is one of a line before and after."""
    chance = Random(padding)
    texts = [f"{chance.randrange(10**6):06}" + "x" * chance.randint(0, padding) for _ in range(40)]
    rows = [[f"{number:02}", text] for number, text in enumerate(texts)]
    for number, options in enumerate(({}, {"in_order": True}, {"in_order": True, "force": True})):
        out = tmp_path / f"{min(number, 1)}.csv"
        run(write(tmp_path / "in.csv", ["id", "text"], *rows), out, llm, prompt="{text}", **options)
        assert [row["answer"] for row in read(out)] == [f"So: {text}" for text in texts]


def test_cells_that_a_spreadsheet_computes_are_quoted_if_asked(tmp_path: Path) -> None:
    begins = ["=HYPERLINK(1)", "+1+1", "-cmd", "@SUM(A1)", "\t=1", "\r=1", "\n=1"]
    begins += ["\uff1d1", "\uff0b1", "\uff0dx", "\uff20S"]
    stay = ["a=1", "'=1", "-5", "+3.25e-7", "", " =1", "x"]
    source = write(tmp_path / "in.csv", ["id", "text"], *([str(n), text] for n, text in enumerate([*begins, *stay])))
    for quotes, quoted in ((True, [f"'{text}" for text in begins]), (False, begins)):
        out = tmp_path / f"{quotes}.csv"
        with engine(lambda prompt: f"={prompt[:2]}") as llm:
            assert run(source, out, llm, prompt="Say {text}!", quote_formulas=quotes).done == len(begins) + len(stay)
        assert [row["text"] for row in read(out)] == [*quoted, *stay]
        assert {row["answer"][:2] for row in read(out)} == ({"'="} if quotes else {"=<"})


@pytest.mark.parametrize("ending", ["xlsx", "XLSX", "xls", "ods", "feather"])
def test_a_spreadsheet_s_own_file_is_refused(tmp_path: Path, llm: Engine, ending: str) -> None:
    with pytest.raises(RequestError, match=r"Name a \.csv, \.parquet or \.jsonl file"):
        run([{"id": "1", "prompt": "Hi"}], tmp_path / f"out.{ending}", llm)
    assert not list(tmp_path.iterdir())


def test_lines_of_json_become_a_table(tmp_path: Path, llm: Engine) -> None:
    """Columns as they come, values that are no texts as JSON; a number may name a row; bad rows are rows."""
    rows = [{"custom_id": 7, "prompt": "a"}, {"prompt": "b", "tags": [1, None]}, {"prompt": 5, "ok": True}]
    report = run(rows, tmp_path / "out.csv", llm, skip_bad=True)
    assert (report.done, report.failed) == (2, 1)
    one, two, bad = read(tmp_path / "out.csv")
    assert list(one) == ["custom_id", "prompt", "tags", "ok", "answer", "finish_reason", "error"]
    assert (one["custom_id"], one["answer"], two["tags"]) == ("7", "So: a", "[1, null]")
    assert (bad["prompt"], bad["ok"]) == ("5", "true")
    assert bad["error"].startswith('invalid_row: "prompt" is a number')


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; its first line must name the columns"),
        (b"prompt,prompt\na,b\n", "two columns called 'prompt'"),
        (b"prompt,x\na,b\nc\n", "line 3: 1 values, but the first line names 2 columns"),
        (b"prompt,x\na,b,c\n", "line 2: 3 values"),
        (b'prompt\n"a', "line 3 cannot be read"),
        (b"prompt\n\xff\n", "is not UTF-8 text"),
        (b"prompt\n", "has no rows"),
        (b"text\na\n", 'no column "prompt"; the columns are text.*--prompt-column'),
        (b"prompt,error\na,b\n", 'writes a column "error" of its own; rename yours'),
        (b"prompt,answer\na,b\n", 'writes a column "answer" of its own; rename yours'),
    ],
)
def test_a_csv_file_that_cannot_be_run(tmp_path: Path, llm: Engine, content: bytes, message: str) -> None:
    (tmp_path / "in.csv").write_bytes(content)
    with pytest.raises(RequestError, match=message):
        run(tmp_path / "in.csv", tmp_path / "out.csv", llm, skip_bad=True)
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_long_values_and_a_mark_at_the_beginning(tmp_path: Path, llm: Engine) -> None:
    """Longer than the 131,072 characters that the library takes by itself, whose limit is as before afterwards."""
    limit, text = csv.field_size_limit(), "x" * 200_000
    (tmp_path / "in.csv").write_text(f"\ufeffprompt,text\na,{text}\n", encoding="utf-8")
    run(tmp_path / "in.csv", tmp_path / "out.csv", llm)
    assert csv.field_size_limit() == limit
    csv.field_size_limit(300_000)
    try:
        assert [(row["prompt"], row["text"]) for row in read(tmp_path / "out.csv")] == [("a", text)]
    finally:
        csv.field_size_limit(limit)


# --- prompts


def asked(row: dict[str, Any], **options: Any) -> str:
    """The prompt of a row, which is all that its turn has."""
    defaults = Defaults({}, prompt=column_prompt(options.get("prompt"), options.get("prompt_column")))
    [message] = parse_row(json.dumps(row).encode(), 1, defaults).request.messages  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
    assert message.role == "user"  # pyright: ignore[reportUnknownMemberType]
    return str(message.content)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def test_prompts_are_made_of_columns() -> None:
    row = {"text": "{id} <|im_end|> {{", "id": 7, "tags": ["a"], "ok": True, "a b": "c", "url": "u", "{x}": "y"}
    assert asked(row, prompt="{id}: {text}|{tags}{ok}{a b}") == '7: {id} <|im_end|> {{|["a"]truec'
    assert asked(row, prompt='{{"id": {id}}} {{{{{{{id}}}') == '{"id": 7} {{{7}'
    assert asked(row, prompt_column="text") == row["text"]
    assert asked(row, prompt_column="{x}") == "y"
    assert asked({**row, "prompt": "no", "messages": 3}, prompt="{url}") == "u"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompt": "a {id"}, r"a single \{ at character 3; write \{\{"),
        ({"prompt": "a} {id}"}, r"a single \} at character 2; write \}\}"),
        ({"prompt": "{{id}}"}, "names no column"),
        ({"prompt": "{idd}"}, "names a column 'idd'; the columns are id, text. Did you mean 'id'?"),
        ({"prompt": "{text.upper}"}, "names a column 'text.upper'"),
        ({"prompt_column": "none"}, "names a column 'none'"),
        ({"prompt": "{text}"}, r'line 2: "text" has no value in this row'),
        ({"prompt": "{id}", "prompt_column": "id"}, "Both prompt= and prompt_column="),
        ({"prompt": 7}, "prompt=7 is not valid"),
    ],
)
def test_prompts_that_cannot_be_made(tmp_path: Path, llm: Engine, options: dict[str, Any], message: str) -> None:
    rows = [{"id": "1", "text": "a"}, {"id": "2", "text": None}]
    with pytest.raises(RequestError, match=message):
        run(rows, tmp_path / "out.jsonl", llm, **options)


def test_another_prompt_is_another_job(tmp_path: Path, llm: Engine) -> None:
    rows, out = [{"prompt": "a", "text": "b"}], tmp_path / "out.jsonl"
    assert run(rows, out, llm, prompt="{text}").ran == 1
    assert run(rows, out, llm, prompt_column="text").ran == 0
    for options in ({"prompt": "{text}!"}, {"prompt": "{prompt}"}, {}):
        with pytest.raises(RequestError, match="another job; it differs in: prompt"):
            run(rows, out, llm, **options)


# --- schemas


class Order(BaseModel):
    """What the scripted model answers."""

    answer: str
    count: int
    tags: list[str] = []
    kind: Literal["a", "b"] | None = None


def written(prompt: str, text: str) -> str:
    """What is still missing of a reply: a script is asked again behind what the grammar wrote itself."""
    return f"<think>\nI know.\n</think>\n\n{text}"[len(prompt.rsplit("assistant\n", 1)[-1]) :]


def ordered(prompt: str) -> str:
    number = prompt.rsplit("number ", 1)[-1][0]
    return written(prompt, f'{{"answer":"yes","count":{number},"tags":["x","y"],"kind":null}}')


def counted(prompt: str) -> str:
    number = prompt.rsplit("number ", 1)[-1][0]
    return written(prompt, f'{{"answer":"yes","count":{number}}}')


def test_fields_of_a_schema_are_columns(tmp_path: Path) -> None:
    """Scalars as they are, the rest as JSON; an answer that was cut off says so in `error`."""
    schemas: list[Any] = [Order, Order.model_json_schema()]
    for number, schema in enumerate(schemas):
        with engine(ordered) as llm:
            out = tmp_path / f"{number}.csv"
            run([{"prompt": f"number {count}"} for count in (3, 4)], out, llm, schema=schema)
            one, two = read(out)
            names = ["prompt", "answer", "parsed_answer", "count", "tags", "kind", "finish_reason", "error"]
            assert list(one) == names
            assert (one["parsed_answer"], one["count"], one["tags"], one["kind"]) == ("yes", "3", '["x", "y"]', "")
            assert json.loads(two["answer"])["count"] == 4
            run([{"prompt": "number 5"}], tmp_path / f"cut {number}.csv", llm, schema=schema, max_tokens=30)
    for number in (0, 1):
        [cut] = read(tmp_path / f"cut {number}.csv")
        assert (cut["finish_reason"], cut["count"], bool(cut["error"])) == ("length", "", True)


def test_what_the_engine_wrote_to_close_an_answer_is_no_cell(tmp_path: Path) -> None:
    with engine(lambda prompt: written(prompt, '{"answer": "' + "yes " * 60), rewrite=True) as llm:
        run([{"prompt": "a"}], tmp_path / "out.csv", llm, schema=Order, max_tokens=60)
    [row] = read(tmp_path / "out.csv")
    assert json.loads(row["answer"])["count"] == 0
    assert row["parsed_answer"].startswith("yes yes")
    assert (row["count"], row["finish_reason"]) == ("", "length")
    assert "Not the model's: count" in row["error"]


def test_an_answer_over_several_lines_is_one_line_of_the_table(tmp_path: Path) -> None:
    with engine(lambda prompt: written(prompt, '{\n  "answer": "é\\n",\n  "count": 3\n}')) as llm:
        run([{"prompt": "a"}], tmp_path / "out.csv", llm, schema=Order)
    [row] = read(tmp_path / "out.csv")
    assert (row["answer"], row["parsed_answer"]) == ('{"answer": "é\\n", "count": 3}', "é\n")


@pytest.mark.parametrize(
    ("schema", "text", "columns"),
    [
        (list[int], "[1,2]", {"parsed": "[1, 2]"}),
        (int, "12", {"parsed": "12"}),
        ({"type": "object"}, '{"a":1}', {"parsed": '{"a": 1}'}),
        (Choice(["yes", "no"]), "yes", {}),
    ],
)
def test_other_forms_are_one_column(tmp_path: Path, schema: Any, text: str, columns: dict[str, str]) -> None:
    with engine(lambda prompt: written(prompt, text)) as llm:
        run([{"prompt": "a"}], tmp_path / "out.csv", llm, schema=schema)
    [row] = read(tmp_path / "out.csv")
    assert row == {"prompt": "a", "answer": text, **columns, "finish_reason": "stop", "error": ""}


def test_a_column_of_the_schema_s_name_and_two_schemas(tmp_path: Path, llm: Engine) -> None:
    source = write(tmp_path / "in.csv", ["prompt", "count"], ["a", "3"])
    with pytest.raises(BatchInputError, match='writes a column "count" of its own'):
        run(source, tmp_path / "out.csv", llm, schema=Order)
    with pytest.raises(RequestError, match="leave one out"):
        run(source, tmp_path / "out.csv", llm, schema=Order, response_format=Order)
    row: dict[str, Any] = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions"}
    row["body"] = {"messages": [{"role": "user", "content": "a"}]}
    with pytest.raises(BatchInputError, match=r"OpenAI's rows, which make no table; name a \.jsonl output"):
        run([row], tmp_path / "out.csv", llm)


def test_calls_are_a_column_where_there_are_tools(tmp_path: Path) -> None:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
    reply = '<think>\nI know.\n</think>\n\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    with engine(lambda _: reply) as llm:
        run([{"prompt": "a"}], tmp_path / "out.csv", llm, tools=[tool])
    [row] = read(tmp_path / "out.csv")
    assert row["finish_reason"] == "tool_calls"
    assert json.loads(row["tool_calls"])[0]["function"]["name"] == "f"


def test_what_a_batch_took() -> None:
    report = batch.Report(9, 9, 0, ran=9, prompt_tokens=12345, cached_tokens=2000, completion_tokens=600, seconds=12.04)
    assert report.cost() == "12,345 tokens in (2,000 of them cached), 600 out, 12.0 s, 50 tokens/s"
    assert batch.Report(9, 9, 0, ran=9, prompt_tokens=90).cost() == "90 tokens in, 0 out, 0.0 s, 0 tokens/s"


# --- whose file it is


ROWS = [{"custom_id": f"q{number}", "prompt": f"{number}"} for number in range(4)]


def here(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_table_that_this_batch_did_not_write_stays(tmp_path: Path, llm: Engine) -> None:
    """Anybody's file, another batch's table, the batch's own that somebody has edited; also with `force`."""
    out = tmp_path / "out.csv"
    run(ROWS, tmp_path / "other.csv", llm)
    mine = b"mine, not a batch's\n"
    for content in (mine, (tmp_path / "other.csv").read_bytes(), b""):
        out.write_bytes(content)
        before = here(tmp_path)
        for force in (False, True):
            with pytest.raises(RequestError, match="exists already, but it is not what this batch wrote there"):
                run(ROWS, out, llm, force=force)
            assert here(tmp_path) == before
    out.unlink()
    run(ROWS, out, llm)
    out.write_bytes(out.read_bytes() + mine)
    before = here(tmp_path)
    with pytest.raises(RequestError, match="is not what this batch wrote there"):
        run([*ROWS, {"prompt": "more"}], out, llm)
    assert here(tmp_path) == before


def test_a_table_put_there_meanwhile_stays(tmp_path: Path, llm: Engine) -> None:
    """The answers are in the lines beside it, and the next run takes them."""
    out = tmp_path / "out.csv"

    def put(_: batch.Report) -> None:
        if not (tmp_path / "put").exists():
            (tmp_path / "put").touch()
            out.write_text("mine")

    with engine(delay=0.05) as slow, pytest.raises(RequestError, match="is not what this batch wrote there"):
        run(ROWS, out, slow, on_progress=put)
    assert out.read_text() == "mine"
    out.unlink()
    assert run(ROWS, out, llm).ran == 0
    assert [row["custom_id"] for row in read(out)] == [row["custom_id"] for row in ROWS]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_table_grows_with_its_input_and_comes_back_if_deleted(tmp_path: Path, llm: Engine) -> None:
    out, more = tmp_path / "out.csv", [*ROWS, {"custom_id": "new", "prompt": "new"}]
    run(ROWS, out, llm)
    out.chmod(0o640)
    assert run(more, out, llm).ran == 1
    assert [row["answer"] for row in read(out)] == [f"So: {row['prompt']}" for row in more]
    assert out.stat().st_mode & 0o777 == 0o640
    whole = out.read_bytes()
    out.unlink()
    assert run(more, out, llm).ran == 0
    assert out.read_bytes() == whole
    assert run(more, tmp_path / "out.csv.jsonl", llm).ran == 0, "the lines are an output of their own, too"
    assert run(more, out, llm).ran == 0, "and the table is still known"


@pytest.mark.skipif(sys.platform == "win32", reason="links")
@pytest.mark.parametrize(
    ("role", "link"),
    [
        *((role, link) for role in ("input", "errors") for link in ("same", "symlink", "hard")),
        ("output", "hard"),
        ("manifest", "hard"),
    ],
)
def test_a_table_in_two_roles_is_refused(tmp_path: Path, llm: Engine, role: str, link: str) -> None:
    """Before anything is opened, by whatever name, and also with `force`."""
    source, out = write(tmp_path / "in.csv", ["prompt"], ["a"]), tmp_path / "out.csv"
    manifest = out.with_name("out.csv.jsonl.manifest.json")
    other = {"input": source, "output": out.with_name("out.csv.jsonl"), "manifest": manifest}.get(role, out)
    if role == "errors" and link != "same":
        other = tmp_path / "e.csv"
    if role != "input" and link != "same":
        other.touch()
    if link == "same":
        out = other
    else:
        (out.symlink_to if link == "symlink" else out.hardlink_to)(other)
    before = here(tmp_path)
    with pytest.raises(RequestError, match="is the file of both the"):
        run(source, out, llm, errors=other if role == "errors" else None, force=True)
    assert here(tmp_path) == before


@pytest.mark.skipif(sys.platform == "win32", reason="links")
def test_a_link_to_a_table_stays_a_link(tmp_path: Path, llm: Engine) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "out.csv").symlink_to("folder/real.csv")
    run(ROWS, tmp_path / "out.csv", llm)
    assert (tmp_path / "out.csv").is_symlink()
    assert len(read(tmp_path / "folder" / "real.csv")) == len(ROWS)
    assert run(ROWS, tmp_path / "folder" / "real.csv", llm).ran == 0


def test_a_temporary_table_of_a_dead_process_is_removed(tmp_path: Path, llm: Engine) -> None:
    out, manifest = tmp_path / "out.csv", tmp_path / "out.csv.jsonl.manifest.json"
    run(ROWS, out, llm)
    for name, stays in ((".out.csv.abc", False), ("precious", True), (".other.csv.abc", True)):
        (tmp_path / name).write_text("half")
        told = json.loads(manifest.read_bytes())
        manifest.write_text(json.dumps({**told, "files": {**told["files"], "temporary": name}}))
        run(ROWS, out, llm)
        assert (tmp_path / name).exists() == stays


KILLED = """
import os, signal, sys
from pathlib import Path
import engine.batch.files as files, engine.batch.table as table, engine.support.output_file as output_file
from engine import batch
from test_tables import ROWS, engine

moment, out, more = sys.argv[1], Path(sys.argv[2]), sys.argv[3] == "more"
count = [0]

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if moment == "row":
    def reply(prompt):
        count[0] += 1
        return die() if count[0] == 3 else "Yes."
else:
    reply = lambda _: "Yes."
if moment == "content":
    write = table.Table.write
    table.Table.write = lambda self, file, *rest, **quoting: (write(self, file, *rest, **quoting), file.flush(), die())
if moment in ("replace", "replaced"):
    replace = Path.replace
    def dying(self, target):
        is_table = Path(target).name == out.name
        if moment == "replaced" or not is_table:
            replace(self, target)
        if is_table:
            die()
    Path.replace = dying
with engine(reply, delay=0.02) as llm:
    batch.run(ROWS + [{"custom_id": "new", "prompt": "new"}] * more, out, llm, quiet=True, in_flight=1)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
@pytest.mark.parametrize("before", ["none", "table"])
@pytest.mark.parametrize("moment", ["row", "content", "replace", "replaced"])
def test_a_killed_batch_goes_on_to_the_same_table(tmp_path: Path, moment: str, before: str) -> None:
    """While rows are computed, before the table is there, and right before and after it takes its place."""
    out = tmp_path / "out.csv"
    rows = ROWS if before == "none" else [*ROWS, {"custom_id": "new", "prompt": "new"}]
    with engine(lambda _: "Yes.") as llm:
        if before == "table":
            run(ROWS, out, llm)
        old = out.read_bytes() if out.exists() else None
        paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2]), *sys.path])
        arguments = [moment if before == "none" or moment != "row" else "replace", str(out), rows is ROWS or "more"]
        done = subprocess.run(
            [sys.executable, "-c", KILLED, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr
        if moment != "replaced":
            assert (out.read_bytes() if out.exists() else None) == old, "the old table, or none, and never half of one"
        run(rows, out, llm)
        run(rows, tmp_path / "whole.csv", llm)
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


# --- Parquet and frames


def test_parquet_keeps_its_types(tmp_path: Path, llm: Engine) -> None:
    pyarrow: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    import datetime

    days = [datetime.date(2026, 1, number) for number in range(1, 5)]
    table = pyarrow.table({"text": list("abcd"), "day": days, "tags": [[1], [], None, [2, 3]]})
    parquet.write_table(table, tmp_path / "in.parquet")
    with engine(counted) as llm:
        run(tmp_path / "in.parquet", tmp_path / "out.parquet", llm, prompt="number 3{text}", schema=_Count)
    found = parquet.read_table(tmp_path / "out.parquet")
    assert found.select(["text", "day", "tags"]).equals(table)
    assert found["count"].to_pylist() == [3, 3, 3, 3]
    assert pyarrow.types.is_integer(found.schema.field("count").type)
    assert pyarrow.types.is_string(found.schema.field("error").type)
    with engine() as llm:
        rows = [
            {"prompt": "a", "n": 1, "mixed": 1},
            {"prompt": "b", "n": 2.5, "mixed": "x"},
            {"prompt": "c", "n": None},
        ]
        run(rows, tmp_path / "lines.parquet", llm)
        lines = parquet.read_table(tmp_path / "lines.parquet")
        assert (lines["n"].to_pylist(), lines["mixed"].to_pylist()) == ([1.0, 2.5, None], ["1", "x", None])
        assert lines["answer"].to_pylist() == ["So: a", "So: b", "So: c"]


class _Count(BaseModel):
    answer: str
    count: int


def test_without_pyarrow_nothing_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llm: Engine) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BatchInputError, match=r"out\.parquet needs pyarrow: pip install '\.\[parquet\]'"):
        run(ROWS, tmp_path / "out.parquet", llm)
    assert list(tmp_path.iterdir()) == []


def framed(kind: str, columns: dict[str, list[Any]]) -> Any:
    if kind == "pyarrow":
        return pytest.importorskip("pyarrow").table(columns)
    return pytest.importorskip(kind).DataFrame(columns)


def columns_of(frame: Any) -> dict[str, list[Any]]:
    return frame.to_pydict() if hasattr(frame, "to_pydict") else {name: list(frame[name]) for name in frame.columns}


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_a_frame_comes_back_as_a_frame(kind: str) -> None:
    """Of the same library, its rows in their order; more than are read at once, and an error beside its row."""
    texts = [f"number {number % 7}" for number in range(600)]
    texts[300] = f"number 1 {LONG}"
    frame = framed(kind, {"text": texts, "place": list(range(600))})
    with engine(counted) as llm:
        out = batch.run(frame, llm=llm, prompt="Answer {text}", schema=_Count, quiet=True)
    assert type(out) is type(frame)
    found = columns_of(out)
    assert list(found) == ["text", "place", "answer", "parsed_answer", "count", "finish_reason", "error"]
    assert (found["text"], found["place"]) == (texts, list(range(600)))
    wrong = [at for at, count in enumerate(found["count"]) if count != at % 7]
    assert wrong == [300]
    assert [at for at, error in enumerate(found["error"]) if isinstance(error, str)] == [300]
    assert found["error"][300].startswith("ContextOverflowError")
    assert list(columns_of(frame)) == ["text", "place"], "the frame that was given is as it was"


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_an_empty_frame_gets_the_same_columns(kind: str, llm: Engine) -> None:
    """A partition may have no rows."""
    frame = framed(kind, {"text": ["a"]})[:0] if kind != "pyarrow" else framed(kind, {"text": ["a"]}).slice(0, 0)
    out = batch.run(frame, llm=llm, prompt_column="text", schema=Order, quiet=True)
    assert list(columns_of(out)) == [
        *("text", "answer", "parsed_answer", "count", "tags", "kind", "finish_reason", "error")
    ]
    assert out.shape[0] == 0


def test_an_index_and_odd_values_of_pandas(llm: Engine, tmp_path: Path) -> None:
    """Nulls of every kind, numbers, times, and names that are no texts."""
    pandas: Any = pytest.importorskip("pandas")
    times = pandas.to_datetime(["2026-01-02", None, "2026-01-03"])
    frame = pandas.DataFrame({"prompt": list("abc"), "at": times, 0: [1.5, float("nan"), None]}, index=["x", "y", "x"])
    frame["whole"] = pandas.array([1, None, 3], dtype="Int64")
    frame["kind"] = pandas.Categorical(["u", None, "v"])
    out = batch.run(frame, llm=llm, quiet=True)
    assert list(out.index) == ["x", "y", "x"]
    assert list(out["answer"]) == ["So: a", "So: b", "So: c"]
    assert out[list(frame.columns)].equals(frame)
    run(frame, tmp_path / "out.csv", llm)
    one, two, _ = read(tmp_path / "out.csv")
    assert (one["at"], one["0"], one["whole"], one["kind"]) == ("2026-01-02T00:00:00", "1.5", "1", "u")
    assert (two["at"], two["0"], two["whole"], two["kind"]) == ("", "", "", "")
    twice = pandas.DataFrame([["a", "b"]], columns=["prompt", "prompt"])
    with pytest.raises(RequestError, match="two columns called 'prompt'"):
        batch.run(twice, llm=llm, quiet=True)


def test_an_interrupted_frame_has_what_was_answered(tmp_path: Path) -> None:
    """Its other rows say that they were not computed."""
    frame = framed("pandas", {"prompt": [f"number {number % 7}" for number in range(40)]})
    interrupts = iter([True])

    def interrupt(report: batch.Report) -> None:
        if report.ran and next(interrupts, False):
            raise KeyboardInterrupt

    with engine(delay=0.02) as llm:
        out = batch.run(frame, llm=llm, on_progress=interrupt, in_flight=2)
    answered = [isinstance(answer, str) for answer in out["answer"]]
    assert 0 < sum(answered) < 40
    assert [error == "The batch was interrupted before this row." for error in out["error"]] == [
        not each for each in answered
    ]


def test_what_a_frame_cannot_have(llm: Engine, tmp_path: Path) -> None:
    frame = framed("pandas", {"prompt": ["a"]})
    options: dict[str, Any]
    for options in ({"errors": tmp_path / "e.jsonl"}, {"force": True}, {"retry_failed": True}, {"in_order": True}):
        with pytest.raises(RequestError, match="is for batches that write a file"):
            batch.run(frame, llm=llm, **options)
    rows: Any = ROWS
    with pytest.raises(RequestError, match="out= is missing"):
        batch.run(rows, llm=llm)
    missing: Any = None
    with pytest.raises(RequestError, match="llm= is missing"):
        batch.run(frame, llm=missing)
    with pytest.raises(BatchInputError, match=r"Row 1 is a str, not a dictionary\. Pass dictionaries, or"):
        run(frame["prompt"], tmp_path / "a.csv", llm)


def test_a_parquet_file_that_changes_meanwhile(tmp_path: Path) -> None:
    pyarrow: Any = pytest.importorskip("pyarrow")
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"prompt": ["a", "b"]}), tmp_path / "in.parquet")

    def reply(_: str) -> str:
        parquet.write_table(pyarrow.table({"prompt": ["a", "b", "c"]}), tmp_path / "in.parquet")
        return "Yes."

    with engine(reply) as llm, pytest.raises(EngineError, match="changed while the batch was running"):
        run(tmp_path / "in.parquet", tmp_path / "out.parquet", llm)
    assert not (tmp_path / "out.parquet").exists()
