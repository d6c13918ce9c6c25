"""Every call below the engine's loop fails once, at each place of a whole work: who ends, how, and is anybody else
disturbed?

    python benchmarks/torture_calls.py [--kind decode --kind copy]

The work is that of `tests/helpers/failures/failing_loop.py`, on a scripted backend: prompts that share a beginning,
scores, vectors, a cancelled request, a pinned prefix, states that are kept and found again. For n = 1, 2, 3, .. the
n-th call of a kind fails, until the work passes without reaching it; then again with all calls from the n-th on
failing. After each, the same work must give the right answers again. Exits with 1 if anything is wrong: an answer, an
error without a name, more requests ended than the failure may end, a request without a last reply, books that do not
agree with the backend.

Then the same on an engine with the built-in model, real weights (`tests/helpers/failures/failing_engine.py`): what
llama.cpp returns, memory for arrays and masks, pictures, parsers; at most `--most` places of a kind.

Then the pipes and the next processes of an isolated engine with the built-in model
(`tests/helpers/failures/failing_child.py`)."""

import argparse
import logging
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

MOST_STARTS = 5
"""The engine is given up at one more death in a row than starts that may fail."""
TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS / "helpers"), str(TESTS.parent)]

from failures import failing_child, failing_engine  # noqa: E402
from failures.failing_loop import KINDS, Series, Work, failing  # noqa: E402

from engine import Engine  # noqa: E402


def tried(kind: str, *, lasting: bool) -> Series:
    """Returns the series of a kind; a request that hangs, or books that do not agree, are a fault of it."""
    install, may_end = KINDS[kind]
    try:
        return failing(Work(), install, may_end=may_end, lasting=lasting, every=7 if lasting else 1)
    except AssertionError as error:
        return Series(faults=[str(error)])


def tried_engine(kind: str, most: int) -> Series:
    """Returns the series of a kind of failure of an engine with real weights."""
    with tempfile.TemporaryDirectory() as folder, failing_engine.opened(Path(folder)) as llm:
        right = failing_engine.expected(llm)
        return one_by_one(lambda at: failing_engine.failing(llm, right, failing_engine.KINDS[kind], at), most)


def tried_child(kind: str) -> Series:
    """Returns the series of a kind of failure of an isolated engine."""
    most = MOST_STARTS - 1 if kind == failing_child.STARTS else sys.maxsize
    with Engine.load(isolated=True, **failing_child.OPTIONS) as llm:
        right = failing_child.expected(llm)
        return one_by_one(lambda at: failing_child.failing(llm, right, failing_child.KINDS[kind], at), most)


def one_by_one(fail: Callable[[int], failing_child.Failed], most: int) -> Series:
    """Let the 1st, 2nd, .. call fail, `most` at most, until the failure is not reached or too much is wrong."""
    series = Series()
    for number in range(1, most + 1):
        failed = fail(number)
        series.faults += failed.faults
        if not failed.reached or len(series.faults) > 9:
            break
        series.failed += 1
        series.ended += failed.ended
    return series


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", action="append", default=[], metavar="TEXT", help="kinds whose name begins with this")
    parser.add_argument("--most", type=int, default=sys.maxsize, help="places of a kind with real weights")
    options = parser.parse_args()
    wanted = tuple(options.kind) or ("",)
    logging.disable(logging.CRITICAL)
    faults = 0
    print("| kind | calls failed | ended by name | lasting: failed | ended by name | faults |")
    print("|---|---|---|---|---|---|")
    for kind in filter(lambda name: name.startswith(wanted), KINDS):
        once, lasting = tried(kind, lasting=False), tried(kind, lasting=True)
        wrong = [*once.faults, *lasting.faults]
        faults += len(wrong)
        print(
            f"| {kind} | {once.failed} | {once.ended} | {lasting.failed} | {lasting.ended} | {len(wrong)} |", flush=True
        )
        for text in wrong[:3]:
            print(f"    {text[:300]}", file=sys.stderr)
    more = [(kind, lambda kind=kind: tried_engine(kind, options.most)) for kind in failing_engine.KINDS]
    more += [(kind, lambda kind=kind: tried_child(kind)) for kind in failing_child.KINDS]
    for kind, tries in more:
        if not kind.startswith(wanted):
            continue
        series = tries()
        faults += len(series.faults)
        print(f"| {kind} | {series.failed} | {series.ended} | | | {len(series.faults)} |", flush=True)
        for text in series.faults[:3]:
            print(f"    {text[:300]}", file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
