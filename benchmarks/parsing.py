"""What parsing costs: microseconds per token, fed one by one, for every shape at 1 k, 10 k and 100 k tokens.

Flat is the promise: the last column, the cost per token at the longest over that at the shortest, stays near 1. Then
every family once. Times are of the processor, so that other processes do not count.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1]),
    str(Path(__file__).resolve().parents[1] / "tests/helpers"),
]

from cases.parsing_cases import TOOLS, Case, load  # noqa: E402

from engine.formats.parsing import Parser  # noqa: E402

_TOKEN = 4
"""Characters."""
_PROSE = "It is sunny in Paris today, so take a walk along the river and have lunch outside. "
_SHAPES = (
    *("qwen3", "llama-3", "mistral-small-3.2", "kimi-k2-thinking", "deepseek-v3.1", "qwen3-coder", "glm-4.5"),
    *("deepseek-v3.2", "kimi-k3", "minimax-m3", "lfm2", "olmo-3", "gemma-4", "gpt-oss"),
)


@dataclass(frozen=True)
class Row:
    """One measurement: a family, and a text of about so many characters."""

    title: str
    family: str
    text: Callable[[int], str]
    prefix: str = ""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="tokens")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--only", default="", help="rows whose title contains this")
    options = parser.parse_args()
    calls = [case for case in load() if case.name == "one call"]
    print(f"microseconds per token of {_TOKEN} characters, median of {options.repeat}")
    print(f"{'':44}" + "".join(f"{size:>10}" for size in options.sizes) + "     ratio")
    for row in [*(_argument_row(case) for case in calls if case.family in _SHAPES), *_prose_rows()]:
        if options.only in row.title:
            costs = [_cost(row, size, options.repeat) for size in options.sizes]
            figures = "".join(f"{cost:>10.2f}" for cost in costs)
            print(f"{row.title:44}{figures}{costs[-1] / costs[0]:>10.2f}", flush=True)
    if not options.only:
        _every_family([_argument_row(case) for case in calls], options.repeat)


def _cost(row: Row, size: int, repeat: int) -> float:
    """Microseconds of processor time per token."""
    text = row.text(size * _TOKEN)
    tokens = [text[at : at + _TOKEN] for at in range(0, len(text), _TOKEN)]
    Parser(row.family, row.prefix, tools=TOOLS)  # compiles the family's patterns
    spans: list[float] = []
    for _ in range(repeat):
        begun = time.process_time()
        parser = Parser(row.family, row.prefix, tools=TOOLS)
        for token in tokens:
            parser.feed(token)
        parser.close()
        spans.append(time.process_time() - begun)
    return statistics.median(spans) / len(tokens) * 1e6


def _filled(count: int, before: str, filling: str, after: str) -> str:
    """A text of at least so many characters: the filling, again and again, between the other two."""
    return before + filling * (max(0, count - len(before) - len(after)) // len(filling) + 1) + after


def _argument_row(case: Case) -> Row:
    """A long string argument."""
    before, after = case.output.split("Paris")
    title = f"argument: {case.family}"
    return Row(title, case.family, lambda count: _filled(count, before, _PROSE, after), case.prefix)


def _prose_rows() -> Iterator[Row]:
    yield Row("prose: qwen3", "qwen3", lambda count: _filled(count, "", _PROSE, ""))
    yield Row("reasoning: qwen3", "qwen3", lambda count: _filled(count, "<think>\n", _PROSE, "\n</think>\n\nYes."))
    yield Row("code: qwen3-coder", "qwen3-coder", lambda count: _filled(count, "", "if a <b and c<= d: x = [1]\n", ""))
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    yield Row("many calls: qwen3", "qwen3", lambda count: _filled(count, "", call, ""))
    tagged = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n"
    yield Row("many calls: qwen3-coder", "qwen3-coder", lambda count: _filled(count, "", tagged, ""))


def _every_family(rows: list[Row], repeat: int) -> None:
    """A long string argument in each family that has calls, 10,000 tokens."""
    costs = sorted((_cost(row, 10_000, repeat), row.family) for row in rows)
    middle = statistics.median(cost for cost, _ in costs)
    (least, quickest), (most, slowest) = costs[0], costs[-1]
    print(
        f"\n{len(costs)} families, 10,000 tokens of an argument: median {middle:.2f}, "
        f"least {least:.2f} ({quickest}), most {most:.2f} ({slowest})"
    )


if __name__ == "__main__":
    main()
