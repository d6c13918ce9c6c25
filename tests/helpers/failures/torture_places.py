"""The places of the package that have files of their own, for a disk that fails."""

import csv
import io
import json
import os
import re
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import huggingface_hub
from failures.torture import Place
from fakes import hub_server
from fakes.scripts import scripted
from huggingface_hub import constants

from engine import Engine, EngineError, ModelLoadError, RequestError, Transcript, batch
from engine.agent.mcp.config import entries
from engine.batch.tabular import arrow_table, pyarrow
from engine.cli import commands, main
from engine.cli.sessions import read
from engine.hub import download, fetch, named
from engine.hub.progress import Progress
from engine.isolated import preflight
from engine.llama.gguf.gguf import read_gguf, sample_digest
from engine.runtime.cache.state_file import Origin, SavedState, read_head, read_state, write_state
from engine.runtime.cache.state_store import StateStore
from engine.support._data import builtin_model
from engine.support.output_file import write_file


def _is(name: str, old: bytes | None, new: bytes) -> Callable[[Path], bool]:
    """Whether a file has its new content; anything but the old or the new is damage."""

    def check(folder: Path) -> bool:
        path = folder / name
        found = path.read_bytes() if path.exists() else None
        assert found in (old, new), f"{name} has {found!r}"
        return found == new

    return check


OLD, NEW = b"old " * 5000, b"new " * 5000


def _linked(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "file").write_bytes(OLD)
    (folder / "link").symlink_to("elsewhere/file")


def _still_linked(folder: Path) -> bool:
    assert (folder / "link").is_symlink(), "the link is gone"
    return _is("link", OLD, NEW)(folder)


WRITTEN = (
    Place(
        "a file replaced",
        prepare=lambda folder: (folder / "file").write_bytes(OLD),
        act=lambda folder: write_file(folder / "file", NEW[:100], NEW[100:]),
        new=_is("file", OLD, NEW),
        files="file",
        errors=(OSError,),
    ),
    Place(
        "a new file",
        act=lambda folder: write_file(folder / "file", NEW),
        new=_is("file", None, NEW),
        files="file",
        errors=(OSError,),
    ),
    Place(
        "a file behind a link",
        prepare=_linked,
        act=lambda folder: write_file(folder / "link", NEW),
        new=_still_linked,
        files="link|elsewhere/file",
        errors=(OSError,),
    ),
)


QUESTIONS = ("one", "two", "much " * 900, "four", "five")
"""Of a batch; the third is too long."""


@cache
def _llm() -> Engine:
    """Says each question again."""
    return scripted(lambda prompt: prompt.rsplit("user\n", 1)[-1].split("<|im_end|>", maxsplit=1)[0])


def _rows(numbers: range) -> list[dict[str, str]]:
    return [{"custom_id": f"row {number}", "prompt": QUESTIONS[number]} for number in numbers]


def _write_input(folder: Path) -> None:
    (folder / "tmp").mkdir()
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _rows(range(5))))
    with (folder / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["prompt"], *([text] for text in QUESTIONS)])


def _half_done(folder: Path) -> None:
    """Rows are answered in another order, one for which the input has no row, and the last line is torn."""
    _write_input(folder)
    rows = [*reversed(_rows(range(3))), {"custom_id": "x", "prompt": "x"}]
    batch.run(rows, folder / "out.jsonl", _llm(), quiet=True, group=False, in_flight=1)
    with (folder / "out.jsonl").open("ab") as file:
        file.write(b'{"custom_id":"row 4","response"')


def _ran(folder: Path, rows: Any, out: str | None, **options: Any) -> object:
    with patch.object(tempfile, "tempdir", str(folder / "tmp")):
        found: Any = batch.run(
            rows, None if out is None else folder / out, llm=_llm(), quiet=True, in_flight=1, **options
        )
    return found if out is None else (found.done, found.failed, found.left)


