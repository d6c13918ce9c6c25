"""The beginnings and endings of a set of texts, asked for without keeping them.

A set of them all takes memory with the square of a text's length: 3.5 GB for one of 60,000 characters. Here only the
texts are kept, in order: one that begins with a given text stands right behind it.
"""

from bisect import bisect_right
from collections.abc import Iterable


class Beginnings:
    """`text in beginnings`: whether a text, not empty, is a proper beginning of one of the texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = sorted(set(texts))

    def __contains__(self, text: str) -> bool:
        place = bisect_right(self._texts, text)
        return bool(text) and place < len(self._texts) and self._texts[place].startswith(text)


class Endings:
    """`text in endings`: whether a text, not empty, is a proper ending of one of the texts."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._backwards = Beginnings(text[::-1] for text in texts)

    def __contains__(self, text: str) -> bool:
        return text[::-1] in self._backwards
