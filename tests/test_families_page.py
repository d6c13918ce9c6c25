"""docs/FAMILIES.md is models.toml in words. Run as a script, `python tests/test_families_page.py`, this writes it."""

from collections.abc import Sequence
from pathlib import Path

from engine.families import Detect, Family, Gate, ReasoningSyntax, ToolSyntax, builtin_families

PAGE = Path(__file__).resolve().parent.parent / "docs" / "FAMILIES.md"
HEAD = """# Families

Generated from `models.toml` by `python tests/test_families_page.py`; a test compares the two. The first row that
matches a model's chat template wins. *Fed back*: which earlier reasoning the next prompt shows, and in which field the
template reads it. *Checked against*: the template whose prompts and calls the row was written from; rows marked
unverified had only descriptions.

| family | models | recognised by | reasoning | fed back | calls | checked against |
|---|---|---|---|---|---|---|
"""
HISTORY = {
    "none": "nothing",
    "last_user": "since the last user message",
    "last_answer": "since the last answer",
    "all": "everything",
    "unknown": "no rule",
}
SHAPES = {
    "json": "JSON",
    "tagged_json": "a name in markup, JSON arguments",
    "tagged_args": "name and arguments in markup",
    "pythonic": "Python calls",
    "dictionary": "a dictionary with bare keys",
    "nested": "arguments as elements",
}


def code(text: str) -> str:
    """As code in a table cell: on one line, bars escaped, back quotes wrapped."""
    shown = text.strip("\n").replace("\n", "⏎").replace("|", "\\|")
    return f"`` {shown} ``" if "`" in shown else f"`{shown}`"


def recognised(rule: Detect) -> str:
    told = [" and ".join(code(text) for text in rule.template)]
    if rule.template_not:
        told.append("without " + ", ".join(code(text) for text in rule.template_not))
    named = ", ".join((*rule.names, *rule.architectures))
    return " ".join(filter(None, told)) + (f" (no template: {named})" if named else "") or "what nothing else matches"


def gated(gate: Gate | None) -> str:
    if gate is None:
        return "no switch"
    return f"{code(gate.kwarg)}, {gate.default} by default" + ("" if gate.off is not None else ", never off")


def reasoning(syntax: ReasoningSyntax | None) -> tuple[str, str]:
    """The columns on reasoning and on feeding it back."""
    if syntax is None:
        return "none", ""
    opened = "opened by the prompt" if syntax.forced_open else "opened by the model"
    fields = ", ".join(code(name) if name else "tags in the content" for name in syntax.fields)
    how = f"{code(syntax.open)} .. {code(syntax.close)}, {opened}; {gated(syntax.gate)}"
    return how, HISTORY[syntax.history] + (f" ({fields})" if fields else "")


def calls(family: Family) -> str:
    if family.format.channels:
        return f"messages to {code(family.format.channels.recipient + family.format.channels.namespace)}"
    tools: ToolSyntax | None = family.format.tools
    if tools is None:
        return "none"
    markers = [text for text in (tools.section[0], tools.call[0]) if text.strip()]
    found = " ".join(code(text) for text in markers) or "without markers"
    return f"{SHAPES[tools.shape]}: {found}"


def row(family: Family) -> str:
    how, back = reasoning(family.format.reasoning)
    cells: Sequence[str] = (
        code(family.name),
        family.title,
        recognised(family.detect),
        how,
        back,
        calls(family),
        family.verified,
    )
    return "| " + " | ".join(cells) + " |\n"


def page() -> str:
    known = builtin_families()
    return HEAD + "".join(row(known.get(name)) for name in known.names())


def test_the_page_says_what_models_toml_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "docs/FAMILIES.md is old: python tests/test_families_page.py"


def test_each_row_is_one_line_with_seven_cells() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(builtin_families().names())
    for line in rows:
        assert line.replace("\\|", "").count("|") == 8, line


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
