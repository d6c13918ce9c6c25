"""The files of a batch are its own, and nobody else's: before it begins, while it runs, and when it ends."""

import errno
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from engine import ChatTemplate, Engine, EngineError, RequestError, batch
from engine.batch import job
from engine.batch import lines as batch_lines
from engine.batch.files import Files
from engine.testing.scripted import ByteVocab, ScriptedBackend

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links, FIFOs and flock")
ROWS = [{"custom_id": f"q{number}", "prompt": f"{number}"} for number in range(6)]
LONG = {"custom_id": "long", "prompt": "much " * 400}


def engine(delay: float = 0) -> Engine:
    backend = ScriptedBackend(
        lambda _: "Yes.", vocab=ByteVocab(["<|im_start|>"]), n_ctx=600, n_sequences=2, delay=delay
    )
    return Engine.over(backend, ChatTemplate(None, family="qwen3"))


@pytest.fixture
def llm() -> Iterator[Engine]:
    with engine() as made:
        yield made


def run(rows: Any, out: str | Path, llm: Engine, **options: Any) -> batch.Report:
    return batch.run(rows, out, llm, quiet=True, **options)


def names(path: Path) -> list[str]:
    return sorted(json.loads(line)["custom_id"] for line in path.read_bytes().splitlines())


def here(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("out", [".", "..", "", "/", "folder", "fifo", "to fifo", "/dev/null", "a\0b"])
def test_an_output_that_cannot_be_a_file_is_named(
    tmp_path: Path, llm: Engine, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("fifo")
    Path("folder").mkdir()
    Path("to fifo").symlink_to("fifo")
    before = {path: path.lstat().st_mode for path in tmp_path.iterdir()}
    for options in ({}, {"errors": out}):
        with pytest.raises(RequestError, match=r"cannot be written: .*Name a file"):
            run(ROWS, "out.jsonl" if options else out, llm, **options)
    assert {path: path.lstat().st_mode for path in tmp_path.iterdir()} == before


def test_one_file_in_two_roles_is_refused_before_anything_is_opened(tmp_path: Path, llm: Engine) -> None:
    """Also where it does not exist yet, and on standard input."""
    rows, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows.write_text(json.dumps(ROWS[0]) + "\n")
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "to out").symlink_to("out.jsonl")
    os.link(rows, tmp_path / "hard")
    before = sorted(path.name for path in tmp_path.iterdir())
    for given in ((rows, rows, None), (rows, out, rows), (rows, tmp_path / "hard", None), (rows, out, out)):
        with pytest.raises(RequestError, match="is the file of both the"):
            run(given[0], given[1], llm, errors=given[2], force=True)
    for errors in ("again/out.jsonl", "to out", "out.jsonl.manifest.json", "again/OUT.jsonl"):
        with pytest.raises(RequestError, match="is the file of both the"):
            run(rows, out, llm, errors=tmp_path / errors)
    with rows.open() as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", file)
        with pytest.raises(RequestError, match="both the output and the input"):
            run("-", rows, llm)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert rows.read_text() == json.dumps(ROWS[0]) + "\n"


def test_a_second_process_is_refused_by_every_name_of_a_file(tmp_path: Path, llm: Engine) -> None:
    out, folder = tmp_path / "out.jsonl", tmp_path / "folder"
    folder.mkdir()
    with Files(out, tmp_path / "errors"):
        (tmp_path / "link").symlink_to("out.jsonl")
        os.link(out, folder / "hard")
        os.link(tmp_path / "errors", folder / "hard errors")
        for other in (out, tmp_path / "link", folder / "hard", tmp_path / "errors", folder / "hard errors"):
            with pytest.raises(RequestError, match="Another process is writing"):
                run(ROWS, other, llm, errors=folder / "e")
            with pytest.raises(RequestError, match="Another process is writing"):
                run(ROWS, folder / "o", llm, errors=other)
    assert run(ROWS, out, llm).done == 6


def test_a_file_that_was_replaced_is_locked_under_both_names(tmp_path: Path, llm: Engine) -> None:
    run(ROWS, tmp_path / "out.jsonl", llm)
    os.link(tmp_path / "out.jsonl", tmp_path / "old name")
    with Files(tmp_path / "out.jsonl") as files:
        with files.out.replacing() as (new, _):
            new.write(b"")
        with pytest.raises(RequestError, match="Another process is writing"):
            run(ROWS, tmp_path / "out.jsonl", llm, errors=tmp_path / "other errors")
    assert names(tmp_path / "old name") == sorted(row["custom_id"] for row in ROWS)


def test_a_file_system_without_locks_is_an_error(tmp_path: Path, llm: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(EngineError, match="a file system that has locks"):
        run(ROWS, tmp_path / "out.jsonl", llm)


FOREIGN = [
    b"precious\n",
    b"precious",
    b'{"custom_id": "a", "prompt": "x"}',
    b'{"custom_id":"a","prompt":"x"}\n{"custom_id":"b","pro',
    b'{"request_id": "mine"}\n',
]


@pytest.mark.parametrize("content", FOREIGN)
@pytest.mark.parametrize("force", [False, True])
def test_what_no_batch_wrote_stays(tmp_path: Path, llm: Engine, content: bytes, force: bool) -> None:
    """As the output or as its errors; beside a manifest too, where a file was put in the output's place."""
    out, foreign = tmp_path / "out.jsonl", tmp_path / "foreign"
    foreign.write_bytes(content)
    for options in ({"out": foreign}, {"out": out, "errors": foreign}):
        with pytest.raises(RequestError, match="this batch did not write it"):
            run(ROWS, llm=llm, force=force, **options)
    assert here(tmp_path) == {"foreign": content}
    run(ROWS, out, llm)
    with pytest.raises(RequestError, match="this batch did not write it"):
        run(ROWS, out, llm, errors=foreign, force=force)
    foreign.replace(out)
    with pytest.raises(RequestError, match="this batch did not write it"):
        run(ROWS, out, llm, temperature=1, force=force)
    assert out.read_bytes() == content


def test_another_batch_s_rows_stay(tmp_path: Path, llm: Engine) -> None:
    """As errors, and when an error file of one batch became another's."""
    mine, other, shared = tmp_path / "mine.jsonl", tmp_path / "other.jsonl", tmp_path / "shared.jsonl"
    run(ROWS, mine, llm, errors=shared)
    assert not shared.exists()
    run([*ROWS, LONG], other, llm, errors=shared)
    before = {path: path.read_bytes() for path in (other, shared)}
    for errors in (other, shared):
        for force in (False, True):
            with pytest.raises(RequestError, match="does not name it"):
                run([*ROWS, LONG], mine, llm, errors=errors, force=force)
    assert {path: path.read_bytes() for path in before} == before
    assert run([*ROWS, LONG], other, llm, errors=shared).ran == 0


def test_names_that_earlier_versions_used_for_temporaries_are_nobody_s(tmp_path: Path, llm: Engine) -> None:
    foreign = (
        "out.jsonl.new",
        "out.errors.jsonl.new",
        "out.jsonl.manifest.json.new",
        ".out.jsonl.lock",
        ".out.jsonl.x",
    )
    for name in foreign:
        (tmp_path / name).write_text(name)
    for force in (False, True):
        run([*ROWS, LONG], tmp_path / "out.jsonl", llm, in_order=True, force=force)
    assert {name: (tmp_path / name).read_text() for name in foreign} == dict(zip(foreign, foreign, strict=True))
    (tmp_path / "mine").touch()
    run(ROWS, tmp_path / "other.jsonl", llm, errors=tmp_path / "mine")
    run(ROWS, tmp_path / "other.jsonl", llm, errors=tmp_path / "mine")
    assert (tmp_path / "mine").exists()


def test_what_a_dead_process_was_writing_is_removed(tmp_path: Path, llm: Engine) -> None:
    """If the manifest names it, and it can be a temporary file of the output."""
    out, manifest = tmp_path / "out.jsonl", tmp_path / "out.jsonl.manifest.json"
    run(ROWS, out, llm)
    for name, stays in ((".out.jsonl.abc", False), ("precious", True), ("../precious", True), (".other.abc", True)):
        (tmp_path / name).write_text("half")
        told = json.loads(manifest.read_bytes())
        manifest.write_text(json.dumps({**told, "files": {**told["files"], "temporary": name}}))
        run(ROWS, out, llm)
        assert (tmp_path / name).exists() == stays
    (tmp_path.parent / "precious").unlink()


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "[]", "7", "{}", '{"mine": 1}', "no", "\0", "", "\ud800"]
)
def test_a_manifest_that_is_none(tmp_path: Path, llm: Engine, text: str) -> None:
    manifest = tmp_path / "out.jsonl.manifest.json"
    data = text.encode(errors="surrogatepass")
    manifest.write_bytes(data)
    for force in (False, True):
        with pytest.raises(
            RequestError, match=r"(cannot be read|not the manifest of a batch).*restore, move or delete"
        ):
            run(ROWS, tmp_path / "out.jsonl", llm, force=force)
    assert here(tmp_path) == {manifest.name: data}


