"""What drawing one token costs: `python benchmarks/sampling.py [--sizes 49152 152064] [--rounds 200]`.

Over rows of random logits, without a model: microseconds of the engine's draw, and of the chain of llama.cpp's samplers
over all tokens, which draws the same tokens. The best tenth of the rounds; the two take turns.
"""

import argparse
import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

import numpy as np  # noqa: E402

from engine.llama.lib import brief, library  # noqa: E402
from engine.llama.sampling import LlamaSampler  # noqa: E402
from engine.runtime.loop.logprobs import token_logprobs  # noqa: E402
from engine.types.sampling import SamplingParams  # noqa: E402

DEFAULT: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "top-k 40, top-p, min-p": DEFAULT,
    "top-p 0.95": {"temperature": 0.8, "top_p": 0.95},
    "min-p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "temperature 1, no filter": {"temperature": 1},
    "the first, repeat penalty": {"temperature": 0, "repeat_penalty": 1.1},
    "the second, repeat penalty": {**DEFAULT, "repeat_penalty": 1.1},
}
HISTORY = range(0, 640, 10)


class Chain:
    """llama.cpp's samplers over a record of each token, as `llama_sampler_sample` fills it."""

    def __init__(self, params: SamplingParams, size: int) -> None:
        lib = library()
        self._chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        self._apply, self._accept = brief("llama_sampler_apply"), brief("llama_sampler_accept")
        links: list[Any] = []
        if params.repeat_penalty:
            links.append(lib.llama_sampler_init_penalties(size, params.penalty_last_n, params.repeat_penalty, 0, 0))
        if params.top_k:
            links.append(lib.llama_sampler_init_top_k(params.top_k))
        if params.top_p:
            links.append(lib.llama_sampler_init_top_p(params.top_p, 1))
        if params.min_p:
            links.append(lib.llama_sampler_init_min_p(params.min_p, 1))
        if params.temperature:
            links += [lib.llama_sampler_init_temp(params.temperature), lib.llama_sampler_init_dist(params.seed)]
        else:
            links.append(lib.llama_sampler_init_greedy())
        for link in links:
            lib.llama_sampler_chain_add(self._chain, link)
        record = lib.llama_token_data
        self._buffer = (record * size)()
        make: Any = ctypes.POINTER
        self._start: Any = ctypes.cast(self._buffer, make(record))
        self._records: Any = np.frombuffer(self._buffer, dtype=[("id", "i4"), ("logit", "f4"), ("p", "f4")])
        self._ids = np.arange(size)
        self._array: Any = lib.llama_token_data_array()

    def accept(self, token: int) -> None:
        self._accept(self._chain, token)

    def draw(self, logits: Any) -> int:
        self._records["id"], self._records["logit"] = self._ids, logits
        array = self._array
        array.data, array.size, array.selected, array.sorted = self._start, logits.size, -1, False
        self._apply(self._chain, ctypes.byref(array))
        return int(array.data[array.selected].id)


def times(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Microseconds of each call, which take turns."""
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, list_ in zip(calls, taken, strict=True):
            began = time.perf_counter()
            call()
            list_.append(time.perf_counter() - began)
    return [sorted(each)[len(each) // 10] * 1e6 for each in taken]


def sampler(params: SamplingParams, size: int) -> LlamaSampler:
    vocab: Any = SimpleNamespace(size=size, handle=None)
    unused: Any = None
    return LlamaSampler(params, vocab, unused)


def mask(logits: Any, allowed: int) -> Any:
    """A mask of so many tokens, of 32 each word; never the likeliest."""
    made = np.zeros((logits.size + 31) // 32, np.int32)
    made[: (allowed + 31) // 32] = -1
    made[int(logits.argmax()) >> 5] = 0
    return made


def show(size: int, rounds: int) -> None:
    logits = np.random.default_rng(7).normal(0, 3, size).astype(np.float32)
    print(f"{size} tokens")
    for name, options in SETTINGS.items():
        params = SamplingParams(seed=7, **options)
        ours, theirs = sampler(params, size), Chain(params, size)
        for token in HISTORY:
            ours.accept(token)
            theirs.accept(token)
        took, chain = times([lambda s=ours: s.draw(0, 0, logits), lambda s=theirs: s.draw(logits)], rounds)
        print(f"  {name:28} {took:8.1f}   the chain over all tokens {chain:8.1f}", flush=True)
    for name in ("greedy", "top-k 40, top-p, min-p", "temperature 1, no filter"):
        made = sampler(SamplingParams(seed=7, **SETTINGS[name]), size)
        for kind, allowed in (("few allowed", 200), ("most allowed", size)):
            bits = mask(logits, allowed)
            took = times([lambda s=made, m=bits: s.draw(0, 0, logits, m)], rounds)[0]
            print(f"  {name + ', ' + kind:38} {took:8.1f}")
    for top in (0, 2, 20):
        took = times([lambda top=top: token_logprobs(logits, 5, top, lambda _: b"a")], rounds)[0]
        print(f"  logprobs={top:<3} in addition {took:8.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[49_152, 152_064])
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    for size in given.sizes:
        show(size, given.rounds)


if __name__ == "__main__":
    main()
