"""`llama-engine batch`: its options, its exit codes, how many sequences a batch gets."""

import argparse
import json
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from engine.cli.exit_codes import DISK_FULL, INTERRUPTED, SOME_FAILED, USAGE
from engine.cli.standard import complain
from engine.support.errors import BatchInputError, ContextOverflowError, DiskFullError, EngineError, RequestError

if TYPE_CHECKING:
    from engine.api.engine import Engine

_SEQUENCES = 8


def add_batch(command: argparse.ArgumentParser) -> None:
    """Add the command's own options, in addition to those of loading and sampling."""
    command.add_argument(
        "input",
        metavar="INPUT",
        help="a CSV, Parquet or JSONL file, by its ending: rows with a prompt or messages, any table with --prompt, or "
        "OpenAI's batch format",
    )
    command.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        required=True,
        help="the answers: JSON, one per line, or a table (.csv, "
        ".tsv, .parquet), which is written at the end; resumed if it exists",
    )
    prompts = command.add_mutually_exclusive_group()
    prompts.add_argument(
        "--prompt",
        metavar="TEXT",
        help='the prompt of each row, with columns in braces: "Extract the city: {text}"; a brace itself is doubled',
    )
    prompts.add_argument("--prompt-column", metavar="NAME", help="the column that is the prompt of its row")
    command.add_argument(
        "--schema",
        metavar="FILE",
        help="a file with a JSON Schema, or MODULE:NAME, a type in a Python module, which is imported: answers fit it, "
        "and in a table its fields are columns",
    )
    command.add_argument(
        "--decide",
        metavar="FILE",
        help="a file with questions, or MODULE:NAME, a type with fields: rows are judged by them, nothing is "
        "generated, and in a table the answers are columns, with their probabilities",
    )
    command.add_argument(
        "--calibration", metavar="FILE", help="with --decide: what Calibration.save wrote about the same questions"
    )
    command.add_argument("-m", "--model", help="as for the other commands; without it the built-in model")
    command.add_argument("--skip-bad", action="store_true", help="write rows that are not valid to the error file")
    command.add_argument("--retry-failed", action="store_true", help="compute the rows in the error file again")
    command.add_argument(
        "--force", action="store_true", help="compute rows anew whose content, model, template or options changed"
    )
    command.add_argument("--in-order", action="store_true", help="sort the output like the input, at the end")
    command.add_argument(
        "--quote-formulas",
        action="store_true",
        help="in a .csv or .tsv output, put ' before text that a spreadsheet would compute (it begins with = + - @)",
    )
    command.add_argument(
        "--sequences", metavar="N", type=int, help=f"rows at once; by default up to {_SEQUENCES}, if they fit"
    )
    command.add_argument("--quiet", action="store_true", help="show no progress")


def batch(options: argparse.Namespace) -> int:
    """Run the batch and return the exit code."""
    from engine import batch as batches
    from engine.cli import commands
    from engine.turns.calibration import Calibration

    try:
        with ExitStack() as open_engines:
            report = batches.run(
                options.input,
                options.output,
                lambda plan: open_engines.enter_context(_loaded(options, plan.total)),
                prompt=options.prompt,
                prompt_column=options.prompt_column,
                schema=None if options.schema is None else commands.schema_of(options.schema),
                decide=None if options.decide is None else _questions(options.decide),
                calibration=None if options.calibration is None else Calibration.load(options.calibration),
                system=options.system,
                skip_bad=options.skip_bad,
                retry_failed=options.retry_failed,
                force=options.force,
                in_order=options.in_order,
                quote_formulas=options.quote_formulas,
                in_flight=2 * (options.sequences or _SEQUENCES),
                quiet=options.quiet,
                **commands.turn_options(options),
            )
    except BatchInputError as error:
        return _failed(error, USAGE)
    except DiskFullError as error:
        return _failed(error, DISK_FULL)
    return _exit_code(report)


def _loaded(options: argparse.Namespace, rows: int) -> "Engine":
    """Returns the engine: with the requested number of sequences, otherwise with eight, else with what fits."""
    from engine.cli.commands import load

    if options.sequences:
        return load(options, n_sequences=options.sequences)
    with suppress(ContextOverflowError):
        return load(options, n_sequences=min(_SEQUENCES, rows))
    return load(options)


def _questions(path: str) -> object:
    """Returns the questions in a file, a list as `client.decisions.create` takes it, each with a name of its own; or
    the type that `MODULE:NAME` names."""
    from engine.cli.commands import read_text
    from engine.cli.tool_files import named_type
    from engine.openai.decisions import named_questions

    if (named := named_type(path)) is not None:
        return named
    try:
        return named_questions(json.loads(read_text(path)))
    except (ValueError, RequestError) as error:
        raise RequestError(f"{path} has no questions: {error}") from error


def _exit_code(report: Any) -> int:
    if report.interrupted and report.left:
        return INTERRUPTED
    return SOME_FAILED if report.failed else 0


def _failed(error: EngineError, code: int) -> int:
    complain(str(error))
    return code
