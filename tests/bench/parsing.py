"""What parsing costs: microseconds per token, fed one by one, for every shape at 1 k, 10 k and 100 k tokens.

Flat is the promise: the last column, the cost per token at the longest over that at the shortest, stays near 1.
Beside it, in the same run: what long prose and many calls cost, inputs made to be expensive, `openai-harmony`'s parser
where it is installed and has its vocabulary, and the naive way (parse the whole text again for each token) as a
baseline. Times are of the processor, so that other processes do not count.
"""

import argparse
import importlib
import math
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from parsing_cases import TOOLS, load  # noqa: E402

from engine.families import builtin_families  # noqa: E402
from engine.parsing import Parser  # noqa: E402

TOKEN = 4
BOUND = 20.0
_PROSE = "The quick brown fox, having seen 12 dogs, jumps over the lazy one; then it rests. "
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
    print(f"microseconds per token of {TOKEN} characters, median of {given.repeat}")
    print(f"{'':44}" + "".join(f"{size:>10}" for size in sizes) + "     ratio")
    medians: list[float] = []
    for row in [*_argument_rows(), *_prose_rows(), *_salad_rows()]:
        if given.only and given.only not in row.title:
            continue
        costs = [_cost(row, size, given.repeat) for size in sizes]
        if row.title.startswith("argument"):
            medians.append(costs[-1])
        _print(row.title, costs)
    if medians:
        print(f"{'median of the families, longest':44}{statistics.median(medians):>10.2f}")
    if not given.only:
        _large_feeds()
        _naive(sizes, given.repeat)
        _harmony(sizes, given.repeat)
        _construction()


def _print(title: str, costs: Sequence[float]) -> None:
    print(f"{title:44}" + "".join(f"{cost:>10.2f}" for cost in costs) + f"{costs[-1] / costs[0]:>10.2f}", flush=True)


def _tokens(text: str) -> list[str]:
    return [text[at : at + TOKEN] for at in range(0, len(text), TOKEN)]


def _timed(work: Callable[[], object], repeat: int) -> float:
    """The median of the seconds of processor time that it takes: other processes do not count."""
    seconds: list[float] = []
    for _ in range(repeat):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return statistics.median(seconds)


def _cost(row: Row, size: int, repeat: int) -> float:
    """Microseconds per token. Infinite where one run took longer than BOUND; not a number where it raised."""
    tokens = _tokens(row.text(size * TOKEN))
    blocks = [tokens[at : at + 500] for at in range(0, len(tokens), 500)]

    def parse() -> None:
        parser = Parser(row.family, row.prefix, tools=TOOLS)
        feed = parser.feed
        end = time.process_time() + BOUND
        for block in blocks:
            for token in block:
                feed(token)
            if time.process_time() > end:
                raise TimeoutError
        parser.close()

    Parser(row.family, row.prefix, tools=TOOLS)  # compiles the family's patterns
    try:
        return _timed(parse, repeat) / len(tokens) * 1e6
    except TimeoutError:
        return math.inf
    except Exception as error:  # noqa: BLE001 - a parser that raises is a finding, the other rows go on
        print(f"{row.title}: {type(error).__name__} at {size} tokens")
        return math.nan


def _filled(count: int, before: str, filling: str, after: str) -> str:
    filled = filling * (max(0, count - len(before) - len(after)) // len(filling) + 1)
    return before + filled + after


def _argument_rows() -> Iterable[Row]:
    """A long string argument, a family of each shape."""
    for case in load():
        if case.family in _SHAPES and case.name == "one call":
            before, after = case.output.split("Paris")

            def text(count: int, before: str = before, after: str = after) -> str:
                return _filled(count, before, _PROSE, after)

            yield Row(f"argument: {case.family}", case.family, text, case.prefix)


def _prose_rows() -> Iterable[Row]:
    yield Row("prose: qwen3", "qwen3", lambda count: _filled(count, "", _PROSE, ""))
    yield Row("reasoning: qwen3", "qwen3", lambda count: _filled(count, "<think>\n", _PROSE, "\n</think>\n\nYes."))
    yield Row("code: qwen3-coder", "qwen3-coder", lambda count: _filled(count, "", "if a <b and c<= d: x = [1]\n", ""))
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    yield Row("many calls: qwen3", "qwen3", lambda count: _filled(count, "", call, ""))
    tagged = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>\n"
    yield Row("many calls: qwen3-coder", "qwen3-coder", lambda count: _filled(count, "", tagged, ""))


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
            return _filled(count, before, filling, after)

        yield Row(title, family, text)


def _late(signum: int, frame: FrameType | None) -> None:
    raise TimeoutError


def _large_feeds() -> None:
    signal.signal(signal.SIGPROF, _late)
    print("\nten megabytes in one feed, seconds")
    for row in [*_argument_rows(), *_prose_rows()]:
        text = row.text(10_000_000)
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, 2 * BOUND)
        try:
            parser = Parser(row.family, row.prefix, tools=TOOLS)
            parser.feed(text)
            parser.close()
            print(f"{row.title:44}{time.process_time() - begun:>10.2f}", flush=True)
        except TimeoutError:
            print(f"{row.title:44}{'inf':>10}", flush=True)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)


