"""The command line: `llama-engine demo | chat | run | batch | inspect | explain | models | families | bench | check |
doctor | completion`, also as `python -m engine`."""

from engine.cli.arguments import main

__all__ = ["main"]
