"""docs/FAMILIES.md is models.toml in words. Run as a script, `python tests/families/test_families_page.py`, this writes
it."""

from collections.abc import Sequence
from pathlib import Path

from engine.families import Detect, Family, Gate, ReasoningSyntax, ToolSyntax, builtin_families

PAGE = Path(__file__).resolve().parents[2] / "docs" / "FAMILIES.md"
HEAD = """# Families

Generated from `models.toml` by `python tests/families/test_families_page.py`; a test compares the two. The first row
that matches a model's chat template wins. *Fed back*: which earlier reasoning the next prompt shows, and in which
field the template reads it. *Checked against*: the template whose prompts and calls the row was written from; rows
marked unverified had only descriptions.

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

DECISIONS = """
## What requests decide

*Reasoning off*: what `reasoning=False` does. *After a result*: what the prompt does behind a tool result while
reasoning is on. *Call in reasoning*: whether call markup there ends reasoning or is quoted text. *Opened again*: an
opening marker that the model writes although the prompt closed reasoning. *Control tokens*: markers that are matched
only as tokens, where the vocabulary has them. Reasoning is never constrained; a demanded call is, in the family's own
syntax or, where it has none, the generic one.

| family | reasoning off | after a result | call in reasoning | opened again | calls | stops | control tokens |
|---|---|---|---|---|---|---|---|
"""
OFF = {
    "gate": "by the switch",
    "close": "the block is closed in the prompt",
    "nothing": "nothing to do",
    "refuse": "refused",
}
RESULT = {"opened": "reasoning is opened", "free": "the model decides", "no prompt": "the turn goes on"}


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
    switch = code(gate.kwarg) if gate.place == "variable" else f"{code(str(gate.off))} in the {gate.place} message"
    default = "left to the model" if gate.default == "model" else gate.default
    return f"{switch}, {default} by default" + ("" if gate.off is not None else ", never off")


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


def decisions(family: Family) -> str:
    format_ = family.format
    syntax = format_.reasoning
    told = (
        [
            OFF[syntax.off],
            RESULT[syntax.after_result],
            "ends it" if syntax.ends_on_call else "quoted",
            "separated" if syntax.when_closed == "separate" else "dropped",
        ]
        if syntax
        else ["not applicable"] * 4
    )
    calls_ = "own" if format_.tools else "messages" if format_.channels else "generic"
    stops, control = (" ".join(map(code, texts)) or "none" for texts in (format_.stops, format_.control))
    return "| " + " | ".join([code(family.name), *told, calls_, stops, control]) + " |\n"


def page() -> str:
    families = [builtin_families().get(name) for name in builtin_families().names()]
    return HEAD + "".join(map(row, families)) + DECISIONS + "".join(map(decisions, families))


def test_the_page_says_what_models_toml_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/FAMILIES.md is old: python tests/families/test_families_page.py"
    )


def test_each_row_is_one_line_with_its_cells() -> None:
    first, _, second = page().partition(DECISIONS)
    for table, cells in ((first, 7), (second, 8)):
        rows = [line for line in table.splitlines() if line.startswith("| `")]
        assert len(rows) == len(builtin_families().names())
        for line in rows:
            assert line.replace("\\|", "").count("|") == cells + 1, line


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
