"""Reads what a user types at a prompt: lines with editing and history, pastes of many lines as one text.

The only importer of prompt_toolkit; imported late, as that takes a moment. If input or output is not a terminal that it
can use, Python's own `input` reads single lines.
"""

import os
import sys
from collections.abc import Callable, Sequence

_PROMPT = "> "


def reader(said: Sequence[str], commands: Sequence[str]) -> Callable[[], str]:
    """Returns a function that reads the next input. `said`: earlier inputs, which the up arrow finds; Tab completes the
    first words of `commands`. The function raises KeyboardInterrupt on Ctrl-C, EOFError on Ctrl-D."""
    if sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return _edited(said, sorted({command.split()[0] for command in commands}))
    return lambda: input(_PROMPT)


def _edited(said: Sequence[str], commands: Sequence[str]) -> Callable[[], str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession(
        history=InMemoryHistory(said),
        completer=WordCompleter(list(commands), sentence=True),
        complete_while_typing=False,
        key_bindings=keys,
        prompt_continuation=lambda width, _line, _wrapped: " " * width,
    )
    return lambda: session.prompt(_PROMPT)
