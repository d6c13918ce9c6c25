"""The sans-IO parser: pieces of a model's output become events.

Knows: formats as data (`engine.families`) and how each is read incrementally. Does not know: models, tokens, templates,
threads, clocks; it imports nothing heavy and does no input or output.
"""

from engine.parsing.parser import Parser, Segment
from engine.parsing.reader import Piece

__all__ = ["Parser", "Piece", "Segment"]
