"""The command line: `llama-engine demo | chat | run | batch | inspect | explain | models | families | bench | check |
doctor | completion`, also as `python -m engine`."""

import sys
from collections.abc import Sequence

from engine.cli.exit_codes import INTERRUPTED


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code. `argv`: None takes the process's own arguments. Ctrl-C ends it without a
    traceback, also while the modules are imported."""
    try:
        from engine.cli.arguments import main as command

        return command(argv)
    except KeyboardInterrupt:
        if sys.stderr is not None and sys.stderr.isatty():  # pyright: ignore[reportUnnecessaryComparison] - it may be closed
            sys.stderr.write("\n")  # the terminal has echoed ^C
        return INTERRUPTED


__all__ = ["main"]
