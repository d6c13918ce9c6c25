"""Random requests that fail, on real weights: does any of them spoil a clean turn after it?

    python benchmarks/failing_requests.py model.gguf --count 1000

Adapters whose logits are not numbers, cancellations, deadlines, constraints that cannot be met, wrong options, prompts
that are too long and the like, alone and beside others (`tests/helpers/failures/failing_requests.py`). After each, one
clean greedy turn without an adapter must give the answer that it gave before all of them. Exits with 1 if one does not.
"""

import argparse
import logging
import random
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]

from failures.failing_requests import KINDS, QUESTIONS, clean, opened, outcome  # noqa: E402

from engine import EngineError  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--isolated", action="store_true")
    parser.add_argument("--pool", action="store_true", help="all sequences share one KV cache")
    options = parser.parse_args()
    logging.getLogger("engine").setLevel(logging.ERROR)
    chance = random.Random(options.seed)
    ends: defaultdict[str, Counter[str]] = defaultdict(Counter)
    broken = 0
    more = {"kv_unified": True} if options.pool else {}
    with (
        tempfile.TemporaryDirectory() as folder,
        opened(options.model, Path(folder), isolated=options.isolated, **more) as llm,
    ):
        right = [clean(llm, number) for number in range(len(QUESTIONS))]
        for number in range(options.count):
            kind = chance.choice(KINDS)
            ends[kind.__name__][outcome(llm, kind, random.Random(chance.random()))] += 1
            try:
                found = clean(llm, number)
            except EngineError as error:
                found = f"{type(error).__name__}: {error}"
            if found != right[number % len(QUESTIONS)]:
                broken += 1
                print(f"{number}: after {kind.__name__}: {found!r}, not {right[number % len(QUESTIONS)]!r}")
        restarts = llm.metrics.restarts
    for name, counts in sorted(ends.items()):
        print(f"{name:28} {', '.join(f'{count} {end}' for end, count in counts.most_common())}")
    print(f"{options.count} failing requests, as many clean turns: broken {broken}; restarts {restarts}")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
