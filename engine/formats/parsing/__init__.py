"""The sans-IO parser: pieces of a model's output become events."""

from engine.formats.parsing.parser import Parser, Segment

__all__ = ["Parser", "Segment"]
