"""Every hostile template of tests/helpers/attacks/hostile_templates.py, at once and as one that waits for a message.

    python benchmarks/hostile_templates.py [--seconds 5] [--only NAME]

Prints a table by outcome with the largest cost in this process, then the worst; exits with 1 if one raised anything but
TemplateError, brought something out, or cost this process more than it may.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import pytest

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1]),
    str(Path(__file__).resolve().parents[1] / "tests/helpers"),
]

from attacks.attacking import Cost, attack, hurry  # noqa: E402
from attacks.hostile_templates import ATTACKS, late  # noqa: E402

PROCESSOR_SECONDS = 3.0
BYTES = 200 << 20


def main() -> int:
    """Run them all."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=5.0, help="after which a template is stopped")
    options.add_argument("--only", default="", help="those whose name holds this")
    given = options.parse_args()
    costs: dict[str, Cost] = {}
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch, given.seconds)
        for name, source in ATTACKS.items():
            if given.only in name:
                costs[name] = attack(source)
                costs[f"{name}, late"] = attack(late(source))
                if given.only:
                    print(name, costs[name], costs[f"{name}, late"], sep="\n  ")
    _print(costs)
    bad = {
        name: cost
        for name, cost in costs.items()
        if cost.raw or cost.loot or cost.processor_seconds > PROCESSOR_SECONDS or cost.bytes > BYTES
    }
    for name, cost in bad.items():
        print("BAD", name, cost)
    return bool(bad)


def _print(costs: dict[str, Cost]) -> None:
    groups: dict[tuple[str, str], list[Cost]] = defaultdict(list)
    for name, cost in costs.items():
        outcome = "raised raw" if cost.raw else f"{cost.loaded} {cost.rendered}".strip()
        groups[name.partition("/")[0], outcome].append(cost)
        groups["all", outcome].append(cost)
    print("The largest seconds, processor seconds and MiB are those of this process.")
    print(f"{'kind':12}{'outcome':20}{'count':>6}{'seconds':>9}{'processor':>11}{'MiB':>6}")
    for (kind, outcome), found in sorted(groups.items()):
        seconds, processor = max(cost.seconds for cost in found), max(cost.processor_seconds for cost in found)
        mib = max(cost.bytes for cost in found) >> 20
        print(f"{kind:12}{outcome:20}{len(found):6}{seconds:9.2f}{processor:11.2f}{mib:6}")
    for what in ("seconds", "processor_seconds", "bytes"):
        worst = sorted(costs, key=lambda name: getattr(costs[name], what), reverse=True)[:5]
        print(f"largest {what}:", *(f"{name} ({getattr(costs[name], what):,.2f})" for name in worst), sep="\n  ")


if __name__ == "__main__":
    sys.exit(main())
