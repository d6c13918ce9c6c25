"""What constraints hold, and what they cost.

`matrix`: families x schemas x states of reasoning, the wishes in turn, by a model that knows nothing; counts what came
out whole, cut off, wrong. `turns`: the same of `--count` turns drawn at random, whose models draft calls in their
reasoning. `calls`: calls that templates render, under the grammars of their tools (LLAMA_CPP_TEMPLATES names
llama.cpp's templates). `weights MODEL.gguf`: the same of a model's random weights at temperature 1.5. `cost
MODEL.gguf`: a token under a mask beside a free one; sixteen streams, a forced call,
compile times. `stall MODEL.gguf`: the largest gap in a stream beside large schemas. All best with a model of a large
vocabulary, such as `benchmarks/models.py` writes of random weights.
"""

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests/helpers"), str(Path(__file__).resolve().parent)]

from cases.constrained import (  # noqa: E402
    STATES,
    THOUGHT,
    WISHES,
    State,
    Turn,
    callable_families,
    engine_of,
    options_of,
    reasons,
    wrong,
)
from cases.parsing_cases import find  # noqa: E402
from cases.template_calls import drawn, held, template_of, writers  # noqa: E402
from measuring import STREAMS, by_turns, report, seconds  # noqa: E402
from schemas import SCHEMAS  # noqa: E402

from engine import Completion, Engine  # noqa: E402
from engine.runtime.guidance.matcher import Compiler, masks  # noqa: E402
from engine.support.errors import EngineError, RequestError  # noqa: E402
from engine.types.answer_formats import JsonSchema, Regex  # noqa: E402
from engine.types.completion import Usage  # noqa: E402
from engine.types.tools import ToolChoice  # noqa: E402

Runs: TypeAlias = dict[str, Callable[[int], float]]
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"enum": ["Oslo", "Paris"]},
                "days": {"type": "integer", "minimum": 0, "maximum": 9},
            },
            "required": ["city", "days"],
        },
    },
}


def matrix(families: list[str], *, every_wish: bool) -> int:
    """Prints the counts, and every turn that is wrong; how many these are."""
    counts: Counter[str] = Counter()
    bad: list[str] = []
    for family in families:
        for number, schema in enumerate(SCHEMAS):
            for state in STATES:
                in_turn = WISHES[(number + STATES.index(state)) % len(WISHES)]
                for wish in WISHES if every_wish else (in_turn,):
                    counts[_outcome(Turn(family, state, wish, _object(schema), schema), bad)] += 1
        print(family, dict(counts), flush=True)
    print("\n".join(bad[:50]))
    return len(bad)


def turns(families: list[str], count: int) -> int:
    """Prints the counts of turns drawn at random, and every turn that is wrong; how many these are."""
    counts: Counter[str] = Counter()
    bad: list[str] = []
    for number in range(count):
        rng = random.Random(number)
        family, schema = families[number % len(families)], rng.choice(SCHEMAS)
        call = find(family, "one call").output.strip()
        thought = f"Perhaps {call[: rng.randrange(1, len(call) + 1)]} but no. "
        turn = Turn(family, rng.choice(STATES), rng.choice(WISHES), _object(schema), schema)
        counts[_outcome(turn, bad, thought)] += 1
    print(f"{count:,} turns, {len(families)} families:", dict(counts))
    print("\n".join(bad[:50]))
    return len(bad)


def calls(count: int) -> int:
    """Prints how many calls of how many templates are allowed, wake the grammar and are read back, and every other one;
    how many these are."""
    counts: Counter[str] = Counter()
    bad: list[str] = []
    paths = list(writers())
    choices: tuple[ToolChoice, ...] = ("auto", "required")
    for path in paths:
        for number in range(count):
            for choice in choices:
                why = held(path, drawn(random.Random(number)), choice)
                counts["held" if why is None else "wrong" if why else "not written"] += 1
                bad += [f"{path.stem} {number} {choice}: {why}"] if why else []
    families = {template_of(path).family.name for path in paths}
    print(f"{len(paths)} templates of {len(families)} families, {count} tools, each free and required:", dict(counts))
    print("\n".join(bad[:50]))
    return len(bad)


