"""Prompts made of the columns of a row: `Extract the city: {text}`."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from engine.support.errors import RequestError, did_you_mean, shown

_PARTS = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


@dataclass(frozen=True, slots=True)
class ColumnPrompt:
    """A text with names of columns in braces. `parts`: what stands before each name, and the name.

    What a row has there is put in as it is and never read again: braces in it name no column, and as in all that a user
    writes, none of it becomes a control token.
    """

    text: str
    parts: tuple[tuple[str, str | None], ...]

    @property
    def columns(self) -> list[str]:
        """The names of the columns that it needs."""
        return [name for _, name in self.parts if name is not None]

    def check(self, there: Iterable[str]) -> None:
        """Raise RequestError for a column that is not among these."""
        names = list(there)
        for name in self.columns:
            if name not in names:
                listed = f"the columns are {', '.join(names) or 'none'}"
                hint = did_you_mean(name, names, "").capitalize()
                raise RequestError(f"The prompt names a column {shown(name)}; {listed:.1000}. {hint}".rstrip())

    def fill(self, row: Mapping[str, Any]) -> str:
        """Returns the prompt of a row. Raises RequestError if a column is not there, or null."""
        self.check(row)
        if empty := [name for name in self.columns if row[name] is None]:
            raise RequestError(f'"{empty[0]}" has no value in this row, and the prompt needs it.')
        return "".join(text + ("" if name is None else cell_text(row[name])) for text, name in self.parts)


def column_prompt(text: object, column: object) -> ColumnPrompt | None:
    """Returns the prompt of the options `prompt` (a brace itself is doubled) and `prompt_column`. Raises RequestError
    for one that is not valid."""
    for option, value in (("prompt", text), ("prompt_column", column)):
        if value is not None and not isinstance(value, str):
            raise RequestError(f"{option}={shown(value)} is not valid; give a text.")
    if text is not None and column is not None:
        raise RequestError("Both prompt= and prompt_column= are given; a prompt can name the column: {name}.")
    if column is not None:
        return ColumnPrompt(f"{{{column}}}", (("", cast("str", column)),))
    return None if text is None else _parsed(cast("str", text))


def _parsed(text: str) -> ColumnPrompt:
    parts: list[tuple[str, str | None]] = []
    done = 0
    for found in _PARTS.finditer(text):
        brace, name = found[0], found[1]
        if name is None and len(brace) == 1:
            raise RequestError(f"The prompt has a single {brace} at character {found.start() + 1}; write {2 * brace}.")
        parts.append((text[done : found.start()] + (brace[0] if name is None else ""), name))
        done = found.end()
    prompt = ColumnPrompt(text, (*parts, (text[done:], None)))
    if not prompt.columns:
        raise RequestError("The prompt names no column, so all rows would be the same; write one as {name}.")
    return prompt


def cell_text(value: object) -> str:
    """Returns a value of a row as text: texts as they are, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
