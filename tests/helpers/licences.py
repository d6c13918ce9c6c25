"""The table of licences in docs/about/supply-chain.md, as the metadata of installed packages states them.

`python tests/helpers/licences.py SITE_PACKAGES PAGE` writes it anew, with `--check` it says what differs; `.ci/release`
installs the package with every extra for users and calls it.
"""

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

OURS = "llama-engine"
BEGIN, END = "<!-- licences -->\n", "<!-- /licences -->\n"
SAME = {
    "MIT": "mit license; the mit license (mit)",
    "Apache-2.0": "apache 2.0; apache license 2.0; apache license, version 2.0",
    "BSD-3-Clause": "3-clause bsd license; bsd 3-clause license",
    "BSD, which is not stated": "bsd; bsd license",
    "ISC": "isc license; isc license (iscl)",
    "Python Software Foundation License": "psfl",
    "not stated": "unknown",
}
"""Other spellings of the same, in lower case."""


def licence(package: Distribution) -> str:
    """What a package's metadata states: the SPDX expression of PEP 639, else the older field or, where that holds a
    whole text, the classifiers. "not stated" if there is none: then its own licence file has to be read."""
    stated: Any = package.metadata  # its get is typed otherwise in each version of Python
    if expression := stated.get("License-Expression"):
        return expression
    field: str = (stated.get("License") or "").strip()
    classifiers: list[str] = stated.get_all("Classifier", [])
    classified = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License ::")]
    vague = len(field) > 60 or field.lower() in ("", "unknown", "dual license")
    name = (" or ".join(classified) or field.partition("\n")[0].strip()) if vague else field
    return next((spdx for spdx, others in SAME.items() if name.lower() in others.split("; ")), name) or "not stated"


def normal(name: str) -> str:
    """A package's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def table(packages: Iterable[Distribution]) -> str:
    """A Markdown table with a row for each licence, the most frequent first."""
    groups: dict[str, list[str]] = defaultdict(list)
    for package in packages:
        if (name := normal(package.name)) != OURS:
            groups[licence(package)].append(name)
    rows = sorted(groups.items(), key=lambda row: (-len(row[1]), row[0]))
    lines = (f"| {named} | {', '.join(sorted(names))} |\n" for named, names in rows)
    return "| licence | packages |\n|---|---|\n" + "".join(lines)


def listed(page: str) -> dict[str, str]:
    """The licence of each package in a page's table."""
    rows = (line.strip("| \n").split(" | ") for line in between(page).splitlines()[2:])
    return {name: row[0] for row in rows for name in row[1].split(", ")}


def between(page: str) -> str:
    """What stands between a page's two marks. Raises ValueError if a mark is missing."""
    return page[page.index(BEGIN) + len(BEGIN) : page.index(END)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", type=Path, help="the site-packages folder of an environment")
    parser.add_argument("page", type=Path)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is not up to date")
    arguments = parser.parse_args()
    page = arguments.page.read_text(encoding="utf-8")
    new = table(distributions(path=[str(arguments.packages)]))
    if not arguments.check:
        before, _, rest = page.partition(BEGIN)
        arguments.page.write_text(before + BEGIN + new + END + rest.partition(END)[2], encoding="utf-8")
        return 0
    before, after = listed(page), listed(f"{BEGIN}{new}{END}")
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            print(f"{name}: {before.get(name)} on the page, {after.get(name)} installed")  # noqa: T201
    return int(before != after)


if __name__ == "__main__":
    sys.exit(main())
