"""What a program costs until its first token, and the memory it takes, beside `llama_cpp.Llama` and llama-server:

    python benchmarks/footprint.py --model FILE [--server BINARY] [--sequences 1 4 16] [--rounds 3]

Each start is a process of its own: `import`, load, one token, then one answer of 16 tokens in each sequence at once.
`first`: with an empty cache of verdicts, so that the options and the file are tried in child processes; `later`: as on
any later day; `bare`: `preflight=False`. All have the same context (llama-server one pool of it for all its slots, as
by default), one thread, and a file that was read before. Printed: medians of seconds to import, load and first token;
processor seconds of the process and its children up to there; most memory resident then, and after all answers (MiB).
Linux only.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "benchmarks"), str(HERE)]

from contenders import processor_seconds  # noqa: E402
from measuring import by_turns  # noqa: E402
from peers import GREEDY, LlamaServer  # noqa: E402

QUESTION = "Hello"
TOKENS = 16
MEASURED = """
import json, resource, sys, time
from concurrent.futures import ThreadPoolExecutor
model, n_ctx, sequences, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
def peak():
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) / 1024
def processor():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
begun = time.perf_counter()
"""
TOLD = """
text("Hello", 1)
done, used, first = time.perf_counter(), processor(), peak()
with ThreadPoolExecutor(sequences) as pool:
    list(pool.map(lambda number: text(f"Hello {number}", 16), range(sequences)))
print(json.dumps([imported - begun, loaded - imported, done - loaded, used, first, peak()]))
"""
OURS = """
from engine import Engine
imported = time.perf_counter()
llm = Engine.load(model, n_ctx=n_ctx, n_sequences=sequences, n_threads=1, preflight=kind != "bare")
loaded = time.perf_counter()
def text(prompt, most): llm.complete(prompt, max_tokens=most, temperature=0, ignore_eos=True)
"""
LLAMA = """
from llama_cpp import Llama
imported = time.perf_counter()
llm = Llama(model, n_ctx=n_ctx, n_threads=1, n_threads_batch=1, verbose=False)
loaded = time.perf_counter()
def text(prompt, most): llm.create_completion(prompt, max_tokens=most, temperature=0)
"""


def python(kind: str, given: argparse.Namespace, sequences: int, cache: Path) -> list[float]:
    """Starts a Python program; returns its six figures."""
    code = MEASURED + (LLAMA if kind == "llama" else OURS) + TOLD
    with tempfile.TemporaryDirectory() as empty:
        folder = empty if kind == "first" else str(cache)
        environment = {**os.environ, "PYTHONPATH": str(HERE.parent), "LLAMA_ENGINE_CACHE": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package's modules are compiled
        command = [sys.executable, "-W", "ignore", "-c", code, given.model, str(given.n_ctx), str(sequences), kind]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def server(given: argparse.Namespace, sequences: int) -> list[float]:
    """Starts llama-server; returns its six figures. It has nothing to import."""
    begun = time.perf_counter()
    with LlamaServer(given.server, given.model, n_ctx=given.n_ctx, slots=sequences, threads=1) as peer:
        loaded = time.perf_counter()
        peer.post("/completion", {"prompt": QUESTION, "n_predict": 1})
        told = [0.0, loaded - begun, time.perf_counter() - loaded, processor_seconds(peer.pid), _peak(peer.pid)]
        peer.generate([[number + 1] for number in range(sequences)], TOKENS, GREEDY)
        return [*told, _peak(peer.pid)]


def _peak(pid: int) -> float:
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(text.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--server", type=Path, help="the program llama-server; without it this contender is left out")
    parser.add_argument("--sequences", type=int, nargs="*", default=[1, 4, 16])
    parser.add_argument("--n-ctx", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print("| sequences | | import | load | first token | in all | processor s | MiB at the first token | after all |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as cache:
        for sequences in given.sequences:
            kinds = ["first", "later", "bare", *(["llama"] if sequences == 1 else [])]
            starts: dict[str, Callable[[int], Any]] = {
                kind: lambda _, kind=kind, number=sequences: python(kind, given, number, Path(cache)) for kind in kinds
            }
            if given.server:
                starts["llama-server"] = lambda _, number=sequences: server(given, number)
            python("later", given, sequences, Path(cache))  # fills the cache of verdicts and the page cache
            for kind, runs in by_turns(starts, given.rounds).items():
                figures = [statistics.median(column) for column in zip(*runs, strict=True)]
                shown = [f"{value:.2f}" for value in (*figures[:3], sum(figures[:3]), figures[3])]
                print(
                    f"| {sequences} | {kind} | {' | '.join(shown)} | {figures[4]:.0f} | {figures[5]:.0f} |", flush=True
                )


if __name__ == "__main__":
    main()
