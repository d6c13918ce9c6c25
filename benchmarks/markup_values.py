"""A call's argument may hold markup of its own family: is the value read whole, or is anything else run?

    python benchmarks/markup_values.py [--count 40000] [--family NAME] [--seed 1] [--show 5]

Every family that writes calls, in turn: whole calls, openers, closers, marks of sections, of reasoning and of turns, in
a string that is the first, last or only argument, in an object, a list, a key; as text, beside a vocabulary, and with
the control tokens themselves (`tests/helpers/attacks/markup_values.py`); each once more, cut at a random place. Exits
with 1 if a call would be run that is not meant, or if one is lost. "closes itself" are values that no reader can tell
from the end of their call: markup without escapes that has a closing mark which nothing in it opens.
"""

import argparse
import random
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]

from attacks.markup_values import cut, drawn, families, judged  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40_000)
    parser.add_argument("--family", action="append", default=[])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=1, help="wrong ones of each family")
    options = parser.parse_args()
    names = options.family or families()
    chance = random.Random(options.seed)
    counts: dict[str, Counter[str]] = {name: Counter() for name in names}
    kinds: Counter[tuple[str, str]] = Counter()
    for number in range(options.count):
        case = drawn(names[number % len(names)], chance)
        found = case.read(chance.choice((1, 3, 7, 1000)))
        verdict = judged(case, found)
        shorter = cut(case, chance)
        kinds["cut", judged(shorter, shorter.read(), is_cut=True)] += 1
        counts[case.family][verdict] += 1
        kinds[(case.mode, verdict)] += 1
        if verdict in ("foreign", "lost") and counts[case.family][verdict] <= options.show:
            print(f"{case.family}, {case.mode}, {case.kind}, {case.place}: {verdict}")
            print(f"    {''.join(piece.text for piece in case.fed)!r}")
            print(f"    {[(call.name, call.arguments, call.error) for call in found.tool_calls]} {found.content!r}")
    for name, count in counts.items():
        if count["foreign"] or count["lost"]:
            print(f"{name}: {dict(count)}")
    print({f"{mode}: {verdict}": count for (mode, verdict), count in sorted(kinds.items())})
    wrong = sum(count["foreign"] + count["lost"] for count in counts.values()) + kinds["cut", "foreign"]
    print(f"{options.count:,} calls of {len(names)} families: {wrong} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
