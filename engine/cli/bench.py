"""`llama-engine bench`: a model's speed on this machine, in tokens per second."""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.cli.named import BUILTIN, add_model_option, add_set_option
from engine.cli.screen import Screen, columns
from engine.cli.settings import loading_settings
from engine.support.screens import screen_for

if TYPE_CHECKING:
    from engine.api.engine import Engine


def add_bench(commands: Any) -> None:
    """Add the command and its options to a parser's subcommands."""
    bench = commands.add_parser(
        "bench",
        help="measure this machine with a model: prefill, decode, several streams",
        description="Measure tokens per second: a long prompt read, one answer, several answers at once.",
    )
    bench.set_defaults(places=("model?",))
    bench.add_argument(
        "model", metavar="MODEL", nargs="?", help="a GGUF file, or owner/repo:Q4_K_M; without it the built-in model"
    )
    add_model_option(bench)
    for name, default, what in (
        ("--prompt", 512, "length of the long prompt in tokens"),
        ("--answer", 64, "length of an answer in tokens"),
        ("--streams", 8, "answers at once"),
        ("--rounds", 3, "rounds, whose median is shown"),
    ):
        bench.add_argument(name, metavar="N", type=_positive, default=default, help=f"{what} (default {default})")
    add_set_option(bench)
    bench.add_argument(
        "--gpu-layers", metavar="N", type=int, default=0, help="layers to offload; -1 for all (default 0)"
    )
    bench.add_argument("--json", action="store_true", help="print all rounds as one JSON object")


def bench(options: argparse.Namespace) -> int:
    """Measure, show the results and return the exit code. Raises what `Engine.load` raises."""
    from engine.api.engine import Engine

    progress = screen_for(sys.stderr) if sys.stderr.isatty() else None
    speeds: dict[str, list[float]] = {}
    with Engine.load(
        None if options.model == BUILTIN else options.model,
        n_ctx=options.prompt + options.answer + 64,
        n_sequences=options.streams,
        n_gpu_layers=options.gpu_layers,
        **loading_settings(options.given, turns=False),
    ) as llm:
        for number in range(options.rounds):
            if progress:
                progress.state(f"measuring, round {number + 1} of {options.rounds}")
            for name, speed in _round(llm, options, number):
                speeds.setdefault(name, []).append(speed)
        model = Path(llm.info.path).name
    if progress:
        progress.line(f"measured {options.rounds} round{'' if options.rounds == 1 else 's'}")
    screen = Screen(sys.stdout)
    if options.json:
        screen.line(json.dumps({"model": model, "tokens_per_second": speeds}, indent=2))
        return 0
    table = [(name, f"{statistics.median(each):>17,.1f}") for name, each in speeds.items()]
    for line in columns([("", "TOKENS PER SECOND"), *table]):
        screen.line(line)
    rounds = "one round" if options.rounds == 1 else f"the median of {options.rounds} rounds"
    screen.prose(f"{model}: {rounds}.", "dim")
    return 0


def _round(llm: "Engine", options: argparse.Namespace, number: int) -> list[tuple[str, float]]:
    """Returns the names and speeds of one round's measurements, each made after one that warms up."""
    tokens = llm.tokenize("The quick brown fox jumps over the lazy dog, and 127 times 46 is 5842; so it goes on.")
    speeds: list[tuple[str, float]] = []
    for name, streams, prompt, steps in (
        (f"prefill, {options.prompt} tokens", 1, options.prompt, 1),
        ("decode, 1 stream", 1, 8, options.answer),
        (f"decode, {options.streams} streams", options.streams, 8, options.answer),
    ):
        for attempt in ("to warm up", "that counts"):
            draw = random.Random(f"{number} {name} {attempt}")  # no prefix was seen before
            seconds = _seconds(llm, [draw.choices(tokens, k=prompt) for _ in range(streams)], steps)
        speeds.append((name, streams * (prompt if steps == 1 else steps) / seconds))
    return speeds


def _seconds(llm: "Engine", prompts: Sequence[Sequence[int]], steps: int) -> float:
    began = time.perf_counter()
    streams = [llm.stream_complete(each, max_tokens=steps, ignore_eos=True, temperature=0) for each in prompts]
    for stream in streams:
        stream.result()
    return time.perf_counter() - began


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() and len(text) < 10 else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return number
