"""Batches: throughput beside the same rows one by one and beside others, slots in use, memory over many rows.

    python benchmarks/batch.py --rows 500
    python benchmarks/batch.py --rows 40 --max-tokens 8 --model random-0.2B-q4_0.gguf --server build/bin/llama-server
    python benchmarks/batch.py --scripted 50000

The first loads a model (the built-in one unless `--model` names another; benchmarks/models.py writes random ones) once
for each way, and prints seconds, tokens per second and the share of the prompts that came from a prefix cache: the
engine one row after the other, `llama_cpp.Llama.create_chat_completion` the same way, a batch in input order, a batch
grouped by prefix, and a llama-server with as many slots where one is given. Of both batches it prints how many
sequences were in use, weighted by time. The last kind runs rows through a scripted backend and prints resident memory
on the way.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from peers import LlamaPython, LlamaServer  # noqa: E402

from engine import ChatTemplate, Engine, batch  # noqa: E402
from engine.runtime.loop.loop import Loop  # noqa: E402
from engine.support import _data  # noqa: E402
from engine.testing.scripted import ByteVocab, ScriptedBackend  # noqa: E402

_DOCUMENTS, _SENTENCES, _N_CTX = 25, 12, 1024


def rows(count: int) -> list[dict[str, Any]]:
    """Questions about more documents than there are sequences, in turn: neighbours have little in common."""
    documents = [
        " ".join(f"Document {number} says that item {item} is number {item * number}." for item in range(_SENTENCES))
        for number in range(_DOCUMENTS)
    ]
    return [{"prompt": f"{documents[number % _DOCUMENTS]} What is item {number}?"} for number in range(count)]


@dataclass
class Measure:
    """One way's figures: seconds by the clock and of this process's processor time (on a busy machine the latter tells
    more), tokens written, tokens of the prompts and those of them that were cached."""

    seconds: float
    cpu: float
    written: int
    prompts: int
    cached: int


class Slots:
    """How many sequences are in use while `watching`: pairs of seconds and a number, at each decode."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []

    @contextmanager
    def watching(self) -> Generator[None]:
        loop: Any = Loop
        decode, began = loop._decode, time.perf_counter()

        def recorded(this: Any, chunks: Any) -> bool:
            self.seen.append((time.perf_counter() - began, len(this._scheduler.running)))
            return decode(this, chunks)

        loop._decode = recorded
        try:
            yield
        finally:
            loop._decode = decode
            self.seen.append((time.perf_counter() - began, 0))

    def text(self, sequences: int) -> str:
        spans = [(after - at, used) for (at, used), (after, _) in zip(self.seen, self.seen[1:], strict=False)]
        whole = sum(span for span, _ in spans)
        mean = sum(span * used for span, used in spans) / whole
        full = sum(span for span, used in spans if used == sequences) / whole
        return f"{mean:.2f} of {sequences} sequences in use, all of them {full:.0%} of the time"


@dataclass(frozen=True)
class Task:
    """What every way has to do."""

    path: Path
    asked: Sequence[dict[str, Any]]
    sequences: int
    steps: int
    threads: int

    def load(self, sequences: int) -> Engine:
        llm = Engine.load(self.path, n_sequences=sequences, n_ctx=_N_CTX, n_threads=self.threads)
        llm.chat("Hello", max_tokens=4)
        return llm

    def one_by_one(self) -> Measure:
        with self.load(1) as llm:
            return self._each(lambda row: llm.chat(row["prompt"], temperature=0, max_tokens=self.steps).usage, 1)

    def llama_python(self) -> Measure:
        llama = LlamaPython(self.path, n_ctx=_N_CTX, threads=self.threads)
        try:
            llama.chat([{"role": "user", "content": "Hello"}], 4)
            return self._each(lambda row: llama.chat(_messages(row), self.steps), 1)
        finally:
            llama.close()

    def llama_server(self, binary: Path) -> Measure:
        """With as many slots, and as many requests under way as a batch has rows."""
        cells = _N_CTX * self.sequences
        with LlamaServer(
            binary, self.path, n_ctx=cells, slots=self.sequences, threads=self.threads, unified=False
        ) as server:
            server.chat([{"role": "user", "content": "Hello"}], 4)
            return self._each(lambda row: server.chat(_messages(row), self.steps), 2 * self.sequences)

    def batched(self, *, group: bool, slots: Slots) -> Measure:
        with self.load(self.sequences) as llm, tempfile.TemporaryDirectory() as folder, slots.watching():
            began, worked = time.perf_counter(), time.process_time()
            report = batch.run(
                self.asked,
                Path(folder) / "out.jsonl",
                llm,
                group=group,
                in_flight=2 * self.sequences,
                quiet=True,
                temperature=0,
                max_tokens=self.steps,
            )
            seconds, cpu = time.perf_counter() - began, time.process_time() - worked
        assert report.done == len(self.asked), report
        return Measure(seconds, cpu, report.completion_tokens, report.prompt_tokens, report.cached_tokens)

    def _each(self, ask: Callable[[dict[str, Any]], Any], at_once: int) -> Measure:
        began, worked = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(at_once) as pool:
            usages = [_counts(usage) for usage in pool.map(ask, self.asked)]
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
        return Measure(seconds, cpu, *map(sum, zip(*usages, strict=True)))


