"""Pictures and sounds in conversations, in figures: `python benchmarks/media_turns.py [TURNS] [--isolated]`.

For each kind of projector: 200 turns about 20 pictures at random, 8 at once, some of them cancelled. Counted are the
answers that are not those of an engine which evaluates each prompt alone: token for token, and by how far
log-probabilities are off, at most. Right is only what is within the bare loop's own difference between one row at a
time and many, at that place: of the two best logits where the token is another, of its log-probability where it is the
same; everything else counts as wrong. Further: how many pictures the prompts held, and how many were encoded. Exits
with 1 if something is wrong.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1]),
    str(Path(__file__).resolve().parents[1] / "tests/helpers"),
]

from cases.media_talks import files, talk  # noqa: E402
from files.projector_files import KINDS  # noqa: E402


def main() -> int:
    """Print a row for each kind."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("turns", type=int, nargs="?", default=200)
    arguments.add_argument("--isolated", action="store_true", help="in a child process, which does not count encodes")
    arguments.add_argument("--only", default="", help="kinds whose name has this text")
    given = arguments.parse_args()
    wrong = 0
    print(f"{'kind':10}{'turns':>7}{'cancelled':>11}{'equal':>7}{'other':>7}{'off':>10}{'wrong':>7}", end="")
    print(f"{'media':>8}{'encoded':>9}{'seconds':>9}")
    for name in KINDS:
        if given.only not in name:
            continue
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            talked = talk(name, files(Path(folder), name), given.turns, isolated=given.isolated)
        turns, shown = len(talked.turns), sum(turn.media for turn in talked.turns)
        print(f"{name:10}{turns:7}{talked.cancelled:11}{turns - talked.unlike:7}{talked.unlike:7}", end="")
        print(f"{talked.off:10.1e}{talked.wrong:7}{shown:8}{talked.encoded:9}", end="")
        print(f"{time.perf_counter() - begun:9.0f}", flush=True)
        for each in talked.differences:
            what = "another token" if each.other_token else "a log-probability"
            print(f"    {what}: {each.apart:.2e} apart, the bare loop {each.noise:.2e}")
        wrong += talked.wrong
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
