"""Reads JSON incrementally: passes a value's text through and finds its end.

Values nested deeper than `DEEPEST` are malformed. Source of the syntax: RFC 8259.
"""

import json
import re
from collections.abc import Callable, Iterable
from enum import Enum
from functools import lru_cache

from engine.formats.parsing.reader import CONTROL, FIRST_CONTROL, WINDOW, Gen, Reader, begins, compiled
from engine.tools import DEEPEST

_STRING_RUN = re.compile(rf'[^"\\\x00-\x1f{CONTROL}]+')
_SPACES = re.compile(r" +")
_PLAIN_RUN = re.compile(r"[\s0-9A-Za-z.,:+\-]+")
_SCALAR = re.compile(r"[0-9A-Za-z.+\-]+")
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_ESCAPE_START = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
LONE_SURROGATE = re.compile(f"[{CONTROL}]")
"""A lone surrogate, which an escape may produce: text that contains one cannot be encoded."""
_CLOSES = {"{": "}", "[": "]"}
_CLOSING = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)
"""The text of a string before the quotation mark that closes it."""


class Outcome(Enum):
    """How reading a value ended. After MALFORMED the offending text is still in the buffer."""

    COMPLETE = "complete"
    TRUNCATED = "truncated"
    MALFORMED = "malformed"


@lru_cache(maxsize=64)
def _run_without(heads: str) -> re.Pattern[str]:
    """Returns a pattern for a run of a string's characters, up to one that may begin a marker."""
    return re.compile(rf'[^"\\\x00-\x1f{CONTROL}{re.escape(heads)}]+')