def _installed(module: str) -> Any:
    """A peer's module, which need not be there."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def _naive(sizes: Sequence[int], repeat: int) -> None:
    """The baseline: for each token the whole text is parsed again (up to 10,000 tokens), as a partial JSON."""
    peer = _installed("partial_json_parser")
    if peer is None:
        print("\npartial-json-parser: not installed, so there is no baseline")
        return
    costs: list[float] = []
    for size in [size for size in sizes if size <= 10_000]:
        tokens = _tokens(_filled(size * TOKEN, '{"name": "get_weather", "arguments": {"city": "', _PROSE, '"}}'))

        def parse(tokens: Sequence[str] = tokens) -> None:
            text = ""
            for token in tokens:
                text += token
                peer.loads(text)

        costs.append(_timed(parse, 1 if size > 1_000 else repeat) / len(tokens) * 1e6)
    print()
    _print("naive: partial-json-parser, all again", costs)


def _harmony(sizes: Sequence[int], repeat: int) -> None:
    """The makers' own parser of gpt-oss's format; it is fed token numbers, not text, so its tokens are its own."""
    harmony = _installed("openai_harmony")
    if harmony is None:
        print("openai-harmony: not installed")
        return
    try:
        encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
    except harmony.HarmonyError as error:
        print(f"openai-harmony: skipped, it needs its vocabulary (o200k_harmony) from the network: {error}")
        return
    for title, before, after in (
        ("prose", "<|channel|>final<|message|>", "<|return|>"),
        ("argument", '<|channel|>commentary to=functions.f<|message|>{"city": "', '"}<|call|>'),
    ):
        costs: list[float] = []
        ours: list[float] = []
        for size in sizes:
            text = _filled(size * TOKEN, before, _PROSE, after)
            numbers = encoding.encode(text, allowed_special="all")
            pieces = [encoding.decode([number]) for number in numbers]

            def theirs(numbers: Sequence[int] = numbers) -> None:
                parser = harmony.StreamableParser(encoding, role=harmony.Role.ASSISTANT)
                for number in numbers:
                    parser.process(number)
                    _ = parser.last_content_delta

            def here(pieces: Sequence[str] = pieces) -> None:
                parser = Parser("gpt-oss", "<|start|>assistant", tools=TOOLS)
                for piece in pieces:
                    parser.feed(piece)
                parser.close()

            costs.append(_timed(theirs, repeat) / len(numbers) * 1e6)
            ours.append(_timed(here, repeat) / len(numbers) * 1e6)
        _print(f"openai-harmony, {title} (its own tokens)", costs)
        _print(f"the same tokens here, {title}", ours)


def _construction() -> None:
    """What making a parser costs, for each family the first time and then again."""
    first: list[float] = []
    again: list[float] = []
    for name in builtin_families().names():
        first.append(_timed(lambda name=name: Parser(name, tools=TOOLS), 1) * 1e6)
        again.append(_timed(lambda name=name: Parser(name, tools=TOOLS), 5) * 1e6)
    print(f"\nmaking a parser, microseconds: median {statistics.median(again):.0f}, slowest {max(again):.0f}")
    print(f"the first time for a family: median {statistics.median(first):.0f}, slowest {max(first):.0f}")


if __name__ == "__main__":
    main()
