"""1,000 turns over five models under a budget for two: `python benchmarks/engines.py [TURNS]`.

Four threads ask models at random, with and without mmap. Printed: loads and unloadings, those of a model in use (none),
answers that differ from those of an engine of each model's own (none), and the most memory over that before the first
load: by the planner's estimate, and as measured every two milliseconds (`RssAnon`, and `RssFile`, which mapped weights
count in). A run that stands still for ten minutes ends with every thread's stack.
"""

import faulthandler
import random
import sys
import tempfile
import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

import model_files
from measuring import words

from engine import Engine, Engines
from engine.api.engines import LoadedEngine

THREADS, TEXTS, MIB = 4, 6, 1 << 20
TURN: dict[str, Any] = {"temperature": 0, "max_tokens": 8}
FOLDER = Path(tempfile.mkdtemp())


def models(*, mapped: bool) -> dict[str, dict[str, Any]]:
    made: dict[str, dict[str, Any]] = {}
    for number in range(5):
        shape = model_files.Shape(n_embd=256, n_ff=1024 + 512 * number, n_layer=6, n_head=4, seed=number, n_ctx=4096)
        path = FOLDER / f"{number}.gguf"
        if not path.exists():
            model_files.write(path, shape=shape)
        made[f"m{number}"] = {"model": path, "family": "content-only", "trust_template": True, "use_mmap": mapped}
        made[f"m{number}"] |= {"n_ctx": 512 * (1 + number), "n_sequences": 2}
    return made


class Watched:
    """The most that was seen."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self._before = self._now()
        self.most = {"estimate": 0, "RssAnon": 0, "RssFile": 0}
        self.in_use = 0

    @staticmethod
    def _now() -> dict[str, int]:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssA", "RssF"))}

    def look(self) -> None:
        now = {name: size - self._before[name] for name, size in self._now().items()}
        for name, size in {**now, "estimate": self._engines.used.host}.items():
            self.most[name] = max(self.most[name], size)

    def left(self) -> int:
        return self._now()["RssAnon"] - self._before["RssAnon"]

    @contextmanager
    def watching(self) -> Generator[None]:
        over, close = threading.Event(), LoadedEngine.close

        def watch() -> None:
            while not over.wait(0.002):
                self.look()

        def closed(llm: LoadedEngine) -> None:
            self.in_use += llm.in_use
            close(llm)

        thread = threading.Thread(target=watch)
        thread.start()
        setattr(LoadedEngine, "close", closed)  # noqa: B010
        try:
            yield
        finally:
            setattr(LoadedEngine, "close", close)  # noqa: B010
            over.set()
            thread.join()


def alone(given: dict[str, dict[str, Any]], texts: list[str]) -> dict[tuple[str, str], str]:
    answers: dict[tuple[str, str], str] = {}
    for name, options in given.items():
        with Engine.load(**options) as llm:
            answers |= {(name, text): llm.chat(text, **TURN).content for text in texts}
    return answers


def run(turns: int, *, mapped: bool) -> None:
    given, texts = models(mapped=mapped), [words(20, seed) for seed in range(TEXTS)]
    expected = alone(given, texts)
    chosen = random.Random(7)
    asked = [(chosen.choice(list(given)), chosen.choice(texts)) for _ in range(turns)]
    with Engines(given) as sized:
        sizes: list[int] = []
        for name in given:
            sized.load(name)
            sizes.append(sized.state(name).size.host)
            sized.unload(name)
    with Engines(given, budget=sum(sorted(sizes)[-2:])) as engines:
        watched = Watched(engines)

        def ask(each: tuple[str, str]) -> bool:
            answer = engines[each[0]].chat(each[1], **TURN)
            return answer.finish_reason in ("stop", "length") and answer.content == expected[each]

        start = perf_counter()
        with watched.watching(), ThreadPoolExecutor(THREADS) as pool:
            right = sum(pool.map(ask, asked))
        seconds = perf_counter() - start
        loads = sum(engines.state(name).loads for name in given)
        there = sum(engines.state(name).loaded for name in given)
        budget = engines.budget.host
        engines.close()
        left = watched.left()
    most = {name: f"{size / MIB:.0f}" for name, size in watched.most.items()}
    print(
        f"\n{'mmap' if mapped else 'no mmap'}: {turns:,} turns in {seconds:.0f} s, {loads} loads, {loads - there} "
        f"unloadings, {watched.in_use} of them in use, {turns - right} wrong answers\n"
        f"  models of {', '.join(f'{size / MIB:.0f}' for size in sizes)} MiB, budget {budget / MIB:.0f}; at most "
        f"{most['estimate']} by the estimate, RssAnon {most['RssAnon']}, RssFile {most['RssFile']} MiB over the "
        f"beginning; {left / MIB:.0f} MiB of RssAnon left after close",
        flush=True,
    )


if __name__ == "__main__":
    faulthandler.dump_traceback_later(600, exit=True)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    for mapped in (False, True):
        run(count, mapped=mapped)
        faulthandler.dump_traceback_later(600, exit=True)
