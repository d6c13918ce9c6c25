"""What grows with a stream's length: the parts `deep`, `long` and `scripted` of `runtime.py`.

What is timed is a turn of the engine's thread (a step, its replies sent off) less decoding and drawing: Python's part of
a token.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Any

from bare import NUCLEUS
from measuring import Setup, ask, watched, words

_BURST = 20
"""Tokens an answer of `deep`."""
_TURNS = 8
"""Of both lengths, in a round."""


def deep(setup: Setup) -> None:
    """Answers behind a short prompt and behind one of 16,000 tokens, in turns, each prompt in a buffer of its own."""
    lengths = (100, 16_000)
    taken: dict[int, list[float]] = {length: [] for length in lengths}
    inside: dict[int, list[float]] = {length: [] for length in lengths}
    with setup.engine(n_ctx=33_000, sequences=2, unified=False) as llm:
        prompts = {length: llm.tokenize(words(length, length))[:length] for length in lengths}
        for turn in range(_TURNS * setup.rounds + 1):
            for length in lengths if turn % 2 else reversed(lengths):
                with watched() as (step, draw, decode):
                    llm.complete(prompts[length], max_tokens=_BURST, ignore_eos=True, seed=turn, **NUCLEUS.options)
                if turn:  # the first reads the prompts
                    # The first step of an answer begins it, the last one ends it.
                    taken[length].append(statistics.median(_costs(step.spans, draw.spans, decode.spans)[1:-1]))
                    inside[length].append(statistics.median(decode.spans[1:]))
    print("\nour layer for one stream, microseconds a token, behind a prompt of")
    for length in lengths:
        cost, took = 1e6 * statistics.median(taken[length]), 1e3 * statistics.median(inside[length])
        print(f"  {length:6} tokens: {cost:.1f}; a decode takes {took:.1f} ms", flush=True)
    ratios = [later / sooner for sooner, later in zip(*taken.values(), strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    print(f"  ratio {middle:.2f}, quartiles of {len(ratios)} turns {low:.2f} to {high:.2f}")


def long(setup: Setup) -> None:
    """One stream of 32,000 tokens: our layer's cost a token at its beginning and at its end."""
    with setup.engine(n_ctx=33_000) as llm, watched() as (step, draw, decode):
        made = ask(llm, "hello", 32_000, NUCLEUS, ignore_eos=True)
    _first_and_last("one stream", _costs(step.spans, draw.spans, decode.spans)[-made:])


def scripted(setup: Setup) -> None:
    """The same length over a script in place of llama.cpp, whose decodes leave the processor's caches alone; then with
    so much memory read in each of them."""
    _first_and_last("over a script", _scripted_steps(32_000))
    for size in (0, 4, 16, 64):
        cost = _scripted_steps(1000, size << 20)
        print(f"  {size:3} MiB read in each decode: {1e6 * statistics.median(cost[1:-1]):.1f} us a token", flush=True)


def _costs(steps: Sequence[float], draws: Sequence[float], decodes: Sequence[float]) -> list[float]:
    """Seconds of the last steps less their draw and their decode: in one stream every token has one of each."""
    count = min(len(steps), len(draws), len(decodes))
    return [
        step - draw - decode
        for step, draw, decode in zip(steps[-count:], draws[-count:], decodes[-count:], strict=True)
    ]


def _first_and_last(title: str, costs: Sequence[float]) -> None:
    tenth = len(costs) // 10
    first, last = (1e6 * statistics.median(part) for part in (costs[1:tenth], costs[-tenth:-1]))
    print(f"\n{len(costs)} tokens, {title}: {first:.1f} us a token in the first tenth, {last:.1f} in the last")
    print(f"  ratio {last / first:.2f}", flush=True)


def _scripted_steps(length: int, read: int = 0) -> list[float]:
    """Seconds of each step outside a decode that reads so many bytes."""
    import numpy as np

    from engine.parsing import Parser
    from engine.runtime.generation import Limits
    from engine.runtime.loop import Loop
    from engine.runtime.requests import Request
    from engine.testing import ScriptedBackend

    backend = ScriptedBackend(["some words " * (length // 11 + 1)], n_ctx=length + 100, n_sequences=1)
    plain, spent, memory = backend.decode, [0.0], np.ones(read, np.uint8)

    def timed(rows: Any) -> None:
        start = time.perf_counter()
        plain(rows)
        memory.sum()
        spent[0] += time.perf_counter() - start

    backend.decode = timed
    loop = Loop(backend)
    limits = Limits(max_tokens=length)
    loop.submit(Request(1, (65, 66), lambda: Parser("content-only"), limits=limits))
    cost: list[float] = []
    while loop.busy:
        start, inside = time.perf_counter(), spent[0]
        loop.step()
        loop.drain()
        cost.append(time.perf_counter() - start - (spent[0] - inside))
    return cost