def _answered(out: str, before: tuple[str, ...] = ()) -> Callable[[Path], bool]:
    """Whether all rows are answered. Each is there once, and right, and none is gone that was there before; a torn line
    at the end is for the next run."""

    def check(folder: Path) -> bool:
        done, failed = (_written(folder / name) for name in (out, out.replace(".jsonl", ".errors.jsonl")))
        for line in done:
            assert line["completion"]["content"] == line["prompt"], line
        names = [line["custom_id"] for line in [*done, *failed]]
        assert len(names) == len(set(names)), f"twice: {names}"
        assert set(before) <= set(names), f"lost: {names}"
        return len(set(names) - {"x"}) == len(QUESTIONS)

    return check


def _written(path: Path) -> list[dict[str, Any]]:
    whole = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
    return [json.loads(line) for line in whole.splitlines()]


def _tabled(table: str) -> Callable[[Path], bool]:
    """Whether the table is there and whole."""

    def check(folder: Path) -> bool:
        is_done = _answered(f"{table}.jsonl")(folder)
        if not (folder / table).exists():
            return False
        if table.endswith(".csv"):
            with (folder / table).open(newline="") as file:
                found = [row["answer"] for row in csv.DictReader(file)]
        else:
            found = arrow_table(folder / table).to_pydict()["answer"]
        assert [each or None for each in found] == [None if text == QUESTIONS[2] else text for text in QUESTIONS], found
        return is_done

    return check


def _frame(folder: Path) -> object:
    frame = pyarrow().table({"prompt": list(QUESTIONS)})
    answered: Any = _ran(folder, frame, None)
    return answered.to_pydict()["answer"]


def _batch_files(out: str) -> str:
    stem = re.escape(out.removesuffix(".jsonl"))
    return rf"in\.(jsonl|csv)|{stem}(\.errors)?\.jsonl|{stem}\.jsonl\.manifest\.json"


BATCHES = (
    Place(
        "a batch",
        prepare=_write_input,
        act=lambda folder: _ran(folder, folder / "in.jsonl", "out.jsonl"),
        new=_answered("out.jsonl"),
        files=_batch_files("out.jsonl"),
        errors=(EngineError,),
        answer=(4, 1, 0),
    ),
    Place(
        "a batch resumed, in order",
        prepare=_half_done,
        act=lambda folder: _ran(folder, folder / "in.jsonl", "out.jsonl", in_order=True),
        new=_answered("out.jsonl", ("row 0", "row 1", "row 2", "x")),
        files=_batch_files("out.jsonl"),
        errors=(EngineError,),
        answer=(4, 1, 0),
    ),
    Place(
        "a batch of CSV",
        prepare=_write_input,
        act=lambda folder: _ran(folder, folder / "in.csv", "out.csv"),
        new=_tabled("out.csv"),
        files=f"{_batch_files('out.csv.jsonl')}|out.csv",
        errors=(EngineError,),
        answer=(4, 1, 0),
    ),
)
FRAMES = (
    Place(
        "a batch into Parquet",
        prepare=_write_input,
        act=lambda folder: _ran(folder, folder / "in.csv", "out.parquet"),
        new=_tabled("out.parquet"),
        files=f"{_batch_files('out.parquet.jsonl')}|out.parquet",
        errors=(EngineError,),
        answer=(4, 1, 0),
    ),
    Place(
        "a batch of a frame",
        prepare=_write_input,
        act=_frame,
        new=lambda _: True,
        files="in.*",
        errors=(EngineError,),
        answer=[None if text == QUESTIONS[2] else text for text in QUESTIONS],
    ),
)


ORIGIN = Origin("m", "0", "f16", "f16", "auto", "", False, 1)
TOKENS = tuple(range(100))


def _kept(folder: Path) -> object:
    """Keep a state, and read what is there; whatever comes back is right."""
    store = StateStore(0, folder / "states", 1 << 20)
    store.put(ORIGIN, SavedState(TOKENS, b"new" * 500))
    store.flush()
    for entry in store.entries(ORIGIN):
        state = store.read(ORIGIN, entry)
        assert state in (None, b"new" * 500, b"old" * 500), "a state that nobody saved"
    assert store.sizes.files <= 2
    return True


