"""The part `behind` of `runtime.py`: one stream behind prompts of growing length, with the attention that the engine
chooses, with flash attention, and llama-cpp-python's own.

Each has the process to itself while it runs, and the same prompts as the others.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

from bare import GREEDY
from measuring import Setup, in_a_thread, words
from peers import LlamaPython

from engine import Engine, Usage
from engine.runtime.options import FlashAttention

LENGTHS = (500, 2000, 8000)


class _Answer(NamedTuple):
    """Seconds to the first token, and tokens per second from there on."""

    first: float
    speed: float


def behind(setup: Setup) -> None:
    """First tokens, and speeds after them."""
    print(f"\na stream of {setup.steps} tokens behind a prompt: seconds to the first token, tokens/s after it")
    for length in LENGTHS:
        with setup.engine(n_ctx=512) as llm:
            prompts = [llm.tokenize(words(length, seed))[:length] for seed in range(setup.rounds + 1)]
        contenders: dict[str, Callable[[Sequence[Sequence[int]]], list[_Answer]]] = {
            "the engine": lambda prompts, length=length: _engine(setup, prompts, length, "auto"),
            "the engine, flash attention": lambda prompts, length=length: _engine(setup, prompts, length, "on"),
            "llama-cpp-python": lambda prompts, length=length: _python(setup, prompts, length),
        }
        for name, run in contenders.items():
            answers = in_a_thread(lambda run=run, prompts=prompts: run(prompts))[1:]
            first, speed = (statistics.median(each) for each in zip(*answers, strict=True))
            print(f"  {length:5} tokens, {name:28}{first:8.2f} s{speed:8.1f} tokens/s", flush=True)


def _engine(setup: Setup, prompts: Sequence[Sequence[int]], length: int, flash_attn: FlashAttention) -> list[_Answer]:
    with Engine.load(
        setup.path,
        n_ctx=length + setup.steps + 1,
        n_threads=setup.threads,
        n_threads_batch=setup.threads,
        flash_attn=flash_attn,
        preflight=False,
    ) as llm:
        options: dict[str, Any] = {"max_tokens": setup.steps, "ignore_eos": True, **GREEDY.options}
        usages = [llm.complete(prompt, **options).usage or Usage() for prompt in prompts]
    return [_Answer(usage.time_to_first_token or 0.0, usage.decode_tokens_per_second or 0.0) for usage in usages]


def _python(setup: Setup, prompts: Sequence[Sequence[int]], length: int) -> list[_Answer]:
    answers: list[_Answer] = []
    with closing(LlamaPython(setup.path, n_ctx=length + setup.steps + 1, threads=setup.threads)) as python:
        for prompt in prompts:
            start = time.perf_counter()
            times = [time.perf_counter() - start for _ in python.stream(prompt, setup.steps, GREEDY)]
            # The last chunk has no token.
            answers.append(_Answer(times[0], (len(times) - 2) / (times[-1] - times[0])))
    return answers
