"""The part `partial` of `runtime.py`: fewer streams than a context has sequences.

Beside a bare loop and llama-server; then readers whose answers come and go.
"""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from bare import GREEDY
from measuring import STREAMS, Setup, alone, ask, ask_all, report, words
from streams import Field, rendered

from engine import Engine

_READERS = 8
_ANSWERS = 4
"""Answers of random length that each reader asks for, one after the other."""


def partial(setup: Setup) -> None:
    """Three, seven and fifteen streams of sixteen; then eight readers whose answers come and go."""
    for unified in (True, False):
        field = Field(setup, GREEDY, n_ctx=STREAMS * 512, sequences=STREAMS)
        layout = "one KV buffer" if unified else "separate KV buffers"
        for count in (3, 7, 15):
            warmup, *prompts = rendered(setup, [["hello"], *(_texts(count, seed) for seed in range(setup.rounds))])
            contenders = {
                "bare loop": field.bare(unified=unified),
                "engine": field.streams(unified=unified),
            }
            if setup.server is not None:
                contenders["llama-server over HTTP"] = field.server(unified=unified)
            measured = alone(contenders, warmup, [[each] for each in prompts])
            report(f"{count} streams of {STREAMS}, greedy, {setup.steps} tokens each, {layout}", measured, "bare loop")
        warmup, *prompts = rendered(setup, [["hello"], *(_texts(_READERS, seed) for seed in range(setup.rounds))])
        going = field.engine(lambda llm, texts: _come_and_go(llm, texts, setup.steps), unified=unified)
        measured = alone({"engine": going}, warmup, [[each] for each in prompts])
        report(f"{_READERS} readers, answers that come and go, {layout}", measured, "engine")


def _texts(count: int, seed: int) -> list[str]:
    return [words(16, 1000 * seed + at) for at in range(count)]


def _come_and_go(llm: Engine, texts: Sequence[str], steps: int) -> int:
    """A reader for each text, who asks for several answers in turn; the number of tokens made."""

    def read(number: int, text: str) -> int:
        lengths = random.Random(number)
        each = [ask(llm, f"{turn} {text}", lengths.randint(8, 2 * steps), GREEDY) for turn in range(_ANSWERS)]
        return sum(each)

    if len(texts) == 1:
        return ask_all(llm, texts, steps, GREEDY)
    with ThreadPoolExecutor(len(texts)) as pool:
        return sum(pool.map(read, range(len(texts)), texts))
