"""The suites of `benchmarks.check` against a server, or against a model in this process:

python -m benchmarks.check http://localhost:8080/v1
python -m benchmarks.check --local builtin --suite forms
"""

import argparse
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Sequence

from benchmarks import check as suites
from benchmarks.check.exchange import Exchange, HttpExchange, LocalExchange
from benchmarks.check.records import VERDICTS, Record
from engine.api.engine import Engine
from engine.cli.exit_codes import DONE, FAILED
from engine.cli.named import BUILTIN
from engine.cli.screen import Screen, columns
from engine.support.errors import EngineError, RequestError
from engine.support.screens import screen_for

_SUITES = ("forgery", "forms")
_ROW = {"forgery": "place", "forms": "tools"}
"""The part of a case that has a row of the table."""


def _parser() -> argparse.ArgumentParser:
    check = argparse.ArgumentParser(
        prog="python -m benchmarks.check",
        description="Run two suites against a server of Chat Completions, or a model in this process. Exit code 1 if a "
        "case failed.",
    )
    check.add_argument("url", metavar="URL", nargs="?", help="the server's address: http://localhost:8080/v1")
    check.add_argument(
        "--local",
        metavar="MODEL",
        help=f"instead of a server, a model in this process ({BUILTIN}, a GGUF file, a name)",
    )
    check.add_argument("--suite", choices=_SUITES, help="only this suite")
    check.add_argument("--model", metavar="NAME", help="the model to ask the server for; by default the first it lists")
    check.add_argument("--api-key", metavar="KEY", help="the key to send")
    check.add_argument(
        "--header",
        metavar="NAME:VALUE",
        action="append",
        default=[],
        help="a header to send; may be given several times",
    )
    check.add_argument(
        "--timeout", metavar="SECONDS", type=_positive, default=120, help="for one whole answer (default 120)"
    )
    check.add_argument(
        "--max-tokens", metavar="N", type=_positive, default=1024, help="of an answer in the suite forms (default 1024)"
    )
    check.add_argument("--json", action="store_true", help="print every case, one JSON object a line")
    return check


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the suites, show what was found, and return the exit code. What was found before an error is shown too."""
    try:
        return _checked(_parser().parse_args(arguments))
    except EngineError as error:
        sys.stderr.write(f"check: {error}\n")
        return FAILED


def _checked(options: argparse.Namespace) -> int:
    if (options.url is None) is (options.local is None):
        raise RequestError("Give the URL of a server, or --local MODEL.")
    screen = Screen(sys.stdout)
    records: list[Record] = []
    progress = screen_for(sys.stderr) if sys.stderr.isatty() else None
    with _exchange(options) as exchange:
        running = {
            "forgery": suites.forgery(exchange),
            "forms": suites.forms(exchange, max_tokens=options.max_tokens),
        }
        try:
            for record in _chained([running[name] for name in _SUITES if options.suite in (None, name)]):
                records.append(record)
                if options.json:
                    screen.line(json.dumps(record.data()))
                if progress:
                    progress.state(f"{record.suite}: {len(records)} cases")
        finally:
            if progress:
                progress.line(f"{len(records)} cases")
            if not options.json:
                _show(screen, records)
    return FAILED if any(record.failed for record in records) else DONE


def _chained(running: Sequence[Iterator[Record]]) -> Iterator[Record]:
    for suite in running:
        yield from suite


@contextlib.contextmanager
def _exchange(options: argparse.Namespace) -> Generator[Exchange]:
    if options.local is None:
        headers = dict(_header(text) for text in options.header)
        yield HttpExchange(
            options.url, model=options.model, api_key=options.api_key, timeout=options.timeout, headers=headers
        )
        return
    with Engine.load(None if options.local == BUILTIN else options.local) as llm:
        yield LocalExchange(llm, timeout=options.timeout)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not (colon and name.strip()):
        raise RequestError(f"--header {text!r} is not NAME:VALUE.")
    return name.strip(), value.strip()


def _show(screen: Screen, records: Sequence[Record]) -> None:
    """Print a table of counts for each suite, then a line for each case that failed, and the reasons of unknowns."""
    for suite, verdicts in VERDICTS.items():
        mine = [record for record in records if record.suite == suite]
        if not mine:
            continue
        row = _ROW[suite]
        counts = Counter((record.case[row], record.verdict) for record in mine)
        table = [[f"{suite}, {row}", *verdicts]]
        names = dict.fromkeys(record.case[row] for record in mine)
        table += [[name, *(str(counts[name, verdict] or "-") for verdict in verdicts)] for name in names]
        for line in columns([[*line, ""] for line in table], right=range(1, len(verdicts) + 1)):
            screen.line(line)
        screen.line()
    for record in records:
        if record.failed:
            screen.line(f"{record.verdict}: {' | '.join(record.case.values())}: {record.why}")
    for why, count in Counter(record.why for record in records if record.verdict == "unknown").items():
        screen.line(f"unknown, {count} cases: {why}")
    if told := sum(record.verdict == "control token" and not record.failed for record in records):
        screen.line(f"{told} control tokens in system text are told, not failed: an application writes that itself.")
    screen.line(f"{sum(record.failed for record in records)} of {len(records)} cases failed.")


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() and len(text) < 8 else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number


if __name__ == "__main__":
    sys.exit(main())