def _object(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema as parameters of a tool."""
    if schema.get("type") == "object" and "$ref" not in schema:
        return schema
    inner = {name: value for name, value in schema.items() if name != "$defs"}
    whole = {"type": "object", "properties": {"value": inner}, "required": ["value"]}
    return {**whole, "$defs": schema["$defs"]} if "$defs" in schema else whole


def _outcome(turn: Turn, bad: list[str], thought: str = THOUGHT) -> str:
    with engine_of(turn, thought) as llm:
        try:
            completion = llm.chat("Hi", **options_of(turn))
        except RequestError as error:
            if turn.state in ("off", "budget") and "reasoning" in str(error):
                return "no such state"
            bad.append(f"{turn.family} {turn.state} {turn.wish} {json.dumps(turn.schema)[:200]}: {error}")
            return "refused"
        except EngineError as error:
            bad.append(f"{turn.family} {turn.state} {turn.wish} {json.dumps(turn.schema)[:200]}: {error!r}")
            return "error"
    if completion.finish_reason == "length":
        return "length"
    said = wrong(turn, completion)
    if said is None and reasons(turn) and not completion.reasoning:
        said = f"{turn}: no reasoning"
    bad += [said] if said else []
    return "wrong" if said else "whole"


def _speed(llm: Engine, tokens: int, _: int, **options: Any) -> float:
    """Microseconds a token of one stream, the prompt not counted."""
    completion: Completion[Any] = cast("Any", llm).complete(
        "Once", max_tokens=tokens, ignore_eos=True, seed=1, **options
    )
    return completion.usage.decode_seconds / max(1, completion.usage.completion_tokens - 1) * 1e6


def costs(path: Path, rounds: int) -> None:
    """Prints a table; every figure is a median of `rounds` rounds, all contenders in each."""
    with Engine.load(path, n_ctx=1024, n_sequences=16, family="content-only", preflight=False, n_threads=1) as llm:
        _a_token(llm, rounds)
        _sixteen(llm, rounds)
        _compiling(llm)
    with Engine.load(path, n_ctx=1024, family="qwen3", preflight=False, n_threads=1) as llm:
        _a_call(llm, rounds)


def _a_token(llm: Engine, rounds: int) -> None:
    formats: dict[str, Regex | None] = {
        "free": None,
        "nearly all allowed": Regex(r"(?s:.{2000,})"),
        "few allowed": Regex(r"[0-9]{2000,}"),
    }
    draws: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0}, "top_k=40": {"temperature": 0.8, "top_k": 40}}
    for name, sampling in draws.items():
        runs = {kind: partial(_speed, llm, 64, response_format=wanted, **sampling) for kind, wanted in formats.items()}
        report(f"{name}, one stream", by_turns(runs, rounds), "free", "us a token")


def _sixteen(llm: Engine, rounds: int) -> None:
    def ask(wanted: Regex | None) -> float:
        options: Any = {"max_tokens": 48, "ignore_eos": True, "temperature": 0.8, "seed": 1, "response_format": wanted}

        def run() -> None:
            for stream in [llm.stream_complete(f"Once {number}", **options) for number in range(STREAMS)]:
                stream.result()

        return seconds(run)

    runs: Runs = {"free": lambda _: ask(None), "nearly all allowed": lambda _: ask(Regex(r"(?s:.{2000,})"))}
    report("sixteen streams", by_turns(runs, rounds), "free", "seconds")


def _compiling(llm: Engine) -> None:
    compiler = Compiler(cast("Any", llm).source.service.vocab)  # pyright: ignore[reportPrivateUsage]
    began = time.perf_counter()
    size = compiler.table.size
    print(f"the vocabulary's table, {size:,} tokens: {time.perf_counter() - began:.2f} s, once for a model")
    steps: list[float] = []
    for schema in SCHEMAS:
        matcher = compiler.compiled(json.dumps({"grammars": [{"json_schema": schema}]}))
        began = time.perf_counter()
        masks([matcher])
        steps.append((time.perf_counter() - began) * 1e6)
    print(f"a first mask: p50 {statistics.median(steps):.0f} us, largest {max(steps):.0f} us")


def _a_call(llm: Engine, rounds: int) -> None:
    forced: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    tokens = _usage(llm, **forced).completion_tokens
    runs: Runs = {
        "free": lambda _: _usage(llm, max_tokens=tokens, ignore_eos=True).decode_seconds,
        "forced": lambda _: _usage(llm, **forced).decode_seconds,
    }
    report(f"a forced call of {tokens} tokens, and as many free ones", by_turns(runs, rounds), "free", "seconds")


def _usage(llm: Engine, tools: Sequence[Any] = (), **options: Any) -> Usage:
    completion = llm.chat("Hi", tools, reasoning=False, temperature=0, **options)
    assert completion.usage
    return completion.usage


def weights(path: Path, count: int) -> int:
    """Turns of a model of random weights at temperature 1.5, sixteen at once; prints the counts and those that are
    wrong; how many these are."""
    counts: Counter[str] = Counter()
    bad: list[str] = []
    states: tuple[State, ...] = ("default", "on", "off")
    turns = [
        Turn("qwen3", states[number % 3], WISHES[number % len(WISHES)], _object(schema), schema)
        for number in range(count)
        for schema in [SCHEMAS[number % len(SCHEMAS)]]
    ]
    with Engine.load(path, n_ctx=4096, n_sequences=16, family="qwen3", preflight=False) as llm:
        for begin in range(0, count, 16):
            some = turns[begin : begin + 16]
            streams = [llm.stream(f"Turn {begin + place}", **_drawn(turn, begin)) for place, turn in enumerate(some)]
            for turn, stream in zip(some, streams, strict=True):
                counts[_judged(turn, stream.result(), bad)] += 1
            print(f"\r{sum(counts.values()):,} turns: {dict(counts)}", end="", file=sys.stderr, flush=True)
    print(f"\n{count:,} turns at temperature 1.5:", dict(counts))
    print("\n".join(bad[:50]))
    return len(bad)


def _drawn(turn: Turn, seed: int) -> dict[str, Any]:
    switch = {"on": True, "off": False}
    said = {"reasoning": switch[turn.state]} if turn.state in switch else {}
    own = {"max_tokens": 700, "seed": seed, "temperature": 1.5, "reasoning_budget": 20}
    return {**options_of(turn), **own, "top_k": 0, "top_p": 1.0, **said}


def _judged(turn: Turn, completion: Completion, bad: list[str]) -> str:
    if completion.finish_reason == "length":
        if turn.wish in ("required", "named") and not completion.tool_calls:
            bad.append(f"no call within max_tokens: {turn}")
        return "length"
    said = wrong(turn, completion)
    bad += [said] if said else []
    return "wrong" if said else "whole"


def stall(path: Path, rounds: int) -> None:
    """The largest time between two tokens of a stream on one thread, beside others whose schemas are hostile, and
    beside the same others without."""
    hostile = [
        JsonSchema({"type": "object", "properties": {f"p{round_}_{n}": {"type": "string"} for n in range(size)}})
        for round_, size in enumerate((1498, 1499, 1500, 3000))
    ]
    with Engine.load(path, n_ctx=2048, n_sequences=2, family="qwen3", preflight=False, n_threads=1) as llm:
        llm.chat("Hi", response_format=JsonSchema({"type": "object"}), max_tokens=5)  # the vocabulary's table is made
        runs: Runs = {
            "free neighbours": lambda _: _largest_gap(llm, [None] * len(hostile)),
            "hostile schemas": lambda _: _largest_gap(llm, hostile),
        }
        report("the largest gap", by_turns(runs, rounds), "free neighbours", "seconds")


def _largest_gap(llm: Engine, beside: Sequence[JsonSchema | None]) -> float:
    gaps: list[float] = []

    def read() -> None:
        last = time.perf_counter()
        for _ in llm.stream_complete("Once", max_tokens=400, ignore_eos=True, seed=1):
            gaps.append((now := time.perf_counter()) - last)
            last = now

    reader = threading.Thread(target=read)
    reader.start()
    for schema in beside:
        if reader.is_alive():
            extra: Any = {} if schema is None else {"response_format": schema}
            llm.chat("Hi", reasoning=False, max_tokens=12, seed=1, ignore_eos=schema is None, **extra)
    reader.join()
    return max(gaps[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["matrix", "turns", "calls", "cost", "weights", "stall"]
    parser.add_argument("part", choices=parts)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--families", nargs="*", default=None)
    parser.add_argument("--every-wish", action="store_true", help="not in turn; six times as long")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=1000, help="of `weights` and `turns`, and tools of `calls`")
    given = parser.parse_args()
    if given.part == "matrix":
        return min(1, matrix(given.families or callable_families(), every_wish=given.every_wish))
    if given.part == "turns":
        return min(1, turns(given.families or callable_families(), given.count))
    if given.part == "calls":
        return min(1, calls(given.count))
    if given.model is None:
        parser.error(f"{given.part} needs a model")
    if given.part == "weights":
        return min(1, weights(given.model, given.count))
    (costs if given.part == "cost" else stall)(given.model, given.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
