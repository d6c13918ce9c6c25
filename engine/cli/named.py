"""How commands take the name of a model, and the options that have none of their own there."""

from typing import Any

BUILTIN = "builtin"
"""The word for the built-in model where a command takes a model."""


def add_model_option(command: Any) -> None:
    """Let an option name the model too, as in other programs. `command`: a parser, or a group of one."""
    command.add_argument("-m", "--model", metavar="MODEL", dest="model_option", help="the same as the argument MODEL")


def add_set_option(command: Any) -> None:
    """Let every option of loading and of turns be given by its name in Python."""
    command.add_argument(
        "--set",
        metavar="NAME=VALUE",
        dest="given",
        action="append",
        default=[],
        help="any other option of Engine.load or of a turn, such as n_threads=4, seed=1, preflight=false or states=DIR "
        "(docs/reference/options.md); may be given several times",
    )
