"""What preparing a request costs before it is refused or begins: seconds of processor, by kinds of requests.

    python benchmarks/preparation.py [model.gguf] [--kind tools]

Run it in two checkouts to compare them. A second thread counts how long it was kept waiting at most, which is how long
other threads of a program stand still.
"""

import argparse
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from engine import Engine, EngineError  # noqa: E402

HI: list[Any] = [{"role": "user", "content": "Hi"}]


def tools(count: int) -> list[dict[str, Any]]:
    properties = {"a": {"type": "string"}, "b": {"type": "integer"}}
    parameters = {"type": "object", "properties": properties, "required": ["a"]}
    about = {"description": "Does things", "parameters": parameters}
    return [{"type": "function", "function": {"name": f"tool_{number}", **about}} for number in range(count)]


KINDS: dict[str, Callable[[Engine], object]] = {
    "tools: 128": lambda llm: llm.chat(HI, tools(128), max_tokens=1),
    "tools: 1,000": lambda llm: llm.chat(HI, tools(1000), max_tokens=1),
    "tools: 4,000": lambda llm: llm.chat(HI, tools(4000), max_tokens=1),
    "tools: 10,000": lambda llm: llm.chat(HI, tools(10_000), max_tokens=1),
    "messages: 20,000 of a letter": lambda llm: llm.chat(HI * 20_000, max_tokens=1),
    "a message of 10 MB": lambda llm: llm.chat("word " * 2_000_000, max_tokens=1),
    "a raw prompt of 10 MB": lambda llm: llm.complete("word " * 2_000_000, max_tokens=1),
    "documents: 20,000": lambda llm: llm.chat(HI, documents=["x"] * 20_000, max_tokens=1),
    "a schema of 2,000 members": lambda llm: llm.chat(
        HI,
        response_format={"type": "object", "properties": {f"p{each}": {"type": "string"} for each in range(2000)}},
        max_tokens=1,
    ),
    "texts for vectors: 5,000": lambda llm: llm.embed(["a"] * 5000),
}


class Waits(threading.Thread):
    """Measures the longest time for which a thread that does nothing did not get to run."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest = 0.0
        self.over = threading.Event()

    def run(self) -> None:
        last = time.perf_counter()
        while not self.over.wait(0.005):
            now = time.perf_counter()
            self.longest, last = max(self.longest, now - last - 0.005), now


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--kind", default="", help="only kinds whose names begin so")
    options = parser.parse_args()
    with Engine.load(options.model, n_ctx=2048, n_threads=1, preflight=False) as llm:
        llm.chat(HI, max_tokens=1)
        print(f"{'':30} processor s   others waited s   ended")
        for name, work in KINDS.items():
            if name.startswith(options.kind):
                waits, began = Waits(), time.process_time()
                waits.start()
                try:
                    work(llm)
                    ended = "an answer"
                except EngineError as error:
                    ended = f"{type(error).__name__}: {str(error)[:60]}"
                seconds = time.process_time() - began
                waits.over.set()
                waits.join()
                print(f"{name:30} {seconds:11.2f} {waits.longest:17.2f}   {ended}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
