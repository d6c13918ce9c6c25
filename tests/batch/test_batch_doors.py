"""What a person gives a batch that it cannot use, or that it can: models by name, files of other programs."""

from pathlib import Path
from typing import Any

import pytest

from engine import BatchInputError, RequestError, batch
from engine.support import _data

ROWS = [{"prompt": "Hello"}]


def test_a_model_is_named_as_in_load_and_closed_at_the_end(tmp_path: Path) -> None:
    builtin = _data.builtin_model()
    for name in (builtin, str(builtin)):
        report = batch.run(ROWS, tmp_path / f"{type(name).__name__}.jsonl", name, max_tokens=4, quiet=True)
        assert (report.done, report.failed) == (1, 0)


@pytest.mark.parametrize("llm", [None, 3, ["smollm2"], {}])
def test_what_is_no_model_is_refused(llm: Any, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"llm= .*: give an engine, what Engine\.load takes"):
        _ = batch.run(ROWS, tmp_path / "o.jsonl", llm)


def test_swapped_arguments_are_told() -> None:
    swapped: Any = (ROWS, print, "o.jsonl")
    with pytest.raises(RequestError, match=r"is not the path of a file: write batch\.run\(rows, out, llm\)"):
        _ = batch.run(*swapped)


def refused(path: Path, **options: Any) -> str:
    out = path.with_name("o.jsonl")
    with pytest.raises(BatchInputError) as error:
        _ = batch.run(path, out, print, **options)  # pyright: ignore[reportArgumentType] - which is never called
    assert not out.exists()
    return str(error.value)


@pytest.mark.parametrize("ending", [".xlsx", ".XLSX", ".ods", ".xls", ".feather"])
@pytest.mark.parametrize("skip_bad", [False, True])
def test_a_spreadsheet_is_refused_by_its_name(ending: str, skip_bad: bool, tmp_path: Path) -> None:
    path = tmp_path / f"rows{ending}"
    path.write_bytes(b"PK\x03\x04\x14\x00\x06\x00 rest\n")
    assert f"batches read no {ending.lower()} files. Save it as .csv" in refused(path, skip_bad=skip_bad)


@pytest.mark.parametrize("skip_bad", [False, True])
def test_what_is_no_text_under_another_name_is_refused(skip_bad: bool, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for data in (b"PK\x03\x04\x14\x00\x06\x00 rest\n", '{"prompt": "a"}\n'.encode("utf-16")):
        path.write_bytes(data)
        assert "is no text" in refused(path, skip_bad=skip_bad)


def test_an_input_without_one_valid_row_is_never_done(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("no json\nnor this\n")
    for skip_bad in (False, True):
        said = refused(path, skip_bad=skip_bad)
        assert "2 rows of" in said
        assert said.endswith("\nCorrect them.")


@pytest.mark.parametrize(
    ("ending", "first", "told"),
    [
        (".csv", "id;text", "has no commas but semicolons"),
        (".csv", "id\ttext", "has no commas but tabs"),
        (".tsv", "id;text", "has no tabs but semicolons"),
        (".csv", "id|text", "has no commas but bars"),
    ],
)
def test_another_separator_is_named(ending: str, first: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows{ending}"
    path.write_text(f"{first}\n1;a\n")
    assert told in refused(path, prompt="{text}")


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_latin_1_is_to_be_saved_as_utf_8(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows{ending}"
    path.write_bytes(
        "prompt\ncafé\n".encode("latin-1") if ending == ".csv" else '{"prompt": "café"}\n'.encode("latin-1")
    )
    said = refused(path)
    assert "is not UTF-8 text" in said
    assert "as UTF-8" in said