@pytest.mark.parametrize("files", [None, [], {}, {"errors": "x"}, {"errors": [], "temporary": 7}])
def test_a_manifest_whose_files_cannot_be_read(tmp_path: Path, llm: Engine, files: object) -> None:
    run(ROWS, tmp_path / "out.jsonl", llm)
    manifest = tmp_path / "out.jsonl.manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_bytes()), "files": files}))
    with pytest.raises(RequestError, match="not the manifest of a batch"):
        run(ROWS, tmp_path / "out.jsonl", llm)


def test_a_manifest_of_an_earlier_version_goes_on(tmp_path: Path, llm: Engine) -> None:
    run([*ROWS, LONG], tmp_path / "out.jsonl", llm)
    manifest = tmp_path / "out.jsonl.manifest.json"
    job = json.loads(manifest.read_bytes())
    del job["files"]
    manifest.write_text(json.dumps(job))
    assert run([*ROWS, LONG], tmp_path / "out.jsonl", llm).ran == 0


def test_links_stay_links_and_permissions_stay(tmp_path: Path, llm: Engine) -> None:
    """Also where files are replaced: a row that changed, rows sorted."""
    (tmp_path / "data").mkdir()
    out = tmp_path / "out.jsonl"
    out.symlink_to("data/there.jsonl")
    run(ROWS, out, llm)
    there = tmp_path / "data" / "there.jsonl"
    there.chmod(0o640)
    run([{**ROWS[0], "prompt": "new"}, *reversed(ROWS[1:])], out, llm, in_order=True, force=True)
    assert out.is_symlink()
    assert there.stat().st_mode & 0o777 == 0o640
    assert names(there) == sorted(row["custom_id"] for row in ROWS)
    assert sorted(here(there.parent)) == ["there.jsonl", "there.jsonl.manifest.json"]


