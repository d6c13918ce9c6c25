"""What the engine's Python costs for each token: `python benchmarks/python_cost.py [--tokens 300] [--profile 10]`.

With many streams on a GPU a step takes about 15 ms, and what Python does in it is added to that. Three backends:
`null`, whose decode and draw do next to nothing; `cold`, whose decode reads 96 MiB, as that of a model does, so that
the processor's caches hold nothing of the engine afterwards; and the built-in model on one thread. Decodes do not
count. For 1, 16 and 64 streams: microseconds of processor time a token, of the engine's thread, and of the whole
process with one event loop that reads all streams. `--profile N` prints the N functions in which most time is spent.
"""

import argparse
import asyncio
import cProfile
import pstats
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from measuring import words  # noqa: E402

from engine import Engine, SamplingParams  # noqa: E402
from engine.formats.template.chat_template import ChatTemplate  # noqa: E402
from engine.llama.context import LlamaBackend  # noqa: E402
from engine.runtime.guidance.matcher import Mask, TokenIds  # noqa: E402
from engine.runtime.loop.backend import Ahead, Row, Sampler  # noqa: E402
from engine.runtime.loop.runner import Runner  # noqa: E402
from engine.testing.byte_vocab import ByteVocab  # noqa: E402
from engine.testing.scripted import ScriptedBackend  # noqa: E402

TEXT = b"The weather in Paris is fine, and it will stay so until the evening; then some rain may fall. "
STREAMS = (1, 16, 64)
WEIGHTS = np.ones(96 * 2**18, np.float32)


class NullSampler:
    """Draws the bytes of a text, over and over."""

    def __init__(self) -> None:
        self.drawn = 0

    def accept(self, token: int) -> None: ...

    def close(self) -> None: ...


class NullBackend(ScriptedBackend):
    """Decodes and checks nothing; each draw is the next byte of a text."""

    def __init__(self, n_sequences: int) -> None:
        super().__init__([], vocab=ByteVocab(), n_ctx=4096, n_sequences=n_sequences, n_batch=2048)
        self._held: dict[int, int] = defaultdict(int)

    def decode(self, rows: Sequence[Row]) -> None:
        for _, position, sequence, _ in rows:
            self._held[sequence] = position + 1

    def positions(self, sequence: int) -> int:
        return self._held[sequence]

    def trim(self, sequence: int, position: int) -> bool:
        self._held[sequence] = min(self._held[sequence], position)
        return True

    def copy(self, source: int, target: int, positions: int) -> None:
        self._held[target] = positions

    def sampler(self, params: SamplingParams, tokens: Sequence[int] = ()) -> Any:
        del params, tokens
        return NullSampler()

    def attach(self, sequence: int, sampler: Sampler | None) -> None: ...

    def sample(
        self,
        sampler: Any,
        row: int,
        mask: "Mask | None" = None,
        ends: "TokenIds | None" = None,
        opening: int | None = None,
        ahead: "Ahead | None" = None,
    ) -> int:
        del row, mask, ends, opening, ahead
        drawn: int = sampler.drawn
        sampler.drawn = drawn + 1
        return TEXT[drawn % len(TEXT)]


class ColdBackend(NullBackend):
    """Reads as much memory in each decode as a model of 96 MiB has weights."""

    def decode(self, rows: Sequence[Row]) -> None:
        super().decode(rows)
        self._compute()

    def _compute(self) -> None:
        WEIGHTS.sum()


def cold(streams: int) -> Engine:
    return Engine.over(ColdBackend(streams), ChatTemplate(None, family="qwen3"))


def null(streams: int) -> Engine:
    return Engine.over(NullBackend(streams), ChatTemplate(None, family="qwen3"))


def builtin(streams: int) -> Engine:
    return Engine.load(n_sequences=streams, n_ctx=1024, n_threads=1, preflight=False)


def own_clock() -> Callable[[], float]:
    """Returns what reads this thread's processor time, from any thread."""
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)


