"""Tokens a second beside programs that compute all the time: one thread, all threads, and the default, which adapts.

    python benchmarks/loaded.py [--model FILE] [--busy 0 1 2 4] [--rounds 3]

Each setting runs in a process of its own, in turn, so that no idle engine's threads disturb another. Printed: medians.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from engine import Engine  # noqa: E402
from engine.llama.plan.machine import batch_threads  # noqa: E402

TOKENS = 64
BUSY = "while True: pass"


def speed(model: str, threads: str) -> float:
    """Decodes in this process; returns the median of three answers' tokens a second."""
    number = None if threads == "default" else int(threads)
    with Engine.load(model, n_ctx=512, n_sequences=1, preflight=False, n_threads=number) as llm:
        found: list[float] = []
        for question in ("Hello", "Tell me about the sea.", "Tell me about rivers.", "Tell me about rain."):
            began = time.monotonic()
            llm.chat(question, max_tokens=TOKENS, temperature=0, ignore_eos=True)
            found.append(TOKENS / (time.monotonic() - began))
    return statistics.median(found[1:])


def measured(model: str, threads: str) -> float:
    """The same in a process of its own."""
    command = [sys.executable, "-W", "ignore", __file__, "--model", model, "--threads", threads]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--busy", type=int, nargs="*", default=[0, 1, 2, 4], help="how many programs compute beside it")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", help="measure this setting here, and print one number")
    given = parser.parse_args()
    if given.threads:
        print(speed(given.model, given.threads))
        return
    settings = ("1", str(batch_threads()), "default")
    for busy in given.busy:
        programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(busy)]
        try:
            rounds = [[measured(given.model, threads) for threads in settings] for _ in range(given.rounds)]
        finally:
            for program in programs:
                program.kill()
                program.wait()
        medians = [statistics.median(each) for each in zip(*rounds, strict=True)]
        told = ", ".join(f"{name} {value:.1f}" for name, value in zip(settings, medians, strict=True))
        print(f"{busy} busy: {told}; the default beside the best {medians[2] / max(medians):.2f}", flush=True)


if __name__ == "__main__":
    main()
