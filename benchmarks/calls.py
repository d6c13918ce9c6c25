"""How many Python functions of the package a turn calls, in the caller's thread and in the engine's together.

    python benchmarks/calls.py [--model MODEL.gguf] [--family qwen3 ...] [--top 30]

A call is one "call" event of `sys.setprofile` in a file of the package: a function that begins, or a generator that
goes on. The turn is the third of its kind, so that what is made once is there already. To its first token the count
goes from the message until the reader has the first event; a streamed token is the mean over the next ones. Each is
counted three times.
"""

import argparse
import sys
import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from engine import Engine  # noqa: E402
from engine.formats.template.chat_template import ChatTemplate  # noqa: E402
from engine.runtime.loop.loop import Loop  # noqa: E402
from engine.testing.scripted import ByteVocab, ScriptedBackend  # noqa: E402

PACKAGE = str(ROOT / "engine")
DOUBLE = str(ROOT / "engine" / "testing")
TOKENS = 64
QUESTIONS = ("What is the capital of France?", "Why is the sky blue?", "Name three rivers.", "Who wrote Faust?")


def get_weather(city: str, days: int = 1) -> str:
    """Returns the weather of a city.

    city: its name.
    days: how many days to look ahead.
    """
    return f"{city}: sunny for {days} days"


class Calls:
    """Counts calls of the package's functions while it is `on`, in this thread and in those started after it."""

    def __init__(self) -> None:
        self.on = False
        self.counts: Counter[tuple[str, int, str]] = Counter()
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if (
            self.on
            and event == "call"
            and code.co_filename.startswith(PACKAGE)
            and not code.co_filename.startswith(DOUBLE)
        ):
            name = code.co_filename.removeprefix(PACKAGE)[1:]
            self.counts[name, code.co_firstlineno, code.co_qualname] += 1

    def start(self) -> None:
        self.counts = Counter()
        self.on = True

    def stop(self) -> Counter[tuple[str, int, str]]:
        """Returns the calls since `start`."""
        self.on = False
        return self.counts


class Gate:
    """Holds the engine's thread before the step after the first events, until `open`."""

    def __init__(self) -> None:
        self._closed = False
        self._begun = False
        self._pass = threading.Event()
        self.reached = threading.Event()

    def close(self) -> None:
        self._pass.clear()
        self.reached.clear()
        self._closed, self._begun = True, False

    def open(self) -> None:
        self._closed = False
        self._pass.set()

    def step(self, loop: Loop, step: Callable[[Loop], None]) -> None:
        """What the engine's thread does instead of a step."""
        if self._closed and self._begun:
            self.reached.set()
            self._pass.wait()
        step(loop)
        self._begun = self._begun or any(state.events for state in loop._states.values())  # pyright: ignore[reportPrivateUsage]


@contextmanager
def gated() -> Generator[Gate]:
    """A gate in each loop."""
    gate, step = Gate(), Loop.step
    Loop.step = lambda self: gate.step(self, step)
    try:
        yield gate
    finally:
        gate.open()
        Loop.step = step


def turn(calls: Calls, gate: Gate, llm: Engine, question: str, options: dict[str, Any]) -> list[Counter[Any]]:
    """Returns the calls up to the first event, and those of the next tokens together."""
    gate.close()
    calls.start()
    stream = llm.stream(question, max_tokens=TOKENS, ignore_eos=True, seed=1, **options)
    events = iter(stream)
    next(events)
    gate.reached.wait()
    first = calls.stop()
    calls.start()
    gate.open()
    for _ in events:
        pass
    return [first, calls.stop()]


def measure(title: str, made: Callable[[], Engine], top: int) -> None:
    """Print the counts of a bare question and of one with a tool."""
    for kind, options in (("a bare question", {}), ("with one tool", {"tools": [get_weather]})):
        calls = Calls()
        with gated() as gate, made() as llm:
            taken = [turn(calls, gate, llm, question, options) for question in (*QUESTIONS, QUESTIONS[0] + " Tell.")]
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType]
        first = [each[0].total() for each in taken[2:]]
        rest = [round(each[1].total() / (TOKENS - 1), 1) for each in taken[2:]]
        print(f"{title}, {kind}: to the first token {first}; each of {TOKENS - 1} tokens after it {rest}", flush=True)
        for part, counts in zip(("to the first token", f"{TOKENS - 1} tokens and the end"), taken[2], strict=True):
            if top:
                print(f"  {part}")
            for (file, line, name), count in counts.most_common(top):
                print(f"  {count:6} {file}:{line} {name}")


def scripted(family: str) -> Engine:
    """An engine whose model writes words without an end."""
    template = ChatTemplate(None, family=family)
    control = [text for text in template.format.control if text.isascii()]
    vocab = ByteVocab(control or ["<|im_start|>"])
    return Engine.over(
        ScriptedBackend(lambda _: "The words of a long answer. " * 20, vocab=vocab, n_batch=4096), template
    )


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a GGUF instead of the built-in model")
    parser.add_argument("--family", nargs="*", default=["qwen3"], help="families for a scripted model")
    parser.add_argument("--top", type=int, default=0, help="also print the functions called most")
    given = parser.parse_args(arguments)
    load = partial(Engine.load, given.model, n_ctx=2048, preflight=False)
    measure(given.model or "the built-in model", load, given.top)
    for family in given.family:
        measure(f"scripted, {family}", partial(scripted, family), given.top)


if __name__ == "__main__":
    main(sys.argv[1:])
