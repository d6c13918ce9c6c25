"""Engines and their streams in notebooks: rendered live, as tables, and behind marimo's chat."""

from engine.notebook.chat import chat

__all__ = ["chat"]
