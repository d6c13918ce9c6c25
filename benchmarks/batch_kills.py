"""A batch killed at random moments and inside writes, on a full disk, or with its files changed by something else: are
rows lost, computed twice, torn? Is success ever reported wrongly?

    python benchmarks/batch_kills.py --kills 150 --writes 50 --replaces 20 --full 20 --tampers 20

Each batch runs in a child on a scripted backend. It is killed (SIGKILL) after a random time, or half-way through a
line, or just before or after a file is replaced, and started again, until it is done; then another begins, until there
were as many kills as asked for. After each kill, and at the end, the files are compared with the input. A full disk is
a limit on the size of files (RLIMIT_FSIZE). `--tampers`: while the batch runs, its output or error file is deleted,
cut, replaced or appended to; the batch must end with an error, and the next run must complete the files.
"""

import argparse
import base64
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from engine import ChatTemplate, DiskFullError, Engine, EngineError, batch  # noqa: E402
from engine.runtime.stream.embed_queue import Vectors  # noqa: E402
from engine.testing.scripted import ByteVocab, ScriptedBackend, ScriptedVectors  # noqa: E402
from engine.turns.embedding import VectorSettings, matrix  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
DONE, DISK_FULL, CHANGED = 0, 4, 5
TAMPERS = ("delete", "cut", "empty", "replace by a copy", "append", "cut and append")


def said(question: str) -> str:
    """What the scripted model answers."""
    return f"The answer to {question!r} is {question[::-1]}."


def scripted(prompt: str) -> str:
    question = prompt.rsplit("user\n", 1)[-1].split("<|im_end|>", maxsplit=1)[0]
    return f"<think>\nI know.\n</think>\n\n{said(question)}"


def vector(text: str) -> str:
    """What the scripted model makes of a text, in base64."""
    vocab = ByteVocab(["<|im_start|>"])
    [data] = ScriptedVectors(vocab, 256, 4096).embed([vocab.tokenize(text, special=False)])
    return base64.b64encode(matrix(Vectors(data, 256, ()), VectorSettings())[0].tobytes()).decode()


def write_input(path: Path, rows: int, rng: random.Random) -> dict[str, str | None]:
    """Rows in OpenAI's format; what each is to be answered with, None where it has to fail (it is too long). A third of
    them ask for vectors."""
    wanted: dict[str, str | None] = {}
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            fails = rng.random() < 0.03
            question = "much " * 2000 if fails else f"Question {number}: {'é' * rng.randrange(40)}?"
            name = f"row {number}"
            if number % 3:
                url, right = "/v1/chat/completions", said(question)
                body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": question}]}
            else:
                url, right = "/v1/embeddings", vector(question)
                body = {"model": "m", "input": question, "encoding_format": "base64"}
            wanted[name] = None if fails else right
            row = {"custom_id": name, "method": "POST", "url": url, "body": body}
            file.write(json.dumps(row) + "\n")
    return wanted


def answer(body: dict[str, Any]) -> str | None:
    """The content or the vector in a response."""
    return body["data"][0]["embedding"] if "data" in body else body["choices"][0]["message"]["content"]


def compute(folder: Path) -> int:
    """One run of the batch, in a child. Returns its exit code."""
    backend = ScriptedBackend(scripted, vocab=ByteVocab(["<|im_start|>"]), n_sequences=8, n_ctx=4096)
    with Engine.over(backend, ChatTemplate(None, family="qwen3")) as llm:
        try:
            report = batch.run(folder / "in.jsonl", folder / "out.jsonl", llm, in_order=True, quiet=True)
        except DiskFullError:
            return DISK_FULL
        except EngineError as error:
            if "changed by something else" not in str(error):
                raise
            return CHANGED
    return DONE if not report.left else 1


def in_child(task: Callable[[], int]) -> int:
    """Fork; returns the child's process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        code = task()
    except BaseException:  # noqa: BLE001 - the child must end here, whatever it was
        traceback.print_exc()
    finally:
        os._exit(code)


def die_inside_a_write(at: int, share: float) -> None:
    """From now on, the write number `at` to a batch's files stops half-way, and the process with it."""
    write, count = os.write, 0

    def torn(fd: int, data: Any) -> int:
        nonlocal count
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".jsonl":
            count += 1
            if count == at:
                write(fd, bytes(data)[: int(len(data) * share)])
                os.kill(os.getpid(), signal.SIGKILL)
        return write(fd, data)

    os.write = torn


