"""Reads a regular expression as the markers that it describes, without ever running it: literal text, white space,
named groups, and gaps that any text may fill.

Source of the notation: the patterns of Hugging Face's response templates, in the syntax of Python's `regex`.
"""

import re
from collections.abc import Sequence
from itertools import product
from typing import Literal, NamedTuple, TypeAlias

LONGEST = 2_000
"""The longest pattern that is read, in characters."""
_MOST = 16
"""The most alternatives that one pattern may have."""
_DEEPEST = 12
_GROUP = re.compile(r"\((?:\?P?<(?P<name>[A-Za-z_]\w*)>|\?P=(?P<again>\w+)\)|(?P<other>\?(?:<?[=!]|:|[a-zA-Z-]+\)))|)")
_QUANTIFIER = re.compile(r"([*+?]|\{\d*,?\d*\})[?+]?")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_SPACES = {"n": "\n", "t": "\t", "r": "\r", "s": "\n"}


class Part(NamedTuple):
    """A part of a pattern. `text` is the literal text or white space, or the name of a group ("" for a gap)."""

    kind: Literal["text", "space", "group", "counter", "gap", "again", "ahead"]
    text: str = ""


Parts: TypeAlias = tuple[Part, ...]


class PatternError(ValueError):
    """A pattern that does not describe markers; the message says why."""


def read_pattern(pattern: str) -> tuple[Parts, ...]:
    """Returns the alternatives that a pattern describes, each as its parts. Optional text makes two alternatives, with
    the text and without it. Raises PatternError."""
    if len(pattern) > LONGEST:
        raise PatternError(f"it has {len(pattern):,} characters, more than {LONGEST:,}")
    reader = _Reader(pattern)
    found = reader.alternatives(0)
    if reader.pos < len(pattern):
        raise PatternError("a `)` closes no group")
    return tuple(dict.fromkeys(map(_joined, found)))


def literal(parts: Parts) -> str | None:
    """Returns the text of parts that are literal; None if they are not."""
    if any(part.kind not in ("text", "space") for part in parts):
        return None
    return "".join(part.text for part in parts)


class _Reader:
    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.pos = 0

    def alternatives(self, depth: int) -> list[Parts]:
        """Read up to the end of the group."""
        if depth > _DEEPEST:
            raise PatternError(f"its groups nest more than {_DEEPEST} deep")
        found: list[Parts] = []
        while True:
            found += self._sequence(depth)
            _check_number(found)
            if not self._taken("|"):
                return found

    def _sequence(self, depth: int) -> list[Parts]:
        found: list[Parts] = [()]
        while self.pos < len(self.pattern) and self.pattern[self.pos] not in "|)":
            item = self._quantified(self._item(depth))
            _check_number([*found, *item])
            found = [before + after for before, after in product(found, item)]
            _check_number(found)
        return found

    def _taken(self, text: str) -> bool:
        taken = self.pattern.startswith(text, self.pos)
        self.pos += len(text) if taken else 0
        return taken

    def _item(self, depth: int) -> list[Parts]:
        """Read one item: a character, a class or a group."""
        char = self.pattern[self.pos]
        if char == "(":
            return self._group(depth)
        if char == "[":
            return [self._class()]
        if char == "\\":
            return [self._escape()]
        if _QUANTIFIER.match(self.pattern, self.pos) and char != "{":
            raise PatternError(f"`{char}` repeats nothing")
        self.pos += 1
        if char in "^$":
            return [()]
        return [(Part("gap") if char == "." else Part("text", char),)]

    def _escape(self) -> Parts:
        char = self.pattern[self.pos + 1 : self.pos + 2]
        self.pos += 2
        if char in _SPACES and char:
            return (Part("space" if char == "s" else "text", _SPACES[char]),)
        if char in ("A", "Z", "z", "b", "B"):
            return ()
        if char in ("d", "D", "w", "W", "S"):
            return (Part("counter" if char == "d" else "gap"),)
        if not char or char.isalnum():
            raise PatternError(f"`\\{char}` is not read; write the text itself")
        return (Part("text", char),)

    def _class(self) -> Parts:
        found = _CLASS.match(self.pattern, self.pos)
        if found is None:
            raise PatternError("a `[` is not closed")
        self.pos = found.end()
        inner = found.group()[1:-1]
        one = inner.removeprefix("\\")
        if inner in ("\\n", "\\s", " ", "\\t"):
            return (Part("space", _SPACES.get(one, one)),)
        if len(one) == 1 and not (inner[0] == "\\" and one.isalnum()):
            return (Part("text", one),)
        return (Part("gap"),)

    def _group(self, depth: int) -> list[Parts]:
        """Read a group. What a named group may match is not looked at, but whether it counts."""
        head = _GROUP.match(self.pattern, self.pos)
        assert head is not None  # the last alternative is empty
        self.pos, begun = head.end(), head.end()
        name, again, other = head["name"], head["again"], head["other"] or ""
        if again:
            return [(Part("again", again),)]
        if other.endswith(")"):
            if set(other[1:-1]) - set("smu"):
                raise PatternError(f"the flag `({other}` is not read")
            return [()]
        if head.group() == "(" and self.pattern.startswith("?", self.pos):
            raise PatternError("a group of an unknown kind begins with `(?`")
        inner = self.alternatives(depth + 1)
        if not self._taken(")"):
            raise PatternError("a `(` is not closed")
        if name:
            if any(part.kind == "group" for parts in inner for part in parts):
                raise PatternError(f"the group {name!r} holds another named group")
            digits = self.pattern[begun : self.pos - 1] in (r"\d+", "[0-9]+", r"\d*", "[0-9]*")
            return [(Part("counter" if digits else "group", name),)]
        if other in ("?!", "?<!", "?<="):
            return [()]
        return [(Part("ahead"),)] if other == "?=" else inner

    def _quantified(self, item: list[Parts]) -> list[Parts]:
        found = _QUANTIFIER.match(self.pattern, self.pos)
        if found is None:
            return item
        self.pos = found.end()
        if len(item) == 1 and len(item[0]) == 1 and item[0][0].text.isspace():
            return [(Part("space", item[0][0].text),)]
        kinds = {part.kind for parts in item for part in parts}
        if kinds == {"counter"}:
            return item[:1]
        if kinds <= {"space", "gap", "counter"}:
            return [(Part("gap"),)] if kinds else [()]
        if found[1] == "?" or found[1] == "{0,1}":
            return [*item, ()]
        raise PatternError(f"`{found.group()}` repeats text or a group: how often is not known")


def _check_number(found: Sequence[Parts]) -> None:
    if len(found) > _MOST:
        raise PatternError(f"it has more than {_MOST} alternatives")


def _joined(parts: Parts) -> Parts:
    """Returns the parts with adjacent texts and adjacent gaps as one."""
    found: list[Part] = []
    for part in parts:
        if found and part.kind == found[-1].kind == "text":
            found[-1] = Part("text", found[-1].text + part.text)
        elif not (found and part.kind == found[-1].kind == "gap"):
            found.append(part)
    return tuple(found)
