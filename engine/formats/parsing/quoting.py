"""Follows the code in a text as Markdown quotes it: between backticks, in a fence, indented; in lists and quotes."""

import re
from typing import Literal, NamedTuple

_PARTS = re.compile(r"`+|~+|[^`~\n]+\n?|\n")
_WORDS = re.compile(r".*\n(?=[^\s>])", re.DOTALL)
"""Lines up to the last one that begins with a word."""
_LEAD = re.compile(r"(?:[ \t>]|[-*+]|\d{1,9}[.)]?)*")
"""What a line may begin with before its words: white space, and marks of lists and block quotes, maybe unfinished."""
_CONTAINERS = re.compile(r"[ \t]*(?:(?:>|(?:[-*+]|\d{1,9}[.)])[ \t])[ \t]*)*")
_MANY = 4096
"""How many pieces of text wait as they came; what is longer waits as one."""


class Fence(NamedTuple):
    """A fence that is open: its character, how many of them, and in how many block quotes it stands. `begins`:
    the text begins with it."""

    char: str
    size: int
    quotes: int
    begins: bool


class Backticks(NamedTuple):
    """Backticks that opened code in a line. `is_far`: in an earlier line; `quotes`: a mark behind them is shown."""

    size: int
    is_far: bool = False
    quotes: bool = False


