"""The command line's arguments, and how errors are reported."""

import argparse
import importlib.metadata
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill, wrap
from typing import Any, NoReturn

from engine.cli.batch import add_batch, batch
from engine.cli.bench import add_bench, bench
from engine.cli.exit_codes import BROKEN_PIPE, DONE, EXIT_CODES, FAILED
from engine.cli.families import add_families, families
from engine.cli.models import add_models, models
from engine.cli.named import add_model_option, add_set_option
from engine.cli.sessions import add_sessions, sessions
from engine.cli.standard import (
    OutputError,
    complain,
    complain_of_a_bug,
    give_up_output,
    is_piped,
    output,
    standard_streams,
)
from engine.cli.vectors import add_embed, add_rerank, embed, rerank
from engine.cli.wording import spoken
from engine.support.errors import EngineError, FamilyError, did_you_mean
from engine.support.foreign import foreign

_EXAMPLES = """examples:
  llama-engine demo                    what is installed; no download
  llama-engine models suggest          good models; which fit this machine
  llama-engine chat owner/repo:Q4_K_M  talk to a model of the Hugging Face Hub
  llama-engine models fit owner/repo   which quantisations fit into memory
  llama-engine run -m model.gguf -p "Summarise:" --file notes.txt
  git diff | llama-engine run model.gguf "Write a commit message."
  echo "Say hi" | llama-engine run smollm2
  llama-engine batch rows.jsonl -o answers.jsonl -m model.gguf
  llama-engine embed model.gguf --file texts.txt -o vectors.npy
  llama-engine COMMAND --help          the options of a command
"""


SHELLS = ("bash", "zsh", "tcsh")
_POSITIONS = ("on", "off", "low", "medium", "high")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code. `argv`: None takes the process's own arguments."""
    with standard_streams():
        try:
            code = _run(parser().parse_args(argv))
            with output():
                sys.stdout.flush()
            return code
        except EngineError as error:
            lines = str(error).splitlines() if isinstance(error, FamilyError) else [str(error)]  # one mistake per line
            complain("\n".join(" ".join(spoken(line).split()) for line in lines))
            return FAILED
        except BrokenPipeError:
            give_up_output()
            return BROKEN_PIPE
        except OutputError as error:
            complain(str(error))
            give_up_output()
            return FAILED
        except OSError as error:  # the system's refusal, such as of a folder that others may not read
            complain(f"{error.filename or 'a file'} cannot be used: {error.strerror or error}. Correct that first.")
            return FAILED
        except Exception:  # noqa: BLE001 - reported here: Python's own traceback could send control codes
            complain_of_a_bug()
            return FAILED


def _run(options: argparse.Namespace) -> int:
    commands = {
        "models": models,
        "sessions": sessions,
        "batch": batch,
        "embed": embed,
        "rerank": rerank,
        "families": families,
        "bench": bench,
        "completion": completion,
    }
    if command := commands.get(options.command):
        return command(options)
    from engine.cli import commands as of_a_model
    from engine.cli.demo import demo

    if options.command == "demo":
        return demo(options)

    return getattr(of_a_model, options.command)(options)


