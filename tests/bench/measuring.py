"""What the parts of the runtime's benchmark share: the model and its settings, texts, speeds, how they are printed."""

import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from bare import Bare, Drawing  # noqa: E402

from engine import Completion, Engine  # noqa: E402
from engine.runtime.config import ContextOptions  # noqa: E402

WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state")
STREAMS = 16
_DISTURBED = 0.05
"""Of the processors' time, taken by the host: a run of which so much is missing tells little."""
_ATTEMPTS = 5

T = TypeVar("T")


@dataclass(frozen=True)
class Setup:
    """What all parts share."""

    path: Path
    threads: int
    rounds: int
    steps: int
    server: Path | None
    batched: Path | None
    layouts: tuple[str, ...] = ("one", "apart")
    """KV layouts that sixteen streams are measured in: one buffer, and a buffer for each."""

    def engine(
        self,
        *,
        n_ctx: int = 4096,
        sequences: int = 1,
        unified: bool = True,
        isolated: bool = False,
        threads: int | None = None,
    ) -> Engine:
        """`n_ctx`: cells over all sequences, as for a bare loop."""
        return Engine.load(
            self.path,
            n_ctx=n_ctx if unified else n_ctx // sequences,
            n_sequences=sequences,
            n_threads=threads or self.threads,
            n_threads_batch=threads or self.threads,
            n_batch=2048,
            kv_unified=unified,
            preflight=False,
            isolated=isolated,
        )

    def bare(
        self, *, n_ctx: int = 4096, sequences: int = 1, unified: bool = True, asked: ContextOptions | None = None
    ) -> Bare:
        return Bare(self.path, n_ctx=n_ctx, sequences=sequences, threads=self.threads, unified=unified, asked=asked)


def words(count: int, seed: int) -> str:
    """A text of about so many tokens."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def in_a_thread(run: Callable[[], T]) -> T:
    """Run it in a thread that ends with it, and OpenMP's workers of that thread with it.

    libgomp's threads wait for one another spinning only while there are no more of them than processors. Workers left
    behind by an idle thread that once decoded slow down everybody else's decodes: for a contender that is to have the
    machine alone, the others' threads must have ended.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def speeds(contenders: Mapping[str, Callable[[], int]], rounds: int) -> dict[str, list[float]]:
    """Tokens per second of each in rounds in which each runs once. A first round warms up."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            made = run()
            if number:
                taken[name].append(made / (time.perf_counter() - start))
    return taken


@dataclass(frozen=True)
class Prompts:
    """User messages, and the tokens of the prompts that they become."""

    texts: Sequence[str]
    tokens: Sequence[Sequence[int]]


Contender: TypeAlias = Callable[[], AbstractContextManager[Callable[[Prompts], int]]]
"""Opened, it is a function that answers prompts and tells the number of tokens made; closed, nothing of it is left."""


def alone(
    contenders: Mapping[str, Contender], warmup: Prompts, rounds: Sequence[Sequence[Prompts]]
) -> dict[str, list[float]]:
    """Tokens per second of each in all its runs.

    In every round each is opened in a thread of its own, warmed up, run once for each of the round's prompts, and
    closed before the next one is opened; another one begins each round, as the machine's speed drifts. A run that
    other guests of the host disturbed is made again, a few times, and the least disturbed one counts.
    """
    taken: dict[str, list[float]] = {name: [] for name in contenders}

    def run(contender: Contender, prompts: Prompts) -> tuple[float, float]:
        with contender() as answer:
            answer(warmup)
            start, before = time.perf_counter(), _stolen()
            made = answer(prompts)
            seconds = time.perf_counter() - start
            return (_stolen() - before) / (seconds * (os.cpu_count() or 1)), made / seconds

    names = list(contenders)
    for number, prompts in enumerate(rounds):
        first = number % len(names)
        for name, each in product(names[first:] + names[:first], prompts):
            runs: list[tuple[float, float]] = []
            while len(runs) < _ATTEMPTS and min(runs, default=(1.0, 0.0))[0] > _DISTURBED:
                runs.append(in_a_thread(lambda contender=contenders[name], each=each: run(contender, each)))
            share, speed = min(runs)
            if share > _DISTURBED:
                print(f"  {name}: the host took {share:.0%} of the processors in the best of {len(runs)} runs")
            taken[name].append(speed)
    return taken


def _stolen() -> float:
    """Seconds that the host of this virtual machine gave to others, summed over its processors; 0 where Linux does not
    say (proc(5), `steal`)."""
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    except FileNotFoundError:
        return 0.0
    return int(line.split()[8]) / os.sysconf("SC_CLK_TCK")


def timed(run: Callable[[], int]) -> tuple[int, float]:
    """Tokens made, and the seconds that took."""
    start = time.perf_counter()
    made = run()
    return made, time.perf_counter() - start


def in_the_loops_thread(llm: Engine, run: Callable[[], int]) -> tuple[int, float]:
    """Tokens made, and the seconds that took, in the thread that owns the engine's context, where nothing else runs."""
    found: list[tuple[int, float]] = []

    def processor(_tokens: Sequence[int], _logits: object) -> None:
        found.append(timed(run))

    llm.complete("a", max_tokens=1, logits_processors=[processor])
    return found[0]


