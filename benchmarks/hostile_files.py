"""Hostile pictures, sounds and projectors against the promise that none of them takes the process.

    python benchmarks/hostile_files.py [--projectors 240] [--jobs 2] [--only NAME] [--no-media]

Pictures and sounds (tests/helpers/attacks/hostile_media.py) are decoded. Projectors of each kind
(tests/helpers/attacks/projector_fuzz.py) are loaded through `Engine.load`, and those that load are shown pictures of
many shapes or sounds of many lengths, each in a process of its own. Counted is how each ended:

    refused, decoded    pictures and sounds: by name, or into pixels and samples
    header      a projector refused by name, before llama.cpp saw it
    trial       refused because a child died of it, or could not use it
    llama.cpp   refused by llama.cpp with an error, in the loading process
    request     loaded, and a picture or a sound failed with an error of ours
    decoded     loaded, and all of them answered
    DEATH, RAW, HANG, MEMORY   the process died; another exception than ours; over 60 s; over 1 GiB: never allowed

Exits with 1 where any of the last kind was seen, after printing what repeats it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "helpers"), str(TESTS.parent)]

from attacks.gguf_fuzz import NEVER, prepare, run_all  # noqa: E402
from attacks.projector_fuzz import cases, see  # noqa: E402
from files.projector_files import KINDS  # noqa: E402

_DECODE = "import sys; sys.path[:0] = sys.argv[1:]; from attacks import hostile_media; hostile_media.main()"


def main() -> int:
    """Run them all, and print the counts."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--projectors", type=int, default=240, help="how many, about")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--only", default="", help="only projectors whose name has this text; prints how they ended")
    arguments.add_argument(
        "--media", action=argparse.BooleanOptionalAction, default=True, help="pictures and sounds too"
    )
    arguments.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    given = arguments.parse_args()
    bad = _media() if given.media and not given.only else 0
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="hostile-files-") as folder:
        work = Path(folder)
        chosen = [case for case in cases(work, given.projectors, given.seed) if given.only in case.name]
        prepare(work / "cache")
        ends = run_all(chosen, work, given.jobs, see)
    outcomes = Counter(end.outcome for end in ends)
    print(f"projectors: {len(ends)} files of {len(KINDS)} kinds in {time.perf_counter() - begun:.0f} s")
    for outcome, count in outcomes.most_common():
        print(f"  {outcome:12} {count:7}")
    print("by what was damaged:")
    for part in sorted({case.mutation.part for case in chosen}):
        of_part = Counter(end.outcome for case, end in zip(chosen, ends, strict=True) if case.mutation.part == part)
        print(f"  {part:16} " + ", ".join(f"{outcome} {count}" for outcome, count in of_part.most_common()))
    for case, end in zip(chosen, ends, strict=True):
        wrong = end.outcome in NEVER or (case.mutation.part == "none" and end.outcome not in ("decoded", "request"))
        bad += wrong
        if wrong or given.only:
            print(f"{end.outcome}: {case.name}\n    {end.said[:300]}")
    return int(bad > 0)


def _media() -> int:
    """Decode the pictures and sounds in a process of their own; returns how many ended as none may."""
    command = [sys.executable, "-W", "ignore", "-c", _DECODE, str(TESTS.parent), str(TESTS / "helpers")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"DEATH: pictures and sounds ended with {done.returncode}: {done.stderr[-300:]}")
        return 1
    found = json.loads(done.stdout)
    counts = {"refused": found["refused"], "decoded": found["decoded"], "RAW": len(found["odd"])}
    print(f"pictures and sounds: {sum(counts.values())} files")
    for outcome, count in counts.items():
        print(f"  {outcome:12} {count:7}")
    print(f"  slowest {found['slowest'][0]:.1f} s ({found['slowest'][1]}), peak {found['peak_mib']} MiB")
    for said in found["odd"]:
        print(f"RAW: {said}")
    return len(found["odd"]) + found.get("wrong", 0)


if __name__ == "__main__":
    sys.exit(main())
