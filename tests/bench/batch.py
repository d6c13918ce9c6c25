"""Batches: throughput beside the same rows one by one, grouped beside input order, memory over many rows.

    python tests/bench/batch.py --rows 200
    python tests/bench/batch.py --scripted 20000

The first loads a model (the built-in one unless `--model` names another) once for each way, and prints seconds, tokens
per second and the share of the prompts that came from the prefix cache. The second runs rows through a scripted backend
and prints how resident memory grew from the first tenth of them to the end.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from engine import ChatTemplate, Engine, batch  # noqa: E402
from engine.testing import ByteVocab, ScriptedBackend  # noqa: E402

_DOCUMENTS, _SENTENCES = 25, 12


def rows(count: int) -> list[dict[str, Any]]:
    """Questions about more documents than there are sequences, in turn: neighbours have little in common."""
    documents = [
        " ".join(f"Document {number} says that item {item} is number {item * number}." for item in range(_SENTENCES))
        for number in range(_DOCUMENTS)
    ]
    return [{"prompt": f"{documents[number % _DOCUMENTS]} What is item {number}?"} for number in range(count)]


def one_by_one(llm: Engine, asked: list[dict[str, Any]], **options: Any) -> tuple[float, int, float]:
    """Seconds, tokens written, share of the prompts from the cache."""
    began, written, prompts, cached = time.perf_counter(), 0, 0, 0
    for row in asked:
        usage = llm.chat(row["prompt"], **options).usage
        assert usage is not None
        written += usage.completion_tokens
        prompts += usage.prompt_tokens
        cached += usage.cached_tokens
    return time.perf_counter() - began, written, cached / prompts


def batched(llm: Engine, asked: list[dict[str, Any]], *, group: bool, **options: Any) -> tuple[float, int, float]:
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        report = batch.run(asked, Path(folder) / "out.jsonl", llm, group=group, quiet=True, **options)
        seconds = time.perf_counter() - began
    assert report.done == len(asked), report
    return seconds, report.completion_tokens, report.cached_tokens / report.prompt_tokens


def throughput(model: str | None, count: int, sequences: int) -> None:
    asked = rows(count)
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 64}
    ways: dict[str, Callable[[Engine], tuple[float, int, float]]] = {
        "one by one": lambda llm: one_by_one(llm, asked, **options),
        "batch, input order": lambda llm: batched(llm, asked, group=False, **options),
        "batch, grouped": lambda llm: batched(llm, asked, group=True, **options),
    }
    print(f"{count} rows, {sequences} sequences")
    for name, way in ways.items():
        with Engine.load(model, n_sequences=1 if name == "one by one" else sequences, n_ctx=1024) as llm:
            llm.chat("Hello", max_tokens=4)
            seconds, written, share = way(llm)
        print(
            f"  {name:20} {seconds:7.2f} s {written / seconds:8.0f} tokens/s, {share:4.0%} of the prompts cached",
            flush=True,
        )


def resident() -> float:
    """MiB that this process holds now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096 / 2**20


def memory(count: int) -> None:
    """Rows come from a generator and go to a file; the measure is how much more is held at the end than early on."""

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

    with tempfile.TemporaryDirectory() as folder, Engine(backend, ChatTemplate(None, family="qwen3")) as llm:
        out = Path(folder) / "out.jsonl"
        report = batch.run(generated(), out, llm, on_progress=look)
        with out.open(encoding="utf-8") as file:
            found = {json.loads(line)["custom_id"] for line in file}
        assert len(found) == report.done == count
    early = max(held for ran, held in seen if ran <= count / 10)
    peak = max(held for _, held in seen)
    print(
        f"{count} rows in {report.seconds:.0f} s: {early:.1f} MiB after a tenth, {peak:.1f} MiB at most, "
        f"{peak - early:.1f} MiB more"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--model")
    parser.add_argument("--scripted", type=int, default=0, help="measure memory over so many scripted rows instead")
    given = parser.parse_args()
    if given.scripted:
        memory(given.scripted)
    else:
        throughput(given.model, given.rows, given.sequences)


if __name__ == "__main__":
    main()
