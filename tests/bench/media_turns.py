"""Pictures and sounds in conversations, in figures: `python tests/bench/media_turns.py [TURNS] [--isolated]`.

For each kind of projector: 200 turns about 20 pictures at random, 8 at once, some of them cancelled. Counted are the
answers that are not those of an engine which evaluates each prompt alone; of these, those that first differ where the
two best logits lie closer than the bare loop's own difference between one row at a time and many (by rounding), and
others, of which there must be none; how far log-probabilities were off, at most (another picture changes them by more
than 0.009); how many pictures the prompts held, and how many were encoded. Exits with 1 if there are others.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1] / "support")]

from media_talks import files, talk  # noqa: E402
from projector_files import KINDS  # noqa: E402


def main() -> int:
    """Print a row for each kind."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("turns", type=int, nargs="?", default=200)
    arguments.add_argument("--isolated", action="store_true", help="in a child process, which does not count encodes")
    arguments.add_argument("--only", default="", help="kinds whose name has this text")
    given = arguments.parse_args()
    others = 0
    print(f"{'kind':10}{'turns':>7}{'cancelled':>11}{'equal':>7}{'rounding':>10}{'other':>7}", end="")
    print(f"{'off':>10}{'media':>7}{'encoded':>9}{'seconds':>9}")
    for name in KINDS:
        if given.only not in name:
            continue
        begun = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            talked = talk(name, files(Path(folder), name), given.turns, isolated=given.isolated)
        turns, differ = len(talked.turns), len(talked.differences)
        shown = sum(turn.media for turn in talked.turns)
        print(f"{name:10}{turns:7}{talked.cancelled:11}{turns - differ:7}{differ - talked.other:10}", end="")
        seconds = time.perf_counter() - begun
        print(f"{talked.other:7}{talked.off:10.1e}{shown:7}{talked.encoded:9}{seconds:9.0f}", flush=True)
        for each in talked.differences:
            if not each.is_rounding:
                print(f"    margin {each.margin:.2e}, noise {each.noise:.2e}")
        others += talked.other
    return int(others > 0)


if __name__ == "__main__":
    sys.exit(main())