def die_at_a_replace(at: int, *, after: bool) -> None:
    """The replacement number `at` of a file is the last thing the process does, or the first it does not."""
    replace, count = os.replace, 0

    def deadly(source: Any, target: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        if count == at and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target, **options)
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = deadly
    Path.replace = lambda self, target: deadly(self, target)  # type: ignore[method-assign,assignment]


class Check:
    """What is in the files, against the input; and against what was there before the last kill."""

    def __init__(self, folder: Path, wanted: dict[str, str | None], tally: Counter[str]) -> None:
        self._folder = folder
        self._wanted = wanted
        self._tally = tally
        self._seen: set[str] = set()

    def after_a_kill(self) -> None:
        """Whole lines stay whole, and only the last may be torn."""
        names: Counter[str] = Counter()
        for name in ("out.jsonl", "out.errors.jsonl"):
            *lines, tail = self._read(name).split(b"\n")
            self._tally["torn tails seen after a kill"] += bool(tail)
            for line in lines:
                try:
                    names[json.loads(line)["custom_id"]] += 1
                except ValueError:
                    self._tally["torn"] += 1
        self._tally["lost"] += len(self._seen - names.keys())
        self._tally["twice"] += sum(count > 1 for count in names.values())
        self._seen = set(names)

    def at_the_end(self) -> None:
        """Every row is there once, and right."""
        self.after_a_kill()
        out = [json.loads(line) for line in self._read("out.jsonl").splitlines()]
        failed = [json.loads(line) for line in self._read("out.errors.jsonl").splitlines()]
        found = {row["custom_id"]: answer(row["response"]["body"]) for row in out}
        found |= {row["custom_id"]: None for row in failed}
        self._tally["torn"] += not self._read("out.jsonl").endswith(b"\n")
        self._tally["lost"] += len(self._wanted.keys() - found.keys())
        self._tally["twice"] += len(out) + len(failed) - len(found)
        self._tally["wrong"] += sum(found[name] != self._wanted.get(name, "") for name in found)
        in_order = [row["custom_id"] for row in out] == [
            name for name in self._wanted if self._wanted[name] is not None
        ]
        self._tally["not in order"] += not in_order
        self._tally["batches"] += 1

    def _read(self, name: str) -> bytes:
        path = self._folder / name
        return path.read_bytes() if path.exists() else b""


def killed(folder: Path, kind: str, rng: random.Random) -> int:
    """One run that is to be killed; returns how it ended, as `os.waitpid` has it."""

    def task() -> int:
        if kind == "write":
            die_inside_a_write(rng.randrange(1, 60), rng.random())
        elif kind == "replace":
            die_at_a_replace(rng.randrange(1, 4), after=rng.random() < 0.5)
        return compute(folder)

    seconds = rng.uniform(0.0, 0.4)
    child = in_child(task)
    if kind == "moment":
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def kill_all(rows: int, plan: Counter[str], rng: random.Random, tally: Counter[str]) -> None:
    """Batches, until there were as many kills of each kind."""
    while plan.total():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            check = Check(folder, write_input(folder / "in.jsonl", rows, rng), tally)
            while True:
                kind = rng.choice([kind for kind in plan if plan[kind]] or ["none"])
                status = killed(folder, kind, rng)
                if os.WIFSIGNALED(status):
                    plan[kind] -= 1
                    tally[f"killed: {kind}"] += 1
                    check.after_a_kill()
                elif os.WEXITSTATUS(status) == DONE:
                    break
                else:
                    tally["crashed"] += 1
                    break
            check.at_the_end()