def in_turns(
    contenders: Mapping[str, Callable[[T], tuple[int, float]]], prompts: Sequence[T]
) -> dict[str, list[float]]:
    """Tokens per second of each for each prompt, another one beginning with every prompt."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for number, prompt in enumerate(prompts):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            made, seconds = contenders[name](prompt)
            taken[name].append(made / seconds)
    return taken


class Watch:
    """A function that notes how long each of its calls takes, in seconds."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self.spans: list[float] = []
        self.is_running = False

    def method(self) -> Callable[..., Any]:
        """A plain function, which a class makes a method of."""
        return lambda *args: self(*args)

    def __call__(self, *args: Any) -> Any:
        self.is_running = True
        start = time.perf_counter()
        try:
            return self._run(*args)
        finally:
            self.spans.append(time.perf_counter() - start)
            self.is_running = False


Place: TypeAlias = tuple[Any, str]
"""A function, as the attribute of something."""


@contextmanager
def replaced(functions: Mapping[Place, Callable[..., Any]]) -> Generator[None]:
    """These functions instead of what stands in their places."""
    plain = {(owner, name): getattr(owner, name) for owner, name in functions}
    for (owner, name), function in functions.items():
        setattr(owner, name, function)
    try:
        yield
    finally:
        for (owner, name), function in plain.items():
            setattr(owner, name, function)


@contextmanager
def watched(places: Sequence[Place] = ()) -> Generator[list[Watch]]:
    """The calls of these functions meanwhile.

    Left out, they are the turns of the engine's thread, each a step and its replies sent off, and what of them is
    drawing and decoding. Decoding is the C function alone; drawing is a sampler's whole draw, the same chain as the
    bare loop's.
    """
    places = places or _engines_places()
    watches = [Watch(getattr(owner, name)) for owner, name in places]
    with replaced({place: watch.method() for place, watch in zip(places, watches, strict=True)}):
        yield watches
        while any(watch.is_running for watch in watches):  # who waits for a reply hears of it in the middle of a turn
            time.sleep(0.001)


def _engines_places() -> tuple[Place, ...]:
    from engine.llama import lib as llama_lib
    from engine.llama import sampling as llama_sampling
    from engine.runtime import runner

    return (
        (runner.Runner, "_turn"),
        (llama_sampling.LlamaSampler, "draw"),
        (llama_lib.library(), "llama_decode"),
    )


def report_turns(title: str, taken: Mapping[str, Sequence[float]], base: str) -> None:
    """Median speeds, and the quartiles of the ratios within each turn."""
    print(f"\n{title}: tokens/s, and quartiles of {len(taken[base])} turns' ratios to the {base}")
    for name, speed in taken.items():
        ratios = [one / other for one, other in zip(speed, taken[base], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        print(f"  {name:34}{statistics.median(speed):10.1f}{low:9.3f}{middle:8.3f}{high:8.3f}", flush=True)


def report(
    title: str, measured: Mapping[str, Sequence[float]], base: str, *, ours: str = "", beside: Sequence[str] = ()
) -> None:
    """Median speeds, the slowest and the fastest, and how they compare with that of `base`; then how that of `ours`
    compares with some more."""
    middle = {name: statistics.median(each) for name, each in measured.items()}
    print(f"\n{title}: tokens/s (least, most)")
    for name, each in measured.items():
        print(
            f"  {name:34}{middle[name]:9.1f} ({min(each):.1f}, {max(each):.1f})"
            f"{middle[name] / middle[base]:8.3f} x {base}",
            flush=True,
        )
    for name in beside:
        print(f"  {ours}: {middle[ours] / middle[name]:.2f} x {name}", flush=True)


def made_by(completion: Completion) -> int:
    """Tokens of an answer."""
    return completion.usage.completion_tokens if completion.usage else 0


def ask(llm: Engine, text: str, steps: int, drawing: Drawing, *, ignore_eos: bool = False) -> int:
    """One streamed answer, event by event; the number of tokens made."""
    stream = llm.stream(text, max_tokens=steps, seed=0, ignore_eos=ignore_eos, **drawing.options)
    for _ in stream:
        pass
    return made_by(stream.result())


def ask_all(llm: Engine, texts: Sequence[str], steps: int, drawing: Drawing) -> int:
    """All at once, read to their ends; the number of tokens made."""
    streams = [llm.stream(text, max_tokens=steps, seed=seed, **drawing.options) for seed, text in enumerate(texts)]
    return sum(made_by(stream.result()) for stream in streams)
