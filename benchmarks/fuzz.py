"""Fuzzing whose corpus grows: `python benchmarks/fuzz.py [TARGET ...] --minutes 5`, all targets by default.

    python benchmarks/fuzz.py parser schema --minutes 10
    python benchmarks/fuzz.py --small-models
    python benchmarks/fuzz.py --slips 60000 --seed 2

Each target has a corpus in tests/fuzz_corpus, which this command reads and writes: inputs that reach, together, what
was ever reached. A fault is shrunk and stays there as `found-*`, so that a test fails until it is mended. Printed for
each: inputs tried, inputs in the corpus, lines reached of its modules, faults by name. Exits with 1 if there was one.
`--slips COUNT` instead judges drawn calls in other envelopes, quotations, odd and broken names, and answers that only
name a tool, in every family at every chunking; `--small-models` every golden call as small models spoil it, as a table.
"""

import argparse
import random
import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "helpers"), str(TESTS.parent)]

from attacks.fuzz_targets import TARGETS  # noqa: E402
from attacks.fuzzing import fuzz  # noqa: E402
from attacks.markup_values import families  # noqa: E402
from attacks.slip import judged  # noqa: E402
from attacks.slips import drawn  # noqa: E402
from cases.parsing_cases import FAMILIES  # noqa: E402
from fakes.small_models import KINDS, judge, mutants  # noqa: E402


def main() -> int:
    """Fuzz the targets one after the other."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="all of them by default")
    arguments.add_argument("--minutes", type=float, default=1.0, help="for each target")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--dry", action="store_true", help="leave the corpus as it is")
    arguments.add_argument("--small-models", action="store_true", help="the table of what small models spoil")
    arguments.add_argument("--slips", type=int, default=0, metavar="COUNT", help="so many slips, judged")
    given = arguments.parse_args()
    if given.slips:
        return int(_slips(given.slips, given.seed))
    if given.small_models:
        return int(_table())
    print("| target | inputs | seconds | corpus | lines | faults |\n|---|---|---|---|---|---|", flush=True)
    faults = 0
    for name in given.targets or TARGETS:
        found = fuzz(TARGETS[name], 60 * given.minutes, given.seed, save=not given.dry)
        reached = f"{found.reached:,} of {found.lines:,}"
        row = (name, f"{found.tried:,}", f"{found.seconds:.0f}", found.corpus, reached, found.counts.total())
        print("| " + " | ".join(map(str, row)) + " |", flush=True)
        for fault, count in found.counts.most_common():
            print(f"  {count} x {fault}\n      {found.faults[fault][:500]!r}", flush=True)
        faults += found.counts.total()
    return int(faults > 0)


def _table() -> bool:
    """Print what was read wrongly, by class. Returns whether anything was executable or lost."""
    counts, guilty = Counter[str](), Counter[tuple[str, str]]()
    for mutant in (mutant for family in FAMILIES for mutant in mutants(family)):
        counts[mutant.kind] += 1
        guilty.update((mutant.kind, kind) for kind in judge(mutant))
    print(f"| class | outputs | {' | '.join(KINDS)} |\n|---|---|---|---|---|")
    for kind, count in counts.items():
        print(f"| {kind} | {count} | {' | '.join(str(guilty[kind, of]) for of in KINDS)} |")
    return any(of != "shown" for _, of in guilty)


def _slips(count: int, seed: int) -> bool:
    """Print what is wrong with the readings of so many slips. Returns whether anything is."""
    chance, counts, names = random.Random(seed), Counter[tuple[str, str]](), families()
    for number in range(count):
        slip = drawn(names[number % len(names)], chance)
        counts[slip.kind, fault := judged(slip)] += 1
        if fault and counts[slip.kind, fault] <= 3:
            print(f"{fault}: {slip}", flush=True)
    print("| kind | reading | outputs |\n|---|---|---|")
    for (kind, fault), times in sorted(counts.items()):
        print(f"| {kind} | {fault or 'right'} | {times:,} |")
    return any(fault for _, fault in counts)


if __name__ == "__main__":
    sys.exit(main())
