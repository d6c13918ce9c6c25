"""Two checkouts of the engine side by side: the same work in each by turns, every time in a process of its own.

    python benchmarks/versus.py --model random-0.2B-q4_0.gguf --base ../main-before --only shared distinct --rounds 5

Prints the medians of both and the median of the ratios within each round (this checkout over the base). Run with one
checkout as its own base to see how much the machine itself varies. On a busy machine `--cpu --threads 1` measures this
process's processor time in place of the clock's: what neighbours take does not count then, and no thread waits for
another. Workloads:

- `single`: one answer after the other.
- `shared`, `distinct`: sixteen streams with a prefix of 128 tokens in common, and with 512 tokens of their own;
  `-pool`: in one KV pool, else in split buffers.
- `behind`: one stream behind 2,000 tokens; also the seconds until the prompt is read.
- `cached`: the same while three more conversations of 2,000 tokens are cached.
- `queue`: sixteen prompts of 620 tokens over a pool of 4,096 cells.
- `generate`: sixteen prompts of 512 tokens as one `generate`.
- `turn`: a second turn behind 1,500 tokens: seconds, its new tokens, and how many were prefilled.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent)]

from measuring import STREAMS, by_turns, many_words, report, words  # noqa: E402

HERE = Path(__file__).resolve().parents[1]
GREEDY: dict[str, Any] = {"temperature": 0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


class Worker:
    """One workload in this process; `engine` is whatever checkout comes first on the path."""

    def __init__(self, model: str, threads: int, steps: int, seed: int, *, cpu: bool = False) -> None:
        self._model = model
        self._threads = threads
        self._steps = steps
        self._seed = seed
        self._clock = time.process_time if cpu else time.perf_counter

    def load(self, n_ctx: int, sequences: int = 1, *, pool: int = 0) -> Any:
        """`n_ctx` tokens for each conversation; `pool`: cells that all share."""
        from engine import Engine

        options: dict[str, Any] = {"n_ctx": n_ctx, "n_sequences": sequences, "kv_unified": bool(pool)}
        if pool:
            options["kv_tokens"] = pool
        return Engine.load(
            self._model, n_threads=self._threads, n_threads_batch=self._threads, preflight=False, **options
        )

    def run(self, name: str) -> dict[str, float]:
        work: dict[str, Callable[[], dict[str, float]]] = {
            "single": self._single,
            "shared": lambda: self._sixteen(128, 16, 0),
            "shared-pool": lambda: self._sixteen(128, 16, 16 * 1164),
            "distinct": lambda: self._sixteen(0, 512, 0),
            "distinct-pool": lambda: self._sixteen(0, 512, 16 * 1164),
            "generate": self._generate,
            "behind": lambda: self._behind(1, 0),
            "cached": lambda: self._behind(4, 3),
            "queue": self._queue,
            "turn": self._turn,
        }
        return work[name]()

    def _ask_all(self, llm: Any, texts: Sequence[str], steps: int) -> float:
        start = self._clock()
        streams = [llm.stream(text, max_tokens=steps, seed=at, **GREEDY) for at, text in enumerate(texts)]
        made = sum(stream.result().usage.completion_tokens for stream in streams)
        return made / (self._clock() - start)

    def _single(self) -> dict[str, float]:
        with self.load(4096) as llm:
            self._ask_all(llm, ["hello"], 16)
            speeds = [self._ask_all(llm, [words(64, 9 * self._seed + at)], self._steps) for at in range(3)]
        return {"tokens/s": statistics.median(speeds)}

    def _sixteen(self, common: int, own: int, pool: int) -> dict[str, float]:
        texts = many_words(common, own, self._seed)
        with self.load(1164, 16, pool=pool) as llm:
            self._ask_all(llm, ["hello"], 16)
            return {"tokens/s": self._ask_all(llm, texts, self._steps)}

    def _generate(self) -> dict[str, float]:
        texts = [f"{at} {words(512, self._seed * 97 + at)}" for at in range(16)]
        with self.load(1164, 16) as llm:
            self._ask_all(llm, ["hello"], 16)
            start = self._clock()
            answers = llm.generate(texts, max_tokens=self._steps, seed=0, **GREEDY)
            made = sum(answer.usage.completion_tokens for answer in answers)
            return {"tokens/s": made / (self._clock() - start)}

    def _behind(self, sequences: int, cached: int) -> dict[str, float]:
        with self.load(3072, sequences) as llm:
            self._ask_all(llm, ["hello"], 16)
            for at in range(cached):
                llm.chat(f"{at} {words(2000, at)}", max_tokens=2, **GREEDY)
            return self._answer(llm, f"mine {words(2000, 1000 + self._seed)}", self._steps)

    def _answer(self, llm: Any, asked: Any, steps: int) -> dict[str, float]:
        """Seconds until the prompt is read, and tokens per second from there on."""
        read: list[float] = []

        def progress(done: int, of: int) -> None:
            if done == of:
                read.append(self._clock())

        start = self._clock()
        made = llm.chat(asked, max_tokens=steps, ignore_eos=True, progress=progress, **GREEDY).usage.completion_tokens
        return {
            "tokens/s": (made - 1) / max(self._clock() - read[0], 1e-9),
            "seconds of the prompt": read[0] - start,
        }

    def _queue(self) -> dict[str, float]:
        texts = [f"{at} {words(600, self._seed * 97 + at)}" for at in range(STREAMS)]
        with self.load(4096, 16, pool=4096) as llm:
            self._ask_all(llm, ["hello"], 16)
            return {"tokens/s": self._ask_all(llm, texts, self._steps)}

    def _turn(self) -> dict[str, float]:
        with self.load(4096) as llm:
            history: list[Any] = [{"role": "user", "content": words(1500, self._seed)}]
            answer = llm.chat(history, max_tokens=100, ignore_eos=True, **GREEDY)
            held = answer.usage.prompt_tokens + answer.usage.completion_tokens
            history += [answer.message, {"role": "user", "content": words(60, self._seed + 1)}]
            start = self._clock()
            usage = llm.chat(history, max_tokens=1, ignore_eos=True, **GREEDY).usage
            taken = self._clock() - start
        new = usage.prompt_tokens - held
        return {"seconds": taken, "new tokens": new, "prefilled": usage.prompt_tokens - usage.cached_tokens}


def measured(checkout: Path, given: argparse.Namespace, workload: str, seed: int) -> dict[str, float]:
    """One run in a process of its own."""
    order = {"model": str(given.model), "threads": given.threads, "steps": given.steps, "seed": seed, "cpu": given.cpu}
    command = [sys.executable, "-P", str(Path(__file__).resolve()), "--work", workload, "--order", json.dumps(order)]
    done = subprocess.run([*command, "--checkout", str(checkout)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def compare(options: argparse.Namespace, workload: str) -> None:
    """Print medians and ratios."""
    runs = {
        "base": partial(measured, options.base, options, workload),
        "here": partial(measured, HERE, options, workload),
    }
    results = by_turns(runs, options.rounds)
    for figure in results["base"][0]:
        report(workload, {name: [run[figure] for run in each] for name, each in results.items()}, "base", figure)


WORKLOADS = (
    *("single", "shared", "shared-pool", "distinct", "distinct-pool"),
    *("generate", "behind", "cached", "queue", "turn"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file")
    parser.add_argument("--base", type=Path, help="the other checkout")
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=64, help="tokens an answer")
    parser.add_argument("--cpu", action="store_true", help="measure processor seconds instead of the clock's")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--order", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--checkout", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        sys.path.insert(0, given.checkout)
        print(json.dumps(Worker(**given.order).run(given.work)))
        return
    if given.model is None or given.base is None:
        parser.error("--model and --base are needed")
    print(f"{given.model.name}, {given.threads} threads, {given.rounds} rounds, {given.steps} tokens an answer")
    for workload in given.only:
        compare(given, workload)


if __name__ == "__main__":
    main()
