"""What can be derived of each template in llama.cpp's tree with every family of models.toml switched off.

A line for each template: what was derived, whether every message that the template shows comes back through it
(round-trips), whether it reads the template's renders like the declared row does (equals declared), in what the records
differ, and what stopped it. Reads `LLAMA_CPP_TEMPLATES`, or the folder given.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1] / "support")]

from roundtrips import FOLDER, Row, row  # noqa: E402

_MARKS = {True: "yes", False: "NO"}


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", nargs="?", default=FOLDER, help="the folder of templates")
    arguments.add_argument("--only", default="", help="templates whose name contains this")
    arguments.add_argument("--verbose", action="store_true", help="print the formats, and what came of lost messages")
    given = arguments.parse_args()
    paths = sorted(path for path in Path(given.folder or ".").glob("*.jinja") if given.only in path.name)
    if not paths:
        sys.exit("There are no templates: name their folder, or set LLAMA_CPP_TEMPLATES.")
    rows: list[Row] = []
    for path in paths:
        rows.append(row(path))
        _print(rows[-1], verbose=given.verbose)
    _total(rows)


def _print(each: Row, *, verbose: bool) -> None:
    format_ = each.derived.format
    found = "nothing"
    if format_ is not None:
        parts = [format_.tools.shape] if format_.tools else []
        parts += ["reasoning"] if format_.reasoning and format_.reasoning.off != "nothing" else []
        found = " + ".join(parts) or "answers only"
    stopped = [*each.derived.missing, *(f"{name} does not come back" for name in each.back)]
    print(
        f"{each.name:46} {found:24} round-trips {_MARKS[format_ is not None and not each.back]:4}"
        f"equals {each.family} {_MARKS[format_ is not None and not each.unlike]:4}"
        + (f"; read otherwise: {', '.join(each.unlike)}" if each.unlike else "")
        + (f"; record differs in {', '.join(each.differs)}" if each.differs else "")
        + (f"; {'; '.join(stopped)}" if stopped else ""),
        flush=True,
    )
    if verbose:
        print("   ", format_ and format_.model_dump_json(exclude_defaults=True))
        for name, text in each.back.items():
            print("   ", name, "->", text)


def _total(rows: Sequence[Row]) -> None:
    derived = [each for each in rows if each.derived.format is not None]
    calls = [each for each in derived if each.has_calls]
    back = [each for each in derived if not each.back]
    print(f"\ntemplates {len(rows)}")
    print(f"a format derived {len(derived)}, with calls {len(calls)}")
    print(f"round-trip with every family off {len(back)}, with calls {sum(each.has_calls for each in back)}")
    print(
        f"of these, read like the declared row {sum(not each.unlike for each in back)}, "
        f"with calls {sum(not each.unlike for each in back if each.has_calls)}; "
        f"the same record {sum(not each.differs for each in back)}"
    )


if __name__ == "__main__":
    main()
