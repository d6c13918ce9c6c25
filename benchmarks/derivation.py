"""How much of each family's outputs is read by the format that is derived from its chat template alone?

    LLAMA_CPP_TEMPLATES=... python benchmarks/derivation.py [--show 3]

For every official template of a family with a row: the row is switched off, the format is derived, and the golden cases
of the family (`tests/golden`, and the canonical turns) are read with it, behind the prefix as it is. Prints the share
that is read as the case says, by family and in all, and what stopped a derivation.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT)]

from cases.parsing_cases import CASES, TOOLS, Case, check_expected, run  # noqa: E402
from cases.roundtrips import FIXED, SOURCES  # noqa: E402

from engine.formats.families import Format, builtin_families  # noqa: E402
from engine.formats.parsing import Parser  # noqa: E402
from engine.formats.template.capabilities import probe  # noqa: E402
from engine.formats.template.derive import derivation  # noqa: E402
from engine.formats.template.env import Template  # noqa: E402
from engine.types.events import fold  # noqa: E402


def reads(case: Case, format_: Format) -> bool:
    parser = Parser(format_, case.prefix, tools=TOOLS)
    try:
        check_expected(case, fold(run(parser, [case.output], case.finish)))
    except AssertionError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", type=int, default=0, help="cases of each template that are read otherwise")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")
        name, template = builtin_families().detect(source).family.name, Template(source)
        found = derivation(template, FIXED, probe(template, FIXED))
        cases = [case for case in CASES if case.family == name]
        read = [case for case in cases if found.format is not None and reads(case, found.format)]
        total += Counter(cases=len(cases), read=len(read))
        if cases:
            print(f"{len(read):3} of {len(cases):3} {path.stem}: {name}; {'; '.join(found.missing)}")
        for case in [case for case in cases if case not in read][: options.show]:
            print(f"        {case.name}: {case.output[:150]!r}")
    print(f"{total['read']:,} of {total['cases']:,} ({100 * total['read'] / max(total['cases'], 1):.1f} %)")


if __name__ == "__main__":
    main()