def parser() -> "Parser":
    """Returns the parser of all commands."""
    top = Parser(
        prog="llama-engine",
        description="Run GGUF chat models in this process.",
        epilog=f"{_EXAMPLES}\nexit codes:\n{_exit_codes()}",
    )
    top._positionals.title = "commands"  # pyright: ignore[reportPrivateUsage]
    top.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    commands.add_parser("demo", help="a typed answer and a call that runs, by a small model")

    chat = commands.add_parser("chat", help="talk to a model")
    chat.set_defaults(asks=True)
    _add_loading(chat, several=True)
    _add_sampling(chat)
    _add_chatting(chat)
    _add_showing(chat)

    run = commands.add_parser("run", help="answer one prompt")
    run.set_defaults(places=("model?", "prompt?"), asks=True)
    _add_loading(run)
    _add_asking(run)
    _add_sampling(run)
    _add_showing(run)

    inspect = commands.add_parser("inspect", help="show what the engine understood of a model")
    inspect.set_defaults(places=("model?",))
    _add_loading(inspect, files=False)
    inspect.add_argument("--json", action="store_true", help="print it as one JSON object")

    explain = commands.add_parser("explain", help="show a prompt, its tokens and format, and how an output is parsed")
    explain.set_defaults(places=("model?",))
    _add_loading(explain, files=False)
    _add_explaining(explain)

    many = commands.add_parser("batch", help="answer every row of a file; resumes where it was stopped")
    _add_loading(many, model=False)
    _add_sampling(many)
    add_batch(many)

    for add in (add_embed, add_rerank):
        _add_loading(add(commands), model=False, chats=False, files=False)
    add_models(commands)
    add_sessions(commands)
    add_families(commands)
    add_bench(commands)
    commands.add_parser("doctor", help="check this installation, and show how to make it faster")
    shells = commands.add_parser("completion", help="print a script that lets a shell complete these commands")
    shells.add_argument("shell", choices=SHELLS, help='bash: eval "$(llama-engine completion bash)" in ~/.bashrc')
    for each in _commands(top):
        _describe(each)
    return top


def _describe(command: "Parser") -> None:
    """Give each of a parser's subcommands its line of the list as a description, if it has none of its own."""
    for listed in command.group._choices_actions if command.group else ():
        inner, about = command.subcommands[listed.dest], listed.help or ""
        inner.description = inner.description or f"{about[:1].upper()}{about[1:]}."


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions as they are written, and no line broken at a hyphen, as in `llama-engine`."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog)
        self._action_max_length = 4 + len("completion")  # argparse forgets that names of subcommands are indented

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrap(" ".join(text.split()), width, break_on_hyphens=False)


def _exit_codes() -> str:
    return "\n".join(
        fill(meaning, 78, initial_indent=f"  {code:<4} ", subsequent_indent=" " * 7)
        for code, meaning in EXIT_CODES.items()
    )


