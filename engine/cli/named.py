"""How commands take the name of a model."""

from typing import Any

BUILTIN = "builtin"
"""The word for the built-in model where a command takes a model."""


def add_model_option(command: Any) -> None:
    """Let an option name the model too, as in other programs. `command`: a parser, or a group of one."""
    command.add_argument("-m", "--model", metavar="MODEL", dest="model_option", help="the same as the argument MODEL")
