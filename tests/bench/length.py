"""What grows with a stream's length: the parts `deep`, `long` and `scripted` of `runtime.py`.

What is timed is a turn of the engine's thread (a step, its replies sent off) less decoding and drawing: Python's part
of a token.
"""

import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from bare import NUCLEUS, Bare
from measuring import Setup, ask, in_a_thread, replaced, watched, words

from engine.llama import lib as llama_lib
from engine.llama.footprint import Cells, estimate
from engine.llama.gguf import read_gguf
from engine.runtime.config import ContextOptions

_BURST = 20
"""Tokens an answer of `deep`."""
_TURNS = 8
"""Of both lengths, in a round."""


def deep(setup: Setup) -> None:
    """Answers behind a short prompt and behind one of 16,000 tokens, in turns, each prompt in a buffer of its own; and
    behind the short one, with as much memory read in each decode as the long one's keys and values take. Then what a
    plain loop over the C functions does in Python for a token."""
    short, far = 100, 16_000
    size = estimate(read_gguf(setup.path), ContextOptions(flash_attn="off"), Cells(1, far, 1)).cache
    cases = {
        f"{short} tokens": (short, 0),
        f"{far} tokens": (far, 0),
        f"{short} tokens, {size >> 20} MiB read": (short, size),
    }
    taken: dict[str, list[float]] = {name: [] for name in cases}
    inside: dict[str, list[float]] = {name: [] for name in cases}
    with setup.engine(n_ctx=33_000, sequences=2, unified=False) as llm:
        prompts = {length: llm.tokenize(words(length, length))[:length] for length in (short, far)}
        for turn in range(_TURNS * setup.rounds + 1):
            for name in cases if turn % 2 else reversed(cases):
                length, read = cases[name]
                with _decodes_reading(read), watched() as (step, draw, decode):
                    llm.complete(prompts[length], max_tokens=_BURST, ignore_eos=True, seed=turn, **NUCLEUS.options)
                if turn:  # the first reads the prompts
                    # The first step of an answer begins it, the last one ends it.
                    taken[name].append(statistics.median(_costs(step.spans, draw.spans, decode.spans)[1:-1]))
                    inside[name].append(statistics.median(decode.spans[1:]))
    print("\nour layer for one stream, microseconds a token, behind a prompt of")
    for name in cases:
        cost, took = 1e6 * statistics.median(taken[name]), 1e3 * statistics.median(inside[name])
        print(f"  {name:34}{cost:8.1f}; a decode takes {took:.2f} ms", flush=True)
    first, *others = cases
    for name in others:
        ratios = [later / sooner for sooner, later in zip(taken[first], taken[name], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        print(f"  {name}: ratio {middle:.2f}, quartiles of {len(ratios)} turns {low:.2f} to {high:.2f}", flush=True)
    _bare_loops_python(setup, prompts)


def _bare_loops_python(setup: Setup, prompts: Mapping[int, Sequence[int]]) -> None:
    """The bare loop's steps less decoding and drawing, behind each of the prompts."""
    library = llama_lib.library()
    places = ((Bare, "_step"), (library, "llama_sampler_sample"), (library, "llama_decode"))
    print("the bare loop's own Python, microseconds a token, behind a prompt of")
    with setup.bare(n_ctx=17_000) as bare:
        for length, prompt in prompts.items():
            with watched(places) as (step, draw, decode):
                in_a_thread(lambda prompt=prompt: bare.generate([prompt], _BURST * _TURNS, NUCLEUS))
            cost = 1e6 * statistics.median(_costs(step.spans, draw.spans, decode.spans))
            print(f"  {length:6} tokens: {cost:.1f}", flush=True)


def _decodes_reading(size: int) -> AbstractContextManager[None]:
    """Every decode reads so many bytes more, behind its own work."""
    import numpy as np

    library, memory = llama_lib.library(), np.ones(size // 8)
    plain = library.llama_decode

    def decode(*args: Any) -> Any:
        code = plain(*args)
        memory.sum()
        return code

    return replaced({(library, "llama_decode"): decode} if size else {})


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
    from engine.runtime.request import TurnRequest
    from engine.template.prompt import Prompt
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
    loop.submit(TurnRequest(Prompt("", ()), lambda: Parser("content-only"), id=1, tokens=(65, 66), limits=limits))
    cost: list[float] = []
    while loop.busy:
        start, inside = time.perf_counter(), spent[0]
        loop.step()
        loop.drain()
        cost.append(time.perf_counter() - start - (spent[0] - inside))
    return cost
