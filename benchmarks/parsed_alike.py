"""Do two checkouts read the same outputs alike? Before and after a change of the parser:

    python benchmarks/parsed_alike.py --base CHECKOUT [--count 100000] [--seed 1] [--show 3]

Mutated outputs of every family (`tests/helpers/attacks/parsing_fuzz.py`), cut at random, are read by both, each in a
process of its own. Compared for each: the events of every feed, the positions that guidance asks for, and the turn that
they make. Printed: outputs a second, what differs how often, by how many characters a feed's events came later or
earlier, and the first outputs of each difference. Exits with 1 if anything differs or comes later.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from zlib import crc32

ROOT = Path(__file__).resolve().parents[1]
if "--reads" not in sys.argv:  # a process that reads has another checkout's engine and helpers on its path
    sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]

from attacks.parsing_fuzz import Input, changed, seeds  # noqa: E402

from engine.types.events import fold  # noqa: E402
from engine.types.prompt import Piece  # noqa: E402

BATCH = 500
PARTS = ("calls", "content", "reasoning", "finish")
POSITIONS = ("answer_start", "call_start", "undecided", "in_reasoning")


def read(data: str) -> list[Any]:
    """What the engine of this process makes of an output: checksums of the events at each feed and of the positions,
    the characters that were fed but not yet in events, summed over the feeds, and the parts of the turn."""
    made, chance = Input.of(data.encode()), random.Random(data)
    shown, places, waiting, held, events = "", "", 0, 0, list[Any]()
    try:
        parser = made.parser()
        for piece in cut(made.fed, chance):
            new = parser.feed(piece.text, piece.special)
            events += new
            waiting += len(piece[0]) - sum(len(getattr(each, "text", "")) for each in new)
            held += waiting
            shown += f"{[[getattr(each, name) for name in each.__slots__] for each in new]}\n"
            places += f"{[getattr(parser, name) for name in POSITIONS]}"
        turn = fold([*events, *parser.close(made.finish)])
    except Exception as error:  # noqa: BLE001 - an output that raises is a difference like another
        return [0, 0, 0, repr(error), "", "", ""]
    calls = [[call.name, call.arguments, call.error, call.id] for call in turn.tool_calls]
    sums = [crc32(shown.encode(errors="replace")), crc32(places.encode()), held]
    return [*sums, calls, turn.content, turn.reasoning, turn.finish_reason]


def cut(fed: Sequence[Piece], chance: random.Random) -> Iterator[Piece]:
    """The pieces, their text cut at random."""
    widths = chance.choice(((1, 2, 3), (7,), (1, 40), (1000,)))
    for text, special, _ in fed:
        at = 0
        while at < len(text):
            end = len(text) if special else at + chance.choice(widths)
            yield Piece(text[at:end], special)
            at = end


def outputs(seed: int) -> Iterator[str]:
    """Mutated outputs of all families, without end."""
    chance, pool = random.Random(seed), list(seeds())
    while True:
        data = changed(chance.choice(pool), chance, pool)
        if len(data) < 4096:
            pool[chance.randrange(len(pool))] = data
        yield data.decode()


def reader(checkout: Path) -> "subprocess.Popen[str]":
    """Start a process that reads with the engine of a checkout."""
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (checkout, checkout / "tests" / "helpers")))}
    command = [sys.executable, str(Path(__file__).resolve()), "--reads", "--base", str(checkout)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=paths)


def both(
    readers: Sequence["subprocess.Popen[str]"], batch: Sequence[str]
) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Each output of a batch with what the one and the other make of it."""
    for each in readers:
        assert each.stdin is not None
        each.stdin.write(json.dumps(batch) + "\n")
        each.stdin.flush()
    old, new = (json.loads(each.stdout.readline()) for each in readers if each.stdout is not None)
    yield from zip(batch, old, new, strict=True)


def differs(old: Sequence[Any], new: Sequence[Any]) -> str:
    """What differs between two readings of one output; "" if nothing."""
    parts = [name for name, one, other in zip(PARTS, old[3:], new[3:], strict=True) if one != other]
    if parts:
        return ", ".join(parts)
    if old[0] != new[0]:
        return "later" if new[2] > old[2] else "earlier" if new[2] < old[2] else "events of a feed"
    return "positions" if old[1] != new[1] else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=3, help="outputs of each difference")
    parser.add_argument("--reads", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.reads:
        for line in sys.stdin:
            print(json.dumps([read(data) for data in json.loads(line)]), flush=True)
        return 0
    counts, held, began = Counter[str](), Counter[int](), time.monotonic()
    made, readers = islice(outputs(given.seed), given.count), [reader(given.base.resolve()), reader(ROOT)]
    while batch := list(islice(made, BATCH)):
        for data, old, new in both(readers, batch):
            held[(new[2] - old[2]).bit_length() * (1 if new[2] > old[2] else -1)] += 1
            counts[kind := differs(old, new)] += 1
            if kind and counts[kind] <= given.show:
                print(f"{kind}: {data}\n    old {old[2:]}\n    new {new[2:]}", flush=True)
    rate = given.count / (time.monotonic() - began)
    print(f"{given.count:,} outputs, {rate:.0f} a second: {counts.pop('', 0):,} alike, {dict(counts.most_common())}")
    print(f"characters held longer (+) or shorter (-), powers of two: {dict(sorted(held.items()))}")
    return bool(counts)


if __name__ == "__main__":
    sys.exit(main())
