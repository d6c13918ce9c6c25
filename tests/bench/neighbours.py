"""How many threads are best, by how many other processes compute on the same processors.

    python tests/bench/neighbours.py --model random-0.2B-q4_0.gguf --rounds 5

For each number of busy neighbours: one stream's tokens per second, and those of a prompt of 512 tokens, with each
number of threads up to the processors there are; medians of rounds in which all take turns.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from engine import Engine  # noqa: E402
from engine.llama.machine import default_threads  # noqa: E402

GREEDY: dict[str, Any] = {"temperature": 0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "ignore_eos": True}


def compute() -> None:
    while True:
        sum(range(10_000))


@contextmanager
def busy(count: int) -> Generator[None]:
    """So many processes that never stop computing."""
    neighbours = [multiprocessing.get_context("spawn").Process(target=compute, daemon=True) for _ in range(count)]
    for each in neighbours:
        each.start()
    time.sleep(1)
    try:
        yield
    finally:
        for each in neighbours:
            each.kill()
            each.join()


def measured(llm: Engine, seed: int, steps: int) -> tuple[float, float]:
    """Tokens per second: decoded, and read."""
    prompt = [(7919 * at + 13 * seed) % 30_000 for at in range(512)]
    usage = llm.complete(prompt, max_tokens=steps, **GREEDY).usage
    assert usage is not None
    return usage.decode_tokens_per_second or 0.0, 512 / usage.prefill_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--most", type=int, default=os.cpu_count() or 1, help="the most neighbours")
    given = parser.parse_args()
    processors = os.cpu_count() or 1
    counts = sorted({1, max(processors // 2, 1), max(processors - 1, 1), processors})
    print(f"{given.model.name}, {processors} processors, the default is {default_threads()} thread(s)")
    for neighbours in range(given.most + 1):
        found: dict[int, list[tuple[float, float]]] = {count: [] for count in counts}
        with ExitStack() as stack:
            stack.enter_context(busy(neighbours))
            for seed in range(given.rounds):
                for count in counts:
                    # One engine at a time: idle OpenMP workers of another would be neighbours, too.
                    with Engine.load(given.model, n_ctx=1024, n_sequences=1, n_threads=count, preflight=False) as llm:
                        measured(llm, 100 + seed, 4)
                        found[count].append(measured(llm, seed, given.steps))
        for count, pairs in found.items():
            decoded, read = (statistics.median(each) for each in zip(*pairs, strict=True))
            print(
                f"  {neighbours} busy, {count} threads: {decoded:8.1f} decoded, {read:8.1f} read a second", flush=True
            )


if __name__ == "__main__":
    main()
