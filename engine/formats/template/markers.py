"""Finds the texts of control tokens in a text, and the parts of it that could become part of one."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence

from engine.formats.template.affixes import Beginnings, Endings
from engine.types.prompt import Span

_LOOKS_LIKE_CONTROL = re.compile(r"<[^<>\n]{1,80}>|\[/?[A-Z][A-Z_]{1,40}\]|<｜[^｜\n]{1,80}｜>")


class Markers:
    """The texts of control and user-defined tokens.

    `known`: those of a vocabulary; None: not known, then texts that look like control tokens count. White space and
    single characters are not markers, though many vocabularies have such tokens: they open and close nothing.
    """

    def __init__(self, known: Iterable[str] | None, also: Iterable[str] = ()) -> None:
        self.by_looks = known is None
        self._texts = frozenset(text for text in (*(known or ()), *also) if len(text) > 1 and text.strip())
        self._beginnings, self._tails = Beginnings(self._texts), Endings(self._texts)
        self._longest = max(map(len, self._texts), default=0)
        lengths: dict[str, set[int]] = {}
        for text in self._texts:
            lengths.setdefault(text[0], set()).add(len(text))
        # Some vocabularies have thousands of markers with the same first character, but few lengths.
        self._lengths = {head: sorted(found, reverse=True) for head, found in lengths.items()}
        self._heads = re.compile("[" + re.escape("".join(lengths)) + "]") if lengths else None

    def spans(self, text: str) -> list[Span]:
        """Returns the spans of markers, ascending: the longest at each position, including overlaps."""
        found = [Span(*match.span()) for match in _LOOKS_LIKE_CONTROL.finditer(text)] if self.by_looks else []
        for head in self._heads.finditer(text) if self._heads else ():
            start = head.start()
            for length in self._lengths[text[start]]:
                if start + length <= len(text) and text[start : start + length] in self._texts:
                    found.append(Span(start, start + length))
                    break
        return sorted(set(found))

    def counted(self, text: str, beside: Sequence[Span] = ()) -> Counter[str]:
        """Count the markers in a text, except those that overlap one of the spans `beside`, which are ascending
        and do not overlap each other."""
        found: list[str] = []
        place = 0
        for start, end in self.spans(text):
            while place < len(beside) and beside[place].end <= start:
                place += 1
            if place == len(beside) or beside[place].start >= end:
                found.append(text[start:end])
        return Counter(found)

    def reach(self, text: str) -> list[Span]:
        """Returns the parts of a text that are a marker, or would become part of one if a template wrote the rest of
        the marker next to the text, with or without the white space around the text."""
        found = self.spans(text)
        bare = text.strip()
        for part, start in {text: 0, bare: len(text) - len(text.lstrip())}.items():
            end = start + len(part)
            if 0 < len(part) <= self._longest and any(part in marker for marker in self._texts):
                found.append(Span(start, end))
            for length in range(1, min(self._longest, len(part) + 1)):
                if part[:length] in self._tails:
                    found.append(Span(start, start + length))
                if part[-length:] in self._beginnings:
                    found.append(Span(end - length, end))
        return found


def overlaps(span: Span, others: Sequence[Span]) -> bool:
    """Whether a span overlaps one of `others`, which are ascending and do not overlap each other."""
    index = bisect_right(others, span.start, key=lambda other: other.end)
    return index < len(others) and others[index].start < span.end


def merged(spans: Iterable[Span]) -> list[Span]:
    """Merge spans into ascending ones that do not touch."""
    found: list[Span] = []
    for span in sorted(spans):
        if found and span.start <= found[-1].end:
            found[-1] = Span(found[-1].start, max(found[-1].end, span.end))
        else:
            found.append(span)
    return found
