"""Does what parsing costs grow with the output, and no faster? Counted in characters looked at, not in seconds.

Every family's outputs with a long run of one filling at any of their places, at 3,000 and 6,000 characters: the second
may cost at most twice the first (and a fifth). Printed: each run beyond that, how many there were, the worst ratios.
The suite runs a few of each family (tests/parsing/test_parser_matrix.py).
"""

import argparse
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1] / "support")]

import pytest  # noqa: E402
from growth import GRACE, growth, runs, sample  # noqa: E402
from parsing_cases import FAMILIES  # noqa: E402


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--each", type=int, default=0, help="runs of each family; 0 is all (about an hour)")
    arguments.add_argument("--families", nargs="+", default=FAMILIES)
    given = arguments.parse_args()
    begun, ratios, beyond = time.monotonic(), list[tuple[float, str]](), 0
    for family in given.families:
        for run in sample(family, given.each) if given.each else runs(family):
            ratio = growth(pytest.MonkeyPatch(), run)
            ratios.append((ratio, str(run)))
            if ratio > 2 * GRACE:
                beyond += 1
                print(f"{ratio:6.2f}  {run}", flush=True)
    print(f"{len(ratios)} runs, {beyond} beyond {2 * GRACE:.1f}, {time.monotonic() - begun:.0f} s; the worst:")
    for ratio, run in sorted(ratios, reverse=True)[:5]:
        print(f"{ratio:6.2f}  {run}")


if __name__ == "__main__":
    main()
