"""Batches whose paths name one file twice, or files that are not theirs: is a file lost?

    python benchmarks/batch_paths.py
    python benchmarks/batch_paths.py --sample 80 --seed 7

Every pair of nine paths (input, output, errors, manifest, the names of earlier temporaries and locks, another input,
another batch's output), both ways round, is tried as the same path, as a symbolic link and as a hard link; in a first
run, in a second one, and in one that is forced to compute with other options. After each run every file that the batch
did not write has its bytes, every row of other batches is there, and a run that reports success has each of its rows
once.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import permutations, product
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from engine import ChatTemplate, Engine, EngineError, batch  # noqa: E402
from engine.testing.scripted import ByteVocab, ScriptedBackend  # noqa: E402

NAMES = {
    "input": "in.jsonl",
    "output": "out.jsonl",
    "errors": "err.jsonl",
    "manifest": "out.jsonl.manifest.json",
    "output.new": "out.jsonl.new",
    "errors.new": "err.jsonl.new",
    "lock": ".out.jsonl.lock",
    "second input": "second.jsonl",
    "other output": "other.jsonl",
}
GIVEN = ("input", "output", "errors")
WAYS = ("same", "symlink", "hard link")
RUNS = ("first", "second", "forced")
ROWS = {"in": ("a", "b", "c"), "second": ("x", "y"), "other": ("p", "q")}


class Case(NamedTuple):
    """The path of `one` names the file of `other`."""

    one: str
    other: str
    way: str
    run: str


def cases() -> Iterator[Case]:
    """Every case that can be: only three paths are given by the caller, the others are made from them."""
    for (one, other), way, run in product(permutations(NAMES, 2), WAYS, RUNS):
        if way != "same" or one in GIVEN:
            yield Case(one, other, way, run)


def write_rows(path: Path, names: tuple[str, ...]) -> None:
    """Rows of which the last fails: it is longer than the context."""
    asked = [{"custom_id": name, "prompt": "much " * 400 if name == names[-1] else name} for name in names]
    path.write_text("".join(json.dumps(row) + "\n" for row in asked))


def rows_in(data: bytes) -> Counter[str]:
    """The rows that a batch has written, by name."""
    found: Counter[str] = Counter()
    for line in data.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and "request_id" in row:
            found[row["custom_id"]] += 1
    return found


class Trial:
    """One case in a folder of its own."""

    def __init__(self, folder: Path, case: Case, llm: Engine) -> None:
        self._case = case
        self._llm = llm
        self._paths = {role: folder / name for role, name in NAMES.items()}

    def run(self) -> tuple[bool, list[str]]:
        """Returns whether the batch ran, and what was lost."""
        self._prepare()
        before = self._contents()
        try:
            report = self._batch(force=self._case.run == "forced")
        except EngineError:
            return False, self._lost(before, self._contents(), ran=False)
        lost = self._lost(before, self._contents(), ran=True)
        written = sum((rows_in(self._paths[role].read_bytes()) for role in ("output", "errors")), Counter[str]())
        wanted = [json.loads(line)["custom_id"] for line in self._paths["input"].read_bytes().splitlines()]
        lost += [f"row {name} is there {written[name]} times" for name in wanted if written[name] != 1]
        return True, lost + ([] if not report.left else [f"{report.left} left"])

    def _prepare(self) -> None:
        paths, case = self._paths, self._case
        write_rows(paths["input"], ROWS["in"])
        write_rows(paths["second input"], ROWS["second"])
        other = paths["input"].with_name("third.jsonl")
        write_rows(other, ROWS["other"])
        batch.run(other, paths["other output"], self._llm, quiet=True)
        if case.run != "first":
            self._batch(force=False)
        for role in ("output.new", "errors.new", "lock"):
            paths[role].write_text(f"precious: {role}\n")
        if case.way == "same":
            paths[case.one] = paths[case.other]
            return
        paths[case.one].unlink(missing_ok=True)
        if case.way == "symlink":
            paths[case.one].symlink_to(paths[case.other].name)
        elif paths[case.other].exists():
            os.link(paths[case.other], paths[case.one])

    def _batch(self, *, force: bool) -> batch.Report:
        paths = self._paths
        return batch.run(
            paths["input"],
            paths["output"],
            self._llm,
            errors=paths["errors"],
            force=force,
            in_order=True,
            quiet=True,
            temperature=1.0 if force else 0.0,
        )

    def _contents(self) -> dict[str, bytes]:
        folder = self._paths["lock"].parent
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.exists()}

    def _lost(self, before: dict[str, bytes], after: dict[str, bytes], *, ran: bool) -> list[str]:
        """What is gone. A run may change its own output, errors and manifest; a forced one may empty them."""
        folder, output = self._paths["lock"].parent, self._paths["output"].resolve()
        own = {output, self._paths["errors"].resolve()}
        manifest = output.with_name(f"{output.name}.manifest.json").resolve()
        lost: list[str] = []
        for name, data in before.items():
            path, rows = (folder / name).resolve(), rows_in(data)
            if data == after.get(name) or (ran and path == manifest):
                continue
            if ran and rows and self._case.run == "forced" and path in own:
                continue
            if not ran or not rows or rows - rows_in(after.get(name, b"")):
                lost.append(f"{name} ({len(data)} bytes, {len(after.get(name, b''))} now)")
        return lost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="as many cases, drawn at random; without it all")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    tried = list(cases())
    if given.sample:
        tried = random.Random(given.seed).sample(tried, given.sample)
    tally: Counter[str] = Counter()
    backend = ScriptedBackend(lambda _: "Yes.", vocab=ByteVocab(["<|im_start|>"]), n_ctx=600, n_sequences=2)
    with Engine.over(backend, ChatTemplate(None, family="qwen3")) as llm:
        for case in tried:
            with tempfile.TemporaryDirectory() as name:
                ran, lost = Trial(Path(name).resolve(), case, llm).run()
            tally["ran" if ran else "refused"] += 1
            tally["lost"] += bool(lost)
            if lost:
                print(*case, "ran" if ran else "refused", *lost, sep=" | ", flush=True)
    print(f"tried: {len(tried)}")
    for name in ("refused", "ran", "lost"):
        print(f"{name}: {tally[name]}")
    sys.exit(bool(tally["lost"]))


if __name__ == "__main__":
    main()
