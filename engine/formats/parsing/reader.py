"""The incremental reader: text arrives in chunks of any size, and generators read it as straight-line code.

Every method that may wait is a generator; each looks at a character a bounded number of times, and decided text leaves
the buffer at once, so the cost of a feed does not grow with the text read before.

A control token is one character in the buffer (a lone surrogate, which decoded text cannot contain), so that searching
for markers is plain text search, and the same characters in ordinary tokens do not match.
"""

import re
from collections.abc import Callable, Generator, Iterable, Mapping
from functools import cache, lru_cache
from typing import NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")
Gen: TypeAlias = Generator[None, None, T]

FIRST_CONTROL = 0xD800
CONTROL = "\ud800-\udfff"
"""The characters that represent control tokens, as the inside of a regular expression's character class."""

WINDOW = 1024
"""The longest marker, function name or white space, in characters, that a generator waits for."""
CUT = ""
"""Returned in place of a marker: the output ended inside one, so its beginning is not text."""
_ANY_SPACE = re.compile(r"\s*")
_SPACE = re.compile(r"\s+")


class Markers(NamedTuple):
    """A set of literal texts, compiled to find the earliest of them, or the tail that may become one."""

    literals: tuple[str, ...]
    pattern: re.Pattern[str]
    longest: int
    extendable: frozenset[str]


@lru_cache(maxsize=2048)
def compiled(*texts: str) -> Markers:
    """Compile a set of literals, without empty ones; cached, since every parser of a family has the same sets."""
    literals = tuple(dict.fromkeys(filter(None, texts)))
    longest_first = sorted(literals, key=len, reverse=True)
    whole = "|".join(re.escape(literal) for literal in longest_first)
    tails = "|".join(dict.fromkeys(_proper_prefixes(literal) for literal in longest_first if len(literal) > 1))
    pattern = f"({whole})" if whole else r"((?!))"
    extendable = [short for short in literals for long in literals if long != short and long.startswith(short)]
    return Markers(
        literals,
        re.compile(f"{pattern}|(?:{tails})\\Z" if tails else pattern),
        max(map(len, literals), default=0),
        frozenset(extendable),
    )


def begins(text: str, literals: Iterable[str]) -> bool | None:
    """Whether the text begins with one of the literals; None while it is too short to tell."""
    known = [literal for literal in literals if literal]
    if text.startswith(tuple(known)):
        return True
    return None if any(literal.startswith(text) for literal in known) else False


def _proper_prefixes(literal: str) -> str:
    """Returns a pattern for every proper, non-empty prefix of the literal: `a(?:b(?:c)?)?` for "abcd"."""
    *inner, last = (re.escape(char) for char in literal[:-1])
    pattern = last
    for char in reversed(inner):
        pattern = f"{char}(?:{pattern})?"
    return pattern


