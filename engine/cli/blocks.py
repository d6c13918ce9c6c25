"""Cuts a stream of Markdown into blocks, each as soon as later text cannot change it.

Lines of code and items of a list are blocks of their own, so that a long one is not held back as a whole. Cost is
linear in the text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["text", "item", "code", "raw"]

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})([^`]*)$")
_ITEM = re.compile(r"( {0,3})(?:[-*+]|\d{1,9}[.)])(?:\s|$)")
_HEADING = re.compile(r" {0,3}#{1,6}(?:\s|$)")
_RULE = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$")
_UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*$")
_DELIMITERS = re.compile(r" {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
LONGEST = 8_000
"""Maximum characters of a block; the rest of a longer one is shown as written, so that no block takes long to draw."""


@dataclass(frozen=True, slots=True)
class Block:
    """A complete block of Markdown. `text`: a paragraph, heading, table, quotation or rule; `item`: one item of a list;
    `code`: one line of code; `raw`: a piece of a block that is too long, shown as written."""

    kind: Kind
    text: str


class Blocks:
    """The blocks of a text that comes in pieces. `pending` is the open block so far."""

    def __init__(self) -> None:
        self._lines: list[str] = []  # of the open block
        self._size = 0
        self._kind: Literal["", "text", "table", "item", "code", "raw"] = ""
        self._fence = ""  # the marker that closes the code, or the code inside an item
        self._indent = 0
        self._partial = ""

    @property
    def pending(self) -> Block:
        """The unfinished part of the open block."""
        kind: Kind = "text" if self._kind in ("", "table") else self._kind  # pyright: ignore[reportAssignmentType]
        return Block(kind, "\n".join([*self._lines, self._partial]))

    def feed(self, text: str) -> Iterator[Block]:
        """Take a piece of the text; yields the blocks that it finishes."""
        *lines, rest = text.split("\n")
        for line in lines:
            yield from self._line(self._partial + line)
            self._partial = ""
        self._partial += rest
        if self._size + len(self._partial) > LONGEST:
            yield from self._cut()

    def close(self) -> Iterator[Block]:
        """End the text; yields the remaining blocks."""
        if self._partial:
            line, self._partial = self._partial, ""
            yield from self._line(line)
        yield from self._finish()
        self._fence = ""

    def _cut(self) -> Iterator[Block]:
        """Yields the open block as written: it is too long to be drawn again and again."""
        kind: Kind = "code" if self._kind == "code" else "raw"
        whole = "\n".join([*self._lines, self._partial])
        self._lines, self._size, self._partial = [], 0, ""
        self._kind = kind
        for start in range(0, len(whole), LONGEST):
            yield Block(kind, whole[start : start + LONGEST])

    def _finish(self) -> Iterator[Block]:
        if any(line.strip() for line in self._lines):
            yield Block("item" if self._kind == "item" else "text", "\n".join(self._lines).rstrip())
        self._lines, self._size, self._kind = [], 0, ""

    def _line(self, line: str) -> Iterator[Block]:
        """Take one complete line."""
        if self._kind == "code":
            if (closing := _FENCE.match(line)) and closing[1].startswith(self._fence) and not closing[2].strip():
                self._kind = self._fence = ""
            else:
                yield Block("code", line)
        elif self._kind == "raw":
            if line.strip():
                yield Block("raw", line)
            else:
                self._kind = ""
        elif self._kind == "item" and self._belongs(line):
            self._add(line)
        elif not line.strip():
            yield from self._finish()
        else:
            yield from self._begun(line)

    def _begun(self, line: str) -> Iterator[Block]:
        """Take a line that may begin a block."""
        if fence := _FENCE.match(line):
            yield from self._finish()
            self._kind, self._fence = "code", fence[1]
        elif self._kind == "text" and _UNDERLINE.match(line) and len(self._lines) == 1 and "|" not in self._lines[0]:
            self._add(line)
            yield from self._finish()
        elif _HEADING.match(line) or _RULE.match(line):
            yield from self._finish()
            yield Block("text", line)
        elif item := _ITEM.match(line):
            yield from self._finish()
            self._kind, self._indent, self._fence = "item", len(item[1]), ""
            self._add(line)
        elif self._kind == "table" and "|" not in line:
            yield from self._finish()
            self._kind = "text"
            self._add(line)
        else:
            is_table = self._kind == "table" or (len(self._lines) == 1 and _DELIMITERS.match(line) is not None)
            self._kind = "table" if is_table else "text"
            self._add(line)

    def _belongs(self, line: str) -> bool:
        """Whether a line continues the open item: it is indented, follows without an empty line, or is inside code."""
        if self._fence:
            if line.strip().startswith(self._fence):
                self._fence = ""
            return True
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            return bool(self._lines[-1].strip())
        if indent > self._indent + 1:
            if (inner := _FENCE.match(line.strip())) is not None:
                self._fence = inner[1]
            return True
        begins = _ITEM.match(line) or _FENCE.match(line) or _HEADING.match(line) or _RULE.match(line)
        return not begins and bool(self._lines[-1].strip())

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line) + 1