def _old_states(folder: Path) -> None:
    store = StateStore(0, folder / "states", 1 << 20)
    store.put(ORIGIN, SavedState((7, *TOKENS), b"old" * 500))
    store.flush()


def _cleared(folder: Path) -> None:
    StateStore(0, folder / "states", 1 << 20).clear()


STATES = (
    Place(
        "a state file",
        prepare=lambda folder: (folder / "x.state").write_bytes(OLD),
        act=lambda folder: write_state(folder / "x.state", ORIGIN, SavedState(TOKENS, b"state")),
        new=lambda folder: (
            (folder / "x.state").read_bytes() != OLD and read_state(folder / "x.state", ORIGIN).state == b"state"
        ),
        files="x.state",
        errors=(RequestError,),
    ),
    Place(
        "a state file read",
        prepare=lambda folder: write_state(folder / "x.state", ORIGIN, SavedState(TOKENS, b"state")),
        act=lambda folder: (read_head(folder / "x.state", ORIGIN)[0], read_state(folder / "x.state", ORIGIN).state),
        new=lambda folder: read_state(folder / "x.state", ORIGIN).state == b"state",
        files="x.state",
        errors=(RequestError,),
        answer=(TOKENS, b"state"),
    ),
    Place(
        "the store of states",
        prepare=_old_states,
        act=_kept,
        new=lambda folder: len(list(folder.rglob("*.state"))) >= 1,
        files=r"states/(\.llama-engine-states\.lock|.*\.state)",
        errors=(RequestError,),
        answer=True,
        optional=True,
    ),
    Place(
        "the store cleared",
        prepare=_old_states,
        act=_cleared,
        new=lambda folder: not list(folder.rglob("*.state")),
        files=r"states/\.llama-engine-states\.lock",
        errors=(RequestError,),
    ),
)


def _verdict(folder: Path) -> object:
    path = folder / "cache" / "x.json"
    verdict = preflight.read(path) or preflight.Verdict("sound", "as tried")
    preflight.write(path, verdict)
    return verdict.outcome, verdict.reason


RECORDS = (
    Place(
        "a remembered trial",
        act=_verdict,
        new=lambda folder: preflight.read(folder / "cache" / "x.json") is not None,
        files="cache/x.json",
        errors=(),
        answer=("sound", "as tried"),
        optional=True,
    ),
    Place(
        "a transcript",
        act=lambda folder: (
            _said(_llm(), folder / "run.json"),
            Transcript.load(folder / "run.json").stopped,
        ),
        new=lambda folder: (folder / "run.json").exists() and Transcript.load(folder / "run.json").stopped == "stop",
        files="run.json",
        errors=(OSError, EngineError),
        answer=("Hello", "stop"),
    ),
    Place(
        "a configuration of MCP servers",
        prepare=lambda folder: (folder / "mcp.json").write_text('{"mcpServers": {"a": {"command": "x"}}}'),
        act=lambda folder: [entry.name for entry in entries(folder / "mcp.json")],
        new=lambda _: True,
        files="mcp.json",
        errors=(RequestError,),
        answer=["a"],
    ),
    Place(
        "the header of a model",
        prepare=lambda folder: (folder / "m.gguf").symlink_to(builtin_model()),
        act=lambda folder: (
            read_gguf(folder / "m.gguf").architecture,
            len(sample_digest(read_gguf(folder / "m.gguf"))),
        ),
        new=lambda _: True,
        files="m.gguf",
        errors=(ModelLoadError,),
        answer=(read_gguf(builtin_model()).architecture, 64),
    ),
)


def _said(llm: Engine, path: Path) -> object:
    return llm.run("Hello", save=path).completion.content


class CommandFailedError(Exception):
    """A command that ended with an exit code of 1; says what it wrote to standard error, if that was one line."""


