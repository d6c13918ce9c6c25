"""How often a regular expression or a Lark grammar repeats something, counted before any library reads it."""

import re

MOST_REPETITIONS = 1_000_000
"""More than this no answer holds, and what a grammar demands is written out in memory before the first token."""
_PART = re.compile(
    r"""\\. | "(?:\\.|[^"\\])*" | \[\]?(?:\\.|[^\]\\])* | [()\n]
    | \{(?P<least>\d+)(?:,(?P<most>\d*))?\} | ~[ ]*(?P<first>\d+)(?:[ ]*\.\.[ ]*(?P<last>\d+))?
    | [^\\"\[()\n{~?*+]+ | .""",
    re.VERBOSE | re.DOTALL,
)


def most_repetitions(text: str) -> int:
    """Returns the largest product of the counts of nested repetitions: 9 for `(x{3}){3}`. A count without an upper end
    is its lower end."""
    found = behind = 1
    open_groups: list[int] = []
    inside = 1  # the largest product in the group so far
    for part in _PART.finditer(text):
        first = part[0][0]
        if first == "(":
            open_groups.append(inside)
            inside = behind = 1
        elif first == ")" and open_groups:
            behind, inside = inside, max(inside, open_groups.pop())
        elif counts := [int(count[:9]) for count in part.group("least", "most", "first", "last") if count]:
            behind *= max(1, *counts)
            inside = max(inside, behind)
            found = max(found, inside)
        elif first == "\n" and not open_groups:
            inside = behind = 1
        elif not part[0].isspace() and first not in "?*+":
            behind = 1
    return found
