"""Measures a model's speed on this machine: prefill, one stream, several streams, beside llama.cpp's C functions called
from a plain loop.

Knows: what is timed, and that each side has the machine to itself: in turn, each is opened in a thread of its own,
warmed up, measured and closed before the other one is opened. (OpenMP threads that an idle thread leaves behind slow
down all other decodes.) Does not know: how results are shown.
"""

import random
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from engine.engine import Engine
from engine.llama.bare import GREEDY, Bare
from engine.llama.params import default_threads

Run: TypeAlias = Callable[[Sequence[Sequence[int]], int], object]
"""Decodes these prompts in parallel, each for the given number of tokens."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """What to measure: tokens of the long prompt, tokens of an answer, streams at once, rounds."""

    prompt: int = 512
    answer: int = 64
    streams: int = 8
    rounds: int = 3


@dataclass(frozen=True, slots=True)
class Result:
    """One measurement, in tokens per second for each round."""

    name: str
    engine: tuple[float, ...]
    bare: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(one / other for one, other in zip(self.engine, self.bare, strict=True))


def measure(path: Path, sizes: Sizes, *, threads: int | None, gpu_layers: int) -> Iterator[tuple[int, list[Result]]]:
    """Measure round by round; yields the number of rounds done, and the results so far.

    Raises what `Engine.load` raises.
    """
    count = threads or default_threads()
    n_ctx = max(sizes.prompt, 16) + sizes.answer + 16
    names = (f"prefill, {sizes.prompt} tokens", "decode, 1 stream", f"decode, {sizes.streams} streams")
    speeds: dict[str, dict[str, list[float]]] = {name: {"engine": [], "bare": []} for name in names}

    @contextmanager
    def ours() -> Generator[Run]:
        with Engine.load(
            path,
            n_ctx=n_ctx,
            n_sequences=sizes.streams,
            n_threads=count,
            n_threads_batch=count,
            n_gpu_layers=gpu_layers,
            kv_unified=False,
        ) as llm:

            def run(prompts: Sequence[Sequence[int]], steps: int) -> None:
                streams = [
                    llm.stream_complete(each, max_tokens=steps, ignore_eos=True, temperature=0) for each in prompts
                ]
                for stream in streams:
                    stream.result()

            yield run

    @contextmanager
    def bare() -> Generator[Run]:
        total = n_ctx * sizes.streams
        with Bare(
            path, n_ctx=total, sequences=sizes.streams, threads=count, unified=False, gpu_layers=gpu_layers
        ) as plain:
            yield lambda prompts, steps: plain.generate(prompts, steps, GREEDY)

    contenders = {"engine": ours, "bare": bare}
    known = _tokens(path)
    for number in range(sizes.rounds):
        for name in sorted(contenders, reverse=number % 2 == 0):
            for what, speed in zip(names, _alone(contenders[name], sizes, known, number), strict=True):
                speeds[what][name].append(speed)
        yield number + 1, [Result(what, tuple(each["engine"]), tuple(each["bare"])) for what, each in speeds.items()]


def _alone(
    opened: Callable[[], AbstractContextManager[Run]], sizes: Sizes, known: Sequence[int], number: int
) -> list[float]:
    """Returns one contender's tokens per second, measured in a thread that ends with it."""

    def timed(decode: Run, streams: int, prompt: int, steps: int, attempt: str) -> float:
        draw = random.Random(f"{number} {streams} {prompt} {attempt}")
        prompts = [draw.choices(known, k=prompt) for _ in range(streams)]
        began = time.perf_counter()
        decode(prompts, steps)
        return streams * (prompt if steps == 1 else steps) / (time.perf_counter() - began)

    def run() -> list[float]:
        found: list[float] = []
        with opened() as decode:
            for streams, prompt, steps in (
                (1, sizes.prompt, 1),
                (1, 8, sizes.answer),
                (sizes.streams, 8, sizes.answer),
            ):
                _ = timed(decode, streams, prompt, steps, "to warm up")
                found.append(timed(decode, streams, prompt, steps, "that counts"))
        return found

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def _tokens(path: Path) -> list[int]:
    """Returns some tokens of ordinary text, in the model's vocabulary."""
    with Engine.load(path, n_ctx=64, n_sequences=1) as llm:
        return llm.tokenize("The quick brown fox jumps over the lazy dog, and 127 times 46 is 5842; so it goes on.")