def _command(folder: Path, *words: str, typed: str = "") -> str:
    """Returns what a command printed."""
    out, err = io.StringIO(), io.StringIO()

    def load(_: object) -> Engine:
        return scripted(lambda _: "Yes.")

    loaded = patch.object(commands, "load", load)
    state = patch.dict(os.environ, XDG_STATE_HOME=str(folder / "state"))
    with loaded, state, patch("sys.stdin", io.StringIO(typed)), patch("sys.stdout", out), patch("sys.stderr", err):
        code = main(list(words))
    if code:
        said = err.getvalue()
        assert said.count("\n") == 1, f"not one line: {said}"
        raise CommandFailedError(said)
    return out.getvalue()


def _chatted(folder: Path) -> object:
    said = _command(folder, "chat", "--session", "trip", "--plain", typed="one\n")
    if "cannot be saved" in said:
        raise CommandFailedError(said)
    return "Yes." in said


def _session(folder: Path) -> bool:
    path = folder / "state/llama-engine/sessions/trip.json"
    asked = [message.content for message in read(path).messages if message.role == "user"] if path.exists() else []
    assert set(asked) <= {"zero", "one"}, asked
    return "one" in asked


SESSIONS = (
    Place(
        "a session of chat",
        act=_chatted,
        new=_session,
        files=r"state/llama-engine/sessions/(trip\.json|\.trip\.lock)",
        errors=(CommandFailedError,),
        answer=True,
    ),
    Place(
        "the list of sessions",
        prepare=_chatted,
        act=lambda folder: json.loads(_command(folder, "sessions", "--json"))[0]["name"],
        new=_session,
        files=r"state/llama-engine/sessions/(trip\.json|\.trip\.lock)",
        errors=(CommandFailedError,),
        answer="trip",
    ),
)


Q8 = "m-Q8_0.gguf"
DATA = NEW
_FILES = r"cache/(models--own--repo/(blobs/[0-9a-f]+|snapshots/.*\.gguf|refs/main)|\.locks/.*|CACHEDIR\.TAG)"


@contextmanager
def hub_cache(server: hub_server.Hub, folder: Path) -> Generator[None]:
    """The cache is below a folder, and the Hub is a server on the loopback device, within the block."""
    settings: dict[str, Any] = hub_server.settings(server, folder)
    with patch.multiple(constants, **settings), patch.object(download, "WAITS", (0.0, 0.0, 0.0)):
        try:
            yield
        finally:
            huggingface_hub.close_session()


@contextmanager
def hub_places() -> Generator[tuple[Place, ...]]:
    """Yields the places of the Hub's cache, with a server."""
    with hub_server.running() as server:
        server.add("own/repo", {Q8: DATA})

        def fetched(folder: Path) -> object:
            name = named("own/repo:Q8_0")
            assert name is not None
            with hub_cache(server, folder):
                return fetch(name, progress=Progress(None)).name == Q8

        def half(folder: Path) -> None:
            blobs = folder / "cache/models--own--repo/blobs"
            blobs.mkdir(parents=True)
            (blobs / f"{hub_server.etag_of(DATA)}.llama-engine.incomplete").write_bytes(DATA[:7_000])

        def here(folder: Path) -> bool:
            found = [path.read_bytes() for path in folder.rglob(Q8) if path.exists()]
            assert found in ([], [DATA]), "a file of the cache is damaged"
            return bool(found)

        def listed(folder: Path) -> object:
            with hub_cache(server, folder):
                return json.loads(_command(folder, "models", "list", "--json"))[0]["name"]

        made = Place("a download", fetched, here, _FILES, (ModelLoadError,), answer=True)
        yield (
            made,
            replace(made, name="a download resumed", prepare=half),
            replace(made, name="a model in the cache", prepare=fetched),
            Place("the list of models", listed, here, _FILES, (CommandFailedError,), "own/repo:Q8_0", fetched),
        )
