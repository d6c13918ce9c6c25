"""Prints what the command line shows: events as they come, figures, errors."""

import re
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Literal, TextIO, TypeAlias

from pydantic_core import to_json
from rich.console import Console
from rich.text import Text

from engine.cli.live import LiveMarkdown
from engine.cli.standard import output
from engine.support.display import visible, visible_json
from engine.types import events
from engine.types.completion import ending, summarised

Label: TypeAlias = Literal["question", "reasoning", "answer", "call", "result"]

_NARROWEST = 20
"""Columns that text is worth indenting for."""
_STYLES: dict[Label, str] = {"question": "bold", "reasoning": "dim", "answer": "", "call": "cyan", "result": "green"}


class Screen:
    """One output stream. Styled if it is a terminal (and NO_COLOR is not set), otherwise plain text. `markdown`: draw
    answers as Markdown, on a terminal that can move its cursor."""

    def __init__(self, out: TextIO, *, markdown: bool = False) -> None:
        self._out = out
        self._markdown = markdown
        self._live: LiveMarkdown | None = None
        self._console = Console(file=out, highlight=False, markup=False, emoji=False, soft_wrap=True)
        self._inside: tuple[Label, int, int] | None = None

    @property
    def is_terminal(self) -> bool:
        return self._console.is_terminal

    @property
    def size(self) -> tuple[int, int]:
        """Columns and rows."""
        return self._console.size

    @property
    def _draws(self) -> bool:
        """Whether Markdown is drawn here."""
        console = self._console
        return self._markdown and console.is_terminal and not (console.is_dumb_terminal or console.legacy_windows)

    def write(self, text: str, style: str = "") -> None:
        """Write a text at once, without adding a newline."""
        with output():
            if self.is_terminal:
                self._console.print(Text(visible(text), style=style), end="")
            else:
                self._out.write(visible(text))
            self._out.flush()

    def line(self, text: str = "", style: str = "") -> None:
        """Write one line, after ending the open one."""
        self.settle()
        self.write(f"{text}\n", style)

    def prose(self, text: str, style: str = "", *, hang: int = 0) -> None:
        """Lines to read: a terminal shows them wrapped between words, with `hang` spaces before all rows but the first.
        Commands and paths to copy go through `line`, which leaves wrapping to the terminal."""
        self.line(wrapped(text, self._console.width, hang) if self.is_terminal else text, style)

    def said(self, label: Label, text: str) -> None:
        """Write a complete labelled text."""
        self._open(label, 0, 0)
        self.write(text, _STYLES[label])
        self.settle()

    def show(self, event: events.Event) -> None:
        """Write an event, appended to the one that it continues."""
        match event:
            case events.ReasoningDelta(text, part, step):
                self._open("reasoning", part, step)
                self.write(text, _STYLES["reasoning"])
            case events.ContentDelta(text, part, step):
                self._open("answer", part, step)
                if self._live is None:
                    self.write(text, _STYLES["answer"])
                else:
                    self._live.feed(text)
            case events.ToolCallStart(_, _, name, part, step):
                self._open("call", part, step)
                self.write(f"{name} ", _STYLES["call"])
            case events.ToolCallDelta(_, text):
                self.write(text, _STYLES["call"])
            case events.ToolCallEnd(error=error):
                if error:
                    self.write(f" [{error}]", "red")
                self.settle()
            case events.ToolResult(content=content, error=failed):
                self._open("result", 0, 0)
                self.write(content, "red" if failed else _STYLES["result"])
                self.settle()
            case events.Summarised(messages=messages, failure=failure):
                self.settle()
                self.write(f"[{summarised(messages, failure)}]\n", "dim")
            case events.Finished(reason, usage):
                if reason not in ("stop", "tool_calls"):
                    self.settle()
                    self.write(f"[{ending(reason, usage)}]\n", "red")
                self.settle()

    def settle(self) -> None:
        """End the open line."""
        live, self._live = self._live, None
        was, self._inside = self._inside, None
        if live is not None:
            live.end()
        elif was is not None:
            self.write("\n")

    def close(self) -> None:
        """End what is open, and restore the terminal."""
        self.settle()

    def _open(self, label: Label, part: int, step: int) -> None:
        if self._inside == (label, part, step):
            return
        follows = self._inside is not None
        self.settle()
        self._inside = (label, part, step)
        if label == "answer" and self._draws:
            self.write("\n" if follows else "")
            self._live = LiveMarkdown(self._console, self._out)
            return
        self.write(f"{label}: ", f"bold {_STYLES[label]}".strip())


def wrapped(text: str, width: int, hang: int = 0) -> str:
    """Lines wrapped between words at `width` columns; a word that is longer than a row is left whole."""
    indent = " " * (hang if hang <= width - _NARROWEST else 0)
    rows = (
        textwrap.wrap(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
            replace_whitespace=False,
        )
        for line in text.split("\n")
    )
    return "\n".join("\n".join(each) for each in rows)


def columns(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Returns the rows of a table as lines. `right`: the columns to align to the right; the last is left as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]

    def line(row: Sequence[str]) -> str:
        cells = [f"{row[at]:{'>' if at in right else '<'}{width}}" for at, width in enumerate(widths)]
        return "  ".join([*cells, row[-1]]).rstrip()

    return list(map(line, rows))


def json_line(event: events.Event) -> str:
    """Returns an event as one line of JSON: its type in snake case, then its fields."""
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    members = ((field.name, getattr(event, field.name)) for field in fields(event))
    return visible_json(
        to_json({"type": kind, **{name: value for name, value in members if name != "parts" or value}}).decode()
    )
