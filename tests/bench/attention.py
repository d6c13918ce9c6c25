"""The parts `behind` and `reading` of `runtime.py`.

`behind`: one stream behind prompts of growing length, with the attention that the engine chooses, with flash attention,
and llama-cpp-python's own; each has the process to itself while it runs, and the same prompts as the others.
`reading`: how fast a bare loop reads prompts, by attention and by the rows of a micro-batch, in turns.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from itertools import product
from typing import Any, NamedTuple

from bare import GREEDY
from measuring import Setup, in_a_thread, in_turns, report_turns, timed, words
from peers import LlamaPython

from engine import Engine, Usage
from engine.runtime.config import ContextOptions, FlashAttention

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


def reading(setup: Setup) -> None:
    """Two prompts, one after the other, from an empty memory; those of 512 tokens in one buffer, too."""
    attentions: tuple[FlashAttention, ...] = ("on", "off")
    for length, unified in ((128, False), (512, False), (512, True), (2048, False)):
        pairs = [[_tokens(length, 2 * turn + at) for at in range(2)] for turn in range(3 * setup.rounds + 1)]
        with ExitStack() as opened:
            contenders: dict[str, Callable[[Sequence[Sequence[int]]], tuple[int, float]]] = {}
            for attention, rows in product(attentions, (512, 256, 128, 64)):
                asked = ContextOptions(flash_attn=attention, n_ubatch=rows)
                bare = opened.enter_context(
                    setup.bare(n_ctx=2 * (length + 256), sequences=2, unified=unified, asked=asked)
                )
                name = f"flash attention {attention}, {rows} rows"
                contenders[name] = lambda prompts, bare=bare: timed(
                    lambda: bare.generate(prompts, 1, GREEDY) * len(prompts[0])
                )
            in_turns(contenders, pairs[:1])
            layout = "one buffer" if unified else "a buffer each"
            taken = in_turns(contenders, pairs[1:])
            report_turns(f"two prompts of {length} tokens read, {layout}", taken, "flash attention on, 512 rows")


def _tokens(length: int, seed: int) -> list[int]:
    """Some tokens of the vocabulary's first 30,000."""
    return [(7919 * at + 13 * seed) % 30_000 for at in range(length)]


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
