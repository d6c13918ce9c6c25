"""What constraints hold, and what they cost.

`matrix`: families x schemas x states of reasoning, the wishes in turn, by a model that knows nothing; counts what came
out whole, cut off, wrong. `turns`: the same of `--count` turns drawn at random, whose models draft calls in their
reasoning. `calls`: calls that templates render, under the grammars of their tools (LLAMA_CPP_TEMPLATES names
llama.cpp's templates). `weights MODEL.gguf`: the same of a model's random weights at temperature 1.5. `cost
MODEL.gguf`: a token under a mask beside a free one, and llama.cpp's grammar sampler; sixteen streams, a forced call,
compile times. `stall MODEL.gguf`: the largest gap in a stream beside large schemas. `large [MODEL.gguf]`: forty
constraints that are made to do harm and forty that are only large, beside a stream: what became of each, the slowest,
and the largest gap. `compile [MODEL.gguf]`: a constraint made ready, over 300 schemas. All best with a model of a large
vocabulary, such as `tests/bench/models.py` writes of random weights.
"""

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "support"), str(Path(__file__).resolve().parent)]

from constrained import (  # noqa: E402
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
from gbnf import gbnf_microseconds  # noqa: E402
from large_constraints import honest, hostile, public_shaped  # noqa: E402
from parsing_cases import find  # noqa: E402
from schemas import SCHEMAS  # noqa: E402
from template_calls import drawn, held, template_of, writers  # noqa: E402

from engine import Completion, Engine  # noqa: E402
from engine._data import builtin_model  # noqa: E402
from engine.constraint.matcher import Compiler, masks  # noqa: E402
from engine.errors import EngineError, RequestError  # noqa: E402
from engine.types import JsonSchema, Regex, ToolChoice  # noqa: E402

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


def _speed(llm: Engine, tokens: int, **options: Any) -> float:
    """Microseconds a token of one stream, the prompt not counted."""
    completion: Completion = llm.complete("Once", max_tokens=tokens, ignore_eos=True, seed=1, **options)
    assert completion.usage is not None
    return completion.usage.decode_seconds / max(1, completion.usage.completion_tokens - 1) * 1e6


def costs(path: Path, rounds: int) -> None:
    """Prints a table; every figure is a median of `rounds` rounds, all contenders in each."""
    with Engine.load(path, n_ctx=1024, n_sequences=16, family="content-only", preflight=False, n_threads=1) as llm:
        _a_token(llm, rounds)
        _sixteen(llm, rounds)
        _compiling(llm)
    with Engine.load(path, n_ctx=1024, family="qwen3", preflight=False, n_threads=1) as llm:
        _a_call(llm, rounds)
    print(f"llama.cpp's own grammar sampler, one token: {gbnf_microseconds(path, SCHEMAS[0], 60):,.0f} us")


def _a_token(llm: Engine, rounds: int) -> None:
    formats = {"free": None, "nearly all allowed": Regex(r"(?s:.{2000,})"), "few allowed": Regex(r"[0-9]{2000,}")}
    draws = {"greedy": {"temperature": 0}, "top_k=40": {"temperature": 0.8, "top_k": 40}}
    for name, sampling in draws.items():
        times: dict[str, list[float]] = {kind: [] for kind in formats}
        for _ in range(rounds):
            for kind, wanted in formats.items():
                extra = {} if wanted is None else {"response_format": wanted}
                times[kind].append(_speed(llm, 64, **sampling, **extra))
        free = statistics.median(times["free"])
        for kind, found in times.items():
            added = statistics.median(each - base for each, base in zip(found, times["free"], strict=True))
            print(f"{name:>10} {kind:<20} {statistics.median(found):8.0f} us a token, {added:+7.0f} ({free:.0f} free)")


def _sixteen(llm: Engine, rounds: int) -> None:
    ratios: list[float] = []
    for _ in range(rounds):
        spans: list[float] = []
        for extra in ({}, {"response_format": Regex(r"(?s:.{2000,})")}):
            began = time.perf_counter()
            options: Any = {"max_tokens": 48, "ignore_eos": True, "temperature": 0.8, "seed": 1, **extra}
            streams = [llm.stream_complete(f"Once {number}", **options) for number in range(16)]
            for stream in streams:
                stream.result()
            spans.append(time.perf_counter() - began)
        ratios.append(spans[0] / spans[1])
    print(f"sixteen streams constrained against free: {statistics.median(ratios):.2f}")


def _compiling(llm: Engine) -> None:
    compiler = Compiler(llm._service.vocab)  # pyright: ignore[reportPrivateUsage]
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


def compiling(path: Path) -> None:
    """Prints how long it takes to make constraints ready: schemas checked, tried, compiled."""
    spans: list[float] = []
    with Engine.load(path, n_ctx=512, family="qwen3", preflight=False) as llm:
        llm.chat("Hi", response_format=Regex("a"), max_tokens=1)  # the vocabulary's table is made, the child started
        for seed in range(300):
            wanted = JsonSchema(public_shaped(seed))
            began = time.perf_counter()
            llm.stream("Hi", response_format=wanted, max_tokens=1).cancel()
            spans.append((time.perf_counter() - began) * 1e3)
    spans.sort()
    print(f"300 schemas made ready: p50 {spans[150]:.1f} ms, p99 {spans[297]:.1f} ms, largest {spans[-1]:.1f} ms")


def large(path: Path) -> int:
    """Prints what became of each kind, and the largest gap in a stream beside them; how many honest were refused or
    hostile late."""
    wrong = 0
    with Engine.load(path, n_ctx=2048, n_sequences=2, family="qwen3", preflight=False) as llm:
        llm.chat("Hi", response_format=Regex("a"), max_tokens=1)
        gaps, over = [0.0], threading.Event()
        reader = threading.Thread(target=_endless, args=(llm, gaps, over))
        reader.start()
        for kind, every in (("hostile", hostile()), ("honest", honest())):
            ends: Counter[str] = Counter()
            spans: dict[str, float] = {}
            stalls: dict[str, float] = {}
            for name, wanted in every.items():
                gaps[:] = [0.0]
                began = time.perf_counter()
                end = _ended(llm, wanted, DEADLINES[kind])
                spans[name] = time.perf_counter() - began
                stalls[name] = max(gaps)
                ends[end.partition(":")[0]] += 1
                if spans[name] > DEADLINES[kind] + 1 or (kind == "honest" and end.startswith("refused")):
                    wrong += 1
                    print(f"  {kind}, {name}: {spans[name]:.1f} s, {end[:200]}")
            print(f"{kind}: {dict(ends)}")
            for what, found in (("slowest", spans), ("largest gaps", stalls)):
                worst = sorted(found, key=lambda name: -found[name])[:4]
                print(f"  {what}:", ", ".join(f"{found[name]:.2f} s ({name})" for name in worst), flush=True)
        over.set()
        reader.join()
    return wrong


DEADLINES = {"hostile": 20.0, "honest": 120.0}
"""In seconds; the honest get time for busy machines."""


def _ended(llm: Engine, wanted: object, deadline: float) -> str:
    try:
        completion = llm.chat("Hi", response_format=wanted, reasoning=False, max_tokens=60, seed=1, deadline=deadline)
    except RequestError as error:
        return f"refused: {error}"
    return completion.finish_reason


def _endless(llm: Engine, gaps: list[float], over: threading.Event) -> None:
    while not over.is_set():
        last = time.perf_counter()
        with llm.stream_complete("Once", max_tokens=400, ignore_eos=True, seed=1) as stream:
            for _ in stream:
                gaps.append((now := time.perf_counter()) - last)
                last = now
                if over.is_set():
                    break


def _a_call(llm: Engine, rounds: int) -> None:
    forced: list[float] = []
    tokens = 0
    for _ in range(rounds):
        called = llm.chat(
            "Hi", [TOOL], tool_choice="required", parallel_tool_calls=False, reasoning=False, temperature=0
        )
        assert called.usage is not None
        tokens = called.usage.completion_tokens
        free = llm.chat("Hi", reasoning=False, temperature=0, max_tokens=tokens, ignore_eos=True)
        assert free.usage is not None
        forced.append(called.usage.decode_seconds / free.usage.decode_seconds)
    print(f"a forced call of {tokens} tokens against as many free ones: {statistics.median(forced):.2f} of the time")


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
    found: dict[str, list[float]] = {"free neighbours": [], "hostile schemas": []}
    hostile = [
        JsonSchema({"type": "object", "properties": {f"p{round_}_{n}": {"type": "string"} for n in range(size)}})
        for round_, size in enumerate((1498, 1499, 1500, 3000))
    ]
    with Engine.load(path, n_ctx=2048, n_sequences=2, family="qwen3", preflight=False, n_threads=1) as llm:
        llm.chat("Hi", response_format=JsonSchema({"type": "object"}), max_tokens=5)  # the vocabulary's table is made
        for _ in range(rounds):
            for kind, gaps in found.items():
                gaps.append(_largest_gap(llm, hostile if kind == "hostile schemas" else [None] * len(hostile)))
    for kind, gaps in found.items():
        print(f"{kind}: largest gap {statistics.median(gaps) * 1e3:.0f} ms (median of {rounds})")
    added = statistics.median(b - a for a, b in zip(*found.values(), strict=True))
    print(f"added: {added * 1e3:+.0f} ms")


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
    parts = ["matrix", "turns", "calls", "cost", "weights", "stall", "large", "compile"]
    parser.add_argument("part", choices=parts)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--families", nargs="*", default=None)
    parser.add_argument("--every-wish", action="store_true", help="not in turn; six times as long")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=1000, help="of `weights` and `turns`, and tools of `calls`")
    given = parser.parse_args()
    if given.part == "matrix":
        return min(1, matrix(given.families or callable_families(), every_wish=given.every_wish))
    if given.part == "large":
        return min(1, large(given.model or builtin_model()))
    if given.part == "compile":
        compiling(given.model or builtin_model())
        return 0
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
