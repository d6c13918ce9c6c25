"""What parsing costs: microseconds per token, fed one by one, for every shape at 1 k, 10 k and 100 k tokens.

Flat is the promise: the last column, the cost per token at the longest over that at the shortest, stays near 1.
Beside it, in the same run: what long prose and many calls cost, inputs made to be expensive, every family once, and the
parsers of others as far as they are installed (`parsing_peers` says which and how). Times are of the processor, so that
other processes do not count.
"""

import argparse
import math
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1] / "support")]

import parsing_peers as peers  # noqa: E402
from parsing_cases import TOOLS, Case, load  # noqa: E402
from parsing_peers import cut, filled, timed  # noqa: E402

from engine.families import builtin_families  # noqa: E402
from engine.parsing import Parser  # noqa: E402

_PROSE = peers.PROSE
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
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="tokens")
    arguments.add_argument("--repeat", type=int, default=3)
    arguments.add_argument("--only", help="rows whose title contains this")
    given = arguments.parse_args()
    sizes: list[int] = given.sizes
    print(f"microseconds per token of {peers.TOKEN} characters, median of {given.repeat}")
    print(f"{'':44}" + "".join(f"{size:>10}" for size in sizes) + "     ratio")
    medians: list[float] = []
    for row in [*_argument_rows(), *_prose_rows(), *_salad_rows()]:
        if given.only and given.only not in row.title:
            continue
        costs = [_cost(row, size, given.repeat) for size in sizes]
        if row.title.startswith("argument"):
            medians.append(costs[-1])
        peers.show(row.title, costs)
    if medians:
        print(f"{'median of the families, longest':44}{statistics.median(medians):>10.2f}")
    if not given.only:
        _every_family(given.repeat)
        _large_feeds()
        peers.harmony(sizes, given.repeat)
        peers.sglang([size for size in sizes if size <= 10_000])
        peers.naive([size for size in sizes if size <= 10_000], given.repeat)
        _construction()


def _cost(row: Row, size: int, repeat: int) -> float:
    """Microseconds per token. Infinite where one run took longer than peers.BOUND; not a number where it raised."""
    tokens = cut(row.text(size * peers.TOKEN))
    blocks = [tokens[at : at + 500] for at in range(0, len(tokens), 500)]

    def parse() -> None:
        parser = Parser(row.family, row.prefix, tools=TOOLS)
        feed = parser.feed
        end = time.process_time() + peers.BOUND
        for block in blocks:
            for token in block:
                feed(token)
            if time.process_time() > end:
                raise TimeoutError
        parser.close()

    Parser(row.family, row.prefix, tools=TOOLS)  # compiles the family's patterns
    try:
        return timed(parse, repeat) / len(tokens) * 1e6
    except TimeoutError:
        return math.inf
    except Exception as error:  # noqa: BLE001 - a parser that raises is a finding, the other rows go on
        print(f"{row.title}: {type(error).__name__} at {size} tokens")
        return math.nan


def _argument_rows() -> Iterable[Row]:
    """A long string argument, a family of each shape."""
    return [_argument_row(case) for case in load() if case.family in _SHAPES and case.name == "one call"]


def _argument_row(case: Case) -> Row:
    before, after = case.output.split("Paris")
    return Row(f"argument: {case.family}", case.family, lambda count: filled(count, before, _PROSE, after), case.prefix)


def _every_family(repeat: int) -> None:
    """A long string argument in each family that has calls, 10,000 tokens."""
    rows = [_argument_row(case) for case in load() if case.name == "one call"]
    costs = sorted((_cost(row, 10_000, repeat), row.family) for row in rows)
    middle = statistics.median(cost for cost, _ in costs)
    (least, quickest), (most, slowest) = costs[0], costs[-1]
    print(
        f"\n{len(costs)} families, 10,000 tokens of an argument: median {middle:.2f}, "
        f"least {least:.2f} ({quickest}), most {most:.2f} ({slowest})"
    )


def _prose_rows() -> Iterable[Row]:
    yield Row("prose: qwen3", "qwen3", lambda count: filled(count, "", _PROSE, ""))
    yield Row("reasoning: qwen3", "qwen3", lambda count: filled(count, "<think>\n", _PROSE, "\n</think>\n\nYes."))
    yield Row("code: qwen3-coder", "qwen3-coder", lambda count: filled(count, "", "if a <b and c<= d: x = [1]\n", ""))
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    yield Row("many calls: qwen3", "qwen3", lambda count: filled(count, "", call, ""))
    tagged = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n"
    yield Row("many calls: qwen3-coder", "qwen3-coder", lambda count: filled(count, "", tagged, ""))


