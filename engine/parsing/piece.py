"""The unit that the parser is fed with, and that prompts are cut into.

Knows: nothing but the pair. `special` says that the text was, or shall be, one control or user-defined token of the
vocabulary, and not the same characters spelt in ordinary tokens.
"""

from typing import NamedTuple


class Piece(NamedTuple):
    """Text, and whether it is one control token."""

    text: str
    special: bool = False
