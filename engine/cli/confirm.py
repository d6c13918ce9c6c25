"""Asks the person at the terminal, who is shown all that the answer is about: a page at a time where it is long."""

import sys

from rich.cells import chop_cells

from engine.cli.screen import Screen

LONGEST = 100_000
"""Nobody reads more characters than that before an answer: such a question is not asked, and the answer is no."""


def can_ask() -> bool:
    """Whether somebody sees the question and can answer it."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def confirmed(screen: Screen, text: str, question: str) -> bool:
    """Returns whether the answer is yes; no if it cannot be shown, or was not read to its end."""
    text = "".join(letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text)
    if len(text) > LONGEST:
        screen.line(f"{text[:200]} .. has {len(text):,} characters, too many to read: refused.", "red")
        return False
    width, height = screen.size
    rows = [row for line in text.split("\n") for row in chop_cells(line, width) or [""]]
    page = max(1, height - 2)
    for start in range(0, len(rows), page):
        end = start + page
        screen.line("\n".join(rows[start:end]), "bold")
        if end < len(rows) and not _answered(screen, f"Row {end} of {len(rows)}; Enter goes on, n refuses. ", ("",)):
            return False
    return _answered(screen, f"{question} [y/N] ", ("y", "yes"))


def _answered(screen: Screen, question: str, wanted: tuple[str, ...]) -> bool:
    try:
        return input(question).strip().lower() in wanted
    except EOFError:
        screen.line()
        return False
