"""The engine's own batches given to a bare loop: what is left of the difference is our layer.

Continuous batching decodes in narrower batches than a loop that prefills everything first; that is scheduling, and a
choice. Here a run's batches, cuts and copies are recorded and done again with llama.cpp's C functions alone.
"""

import statistics
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from bare import Bare, Drawing  # noqa: E402
from measuring import Setup, in_a_thread  # noqa: E402

from engine import Engine  # noqa: E402
from engine.llama.context import LlamaBackend  # noqa: E402
from engine.runtime.backend import Row  # noqa: E402

Done: TypeAlias = tuple[str, tuple[Any, ...]]
RECORDED = ("decode", "trim", "copy")


@contextmanager
def recorded() -> Generator[list[Done]]:
    """What every backend is told to do meanwhile, in order."""
    calls: list[Done] = []
    plain = {name: getattr(LlamaBackend, name) for name in RECORDED}

    def noted(name: str) -> Callable[..., Any]:
        def call(self: LlamaBackend, *args: Any) -> Any:
            calls.append((name, args))
            return plain[name](self, *args)

        return call

    for name in RECORDED:
        setattr(LlamaBackend, name, noted(name))
    try:
        yield calls
    finally:
        for name, method in plain.items():
            setattr(LlamaBackend, name, method)


def replay(bare: Bare, calls: Sequence[Done], drawing: Drawing) -> int:
    """Do it again from an empty memory, drawing a token wherever one was due; the number of tokens drawn."""
    bare.clear()
    chains: dict[int, Any] = {}
    drawn = 0
    for name, args in calls:
        if name == "trim":
            bare.trim(*args)
        elif name == "copy":
            bare.copy(*args)
        else:
            rows: Sequence[Row] = args[0]
            bare.evaluate(rows)
            for index, row in enumerate(rows):
                if row.output:
                    chain = chains.get(row.sequence) or chains.setdefault(row.sequence, bare.chain(drawing, 0))
                    bare.draw(chain, index)
                    drawn += 1
    for chain in chains.values():
        bare.free(chain)
    return drawn


def same_batches(
    setup: Setup, title: str, n_ctx: int, streams: int, run: Callable[[Engine], object], drawing: Drawing
) -> None:
    """A fresh engine's run beside the replay of its batches, in both layouts of the cache."""
    for unified in (True, False):
        ratios: list[float] = []
        drawn = 0
        for number in range(setup.rounds + 1):
            # Both contexts are new: the first use of their buffers costs both alike.
            with setup.engine(n_ctx=n_ctx, sequences=streams, unified=unified) as llm, recorded() as calls:
                llm.complete([1, 2, 3, 4], max_tokens=4)  # shares no prefix with a prompt
                calls.clear()
                start = time.perf_counter()
                run(llm)
                taken = time.perf_counter() - start
            with setup.bare(n_ctx=n_ctx, sequences=streams, unified=unified) as bare:
                in_a_thread(lambda bare=bare: bare.generate([[1, 2, 3, 4]], 4, drawing))
                start = time.perf_counter()
                drawn = in_a_thread(lambda bare=bare, calls=calls: replay(bare, calls, drawing))
                if number:
                    ratios.append((time.perf_counter() - start) / taken)
        layout = "" if unified else ", kv_unified=False"
        print(
            f"  {title}{layout}: {statistics.median(ratios):.3f} x a bare loop over the same batches ({drawn} tokens)"
        )