class Quoting:
    """Follows a text, and says what code is open at its end. Code that may be open is: a fence with a word behind it
    opens another one in the one that is open, since who shows a fence in a fence may mean that; what follows tells
    whether the code ends. Text is followed only once that is asked.

    `ended` says how code ended last: by its mark, before a line that is not in it, or, between backticks, with its
    paragraph.
    """

    __slots__ = (
        "_after_gap",
        "_fences",
        "_indented",
        "_inline",
        "_lead",
        "_opening",
        "_some",
        "_waiting",
        "ended",
    )

    def __init__(self) -> None:
        self._waiting: list[str] = []  # text that was not followed yet
        self._fences: tuple[Fence, ...] = ()
        self._inline: Backticks | None = None
        self._indented = False  # the line is code
        self._after_gap = False  # a blank line, or indented code, precedes the line
        self._lead: str | None = ""  # the line so far, if it has no words yet
        self._opening: tuple[Fence, str] | None = None  # what the line begins with may be a fence; the text behind it
        self._some = False
        self.ended: Literal["mark", "line", "paragraph"] = "mark"

    def copy(self) -> "Quoting":
        """Returns another one that follows the same text so far."""
        self._follow()
        other = Quoting()
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._waiting = []
        return other

    def write(self, text: str) -> None:
        """Add text."""
        self._waiting.append(text)
        if len(self._waiting) > _MANY:
            self._waiting = ["".join(self._waiting)]

    @property
    def depth(self) -> int:
        """How much code is open, one in the other; what the line begins with is a fence only once that is certain."""
        self._follow()
        return len(self._fences) + (self._inline is not None or self._indented)

    @property
    def is_open(self) -> bool:
        """Whether code is open, other than in a fence that begins the text: that is no quotation."""
        return self.depth > 0 and not self.begins

    @property
    def is_near(self) -> bool:
        """The same, between backticks only in the line with which they begin, or behind a mark that they quote: nothing
        tells yet whether backticks of an earlier line end."""
        return self.is_open and not (self._inline is not None and self._inline.is_far)

    @property
    def begins(self) -> bool:
        """Whether the code that is open began the text."""
        return bool(self._fences) and self._fences[0].begins

    @property
    def is_fence(self) -> bool:
        """Whether the code that is open is a fence."""
        return bool(self._fences)

    def holds(self, marker: str) -> bool:
        """Whether a marker in the code that is open ends none: it may be a fence itself, but of fewer backticks."""
        fence = self._fences[-1] if self._fences else None
        return "`" not in marker or (fence is not None and (fence.char == "~" or fence.size > marker.count("`")))

    def quote(self) -> None:
        """The code that is open is a quotation, also if it begins the text."""
        self.end()
        self._fences = tuple(fence._replace(begins=False) for fence in self._fences)
        if self._inline is not None:
            self._inline = Backticks(self._inline.size, quotes=True)

    def here(self) -> "Quoting":
        """Returns another one that follows the same text, and a word behind it."""
        other = self.copy()
        other.end()
        if other._lead is not None:
            other._begin_line(other._lead)
        return other

    def end(self) -> None:
        """The text ends, or something else follows: what the line begins with is a fence as it stands."""
        self._follow()
        if self._opening is not None:
            self._decide(*self._opening)

    def _follow(self) -> None:
        if not self._waiting:
            return
        text = "".join(self._waiting)
        self._waiting.clear()
        if not (self._fences or self._inline or self._opening or "`" in text or "~" in text):
            words = _WORDS.match(text)
            if words is not None:  # they say nothing to the lines behind them
                text, self._lead, self._some = text[words.end() :], "", True
                self._indented, self.ended = False, "line"
        for part in _PARTS.findall(text):
            if part[0] in "`~":
                self._read_run(part)
            elif self._opening is not None:
                self._read_info(part.removesuffix("\n"))
            elif self._lead is not None:
                self._lead = line = self._lead + part.removesuffix("\n")
                if not _LEAD.fullmatch(line):
                    self._begin_line(line)
            if part[-1] == "\n":
                self._end_line()

    def _read_info(self, text: str) -> None:
        """Add text behind what may be a fence. A word may go on as code in a line."""
        assert self._opening is not None  # it was asked
        fence, info = self._opening
        info += text
        self._opening = fence, info
        if info.strip() and not info.strip()[0].isalnum():
            self._decide(fence, info)

    def _read_run(self, run: str) -> None:
        """Read backticks or tildes."""
        if self._opening is not None:
            fence, _ = self._opening
            if fence.char == "~" or run[0] == "~":
                self._read_info(run)
                return
            self._opening = None
            self._read_backticks(fence.size)  # it was code in a line
        elif self._lead is not None:
            lead, is_first = self._lead, not (self._some or self._lead.strip())
            self._begin_line(lead)
            closes_line = run[0] == "`" and self._inline is not None and len(run) == self._inline.size
            if len(run) >= 3 and not (self._indented or closes_line) and _CONTAINERS.fullmatch(lead):
                self._opening = Fence(run[0], len(run), _quotes(lead), is_first), ""
                return
        if run[0] == "`":
            self._read_backticks(len(run))

    def _read_backticks(self, count: int) -> None:
        """Read backticks that are no fence."""
        if self._fences or self._indented:
            return
        if self._inline is None:
            self._inline = Backticks(count)
        elif self._inline.size == count:
            self._inline, self.ended = None, "mark"

    def _begin_line(self, line: str) -> None:
        """A word, or what may be a fence, stands behind the beginning of the line, or in it."""
        while self._fences and self._fences[-1].quotes > _quotes(line):
            self._fences, self.ended = self._fences[:-1], "line"
        was_code, self._indented = self._indented, False
        if self._after_gap and self._some and not (self._fences or self._inline) and line[:1] in " \t":
            self._indented = len(line[: len(line) - len(line.lstrip())].expandtabs(4)) >= 4
        if was_code and not self._indented:
            self.ended = "line"
        self._lead, self._some = None, True

    def _end_line(self) -> None:
        if self._opening is not None:
            self._decide(*self._opening)
        if self._lead is None:
            self._after_gap = self._indented
            if self._inline is not None and not self._inline.quotes:
                self._inline = Backticks(self._inline.size, is_far=True)
        else:
            self._after_gap = True
            if self._inline is not None:
                self._inline, self.ended = None, "paragraph"
        self._lead = ""

    def _decide(self, fence: Fence, info: str) -> None:
        """Take what began the line, with this text behind it, for a fence."""
        self._opening = self._inline = None
        outer = self._fences[-1] if self._fences else None
        if outer is not None and (outer.char != fence.char or fence.size < outer.size):
            return
        if outer is not None and not info.strip()[:1].isalnum():
            self._fences, self.ended = self._fences[:-1], "mark"
        else:
            self._fences = (*self._fences, fence)


def _quotes(line: str) -> int:
    """Returns in how many block quotes a line stands."""
    found = _CONTAINERS.match(line)
    return found.group().count(">") if found else 0
