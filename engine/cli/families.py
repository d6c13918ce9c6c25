"""`llama-engine families [list | show | check]`: the known formats, and checks of a user's own file."""

import argparse
import sys
from pathlib import Path
from typing import Any

from engine.cli.screen import Screen, columns
from engine.formats.families import Family, builtin_families


def add_families(commands: Any) -> None:
    """Add the command and its options to a parser's subcommands."""
    families = commands.add_parser(
        "families",
        help="list the model families whose formats are known; check a file of your own",
        description="List the model families whose formats are known. With check, test a file of your own.",
    )
    actions = families.add_subparsers(dest="action", metavar="ACTION")
    actions.add_parser("list", help="list them (the default)")
    shown = actions.add_parser("show", help="show a family's format, and which row or base each field comes from")
    shown.add_argument("name", metavar="NAME", choices=builtin_families().names(), help="a family of the list")
    check = actions.add_parser(
        "check",
        help="test a file of your own: shows every mistake in it, its defaults, and whether turns are parsed correctly",
        description="Test a file of families. Exit code 1 if it has mistakes or a turn is not parsed correctly.",
    )
    check.add_argument("file", metavar="FILE", type=Path, help="a TOML file like models.toml")
    check.add_argument("--template", metavar="FILE", type=Path, help="a chat template that a row is for (.jinja)")
    check.add_argument(
        "--response-template",
        metavar="FILE",
        type=Path,
        help="with --template: a response_template to compare with the row (a JSON file, or a tokenizer_config.json)",
    )


def families(options: argparse.Namespace) -> int:
    """Run the action that the options name, and return the exit code."""
    screen = Screen(sys.stdout)
    match options.action:
        case "check":
            from engine.formats.check.family_check import check

            found = check(options.file, options.template, options.response_template)
            screen.line(found.text())
            return 0 if found.is_sound else 1
        case "show":
            from engine.formats.check.family_check import row_check
            from engine.formats.families.detect import tables_of

            screen.line(row_check(builtin_families().get(options.name), tables_of()).text())
        case _:
            _list(screen)
    return 0


_LEGEND = (
    "REASONING  switched: a request turns it on or off; always: it cannot be turned off; yes: the model decides",
    "CALLS      how the model writes tool calls; generic: it has no form of its own, so the prompt asks for JSON",
)


def _list(screen: Screen) -> None:
    rows = [builtin_families().get(name) for name in builtin_families().names()]
    table = [("NAME", "REASONING", "CALLS", "MODELS")]
    table += [(family.name, _reasoning(family), _calls(family), family.title) for family in rows]
    lines = columns(table)
    for line in lines:
        screen.prose(line, hang=lines[0].index("MODELS"))
    screen.prose(f"\n{len(rows)} families. A file of your own adds more: llama-engine families check FILE")
    for line in _LEGEND:
        screen.prose(line, hang=11)


def _reasoning(family: Family) -> str:
    syntax = family.format.reasoning
    return (
        "-" if syntax is None else "switched" if syntax.gate is not None else "always" if syntax.forced_open else "yes"
    )


def _calls(family: Family) -> str:
    tools = family.format.tools
    return "channels" if family.format.channels else "generic" if tools is None else tools.shape