def fill(rows: int, times: int, rng: random.Random, tally: Counter[str]) -> None:
    """Batches that meet a limit on the size of files again and again, a little further up each time."""
    while tally["full: limit"] < times:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            check = Check(folder, write_input(folder / "in.jsonl", rows, rng), tally)
            limit = rng.randrange(3_000, 60_000)

            def task(folder: Path = folder) -> int:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))  # noqa: B023
                return compute(folder)

            while (code := os.waitstatus_to_exitcode(os.waitpid(in_child(task), 0)[1])) == DISK_FULL:
                tally["full: limit"] += 1
                check.after_a_kill()
                limit = limit * 2 + rng.randrange(1000)
            tally["crashed"] += code != DONE
            check.at_the_end()


def tamper(path: Path, how: str) -> None:
    """Do to a file what an editor, a script or a user may do."""
    data = path.read_bytes()
    if how == "delete":
        path.unlink()
    elif how == "replace by a copy":
        copy = path.with_name("copy")
        copy.write_bytes(data)
        copy.replace(path)
    elif how == "append":
        with path.open("ab") as file:
            file.write(data[: data.find(b"\n") + 1])
    elif how == "cut and append":  # the same size, with other rows
        lines = data.splitlines(keepends=True)
        os.truncate(path, len(data) - len(lines[-1]))
        with path.open("ab") as file:
            file.write(b"x" * (len(lines[-1]) - 1) + b"\n")
    else:
        os.truncate(path, 0 if how == "empty" else len(data) // 2)


def stopped_half_way(folder: Path, rows: int, path: Path, rng: random.Random) -> int | None:
    """Start a batch and stop (SIGSTOP) its process while rows are left. Returns its id; None if it was too fast."""
    child = in_child(lambda: compute(folder))
    until = time.monotonic() + 10
    while not (path.exists() and path.stat().st_size) and time.monotonic() < until:
        time.sleep(0.002)
    time.sleep(rng.uniform(0, rows / 2000))
    os.kill(child, signal.SIGSTOP)
    if os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1]):
        files = [file for file in (folder / "out.jsonl", folder / "out.errors.jsonl") if file.exists()]
        if path.exists() and path.stat().st_size and sum(file.read_bytes().count(b"\n") for file in files) < rows:
            return child
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return None


def tamper_all(rows: int, times: int, rng: random.Random, tally: Counter[str]) -> None:
    """Batches whose files are changed once while they run, then run again."""
    while tally["tampered"] < times:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            wanted = write_input(folder / "in.jsonl", rows, rng)
            how, path = (
                TAMPERS[tally["tampered"] % len(TAMPERS)],
                folder / rng.choice(["out.jsonl", "out.errors.jsonl"]),
            )
            child = stopped_half_way(folder, rows, path, rng)
            if child is None:
                tally["too fast to tamper with"] += 1
                continue
            tamper(path, how)
            os.kill(child, signal.SIGCONT)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            tally["tampered"] += 1
            tally[f"tampered: {how}"] += 1
            tally["success reported wrongly"] += code == DONE
            tally["crashed"] += code not in (DONE, CHANGED)
            code = os.waitstatus_to_exitcode(os.waitpid(in_child(lambda folder=folder: compute(folder)), 0)[1])
            tally["crashed"] += code != DONE
            Check(folder, wanted, tally).at_the_end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--kills", type=int, default=150, help="at random moments")
    parser.add_argument("--writes", type=int, default=50, help="inside a write")
    parser.add_argument("--replaces", type=int, default=20, help="before or after a file is replaced")
    parser.add_argument("--full", type=int, default=20, help="runs that meet a full disk")
    parser.add_argument("--tampers", type=int, default=20, help="changes of files by something else")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rng, tally = random.Random(given.seed), Counter[str]()
    kill_all(given.rows, Counter(moment=given.kills, write=given.writes, replace=given.replaces), rng, tally)
    if given.full:
        fill(given.rows, given.full, rng, tally)
    if given.tampers:
        tamper_all(given.rows, given.tampers, rng, tally)
    wrong = 0
    for name in ("lost", "twice", "torn", "wrong", "not in order", "crashed", "success reported wrongly"):
        wrong += tally[name]
        print(f"{name}: {tally.pop(name, 0)}")
    for name in sorted(tally):
        print(f"{name}: {tally[name]}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
