"""The process of a model killed (SIGKILL) at random moments: is a request lost, answered wrongly, left hanging?

    python benchmarks/child_kills.py --kills 200

Four threads ask an isolated engine: turns read at once and streams, some with a tool, some cancelled, vectors, and
prefixes that are pinned. What each answers alone is noted before. Each request must be answered so, or end by name
because a part of it had been shown or because it was alone when its process died twice. Prints one table.
"""

import argparse
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from engine import Engine, EngineError  # noqa: E402
from engine.isolated.parent import IsolatedRunner  # noqa: E402

OPTIONS: dict[str, Any] = {"n_ctx": 2048, "n_sequences": 6, "n_threads": 1}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 60}
QUESTIONS = ("Hello!", "Who are you?", "Thank you.", "What is the weather in Paris?", "Say one two three.")
PATIENCE = 60.0
ENDS = {
    "while it wrote this answer": "ended by name: a part was shown",
    "twice over this request": "ended by name: alone at two deaths",
}


def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"sunny in {city}"


def whole(llm: Engine, question: str, tools: bool) -> object:
    return llm.stream(question, [get_weather] if tools else [], **GREEDY).result(PATIENCE).parts


def streamed(llm: Engine, question: str, tools: bool) -> object:
    stream = llm.stream(question, [get_weather] if tools else [], **GREEDY)
    for _ in stream:
        pass
    return stream.result(PATIENCE).parts


def left(llm: Engine, question: str, tools: bool) -> object:
    with llm.stream(question, ignore_eos=True) as stream:
        time.sleep(0.02 if tools else 0)
    return stream.result(PATIENCE).finish_reason


def pinned(llm: Engine, question: str, tools: bool) -> object:
    system = {"role": "system", "content": "You are a helpful assistant."}
    with llm.pin([system], [get_weather] if tools else []):
        asked: Any = [system, {"role": "user", "content": question}]
        return llm.chat(asked, [get_weather] if tools else [], **GREEDY).parts


KINDS = (whole, streamed, left, pinned)
Case = tuple[Callable[[Engine, str, bool], object], str, bool]


class Asking:
    """Threads that ask, and what came of it."""

    def __init__(self, llm: Engine, expected: dict[Case, object]) -> None:
        self.counts: Counter[str] = Counter()
        self.answered = threading.Condition()
        self._llm = llm
        self._expected = expected
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(seed,), daemon=True) for seed in range(4)]
        for thread in self._threads:
            thread.start()

    def _ask(self, seed: int) -> None:
        rng = random.Random(seed)
        cases = list(self._expected)
        while not self._over.is_set():
            case = kind, question, tools = rng.choice(cases)
            try:
                right = kind(self._llm, question, tools) == self._expected[case]
                end = "answered" if right else "wrong"
            except TimeoutError:
                end = "hangs"
            except EngineError as error:
                end = next((end for words, end in ENDS.items() if words in str(error)), f"other: {error}")
            with self.answered:
                self.counts[end] += 1
                if end == "answered":
                    self.answered.notify_all()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            self.counts["lost"] += thread.is_alive()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with Engine.load(**OPTIONS) as llm:
        cases = [(kind, question, tools) for kind in KINDS for question in QUESTIONS for tools in (False, True)]
        expected = {case: case[0](llm, *case[1:]) for case in cases}
    waits: list[float] = []
    with Engine.load(isolated=True, **OPTIONS) as llm:
        runner: Any = cast("Any", llm).source.service._runner  # pyright: ignore[reportPrivateUsage]
        assert isinstance(runner, IsolatedRunner)
        asking = Asking(llm, expected)
        for _ in range(options.kills):
            time.sleep(rng.uniform(0, 0.6))
            runner._link.child.process.kill()  # pyright: ignore[reportPrivateUsage]
            began = time.monotonic()
            with asking.answered:
                if not asking.answered.wait(PATIENCE):
                    asking.counts["hangs"] += 1
            waits.append(time.monotonic() - began)
        asking.stop()
        asking.counts["wrong"] += sum(case[0](llm, *case[1:]) != expected[case] for case in cases)
    rows = {"kills": options.kills, **asking.counts, "next answer after a kill, median s": statistics.median(waits)}
    for name in ("answered", *ENDS.values(), "wrong", "hangs", "lost"):
        rows.setdefault(name, 0)
    for name, value in rows.items():
        print(f"{name:<45}{value:>9.2f}" if isinstance(value, float) else f"{name:<45}{value:>6,}")


if __name__ == "__main__":
    main()