def _salad_rows() -> Iterable[Row]:
    """Inputs that a careless parser pays for twice."""
    value = "<function=everything>\n<parameter=a>\n{}\n</parameter>\n</function>\n</tool_call>"
    open_, close = value.split("{}")
    as_json = '<tool_call>\n{"name": "everything", "arguments": {"a": '
    dictionary = "<|tool_call>call:everything{a:"
    salad: dict[str, tuple[str, str, str, str]] = {
        "tagged array, not JSON before its end": ("qwen3-coder", open_ + "[", "12, ", "1]" + close),
        "tagged value of closing markers": ("qwen3-coder", open_, "</parameter> ", close),
        "tagged value, closers that could follow": ("qwen3-coder", open_, "</parameter>\n</function>", close),
        "tagged value of white space": ("qwen3-coder", open_ + "[1", "\n   ", "]" + close),
        "tagged name without an end": ("qwen3-coder", "<function=", "abcdefgh", ""),
        "white space in content": ("qwen3", "a", " \n ", "b"),
        "white space in reasoning": ("qwen3", "<think>a", " \n ", "b</think>"),
        "white space before the first text": ("qwen3", "", " \n ", "b"),
        "white space, then a stop's beginning": ("laguna-xs", "a", "\n</assistant>\n", "b"),
        "a marker's beginning again and again": ("qwen3", "", "<tool_cal", ""),
        "thousands of opening markers": ("qwen3", "", "<tool_call>", ""),
        "thousands of reasoning markers": ("qwen3", "", "<think>", ""),
        "thousands of pairs of markers": ("qwen3-coder", "", "<tool_call></tool_call>", ""),
        "a JSON number": ("qwen3", as_json, "1234", "}}\n</tool_call>"),
        "JSON brackets": ("qwen3", as_json, "[", ""),
        "JSON escapes": ("qwen3", as_json + '"', "\\u00e9\\n", '"}}\n</tool_call>'),
        "JSON raw newlines in a string": ("qwen3", as_json + '"', "\n\n", '"}}\n</tool_call>'),
        "JSON white space": ("qwen3", as_json, "  \n ", "1}}\n</tool_call>"),
        "JSON members before a bare name": ("llama-3", "{", '"id": "x", ', '"name": "ping"}'),
        "JSON without a name": ("qwen3", '<tool_call>\n{"arguments": {"s": "', "abcd", '"}}\n</tool_call>'),
        "a keyword without an end": ("lfm2", "<|tool_call_start|>[ping(", "abcd", ""),
        "white space before a keyword": ("lfm2", "<|tool_call_start|>[ping(a", "    ", "=1)]"),
        "Python numbers": ("lfm2", "<|tool_call_start|>[ping(a=", "1234", ")]"),
        "Python brackets": ("lfm2", "<|tool_call_start|>[ping(a=", "[", ""),
        "Python quotes": ("lfm2", '<|tool_call_start|>[ping(a="""', '"" ', '""")]'),
        "a dictionary's bare word": ("gemma-4", dictionary, "abcd", "}<tool_call|>"),
        "a dictionary's brackets": ("gemma-4", dictionary, "{a:", ""),
        "nested elements": ("minimax-m3", ']<]minimax[>[<invoke name="everything">', "]<]minimax[>[<o>", ""),
        "channel marks in a header": ("gpt-oss", "", "<|channel|>analysis", "<|message|>x"),
        "start marks": ("gpt-oss", "", "<|start|>assistant", "x"),
        "a stop again and again": ("functionary-3.1", "", "<|eot_id|>", ""),
        "a call marker before no tool's name": ("functionary-3.2", "", ">>>x\n", ""),
        "malformed, and no end": ("qwen3", '<tool_call>\n{"name": "ping", "arguments": {x', "abc ", ""),
    }
    for title, (family, before, filling, after) in salad.items():

        def text(count: int, before: str = before, filling: str = filling, after: str = after) -> str:
            return filled(count, before, filling, after)

        yield Row(title, family, text)


def _late(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError


def _large_feeds() -> None:
    signal.signal(signal.SIGPROF, _late)
    print("\nten megabytes in one feed, seconds")
    for row in [*_argument_rows(), *_prose_rows()]:
        text = row.text(10_000_000)
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, 2 * peers.BOUND)
        try:
            parser = Parser(row.family, row.prefix, tools=TOOLS)
            parser.feed(text)
            parser.close()
            print(f"{row.title:44}{time.process_time() - begun:>10.2f}", flush=True)
        except TimeoutError:
            print(f"{row.title:44}{'inf':>10}", flush=True)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _construction() -> None:
    """What making a parser costs, for each family the first time and then again."""
    first: list[float] = []
    again: list[float] = []
    for name in builtin_families().names():
        first.append(timed(lambda name=name: Parser(name, tools=TOOLS), 1) * 1e6)
        again.append(timed(lambda name=name: Parser(name, tools=TOOLS), 5) * 1e6)
    print(f"\nmaking a parser, microseconds: median {statistics.median(again):.0f}, slowest {max(again):.0f}")
    print(f"the first time for a family: median {statistics.median(first):.0f}, slowest {max(first):.0f}")


if __name__ == "__main__":
    main()
