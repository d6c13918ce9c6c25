"""How long a program takes to its first token: `python benchmarks/start.py --model FILE [--rounds 5]`.

Each start is a process of its own: `import`, load, one token of a short chat. `first`: with an empty cache of verdicts,
so that the options and the file are tried in child processes; `later`: as on any later day; `bare`: `preflight=False`;
`llama`: `llama_cpp.Llama`. The file was read before, so no disk is measured.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from measuring import by_turns, ratio  # noqa: E402

OURS = """
import sys, time
begun = time.perf_counter()
from engine import Engine
imported = time.perf_counter()
llm = Engine.load(sys.argv[1], n_ctx=2048, n_sequences=1, n_threads=2, preflight=sys.argv[2] != "bare")
loaded = time.perf_counter()
llm.chat("Hello", max_tokens=1)
print([imported - begun, loaded - imported, time.perf_counter() - loaded])
"""
LLAMA = """
import sys, time
begun = time.perf_counter()
from llama_cpp import Llama
imported = time.perf_counter()
llm = Llama(sys.argv[1], n_ctx=2048, n_threads=2, n_threads_batch=2, verbose=False)
loaded = time.perf_counter()
llm.create_chat_completion([{"role": "user", "content": "Hello"}], max_tokens=1)
print([imported - begun, loaded - imported, time.perf_counter() - loaded])
"""
KINDS = ("first", "later", "bare", "llama")


def start(kind: str, model: Path, cache: Path) -> list[float]:
    """Seconds to import, to load, and to the first token."""
    with tempfile.TemporaryDirectory() as empty:
        root = str(Path(__file__).resolve().parents[1])
        environment = {**os.environ, "PYTHONPATH": root, "LLAMA_ENGINE_CACHE": empty if kind == "first" else str(cache)}
        code = LLAMA if kind == "llama" else OURS
        done = subprocess.run(
            [sys.executable, "-c", code, str(model), kind], env=environment, capture_output=True, text=True, check=True
        )
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("later", "llama"):
            start(kind, given.model, Path(folder))  # fills the cache of verdicts and the page cache
        found = by_turns(
            {kind: lambda _, kind=kind: start(kind, given.model, Path(folder)) for kind in KINDS}, given.rounds
        )
    print("seconds: import, load, first token; in all, beside llama_cpp.Llama")
    for kind, runs in found.items():
        parts = [statistics.median(run[at] for run in runs) for at in range(3)]
        beside = ratio([sum(run) for run in runs], [sum(run) for run in found["llama"]])
        print(f"{kind:6} {parts[0]:6.2f} {parts[1]:6.2f} {parts[2]:6.2f} {sum(parts):6.2f} {beside:6.2f}")


if __name__ == "__main__":
    main()
