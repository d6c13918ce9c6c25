"""The sans-IO parser: pieces of a model's output become events."""

from engine.formats.parsing.parser import Parser, Segment
from engine.formats.parsing.reader import Piece

__all__ = ["Parser", "Piece", "Segment"]
