"""Knows whether text ends inside code as Markdown quotes it: between backticks, or in a fence."""

import re
from typing import NamedTuple

_PARTS = re.compile(r"`+|\n|[^`\n]+")


class Code(NamedTuple):
    """Code that is open: how many backticks opened it. `begins`: it is a fence with which the text begins."""

    ticks: int
    is_fence: bool
    begins: bool = False


class Quoting:
    """Follows a text. An unclosed backtick quotes to the end of its line; where a marker stands behind it (`hold`), to
    the end of its paragraph. A fence that begins the text is no quotation: models write calls in one."""

    __slots__ = ("_blank", "_fence", "_held", "_inline", "_some", "_ticks")

    def __init__(self) -> None:
        self._ticks = self._inline = 0  # backticks in a row at the end of the text; those that opened a quotation
        self._fence = 0  # the same for a fence; negative if it begins the text
        self._blank = True  # the line has only white space so far
        self._some = self._held = False

    def write(self, text: str) -> None:
        """Add text."""
        if "`" not in text and not (self._ticks or self._inline or self._held):
            self._write_plain(text)
            return
        for part in _PARTS.findall(text):
            if part[0] == "`":
                self._ticks += len(part)
                continue
            self._settle()
            if part != "\n":
                self._blank = self._blank and part.isspace()
                self._some = self._some or not part.isspace()
                continue
            if self._blank or not self._held:
                self._inline, self._held = 0, False
            self._blank = True

    def _write_plain(self, text: str) -> None:
        if self._blank or "\n" in text:
            line = text[text.rfind("\n") + 1 :]
            self._blank = not line.strip() and (self._blank or len(line) < len(text))
            self._some = self._some or not text.isspace()

    def _settle(self) -> None:
        """Take the backticks in a row for what they are, as other text follows."""
        ticks, self._ticks = self._ticks, 0
        if not ticks:
            return
        if self._blank and ticks >= 3 and not self._inline:
            if not self._fence:
                self._fence = ticks if self._some else -ticks
            elif ticks >= self._fence:
                self._fence = 0
        elif not self._fence:
            self._inline = 0 if self._inline == ticks else self._inline or ticks
        self._some, self._blank = True, False

    @property
    def is_open(self) -> bool:
        """Whether the next character is in a quotation."""
        self._settle()
        return self._fence > 0 or self._inline > 0

    @property
    def fence(self) -> int:
        """How many backticks the open fence has; not positive if none quotes."""
        self._settle()
        return self._fence

    @property
    def code(self) -> Code | None:
        """The code in which the next character is, whether it is a quotation or not."""
        self._settle()
        ticks = abs(self._fence) or self._inline
        return Code(ticks, self._fence != 0, self._fence < 0) if ticks else None

    def hold(self, *, fence: bool = False) -> None:
        """A marker that is quoted follows. `fence`: the fence that is open quotes, wherever it begins."""
        self._held = True
        self._fence = abs(self._fence) if fence else self._fence
