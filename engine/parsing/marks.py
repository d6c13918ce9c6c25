"""Markers as a format writes them, compiled for one vocabulary.

Knows: the white space that a template writes beside a marker, and which parts of a marker are control tokens in the
vocabulary at hand. Does not know: what a marker means.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from engine.parsing.reader import FIRST_CONTROL

_EDGES = re.compile(r"(\s*)(.*?)(\s*)", re.DOTALL)


class Mark(NamedTuple):
    """A marker's text, and the white space that the template writes before and after it."""

    before: str = ""
    text: str = ""
    after: str = ""


class Spelling:
    """How markers stand in the reader's buffer: control tokens as one character each, all else as text.

    `control` are the markers that the family's models only ever write as one token; `vocabulary` are the texts that
    are one control or user-defined token in the model's vocabulary (None: no vocabulary is known, everything is
    text).
    """

    __slots__ = ("_pattern", "characters")

    def __init__(self, control: Iterable[str], vocabulary: frozenset[str] | None) -> None:
        # A text's character does not depend on which others the vocabulary has, so compiled markers can be shared.
        self.characters: Mapping[str, str] = {
            text: chr(FIRST_CONTROL + n)
            for n, text in enumerate(dict.fromkeys(control))
            if vocabulary is not None and text in vocabulary
        }
        longest_first = sorted(self.characters, key=len, reverse=True)
        self._pattern = re.compile("|".join(re.escape(text) for text in longest_first)) if longest_first else None

    def text(self, literal: str) -> str:
        """The literal as it stands in the buffer."""
        if self._pattern is None:
            return literal
        return self._pattern.sub(lambda found: self.characters[found.group()], literal)

    def mark(self, literal: str) -> Mark:
        """The literal, its outer white space apart. Inner white space stays part of the text."""
        edges = _EDGES.fullmatch(literal)
        assert edges is not None  # the pattern matches every text
        before, text, after = edges.groups()
        return Mark(before, self.text(text), after)
