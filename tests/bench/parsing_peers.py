"""Other parsers of models' output, measured beside ours on the same text: part of `parsing.py`'s run.

Each is skipped by name where it is not installed:

- `openai-harmony` (gpt-oss only; compiled). It fetches its vocabulary from the network, or reads it from the folder
  that TIKTOKEN_ENCODINGS_BASE names: `o200k_base.tiktoken`, a line a rank, "base64 rank". The npm package `tiktoken`
  carries the same ranks (encoders/o200k_base.json), from which the file can be made; openai-harmony checks its SHA-256.
- `sglang`: the parsers of a server, one class a family. They need neither its runtime nor torch:
  `pip install --no-deps sglang` and, without their dependencies, what the import then asks for (openai, numpy, orjson,
  partial-json-parser, requests, aiohttp, tqdm, pybase64, ipython).
- `pydantic_core` and `partial-json-parser`: the naive way, all that came is parsed again for each token.
"""

import importlib
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from parsing_cases import TOOLS, Case, load
from pydantic_core import from_json

from engine.events import Event, fold
from engine.parsing import Parser

TOKEN = 4
BOUND = 20.0
PROSE = "The quick brown fox, having seen 12 dogs, jumps over the lazy one; then it rests. "
_SGLANG = {
    "qwen3": "qwen25",
    "llama-3": "llama3",
    "mistral-nemo": "mistral",
    "deepseek-v3.1": "deepseekv31",
    "kimi-k2": "kimi_k2",
    "qwen3-coder": "qwen3_coder",
    "glm-4.5": "glm45",
    "minimax-m2": "minimax-m2",
    "step-3": "step3",
    "llama-4": "pythonic",
}


def cut(text: str) -> list[str]:
    """The text in tokens of TOKEN characters."""
    return [text[at : at + TOKEN] for at in range(0, len(text), TOKEN)]


