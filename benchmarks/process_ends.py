"""A process ends while streams are open, in every way a process ends: does it die of it?

    python benchmarks/process_ends.py --runs 200

Each script loads the built-in model, opens streams, and ends in its own way after a random moment. Prints, for each,
how often the process died by a signal that it did not ask for, hung, or wrote a traceback that is not its own (threads
that go on are told that the engine is closed). `--checkout` names another one to compare with.
"""

import argparse
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests/helpers")]

from failures.exits import HERE, SCRIPTS, ended  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--checkout", type=Path, default=HERE)
    parser.add_argument("--only", nargs="+", choices=SCRIPTS, default=[*SCRIPTS])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    failures = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for name in given.only:
            seeds = random.Random(name).sample(range(1 << 30), given.runs)
            ends = list(pool.map(partial(ended, given.checkout, SCRIPTS[name]), seeds))
            wrong = sorted(end for end in ends if end)
            failures += len(wrong)
            print(f"{name:40}{len(wrong):4} of {len(ends)} failed  {'; '.join(dict.fromkeys(wrong))}", flush=True)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
