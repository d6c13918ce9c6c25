"""What a model's answers are worth, beside llama-server of the same source and `llama_cpp.Llama`:

    python benchmarks/quality.py --model FILE --server BINARY --bfcl WHEEL --results results.jsonl [--part schemas]

`schemas` are 120 tasks whose answer has a form; `fresh` 60 more;
`texts` extraction and classification of a given text; `calls` 30 tasks
that one call does; `bfcl` tasks of the Berkeley Function-Calling Leaderboard, read from its wheel. Each is asked once
greedily and with three seeds at one temperature, the same for all, and of this engine three times with its default
sampling. An answer is added to the file of results as it comes; those that are there already are not asked again.
Printed: how many answers are complete, fit their schema, and are right; run-aways, which `max_tokens` cut within digits
or white space; tokens and processor seconds an answer, in the mean. `--failures` prints what this engine did not
complete. Closed: fits its schema, but was cut, and says so. `llama_cpp.Llama` is not asked for several calls: its
handler does not hold `max_tokens` there. A base model gets its tasks as texts to continue, behind `--examples` others.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, cast

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "benchmarks"), str(HERE)]

import bfcl  # noqa: E402
import fresh_tasks  # noqa: E402
import schema_tasks  # noqa: E402
import text_tasks  # noqa: E402
from contenders import EQUAL, OWN, Contender, Llama, Ours, Said, Server, schema_of  # noqa: E402
from jsonschema import Draft202012Validator  # noqa: E402
from schema_tasks import Task  # noqa: E402
from text_tasks import CallTask  # noqa: E402

MOST = 256
"""Tokens of an answer, at most."""
PARTS = ("schemas", "texts", "fresh", "calls", "bfcl")
_TAIL = 24
"""An answer that was cut is a run-away if so many of its last characters are digits, or white space."""
_ENDS_ALIKE = re.compile(rf"(?:[\d.eE+-]{{{_TAIL}}}|\s{{{_TAIL}}})\Z")

Row = dict[str, Any]


def tasks_of(part: str, wheel: Path | None, most: int) -> list[Task | CallTask]:
    """Returns the first tasks of each kind of a part, at most so many of each."""
    if part == "bfcl":
        return [] if wheel is None else [*bfcl.tasks(wheel, most)]
    whole = {
        "schemas": schema_tasks.TASKS,
        "fresh": fresh_tasks.TASKS,
        "texts": text_tasks.TASKS,
        "calls": text_tasks.CALLS,
    }[part]
    kinds = dict.fromkeys(task.kind for task in whole)
    return [task for kind in kinds for task in [each for each in whole if each.kind == kind][:most]]


def judged(task: Task | CallTask, said: Said) -> Row:
    """Returns whether the answer is complete, valid and right (None: not judged), whether it fits although it was cut,
    and whether it ran away."""
    complete = said.ended in ("stop", "tool_calls")
    valid, right = (_called if isinstance(task, CallTask) else _answered)(task, said)  # pyright: ignore[reportArgumentType]
    written = said.text or "".join(arguments for _, arguments in said.calls)
    return {
        "complete": complete,
        "valid": complete and valid,
        "closed": valid and not complete,
        "right": None if right is None else valid and right and (complete or isinstance(task, CallTask)),
        "runaway": said.ended == "length" and _ENDS_ALIKE.search(written) is not None,
    }


def _answered(task: Task, said: Said) -> tuple[bool, bool | None]:
    try:
        value = json.loads(said.text)
    except ValueError:
        return False, None if task.right is None else False
    schema = schema_of(task) or {"type": "object"}
    return _fits_schema(value, schema), None if task.right is None else fits(value, task.right)


def _fits_schema(value: Any, schema: dict[str, Any]) -> bool:
    checker: Any = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    return checker.is_valid(value)


def _called(task: CallTask, said: Said) -> tuple[bool, bool]:
    parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in task.tools}
    made: list[tuple[str, Any]] = []
    valid = bool(said.calls) or task.choice == "auto"
    for name, text in said.calls:
        try:
            made.append((name, json.loads(text)))
        except ValueError:
            return False, False
        valid = valid and name in parameters and _fits_schema(made[-1][1], parameters[name])
    return valid, bfcl.right_calls(made, task.calls)


def fits(value: Any, right: Any) -> bool:
    """Whether a value is what is wanted: see `Task`."""
    if isinstance(right, tuple):
        return any(fits(value, each) for each in cast("tuple[Any, ...]", right))
    if isinstance(right, dict):
        wanted = cast("dict[str, Any]", right)
        return isinstance(value, dict) and all(name in value and fits(value[name], wanted[name]) for name in wanted)
    if isinstance(right, list):
        return isinstance(value, list) and _alike(cast("list[Any]", value), cast("list[Any]", right))
    if isinstance(value, str) and isinstance(right, str):
        return value.strip(" .'\"").casefold() == right.casefold()
    return type(value) in (int, float) and value == right if type(right) in (int, float) else value is right


def _alike(values: Sequence[Any], right: Sequence[Any]) -> bool:
    left = list(values)
    for each in right:
        found = next((at for at, value in enumerate(left) if fits(value, each)), None)
        if found is None:
            return False
        del left[found]
    return not left


def asked(who: str, made: Callable[[], Contender], given: argparse.Namespace, known: set[tuple[Any, ...]]) -> None:
    """Asks one contender what it has not answered yet, and writes the rows."""
    samplings = {**EQUAL, **(OWN if who == "ours" else {})}
    todo = [
        (part, task, mode)
        for part in given.part
        for mode in samplings
        if not given.mode or mode in given.mode
        for task in tasks_of(part, given.bfcl, given.most)
        if (who, part, task.kind, task.question, mode) not in known
        if not (who == "llama" and isinstance(task, CallTask) and task.parallel)
    ]
    if not todo:
        return
    contender = made()
    try:
        with given.results.open("a", encoding="utf-8") as out:
            for count, (part, task, mode) in enumerate(todo, 1):
                ask = contender.call if isinstance(task, CallTask) else contender.answer
                try:
                    said = ask(task, samplings[mode], MOST)  # pyright: ignore[reportArgumentType]
                except Exception as error:  # noqa: BLE001 - a contender that raises has not answered
                    said = Said(repr(error), [], "error", 0, 0.0)
                key = {"who": who, "part": part, "kind": task.kind, "question": task.question, "mode": mode}
                out.write(json.dumps({**key, **judged(task, said), **said._asdict()}) + "\n")
                out.flush()
                print(f"\r{who} {part} {mode}: {count} of {len(todo)}   ", end="", file=sys.stderr, flush=True)
    finally:
        contender.close()
    print(file=sys.stderr)


def read(path: Path) -> list[Row]:
    """Returns the rows of a file of results; none if there is no such file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def printed(rows: Iterable[Row], *, kinds: bool) -> None:
    """Prints one line for each part, kind of sampling and contender; of texts and BFCL, or with `kinds` of all parts,
    one for each kind of task."""
    print("| part | sampling | | answers | complete | valid | closed | right | run-aways | tokens | processor s |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        mode = row["mode"].split()[0].replace("seed", "0.2 / 0.9").replace("default", "by default")
        names = [row["part"]] if row["part"] in ("schemas", "fresh", "calls") else []
        names += [f"{row['part']}: {row['kind']}"] if kinds or not names else []
        for name in names:
            groups.setdefault((name, mode, row["who"]), []).append(row)
    order = {part: place for place, part in enumerate(PARTS)}
    for (name, mode, who), some in sorted(groups.items(), key=lambda item: (order[item[0][0].split(":")[0]], item[0])):
        print(f"| {name} | {mode} | {who} | {len(some)} | {' | '.join(_figures(some))} |")


def _figures(rows: Sequence[Row]) -> list[str]:
    shares: list[str] = []
    for name in ("complete", "valid", "closed", "right"):
        counted = [row[name] for row in rows if row[name] is not None]
        shares.append(f"{sum(counted)} of {len(counted)}" if counted else "")
    tokens, seconds = (mean(row[name] for row in rows) for name in ("tokens", "seconds"))
    return [*shares, str(sum(row["runaway"] for row in rows)), f"{tokens:.0f}", f"{seconds:.2f}"]


def failures(rows: Iterable[Row]) -> None:
    """Prints each answer of this engine that is not complete and valid, with its end."""
    for row in rows:
        if row["who"] == "ours" and not row["valid"]:
            print(f"{row['part']} {row['kind']} [{row['mode']}] {row['ended']} {row['question']!r}")
            print(f"    {row['text'] or row['calls']!r}"[:400])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--server", type=Path, help="the program llama-server; without it this contender is left out")
    parser.add_argument("--bfcl", type=Path, help="the wheel of bfcl-eval; without it this part is left out")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--part", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--mode", nargs="*", choices=[*EQUAL, *OWN], help="instead of all kinds of sampling")
    parser.add_argument("--who", nargs="*", choices=["ours", "server", "llama"], default=["ours", "server", "llama"])
    parser.add_argument("--most", type=int, default=50, help="tasks of each kind")
    parser.add_argument("--examples", type=int, default=0, help="before each task of a base model, three at most")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--kinds", action="store_true", help="a line for each kind of schema")
    parser.add_argument("--failures", action="store_true")
    given = parser.parse_args()
    known = {tuple(row[name] for name in ("who", "part", "kind", "question", "mode")) for row in read(given.results)}
    contenders: dict[str, Callable[[], Contender]] = {
        "ours": lambda: Ours(given.model, given.threads, given.examples),
        "server": lambda: Server(given.server, given.model, given.threads),
        "llama": lambda: Llama(given.model, given.threads),
    }
    for who, made in contenders.items():
        if given.model and who in given.who and (who != "server" or given.server):
            asked(who, made, given, known)
    rows = read(given.results)
    if given.failures:
        failures(rows)
    else:
        printed(rows, kinds=given.kinds)


if __name__ == "__main__":
    main()