def filled(count: int, before: str, filling: str, after: str) -> str:
    """A text of at least so many characters: the filling, again and again, between the other two."""
    return before + filling * (max(0, count - len(before) - len(after)) // len(filling) + 1) + after


def timed(work: Callable[[], object], repeat: int) -> float:
    """The median of the seconds of processor time that it takes: other processes do not count."""
    seconds: list[float] = []
    for _ in range(repeat):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return statistics.median(seconds)


def show(title: str, costs: Sequence[float]) -> None:
    """A line of the table."""
    figures = "".join(f"{cost:>10.2f}" for cost in costs)
    print(f"{title:44}{figures}{costs[-1] / costs[0]:>10.2f}", flush=True)


def harmony(sizes: Sequence[int], repeat: int) -> None:
    """The makers' own parser of gpt-oss's format; it is fed token numbers, not text, so its tokens are its own."""
    peer = _installed("openai_harmony")
    if peer is None:
        print("\nopenai-harmony: not installed, skipped")
        return
    try:
        encoding = peer.load_harmony_encoding(peer.HarmonyEncodingName.HARMONY_GPT_OSS)
    except peer.HarmonyError as error:
        print(f"\nopenai-harmony: skipped, it lacks its vocabulary (set TIKTOKEN_ENCODINGS_BASE): {error}")
        return
    print()
    _ours("gpt-oss", "<|start|>assistant", [])  # compiles the family's patterns
    for title, before, after in (
        ("prose", "<|channel|>final<|message|>", "<|return|>"),
        ("argument", '<|channel|>commentary to=functions.f<|message|>{"city": "', '"}<|call|>'),
    ):
        costs: list[float] = []
        ours: list[float] = []
        for size in sizes:
            numbers = encoding.encode(filled(size * TOKEN, before, PROSE, after), allowed_special="all")
            pieces = [encoding.decode([number]) for number in numbers]

            def theirs(numbers: Sequence[int] = numbers) -> None:
                parser = peer.StreamableParser(encoding, role=peer.Role.ASSISTANT)
                for number in numbers:
                    parser.process(number)
                    _ = parser.last_content_delta

            costs.append(timed(theirs, repeat) / len(numbers) * 1e6)
            ours.append(timed(lambda pieces=pieces: _ours("gpt-oss", "<|start|>assistant", pieces), repeat))
            ours[-1] *= 1e6 / len(numbers)
        show(f"openai-harmony, {title} (its own tokens)", costs)
        show(f"the same tokens here, {title}", ours)
        print(f"{'here / openai-harmony':44}" + "".join(f"{a / b:>10.2f}" for a, b in zip(ours, costs, strict=True)))


def sglang(sizes: Sequence[int]) -> None:
    """A server's parsers: one call with a long string argument.

    Marked are those from which another argument, or none, came: fed so, what they expect of pieces may not be met, and
    the cost is that of what they did.
    """
    peer = _installed("sglang.srt.function_call.function_call_parser")
    if peer is None:
        print("\nsglang: not installed, skipped")
        return
    protocol = importlib.import_module("sglang.srt.entrypoints.openai.protocol")
    tools = [
        protocol.Tool(type="function", function={"name": tool.name, "parameters": dict(tool.parameters)})
        for tool in TOOLS
    ]
    print(f"\n{'one call with a long argument: sglang, here':44}" + "".join(f"{size:>10}" for size in sizes))
    cases = {case.family: case for case in load() if case.name == "one call"}
    for family, theirs in _SGLANG.items():
        pairs = [_pair(lambda theirs=theirs: peer.FunctionCallParser(tools, theirs), cases[family], n) for n in sizes]
        right = all(pair.right for pair in pairs)
        show(f"sglang {theirs}{'' if right else ' (other arguments)'}", [pair.theirs for pair in pairs])
        show(f"{family} here", [pair.ours for pair in pairs])


class _Pair(NamedTuple):
    """Microseconds per token of one text (infinite: over BOUND seconds), and whether the peer found the argument."""

    theirs: float
    ours: float
    right: bool


def _pair(make: Callable[[], Any], case: Case, size: int) -> _Pair:
    before, after = case.output.split("Paris")
    text = filled(size * TOKEN, before, PROSE, after)
    value = text.removeprefix(before).removesuffix(after)
    # Servers see a marker as one token, so what stands around the value comes whole.
    tokens = [before, *cut(value), after]
    _ours(case.family, case.prefix, tokens[:1])  # compiles the family's patterns
    begun = time.process_time()
    fragments = _theirs(make(), tokens)
    between = time.process_time()
    events = _ours(case.family, case.prefix, tokens)
    ended = time.process_time()
    (call,) = fold(events).tool_calls
    assert json.loads(call.arguments) == {"city": value}
    each = 1e6 / len(tokens)
    cost = math.inf if fragments is None else (between - begun) * each
    return _Pair(cost, (ended - between) * each, fragments is None or _is(fragments, value))


def _theirs(parser: Any, tokens: Sequence[str]) -> list[str] | None:
    """The fragments of arguments that come out; None where that takes longer than BOUND."""
    fragments: list[str] = []
    end = time.process_time() + BOUND
    for token in tokens:
        _, items = parser.parse_stream_chunk(token)
        fragments.extend(item.parameters for item in items)
        if time.process_time() > end:
            return None
    return fragments


def _is(fragments: Sequence[str], value: str) -> bool:
    try:
        return json.loads("".join(fragments)) == {"city": value}
    except ValueError:
        return False


def _ours(family: str, prefix: str, tokens: Sequence[str]) -> list[Event]:
    parser = Parser(family, prefix, tools=TOOLS)
    events: list[Event] = []
    for token in tokens:
        events += parser.feed(token)
    return events + parser.close()


def naive(sizes: Sequence[int], repeat: int) -> None:
    """The baseline: for each token the whole text is parsed again as a partial JSON."""
    ways: list[tuple[str, Callable[[str], object]]] = [("pydantic_core", partial(from_json, allow_partial=True))]
    peer = _installed("partial_json_parser")
    if peer is not None:
        ways.append(("partial-json-parser", peer.loads))
    print()
    for title, parse in ways:
        costs: list[float] = []
        for size in sizes:
            tokens = cut(filled(size * TOKEN, '{"name": "get_weather", "arguments": {"city": "', PROSE, '"}}'))
            work = partial(_all_again, parse, tokens)
            costs.append(timed(work, 1 if size > 1_000 else repeat) / len(tokens) * 1e6)
        show(f"naive: {title}, all again", costs)
    if peer is None:
        print("partial-json-parser: not installed, skipped")


def _all_again(parse: Callable[[str], object], tokens: Sequence[str]) -> None:
    text = ""
    for token in tokens:
        text += token
        parse(text)


def _installed(module: str) -> Any:
    """A peer's module, which need not be there."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
