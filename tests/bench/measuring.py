"""What the parts of the runtime's benchmark share: the model and its settings, texts, speeds, how they are printed."""

import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from bare import Bare  # noqa: E402

from engine import Completion, Engine  # noqa: E402

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state")


@dataclass(frozen=True)
class Setup:
    """What all parts share."""

    path: Path
    threads: int
    rounds: int
    steps: int
    server: Path | None
    batched: Path | None

    def engine(self, *, n_ctx: int = 4096, sequences: int = 1, unified: bool = True) -> Engine:
        return Engine.load(
            self.path,
            n_ctx=n_ctx,
            n_sequences=sequences,
            n_threads=self.threads,
            n_threads_batch=self.threads,
            n_batch=2048,
            kv_unified=unified,
            preflight=False,
        )

    def bare(self, *, n_ctx: int = 4096, sequences: int = 1, unified: bool = True) -> Bare:
        return Bare(self.path, n_ctx=n_ctx, sequences=sequences, threads=self.threads, unified=unified)


def words(count: int, seed: int) -> str:
    """A text of about so many tokens."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def in_a_thread(run: Callable[[], int]) -> int:
    """Run it in a thread that ends with it, and OpenMP's workers of that thread with it.

    libgomp's threads wait for one another spinning only while there are no more of them than processors. Workers left
    behind by an idle thread that once decoded slow down everybody else's decodes: for a contender that is to have the
    machine alone, the others' threads must have ended.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def speeds(contenders: Mapping[str, Callable[[], int]], rounds: int) -> dict[str, float]:
    """Tokens per second of each, the median over rounds in which each runs once. A first round warms up."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            made = run()
            if number:
                taken[name].append(made / (time.perf_counter() - start))
    return {name: statistics.median(each) for name, each in taken.items()}


def report(title: str, measured: Mapping[str, float], base: str) -> None:
    print(f"\n{title}")
    for name, speed in measured.items():
        print(f"  {name:34}{speed:10.1f} tokens/s{speed / measured[base]:8.3f} x {base}", flush=True)


def made_by(completion: Completion) -> int:
    """Tokens of an answer."""
    return completion.usage.completion_tokens if completion.usage else 0