class Parser(argparse.ArgumentParser):
    """A parser that accepts options before, between and after arguments.

    argparse itself assigns the arguments before an option without regard to those after it: `run MODEL --seed 1 PROMPT`
    would lack a prompt.
    """

    group: Any = None
    """What its subcommands were added to; None if it has none."""
    _is_inside = False
    _command: "Parser | None" = None

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", _Formatter)
        super().__init__(**options)
        self._positionals.title = "arguments"  # pyright: ignore[reportPrivateUsage]

    def add_subparsers(self, **options: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.group = super().add_subparsers(**options)
        return self.group

    @property
    def subcommands(self) -> "dict[str, Parser]":
        """The parsers of its subcommands, by name."""
        return {} if self.group is None else self.group.choices

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices: list[str] = list(action.choices or ())
        if action.choices is not None and value not in choices:
            listed = f"choose from {', '.join(choices)}"
            known = foreign("commands").get(value) if action is self.group else None
            way = known or did_you_mean(value, choices, listed)
            raise argparse.ArgumentError(action, f"there is no {value!r}; {way}")

    def error(self, message: str) -> NoReturn:
        wrong, _, names = message.partition(": ")
        command = self
        if wrong == "unrecognized arguments":
            command = self._innermost()
            unknown = next((name for name in names.split() if name.startswith("-")), "")
            way = command._way(unknown)
            message = f"{message}; {way}" if way else message
        super(Parser, command).error(message)

    def _innermost(self) -> "Parser":
        """Returns the parser of the command that was given."""
        return self if self._command is None else self._command._innermost()

    def _way(self, unknown: str) -> str:
        """Returns what to write instead of an option that the command does not have; "" if it has nothing like it."""
        accepted = {name for action in self._actions for name in action.option_strings or (str(action.metavar),)}
        way = foreign("flags").get(unknown, "")
        if way and accepted.issuperset(re.findall("--[a-z-]+|NAME|INPUT", way)):
            return way
        return did_you_mean(unknown, [name for name in accepted if name.startswith("-")], "")

    def _print_message(self, message: str, file: Any = None) -> None:
        with output():  # argparse itself ignores that it could not write
            (file or sys.stderr).write(message)
            (file or sys.stderr).flush()

    def format_help(self) -> str:
        if self.description and "\n" not in self.description:
            width = max(40, shutil.get_terminal_size().columns - 2)
            self.description = fill(self.description, width, break_on_hyphens=False)
        return super().format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self.group is not None:
            if not (sys.argv[1:] if args is None else args) and self.group.required:
                self.print_help()  # of a command that needs a subcommand, if it stands alone
                self.exit(DONE)
            parsed, rest = super().parse_known_args(args, namespace)
            self._command = self.subcommands.get(getattr(parsed, self.group.dest))
            return parsed, rest
        if self._is_inside:
            return super().parse_known_args(args, namespace)
        self._is_inside = True
        try:
            parsed, rest = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_inside = False
        self._put_in_places(parsed)
        return parsed, rest

    def _put_in_places(self, options: argparse.Namespace) -> None:
        """Assign the arguments without an option, now that it is known whether options name the model and the prompt.

        `places` names them in order; a model, or a prompt that comes from a pipe or a file, may be left out and has a
        question mark, the last may take several.
        """
        places: Sequence[str] = getattr(options, "places", ())
        values = [value for place in places for value in _listed(getattr(options, place.strip("?*")))]
        for name in ("model", "prompt"):
            if (given := getattr(options, f"{name}_option", None)) is not None:
                setattr(options, name, given)
                places = [place for place in places if place.strip("?") != name]
        if places and places[0] == "model?" and len(values) < len(places):
            options.model, places = None, places[1:]
        for place in places:
            if place.endswith("*"):
                setattr(options, place[:-1], values)
                return
            if not values and place.endswith("?") and (options.file or is_piped()):
                setattr(options, place.strip("?"), None)
                return
            if not values:
                self.error(f"the following arguments are required: {place.strip('?').upper()}")
            setattr(options, place.strip("?"), values.pop(0))
        if values:
            self.error(f"unrecognized arguments: {' '.join(values)}")


def completion(options: argparse.Namespace) -> int:
    """Print the completion script for a shell."""
    import shtab

    top = parser()
    for command in _commands(top):
        for action in command._actions:  # pyright: ignore[reportPrivateUsage]
            if action.metavar in ("FILE", "MODEL", "INPUT"):
                setattr(action, "complete", shtab.FILE)  # noqa: B010
    with output():
        sys.stdout.write(shtab.complete(top, options.shell) + "\n")
    return DONE


def _commands(top: Parser) -> Iterator[Parser]:
    """Yields a parser and those of its subcommands."""
    yield top
    for inner in dict.fromkeys(top.subcommands.values()):
        yield from _commands(inner)


def _listed(value: str | list[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else value or []


def _add_names(command: argparse.ArgumentParser, group: Any, *, several: bool) -> None:
    """Add the argument and the option that name the model."""
    if several:
        command.add_argument(
            "models",
            metavar="MODEL",
            nargs="*",
            help="as for the other commands; of several, the first answers, and /model NAME takes another",
        )
        option = "the same as the argument MODEL; may be given several times"
        group.add_argument(
            "-m", "--model", metavar="MODEL", dest="models_option", action="append", default=[], help=option
        )
        return
    where = "a GGUF file, a model on the Hugging Face Hub (owner/repo:Q4_K_M), or a short name (qwen3-4b)"
    command.add_argument(
        "model", metavar="MODEL", nargs="?", help=f"{where}; builtin is the tiny one that comes with llama-engine"
    )
    add_model_option(group)


def _add_loading(
    command: argparse.ArgumentParser,
    *,
    model: bool = True,
    several: bool = False,
    chats: bool = True,
    files: bool = True,
) -> None:
    """Add the options of loading. `chats`: with those of how answers are written and read; `files`: with those of files
    beside the model."""
    group = command.add_argument_group("the model")
    if model or several:
        _add_names(command, group, several=several)
    group.add_argument(
        "--ctx", metavar="TOKENS", type=int, help="most tokens of a conversation; by default 8192 at most"
    )
    group.add_argument(
        "--gpu-layers", metavar="N", type=int, help="layers on the GPU; -1 for all; by default what fits"
    )
    if chats:
        group.add_argument(
            "--family",
            metavar="NAME",
            help="parse the output as this family's (`llama-engine families` lists them); FILE.toml adds families",
        )
        group.add_argument(
            "--chat-template", metavar="FILE", type=Path, help="a .jinja file to use instead of the model's"
        )
    if files:
        group.add_argument(
            "--adapter",
            metavar="[NAME=]FILE",
            action="append",
            default=[],
            help="a LoRA adapter, which every turn uses; may be given several times",
        )
        about = "makes pictures and sounds readable (mmproj-....gguf); auto: the model's, from its repository or folder"
        group.add_argument("--projector", metavar="FILE", help=about)
    add_set_option(group)


def _add_asking(command: argparse.ArgumentParser) -> None:
    command.add_argument("prompt", metavar="PROMPT", nargs="?", help="what to ask; - reads it from standard input")
    command.add_argument("-p", "--prompt", metavar="PROMPT", dest="prompt_option", help="the same")
    command.add_argument(
        "--raw", action="store_true", help="continue the text as it is, without a chat template, as base models do"
    )
    command.add_argument("--json", action="store_true", help="print the events, one JSON object a line")
    command.add_argument(
        "--schema", metavar="FILE", help="a JSON Schema, or MODULE:NAME, a type, that the answer must fit"
    )
    command.add_argument(
        "--file",
        metavar="FILE",
        action="append",
        default=[],
        help="a text to append to the prompt; may be given several times. Piped input is appended, too",
    )
    command.add_argument(
        "--image",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="a picture to show with the prompt; may be given several times; implies --projector auto",
    )


def _add_chatting(command: argparse.ArgumentParser) -> None:
    kept = command.add_mutually_exclusive_group()
    kept.add_argument(
        "--session",
        metavar="NAME",
        help="keep the conversation under this name: continue it if it is there, and save it after each turn",
    )
    kept.add_argument(
        "--continue", dest="continues", action="store_true", help="continue the session that was saved last"
    )
    kept.add_argument(
        "--resume",
        metavar="FILE",
        type=Path,
        help="continue the conversation in this file, and save it after each turn",
    )
    command.add_argument(
        "--commands", action="store_true", help="run lines of piped input that begin with / as commands"
    )
    command.add_argument(
        "--tools", metavar="FILE", type=Path, help="a Python file, which is run; its functions are the model's tools"
    )
    command.add_argument(
        "--mcp",
        metavar="[PREFIX=]SERVER",
        action="append",
        default=[],
        help="an MCP server, whose tools the model may call: a command in quotes, a URL, or a JSON file that lists "
        "servers as MCP clients do; may be given several times. PREFIX is put before the names of its tools",
    )
    command.add_argument("--yes", action="store_true", help="run the model's calls without asking")


def _add_explaining(command: argparse.ArgumentParser) -> None:
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("-p", "--prompt", metavar="TEXT", help="a user's text; - reads it from standard input")
    source.add_argument(
        "--messages",
        metavar="FILE",
        help='a JSON list of messages, or {"messages": [..], "tools": [..]}; - reads it from standard input',
    )
    command.add_argument("--output", metavar="FILE", help="the model's output after the prompt; - reads standard input")
    command.add_argument("--system", metavar="TEXT", help="a system message, before the others")
    command.add_argument("--reasoning", choices=_POSITIONS, help="whether, or how much, the model reasons")
    command.add_argument("--json", action="store_true", help="print it as one JSON object")


def _add_sampling(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("answers")
    group.add_argument("--system", metavar="TEXT", help="a system message")
    group.add_argument("--temperature", metavar="T", type=float, help="0 always takes the most likely token")
    group.add_argument("--max-tokens", metavar="N", type=int, help="maximum tokens of one answer")
    group.add_argument("--reasoning", choices=_POSITIONS, help="whether, or how much, the model reasons")


def _add_showing(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--plain", action="store_true", help="on a terminal, show answers as plain text, not as Markdown"
    )


def _version() -> str:
    try:
        return importlib.metadata.version("llama-engine")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