def test_a_restart_leaves_other_names_their_rows(tmp_path: Path, llm: Engine) -> None:
    run(ROWS, tmp_path / "out.jsonl", llm)
    os.link(tmp_path / "out.jsonl", tmp_path / "copy")
    assert run(ROWS[:2], tmp_path / "out.jsonl", llm, temperature=1, force=True).ran == 2
    assert names(tmp_path / "copy") == sorted(row["custom_id"] for row in ROWS)
    assert names(tmp_path / "out.jsonl") == ["q0", "q1"]


# --- while it runs


def _delete(path: Path) -> None:
    path.unlink()


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _replace(path: Path) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


def _append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(path.read_bytes().splitlines(keepends=True)[0])


def _overwrite(path: Path) -> None:
    """The size stays."""
    with path.open("rb+") as file:
        file.write(b"x" * 20)


@pytest.mark.parametrize("tamper", [_delete, _empty, _replace, _append, _overwrite])
@pytest.mark.parametrize("name", ["out.jsonl", "out.errors.jsonl"])
def test_files_changed_by_something_else_end_the_batch(
    tmp_path: Path, name: str, tamper: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same call completes them then: every row once."""
    monkeypatch.setattr(job, "_WAKE_SECONDS", 0.01)
    path, rows, done = tmp_path / name, [LONG, *ROWS], list[str]()

    def look(_: batch.Report) -> None:
        if not done and path.exists() and path.stat().st_size:
            tamper(path)
            done.append(name)

    with engine(delay=0.02) as slow:
        with pytest.raises(EngineError, match="changed by something else"):
            batch.run(rows, tmp_path / "out.jsonl", slow, group=False, in_flight=1, on_progress=look)
        assert done
        report = run(rows, tmp_path / "out.jsonl", slow)
    assert (report.done, report.failed) == (6, 1)
    assert names(tmp_path / "out.jsonl") == sorted(row["custom_id"] for row in ROWS)
    assert names(tmp_path / "out.errors.jsonl") == ["long"]


def test_a_deleted_output_ends_the_batch_within_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_SYNC_SECONDS", 0.01)
    monkeypatch.setattr(job, "_WAKE_SECONDS", 0.01)
    rows, out = [{"prompt": f"{number}"} for number in range(500)], tmp_path / "out.jsonl"
    told: list[batch.Report] = []

    def look(report: batch.Report) -> None:
        told.append(report)
        out.unlink(missing_ok=True)

    with engine(delay=0.01) as slow, pytest.raises(EngineError, match="changed by something else"):
        batch.run(rows, out, slow, on_progress=look)
    assert told[-1].done < 400


def test_standard_input_without_a_descriptor(tmp_path: Path, llm: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(ROWS[0]).encode())))
    assert run("-", tmp_path / "out.jsonl", llm).done == 1


def test_a_close_that_fails_hides_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_descriptor: int) -> NoReturn:
        raise OSError(errno.EIO, "Input/output error")

    def close_badly(descriptor: int, close: Callable[[int], None] = os.close) -> None:
        close(descriptor)
        refuse(descriptor)

    monkeypatch.setattr(batch_lines, "lock", refuse)
    monkeypatch.setattr(os, "close", close_badly)
    with pytest.raises(EngineError, match="cannot be locked"):
        batch_lines.Lines(tmp_path / "out.jsonl")