class Reader:
    """The input that is fed and not yet consumed: `buffer` from `pos` on.

    - `trace` collects (kind, text) of everything consumed, in the order of the input; `listener` is called with the
      same.
    - The next `ahead` characters to be classified belong to the prompt; `trace` and `listener` skip them.
    - `record`, while it is a list, collects the consumed text.
    - `token` is the last piece fed, if it was one token of the vocabulary and is not listed as a control marker.
    - `fed` counts the characters fed. `call_start`: the position in that count where the current call began; None
      outside calls. `answer_start`: where the current stretch outside reasoning began. `undecided`: whether it is still
      open if the turn begins with reasoning.
    - `cut`: the input was cut off rather than ended. `hard` are the family's control tokens as they appear in the
      buffer: text that begins with one is a marker, complete or not.
    """

    __slots__ = (
        "_names",
        "ahead",
        "answer_start",
        "buffer",
        "call_start",
        "closed",
        "cut",
        "fed",
        "hard",
        "listener",
        "pos",
        "record",
        "token",
        "trace",
        "undecided",
    )

    def __init__(
        self, control: Mapping[str, str] | None = None, hard: Iterable[str] = (), *, trace: bool = False
    ) -> None:
        self.buffer = ""
        self.pos = 0
        self.fed = 0
        self.answer_start = 0
        self.call_start: int | None = None
        self.undecided = False
        self.ahead = 0
        self.token = ""
        self.closed = False
        self.cut = False
        self.hard = tuple(hard)
        self.record: list[str] | None = None
        self.trace: list[tuple[str, str]] | None = [] if trace else None
        self.listener: Callable[[str, str], None] | None = None
        self._names = {ord(char): text for text, char in (control or {}).items()}

    def feed(self, text: str, token: str = "") -> None:
        """Add input; `token` is the same text if it is one token. Consumed text is dropped only here, so that consuming
        does not copy the rest."""
        self.buffer = self.buffer[self.pos :] + text
        self.fed += len(text)
        self.pos = 0
        self.token = token

    @property
    def left(self) -> int:
        """The number of characters fed and not consumed."""
        return len(self.buffer) - self.pos

    @property
    def consumed(self) -> int:
        """The number of characters consumed."""
        return self.fed - self.left

    def behind(self, count: int) -> str:
        """Returns up to `WINDOW` characters after the next `count` characters and white space. Consumes nothing."""
        space = _ANY_SPACE.match(self.buffer, self.pos + count)
        start = space.end() if space else self.pos + count
        return self.buffer[start : start + WINDOW]

    def plain(self, text: str) -> str:
        """Returns the text with control tokens spelt out."""
        return text.translate(self._names) if self._names else text

    def note(self, kind: str, text: str) -> None:
        """Classify text that was consumed (in the order of the input)."""
        if self.trace is not None or self.listener is not None or self.ahead:
            self.own(kind, text)

    def own(self, kind: str, text: str) -> str:
        """Like `note`; returns the part that does not belong to the prompt, with control tokens spelt out."""
        text = self.plain(text)
        if self.ahead:
            past = min(self.ahead, len(text))
            self.ahead -= past
            text = text[past:]
        if text:
            if self.listener is not None:
                self.listener(kind, text)
            if self.trace is not None:
                self.trace.append((kind, text))
        return text

    def take(self, count: int, kind: str | None = None) -> str:
        """Consume and return the next `count` characters."""
        end = self.pos + count
        text = self.buffer[self.pos : end]
        self.pos = end
        if self.record is not None:
            self.record.append(text)
        if kind is not None:
            self.note(kind, text)
        return text

    def put_back(self, text: str) -> None:
        """Make text that was just consumed, without being classified, the next to be read."""
        self.buffer = text + self.buffer[self.pos :]
        self.pos = 0

    def more(self) -> Gen[bool]:
        """Wait until there is something to read. Returns False at the end of the input."""
        while self.pos == len(self.buffer):
            if self.closed:
                return False
            yield
        return True

    def all_of(self, pattern: re.Pattern[str], kind: str) -> Gen[str]:
        """Consume all at the front that a pattern of single characters matches, in however many pieces it comes, and
        return it. Nothing is left behind it only where the input ends."""
        parts: list[str] = []
        while (yield from self.more()):
            run = pattern.match(self.buffer, self.pos)
            if run is None:
                break
            parts.append(self.take(run.end() - self.pos, kind))
        return "".join(parts)

    def until(
        self,
        markers: Markers,
        write: Callable[[str], None],
        *,
        tail: Callable[[str], None] | None = None,
        cuts: bool = False,
    ) -> Gen[str | None]:
        """Pass text to `write` up to the earliest marker, and return that marker without consuming it.

        Text that may become a marker is held back. Returns None if the input ended first; then the held-back text goes
        to `tail` (default: `write`). With `cuts`, text that can only be the beginning of a marker stays in the buffer,
        and CUT is returned.
        """
        while True:
            found = markers.pattern.search(self.buffer, self.pos)
            stop = len(self.buffer) if found is None else found.start()
            if stop > self.pos:
                write(self.take(stop - self.pos))
            marker = None if found is None else found.group(1)
            if marker is not None and not self._may_grow(marker, markers):
                return marker
            if self.closed:
                if cuts and self.left and self._is_marker():
                    return CUT
                if self.left:
                    (tail or write)(self.take(self.left))
                return None
            yield

    def _is_marker(self) -> bool:
        """Whether what looks like the beginning of a marker, at the end of the output, can only be that."""
        return self.cut or (bool(self.hard) and self.buffer.startswith(self.hard, self.pos))

    def _may_grow(self, marker: str, markers: Markers) -> bool:
        if marker not in markers.extendable:
            return False
        rest = self.buffer[self.pos : self.pos + markers.longest]
        if self.closed and not (len(rest) > len(marker) and self._is_marker()):
            return False
        return any(len(longer) > len(rest) and longer.startswith(rest) for longer in markers.literals)

    def judged(self, judge: Callable[[str], T | None], skip: int = 0, most: int = WINDOW) -> Gen[T | None]:
        """Returns what `judge` says of the text behind the next `skip` characters, as soon as it can tell: it returns
        None while the text is too short. None: it could not tell from `most` characters, or from all of the input.
        Consumes nothing."""
        while True:
            start = self.pos + skip
            verdict = judge(self.buffer[start : start + most])
            if verdict is not None or self.closed or len(self.buffer) - start >= most:
                return verdict
            yield

    def starts(self, markers: Markers) -> Gen[str | None]:
        """Returns the longest marker at the front, or None, once that is decided. Consumes nothing."""
        while True:
            found = markers.pattern.match(self.buffer, self.pos)
            marker = None if found is None else found.group(1)
            if marker is not None and not self._may_grow(marker, markers):
                return marker
            if self.closed or (found is None and self.left):
                return None
            yield

    def ends_in(self, markers: Markers) -> bool:
        """Whether the input ended inside what looks like one of the markers. Consumes nothing."""
        if not (self.closed and self.left):
            return False
        found = markers.pattern.match(self.buffer, self.pos)
        return found is not None and (found.group(1) is None or self._may_grow(found.group(1), markers))

    def is_cut(self, markers: Markers) -> bool:
        """Like `ends_in`, for text that may contain anything: whether that beginning can only be a marker's."""
        return self.ends_in(markers) and self._is_marker()

    def cut_marker(self, markers: Markers) -> bool:
        """Consume the beginning of a marker inside which the input ended, if there is one at the front."""
        if not self.ends_in(markers):
            return False
        self.take(self.left, "marker")
        return True

    def match(self, markers: Markers, kind: str = "marker") -> Gen[bool]:
        """Consume one of the markers if it is at the front. Returns whether it was."""
        marker = yield from self.starts(markers)
        if marker is None:
            return False
        self.take(len(marker), kind)
        return True

    def space(self, kind: str = "space") -> Gen[None]:
        """Consume all white space at the front."""
        while True:
            run = _SPACE.match(self.buffer, self.pos)
            if run:
                self.take(run.end() - self.pos, kind)
            if self.left or self.closed:
                return
            yield

    def after_space(self, kind: str = "space") -> Gen[str]:
        """Consume all white space at the front. Returns the character behind it; "" at the end of the input."""
        yield from self.space(kind)
        return self.buffer[self.pos] if self.pos < len(self.buffer) else ""