class JsonReader:
    """Reads JSON from a reader. A string is not over at a marker, unless that proves that nothing closes it: one of
    `ends` after a raw newline; the text of a control token (`hard`) that another one or the end of the output follows,
    where no quotation mark comes after them; if the vocabulary is known, any control token."""

    __slots__ = ("_ends", "_hard", "_heads", "_reader", "_run")

    def __init__(self, reader: Reader, ends: Iterable[str] = (), hard: Iterable[str] = ()) -> None:
        self._reader = reader
        self._ends = compiled(*ends)
        spelt = [text for text in hard if text < chr(FIRST_CONTROL)]
        self._hard = compiled(*(spelt if any(text in end for end in self._ends.literals for text in spelt) else ()))
        self._heads = frozenset(text[0] for text in self._hard.literals)
        self._run = _STRING_RUN if not self._heads else _run_without("".join(sorted(self._heads)))

    def value(self, write: Callable[[str], None], kind: str) -> Gen[Outcome]:
        """Consume one value and pass its text to `write` as it arrives. The buffer starts with the value's first
        character."""
        reader = self._reader
        if not (yield from reader.more()):
            return Outcome.TRUNCATED
        first = reader.buffer[reader.pos]
        if first == '"':
            return (yield from self._string(write, kind))
        if first not in _CLOSES:
            return (yield from self._scalar(write, kind))
        stack: list[str] = []
        while True:
            if not (yield from reader.more()):
                return Outcome.TRUNCATED
            run = _PLAIN_RUN.match(reader.buffer, reader.pos)
            if run and stack:
                write(reader.take(run.end() - reader.pos, kind))
                continue
            char = reader.buffer[reader.pos]
            if char == '"':
                outcome = yield from self._string(write, kind)
                if outcome is not Outcome.COMPLETE:
                    return outcome
                continue
            if char in _CLOSES:
                if len(stack) == DEEPEST:
                    return Outcome.MALFORMED
                stack.append(_CLOSES[char])
            elif stack and char == stack[-1]:
                stack.pop()
            else:
                return Outcome.MALFORMED
            write(reader.take(1, kind))
            if not stack:
                return Outcome.COMPLETE

    def _scalar(self, write: Callable[[str], None], kind: str) -> Gen[Outcome]:
        reader = self._reader
        some = False
        while (yield from reader.more()):
            run = _SCALAR.match(reader.buffer, reader.pos)
            if run is None:
                return Outcome.COMPLETE if some else Outcome.MALFORMED
            some = True
            write(reader.take(run.end() - reader.pos, kind))
        return Outcome.TRUNCATED

    def _string(self, write: Callable[[str], None], kind: str) -> Gen[Outcome]:
        """Consume a string with its quotes."""
        reader = self._reader
        write(reader.take(1, kind))
        broken = False  # white space that includes a raw control character precedes this position
        plain = 0  # up to where, as `consumed` counts, no marker ends the string
        while True:
            if not (yield from reader.more()):
                return Outcome.TRUNCATED
            char = reader.buffer[reader.pos]
            if broken and char > " ":
                if (yield from reader.starts(self._ends)) is not None:
                    return Outcome.MALFORMED
                broken = False
            run = (_SPACES if broken else self._run).match(reader.buffer, reader.pos)
            if run:
                write(reader.take(run.end() - reader.pos, kind))
                continue
            if char == '"':
                write(reader.take(1, kind))
                return Outcome.COMPLETE
            if char == "\\":
                # An escape is passed on in one piece, so that a fragment never ends inside one.
                if not (yield from self._escape(write, kind)):
                    return Outcome.TRUNCATED
            elif char in self._heads and reader.consumed < plain:
                write(reader.take(1, kind))
            elif char in self._heads:
                found = yield from self._marker(write, kind)
                if isinstance(found, Outcome):
                    return found
                plain = found
            elif char >= " ":
                return Outcome.MALFORMED  # a control token
            else:
                broken = True
                write(json.dumps(reader.take(1, kind))[1:-1])

    def _marker(self, write: Callable[[str], None], kind: str) -> Gen[Outcome | int]:
        """Consume what may be a control token's text inside a string. If it is part of the string, returns up to where
        (as `consumed` counts) every other marker is too."""
        reader = self._reader
        hit = yield from reader.starts(self._hard)
        if hit is None and reader.is_cut(self._hard):
            reader.take(reader.left, kind)
            return Outcome.TRUNCATED
        plain = 0
        if hit is not None and (yield from self._ends_value(hit)):
            plain = yield from self._closes_later()
            if not plain:
                return Outcome.MALFORMED
        write(reader.take(1 if hit is None else len(hit), kind))
        return plain

    def _closes_later(self) -> Gen[int]:
        """Whether a quotation mark closes the string behind the markers at the front: returns where it, or the text
        looked at, ends (as `consumed` counts), 0 if the output ends without one."""
        reader = self._reader

        def end(text: str) -> int | None:
            found = _CLOSING.match(text)
            assert found is not None  # it matches every text
            return found.end() if text.startswith('"', found.end()) or len(text) > WINDOW else None

        found = yield from reader.judged(end, most=WINDOW + 1)
        return 0 if found is None else reader.consumed + found

    def _ends_value(self, marker: str) -> Gen[bool]:
        """Whether another control token's text, or the end of the output, follows the one at the front."""
        reader = self._reader

        def ends(text: str) -> bool | None:
            rest = text.lstrip()
            if not rest:
                return True if reader.closed else None
            return begins(rest, self._hard.literals)

        return (yield from reader.judged(ends, len(marker))) is True

    def _escape(self, write: Callable[[str], None], kind: str) -> Gen[bool]:
        reader = self._reader
        while True:
            whole = _ESCAPE.match(reader.buffer, reader.pos)
            if whole:
                write(reader.take(whole.end() - reader.pos, kind))
                return True
            start = _ESCAPE_START.match(reader.buffer, reader.pos)
            undecided = start is not None and start.end() == len(reader.buffer)
            if not undecided or reader.closed:
                # Not a JSON escape: passed on unchanged; the check of the complete text will reject it.
                write(reader.take(reader.left if undecided else 1, kind))
                return not undecided
            yield

    def text(self, kind: str) -> Gen[str | None]:
        """Consume a string and return its content; None if there is no complete, valid string."""
        if not (yield from self._reader.more()) or self._reader.buffer[self._reader.pos] != '"':
            return None
        fragments: list[str] = []
        if (yield from self._string(fragments.append, kind)) is not Outcome.COMPLETE:
            return None
        try:
            return LONE_SURROGATE.sub("\ufffd", json.loads("".join(fragments)))
        except ValueError:
            return None

    def unwrapped(self, write: Callable[[str], None], kind: str) -> Gen[Outcome]:
        """Consume a string whose content is itself JSON text, and pass the content to `write`."""
        unescape = Unescape(write)
        outcome = yield from self._string(unescape.write, kind)
        unescape.close()
        return outcome


class Unescape:
    """Turns the fragments of one JSON string (quotes included) into its content, as they arrive."""

    __slots__ = ("_high", "_write")

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._high = ""

    def write(self, fragment: str) -> None:
        """Add a fragment as `JsonReader` makes them: an escape is never split."""
        if fragment == '"':
            return
        if fragment.startswith("\\"):
            self._escape(fragment)
        else:
            self.close()
            self._write(fragment)

    def _escape(self, escape: str) -> None:
        # Two \u escapes may form one character, so a high surrogate waits for its other half.
        if escape[1:3].lower() == "ud" and escape[3:4].lower() in "89ab" and not self._high:
            self._high = escape
            return
        try:
            text: str = json.loads(f'"{self._high}{escape}"')
        except ValueError:
            text = self._high + escape
        self._high = ""
        self._write(LONE_SURROGATE.sub("\ufffd", text))

    def close(self) -> None:
        """End the string: a high surrogate that is left over becomes U+FFFD."""
        if self._high:
            self._high = ""
            self._write("\ufffd")