class Watch:
    """The processor time of the engine's thread, and of its decodes; profiles the thread if asked."""

    def __init__(self, *, profile: bool = False) -> None:
        self.decodes = 0.0
        self.thread: Callable[[], float] = time.process_time
        self.profile = cProfile.Profile(time.thread_time) if profile else None
        self._patches = ExitStack()

    def __enter__(self) -> Self:
        run: Any = Runner._run  # pyright: ignore[reportPrivateUsage]

        def watched_run(runner: Runner) -> None:
            self.thread = own_clock()
            if self.profile is None:
                run(runner)
            else:
                self.profile.runcall(run, runner)

        def watched(compute: Callable[..., None]) -> Callable[..., None]:
            def timed(*arguments: Any) -> None:
                began = time.thread_time()
                compute(*arguments)
                self.decodes += time.thread_time() - began

            return timed

        self._patches.enter_context(patch.object(Runner, "_run", watched_run))
        for backend in (LlamaBackend, ColdBackend):
            compute: Any = backend._compute  # pyright: ignore[reportPrivateUsage]
            self._patches.enter_context(patch.object(backend, "_compute", watched(compute)))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()


async def read(llm: Engine, streams: int, tokens: int, seed: int) -> int:
    """Answer so many prompts at once, in one event loop; returns the tokens made."""
    options: dict[str, Any] = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True, "reasoning": False}

    async def one(at: int) -> int:
        stream = llm.stream(f"{at} {words(4, seed * 97 + at)}", **options)
        async for _ in stream:
            pass
        return stream.completion.usage.completion_tokens if stream.completion.usage else 0

    return sum(await asyncio.gather(*(one(at) for at in range(streams))))


def measured(make: Callable[[int], Engine], streams: int, tokens: int, rounds: int) -> tuple[float, float]:
    """Microseconds a token: of the engine's thread, and of the process."""
    threads: list[float] = []
    processes: list[float] = []
    with Watch() as watch, make(streams) as llm:
        asyncio.run(read(llm, streams, 16, 0))
        for number in range(rounds):
            thread, process, decodes = watch.thread(), time.process_time(), watch.decodes
            made = asyncio.run(read(llm, streams, tokens, number + 1))
            decodes = watch.decodes - decodes
            threads.append((watch.thread() - thread - decodes) / made * 1e6)
            processes.append((time.process_time() - process - decodes) / made * 1e6)
    return statistics.median(threads), statistics.median(processes)


def show_profile(make: Callable[[int], Engine], streams: int, tokens: int, most: int) -> None:
    with Watch(profile=True) as watch:
        with make(streams) as llm:
            made = asyncio.run(read(llm, streams, tokens, 1))
        assert watch.profile is not None
        stats: Any = pstats.Stats(watch.profile)
        functions: list[tuple[float, int, str]] = [
            (own, calls, f"{Path(file).name}:{name}") for (file, _, name), (_, calls, own, _, _) in stats.stats.items()
        ]
        whole = sum(own for own, _, _ in functions)
        print(f"  {streams} streams: functions by their own time, of {whole / made * 1e6:.1f} us a token when profiled")
        for own, calls, name in sorted(functions, reverse=True)[:most]:
            print(f"    {own / made * 1e6:6.2f} us {calls / made:6.2f} calls  {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--profile", type=int, default=0)
    parser.add_argument("--only", choices=["null", "cold", "builtin"])
    given = parser.parse_args()
    for name, make in (("null", null), ("cold", cold), ("builtin", builtin)):
        if given.only in (None, name):
            for streams in STREAMS:
                thread, process = measured(make, streams, given.tokens, given.rounds)
                print(
                    f"{name:8} {streams:3} streams: {thread:6.1f} us a token, with its readers {process:6.1f}",
                    flush=True,
                )
                if given.profile:
                    show_profile(make, streams, given.tokens, given.profile)


if __name__ == "__main__":
    main()