def _messages(row: dict[str, Any]) -> list[dict[str, str]]:
    return [{"role": "user", "content": row["prompt"]}]


def _counts(usage: Any) -> tuple[int, int, int]:
    """Tokens written, of the prompt, cached; llama-cpp-python does not tell the last."""
    if isinstance(usage, dict):
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return usage["completion_tokens"], usage["prompt_tokens"], cached  # pyright: ignore[reportUnknownVariableType]
    return usage.completion_tokens, usage.prompt_tokens, usage.cached_tokens


def one_way(task: Task, name: str, server: Path | None) -> tuple[Measure, Slots]:
    slots = Slots()
    ways: dict[str, Callable[[], Measure]] = {
        "one by one": task.one_by_one,
        "llama-cpp-python": task.llama_python,
        "batch, input order": lambda: task.batched(group=False, slots=slots),
        "batch, grouped": lambda: task.batched(group=True, slots=slots),
        "llama-server": lambda: task.llama_server(server or Path()),
    }
    return ways[name](), slots


def throughput(task: Task, server: Path | None) -> None:
    """Each way in a process of its own: threads that another left behind change how OpenMP's wait for one another."""
    names = ["one by one", "llama-cpp-python", "batch, input order", "batch, grouped"]
    print(f"{len(task.asked)} rows, {task.sequences} sequences, {task.path.name}, {task.threads} threads", flush=True)
    slots: dict[str, Slots] = {}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as processes:
        for name in [*names, *(["llama-server"] if server else [])]:
            found, slots[name] = processes.submit(one_way, task, name, server).result()
            cpu = "elsewhere" if name == "llama-server" else f"{found.cpu:6.1f} s"
            print(
                f"  {name:20} {found.seconds:7.1f} s, processor {cpu}, {len(task.asked) / found.seconds:6.2f} rows/s, "
                f"{found.written / found.seconds:5.0f} tokens/s, {found.cached / found.prompts:4.0%} of prompts cached",
                flush=True,
            )
    for name, seen in slots.items():
        if seen.seen:
            print(f"  {name}: {seen.text(task.sequences)}")


def resident() -> float:
    """MiB that this process holds now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096 / 2**20


def memory(count: int) -> None:
    """Rows come from a generator and go to a file; what is held early on and at the end is compared."""

    def generated() -> Iterator[dict[str, str]]:
        for number in range(count):
            yield {"custom_id": f"row {number}", "prompt": f"Question {number}? {'more ' * 20}"}

    backend = ScriptedBackend(lambda _: "Yes.", vocab=ByteVocab(["<|im_start|>"]), n_sequences=8, n_ctx=1024)
    seen: list[tuple[int, float]] = []

    def look(now: batch.Report) -> None:
        # The double keeps its samplers and batch sizes for assertions; a backend over llama.cpp keeps neither.
        backend.samplers.clear()
        backend.batches.clear()
        seen.append((now.ran, resident()))
        if now.ran - told[-1] >= count / 5:
            told.append(now.ran)
            print(f"  {now.ran:7} rows: {seen[-1][1]:.1f} MiB", flush=True)

    told = [0]
    with tempfile.TemporaryDirectory() as folder, Engine.over(backend, ChatTemplate(None, family="qwen3")) as llm:
        out = Path(folder) / "out.jsonl"
        report = batch.run(generated(), out, llm, on_progress=look)
        with out.open(encoding="utf-8") as file:
            found = {json.loads(line)["custom_id"] for line in file}
        assert len(found) == report.done == count
    early = max(held for ran, held in seen if ran <= count / 5)
    peak = max(held for _, held in seen)
    print(
        f"{count} rows in {report.seconds:.0f} s: {early:.1f} MiB after a fifth, {peak:.1f} MiB at most, "
        f"{peak - early:.1f} MiB more"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    parser.add_argument("--model", type=Path)
    parser.add_argument("--server", type=Path, metavar="BINARY", help="llama-server, to be compared with")
    parser.add_argument("--scripted", type=int, default=0, help="measure memory over so many scripted rows instead")
    given = parser.parse_args()
    if given.scripted:
        memory(given.scripted)
        return
    path = given.model or _data.builtin_model()
    task = Task(path, rows(given.rows), given.sequences, given.max_tokens, given.threads)
    throughput(task, given.server)


if __name__ == "__main__":
    main()
