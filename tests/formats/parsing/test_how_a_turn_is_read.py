"""docs/about/how-a-turn-is-read.md shows the tables of `text_turn` as they are. Run as a script, this writes them."""

import inspect
import re
from pathlib import Path

import pytest
from cases.parsing_cases import run, splits

from engine.formats.families import Format, builtin_families
from engine.formats.parsing import Parser, text_turn
from engine.formats.parsing.reader import spelling_of
from engine.formats.parsing.roles import Role, roles_of
from engine.formats.parsing.text_turn import Row
from engine.formats.parsing.unmarked import Demands
from engine.types.events import fold

PAGE = Path(__file__).resolve().parents[3] / "docs" / "about" / "how-a-turn-is-read.md"
TABLES = {"IN_TEXT": text_turn.IN_TEXT, "IN_REASONING": text_turn.IN_REASONING}
_TABLE = r"(<!-- %s -->\n)(?:\n\|.*?\n(?=\n))?"


def said(step: object) -> str:
    """The words of a condition or an action: its docstring."""
    words = inspect.getdoc(step)
    assert words, f"{step} says nothing"
    return " ".join(words.split())


def shown(table: tuple[Row, ...]) -> str:
    """A table as the page shows it."""
    lines = ["| a marker that | does this, if | then | the text so far |", "|---|---|---|---|"]
    for row in table:
        span = "ends" if row.ends else "goes on"
        lines.append(f"| {row.role.value} (`{row.role.name}`) | {said(row.when)} | {said(row.does)} | {span} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page with its tables as they must be."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        text, count = re.subn(
            _TABLE % name, lambda found, table=table: f"{found[1]}\n{shown(table)}", text, flags=re.DOTALL
        )
        assert count == 1, f"the page has no place for {name}"
    return text


def test_the_page_shows_the_tables() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), f"python {Path(__file__).name} writes the tables anew"


def test_each_row_can_act() -> None:
    """A row that stands behind one with the same role and the condition "Always" never acts."""
    for table in TABLES.values():
        always: set[Role] = set()
        for row in table:
            assert row.role not in always, row
            always |= {row.role} if said(row.when) == "Always." else set()


@pytest.mark.parametrize("name", builtin_families().names())
def test_each_marker_that_is_looked_for_has_a_role(name: str) -> None:
    format_ = builtin_families().get(name).format
    rows = {row.role for table in TABLES.values() for row in table}
    for vocabulary in (None, frozenset(format_.control)):
        for demands in (Demands(), Demands(json=True), Demands(choice="none")):
            roles = roles_of(format_, spelling_of(format_.control, vocabulary), demands, tools=True)
            for markers in roles.at.values():
                for text in markers.literals:
                    assert rows & roles.of[text], f"nothing says what {text!r} does"


def test_what_the_page_answers_is_so() -> None:
    """A family whose calls begin with a marker of its own needs no code; quoted calls; `</think>` in content."""
    tools = {"shape": "tagged_json", "call": ("§call ", "§end"), "name_end": " "}
    format_ = Format.model_validate({"tools": tools, "reasoning": {"open": "<think>", "close": "</think>"}})
    call = '§call trip {"to": "Rome"}§end'
    for output, content, calls in (
        (f"I go. {call}", "I go. ", ["trip"]),
        (f"Write `{call}` for it.", f"Write `{call}` for it.", []),
        ("</think>Fine.", "Fine.", []),
        ("Well.</think>Fine.", "Well.\nFine.", []),
        ("It ends with `</think>`.", "It ends with `</think>`.", []),
    ):
        for chunks in splits(output):
            turn = fold(run(Parser(format_, tools=[{"name": "trip"}]), chunks))
            assert (turn.content, [each.name for each in turn.tool_calls]) == (content, calls)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
