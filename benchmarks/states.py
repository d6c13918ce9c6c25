"""Kept states in figures: `python benchmarks/states.py [MODEL]`, by default the built-in model.

- A prompt in a first process, and in a second one that finds its state on disk: seconds to the first token, and tokens
  read.
- Forks: tokens evaluated for 64 forks, and for their next turns, over 1, 4 and 16 sequences.
- Conversations in turn over fewer sequences, with and without a budget for states: tokens read and seconds.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

from measuring import words

from engine import Engine, StateStore
from engine.types.completion import Completion

MODEL = sys.argv[1] if len(sys.argv) > 1 else None
PROCESS = """
import json, sys
from engine import Engine, StateStore
with Engine.load(json.loads(sys.argv[1]), states=StateStore(0, sys.argv[2], 2**31), n_ctx=4096) as llm:
    usage = llm.chat(sys.argv[3], max_tokens=4, temperature=0).usage
    print(json.dumps([usage.time_to_first_token, usage.prompt_tokens - usage.cached_tokens]))
"""


def processes(rounds: int = 5) -> None:
    ratios: list[float] = []
    told: list[list[float]] = []
    for number in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            arguments = [sys.executable, "-c", PROCESS, json.dumps(MODEL), folder, words(1200, number)]
            told = [json.loads(subprocess.run(arguments, check=True, capture_output=True).stdout) for _ in range(2)]
        ratios.append(told[0][0] / told[1][0])
    (first, read), (second, again) = told
    print(f"first process: {first:.3f} s, {read:.0f} tokens read; second: {second:.3f} s, {again:.0f} tokens")
    print(f"the second's first token comes {median(ratios):.1f} times as early (median of {rounds})")


def read(completion: Completion) -> int:
    assert completion.usage
    return completion.usage.prompt_tokens - completion.usage.cached_tokens


def forks() -> None:
    for n_sequences in (1, 4, 16):
        with Engine.load(MODEL, n_sequences=n_sequences, n_ctx=2048, states=StateStore(2**30)) as llm:
            talk = llm.conversation([{"role": "system", "content": words(600, 1)}])
            whole = read(talk.chat("Hello!", max_tokens=16))
            before = llm.metrics.prompt_tokens
            several = [talk.fork() for _ in range(64)]
            assert llm.metrics.prompt_tokens == before
            turns = [
                [read(fork.chat(f"Thank you {n} {i}.", max_tokens=16)) for i, fork in enumerate(several)]
                for n in range(2)
            ]
            print(f"{n_sequences} sequences: begun {whole} tokens; 64 forks 0; their turns {list(map(median, turns))}")


def in_turn(conversations: int = 12, rounds: int = 3) -> None:
    for memory in (0, 2**30):
        with Engine.load(MODEL, n_sequences=4, n_ctx=2048, states=StateStore(memory)) as llm:
            talks = [llm.conversation([{"role": "system", "content": words(600, n)}]) for n in range(conversations)]
            for talk in talks:
                talk.chat("Hello!", max_tokens=16)
            began = time.perf_counter()
            tokens = sum(read(talk.chat(f"Thank you {n}.", max_tokens=16)) for n in range(rounds) for talk in talks)
            took = time.perf_counter() - began
            print(f"{conversations} conversations over 4 sequences, {memory >> 20} MiB: {tokens} read, {took:.2f} s")


if __name__ == "__main__":
    processes()
    forks()
    in_turn()