_EDGES = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)


class Mark(NamedTuple):
    """A marker's text, and the white space that the template writes before and after it."""

    before: str = ""
    text: str = ""
    after: str = ""


class Spelling:
    """How markers appear in the reader's buffer: control tokens as one character each, everything else as text.

    `control` are the markers that the family's models only ever write as one token; `vocabulary` are the texts that are
    one control or user-defined token of the model's vocabulary (None: not known, so everything is text). Remembers what
    it was asked: the parsers of all turns ask the same (see `spelling_of`).
    """

    def __init__(self, control: tuple[str, ...], vocabulary: frozenset[str] | None) -> None:
        self._control = control
        # A text's character does not depend on the vocabulary's other tokens, so that compiled markers can be shared.
        self.characters: Mapping[str, str] = {
            text: chr(FIRST_CONTROL + n)
            for n, text in enumerate(dict.fromkeys(control))
            if vocabulary is not None and text in vocabulary
        }
        longest_first = sorted(self.characters, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(text) for text in longest_first)) if longest_first else None
        self.text: Callable[[str], str] = cache(self._text)
        """Returns the literal as it appears in the buffer."""
        self.mark: Callable[[str], Mark] = cache(self._mark)
        """Splits the literal into its text and the white space around it. Inner white space stays in the text."""
        self.word: Callable[[str], str] = cache(self._word)
        """Returns the text of a literal's mark; a literal of only white space is its own."""
        self.marks: Callable[..., Mapping[str, Mark]] = cache(self._marks)
        """Returns the marks of some literals by their texts, without empty ones."""
        self.is_hard: Callable[[str], bool] = cache(self._is_hard)
        """Whether a marker contains one of the family's control tokens, so that it cannot occur in prose."""
        self.hard = tuple(map(self.text, control))
        """The control tokens as they appear in the buffer."""

    def _text(self, literal: str) -> str:
        if self._pattern is None:
            return literal
        return self._pattern.sub(lambda found: self.characters[found.group()], literal)

    def _mark(self, literal: str) -> Mark:
        edges = _EDGES.fullmatch(literal)
        assert edges is not None  # the pattern matches every text
        before, text, after = edges.groups()
        return Mark(before, self.text(text), after)

    def _word(self, literal: str) -> str:
        return self.mark(literal).text or literal

    def _marks(self, *literals: str) -> Mapping[str, Mark]:
        return {mark.text: mark for mark in map(self.mark, literals) if mark.text}

    def _is_hard(self, literal: str) -> bool:
        return any(token in literal for token in self._control)


spelling_of = lru_cache(maxsize=64)(Spelling)
"""Returns the spelling of these control markers in this vocabulary."""
