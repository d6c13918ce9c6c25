"""Damaged GGUF files against the promise that none of them takes the process: `fuzz_gguf.py 12000`.

Small valid models of many architectures and vocabularies (tests/helpers/files/model_zoo.py) are damaged in one place,
or in a few (tests/helpers/attacks/gguf_mutants.py), loaded through `Engine.load` and made to decode, each in a process
of its own (tests/helpers/attacks/gguf_fuzz.py). Counted is how each file ended:

    header      refused by name, before llama.cpp saw the file
    trial       refused because a child died of it, or did not answer
    llama.cpp   refused by llama.cpp with an error, in the loading process
    request     loaded, and the request failed with an error of ours
    decoded     loaded and decoded (of these: in how many cases a child had tried the file first)
    DEATH, RAW, HANG, MEMORY   the process died; another exception than ours; over 60 s; over 1 GiB: never allowed

Exits with 1 where any of the last kind was seen, after printing what repeats it.
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "helpers"), str(TESTS.parent)]

from attacks.gguf_fuzz import NEVER, SEEDS, Case, End, cases, prepare, run_all  # noqa: E402


def main() -> None:
    """Run, print the counts, and exit with 1 where a file did what none may."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("count", type=int, nargs="?", default=2000, help="how many files, about")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--kind", action="append", help="only this seed (a name, or name+vocabulary)")
    arguments.add_argument("--only", help="only files whose name has this text; prints how they ended")
    arguments.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = arguments.parse_args()
    seeds = [each for each in SEEDS if not given.kind or _named(each) in given.kind]
    chosen = list(cases(seeds, given.count, given.seed))
    if given.only:
        chosen = [case for case in chosen if given.only in case.name]
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="fuzz-gguf-") as work:
        prepare(Path(work) / "cache")
        ends = run_all(chosen, Path(work), given.jobs)
    sys.exit(_report(chosen, ends, time.perf_counter() - begun, shown=bool(given.only)))


def _named(seed: tuple[str, str | None]) -> str:
    return seed[0] + (f"+{seed[1]}" if seed[1] else "")


def _report(chosen: Sequence[Case], ends: Sequence[End], seconds: float, *, shown: bool) -> int:
    outcomes = Counter(end.outcome for end in ends)
    tried = sum(end.outcome == "decoded" and bool(end.said) for end in ends)
    print(f"{len(ends)} files of {len({case.seed for case in chosen})} seeds in {seconds:.0f} s")
    for outcome, count in outcomes.most_common():
        print(f"  {outcome:12} {count:7}" + (f"  ({tried} after a trial in a child)" if outcome == "decoded" else ""))
    print("by what was damaged:")
    parts = sorted({case.mutation.part for case in chosen})
    for part in parts:
        of_part = Counter(end.outcome for case, end in zip(chosen, ends, strict=True) if case.mutation.part == part)
        print(f"  {part:14} " + ", ".join(f"{outcome} {count}" for outcome, count in of_part.most_common()))
    slowest = max(zip(ends, chosen, strict=True), key=lambda pair: pair[0].seconds)
    largest = max(zip(ends, chosen, strict=True), key=lambda pair: pair[0].memory)
    print(f"slowest: {slowest[0].seconds:.1f} s, {slowest[1].name}")
    print(f"largest: {largest[0].memory / (1 << 20):.0f} MiB, {largest[1].name}")
    for case, end in zip(chosen, ends, strict=True):
        honest = case.mutation.part == "none" and case.seed[1] != "none"
        if shown or end.outcome in NEVER or (honest and end.outcome != "decoded"):
            print(f"{end.outcome}: {case.name}\n    {end.said[:300]}")
    return int(any(end.outcome in NEVER for end in ends))


if __name__ == "__main__":
    main()
