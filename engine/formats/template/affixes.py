"""Membership tests for the proper prefixes and suffixes of a set of texts, without storing them all.

A set of all prefixes takes memory quadratic in a text's length: 3.5 GB for 60,000 characters. Here only the texts are
stored, sorted: a text that begins with a given prefix directly follows it in that order.
"""

from bisect import bisect_right
from collections.abc import Iterable


class Beginnings:
    """`text in beginnings`: whether a non-empty text is a proper prefix of one of the texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted(set(texts))

    def __contains__(self, text: str) -> bool:
        place = bisect_right(self._texts, text)
        return bool(text) and place < len(self._texts) and self._texts[place].startswith(text)


class Endings:
    """`text in endings`: whether a non-empty text is a proper suffix of one of the texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._backwards = Beginnings(text[::-1] for text in texts)

    def __contains__(self, text: str) -> bool:
        return text[::-1] in self._backwards
