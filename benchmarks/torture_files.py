"""A disk whose calls fail, one after the other, in every place that has files of its own: what happens, as a table.

    python benchmarks/torture_files.py
    python benchmarks/torture_files.py --only batch --errors EIO ENOSPC --once

Each call (open, read, write, fsync, rename, stat, ..) fails with ENOSPC, EIO, EACCES and EROFS, once, and from then on
as far as the error goes; writes also take only a part. After each the same is done again on a good disk. Exits with 1
if a file was damaged, something was left behind or stayed open, or an error came without a name.
"""

import argparse
import errno
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/helpers")]

from failures.failing_disk import SHORT  # noqa: E402
from failures.torture import ERRORS, Count, Place, tortured  # noqa: E402
from failures.torture_places import BATCHES, FRAMES, RECORDS, SESSIONS, STATES, WRITTEN, hub_places  # noqa: E402


def run(places: Sequence[Place], errors: Sequence[int], lasts: Sequence[bool]) -> bool:
    """Print a row for each place, and what was wrong. Returns whether nothing was."""
    wrong = False
    for place in places:
        count: Count = tortured(place, errors, lasts)
        cells = (count.failed, count.named, count.went_on, count.damaged, count.left, count.refused, count.leaked)
        print(f"| {place.name} | " + " | ".join(map(str, cells)) + " |", flush=True)
        for fault in count.faults:
            print(f"    {fault}", file=sys.stderr, flush=True)
        wrong = wrong or bool(count.faults)
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="places whose name contains this")
    parser.add_argument("--errors", nargs="+", default=[errno.errorcode[error] for error in ERRORS])
    parser.add_argument("--once", action="store_true", help="no errors that last")
    given = parser.parse_args()
    errors = [*(getattr(errno, name) for name in given.errors), SHORT]
    with hub_places() as of_the_hub:
        tables = FRAMES if find_spec("pyarrow") else ()
        places = (*WRITTEN, *BATCHES, *tables, *STATES, *of_the_hub, *RECORDS, *SESSIONS)
        print("| place | calls failed | ended by name | went on | damaged | left behind | not deleted | left open |")
        print("|---|---|---|---|---|---|---|---|")
        chosen = [place for place in places if given.only in place.name]
        return 0 if run(chosen, errors, [False] if given.once else [False, True]) else 1


if __name__ == "__main__":
    sys.exit(main())
