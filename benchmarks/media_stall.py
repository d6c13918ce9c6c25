"""How long an answer stands still beside a picture of the largest size: `python benchmarks/media_stall.py`.

The built-in model writes an answer, and two seconds later another request shows a picture of 2,304 rows, whose encoder
is as wide as CLIP's large one (1,024 numbers, two layers of its 24). Printed are the longest pause between two tokens
of the answer, how many tokens came meanwhile, and the picture's time to its first token. In turn, the picture is
encoded in the loop's own thread and evaluated in one step, encoded beside it and evaluated in one step, and encoded
beside it and evaluated in steps of the prefill's budget, which is how the engine does it.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/helpers"))

import numpy as np
from files import projector_files
from files.projector_files import Kind, write_projector
from measuring import by_turns

from engine import Engine, Image
from engine.runtime.media.encoder import Encoder
from engine.runtime.media.media import MediaChunk

KIND = Kind("mlp", image=14 * 48)
ROUNDS = 5
QUESTION = "What is this?"


def measured(llm: Engine, seed: int) -> tuple[float, int, float]:
    """Returns the longest pause in seconds, the tokens of the answer that came while the picture was encoded and
    evaluated, and the seconds to the picture's first token."""
    times: list[float] = []
    answer = llm.stream("Tell me a story.", max_tokens=100_000, ignore_eos=True, temperature=0)
    reader = threading.Thread(target=lambda: times.extend(time.perf_counter() for _ in answer))
    reader.start()
    time.sleep(2)
    picture = Image(np.random.default_rng(seed).integers(0, 256, (672, 672, 3), np.uint8))
    began = time.perf_counter()
    asked: Any = [{"role": "user", "content": [QUESTION, picture]}]
    usage = llm.chat(asked, max_tokens=1, temperature=0).usage
    ended = time.perf_counter()
    answer.cancel()
    reader.join()
    assert usage is not None
    assert usage.time_to_first_token is not None
    assert usage.prompt_tokens > 2304
    pauses = [there - here for here, there in pairwise(times) if began < there and here < ended]
    return max(pauses), len(pauses), usage.time_to_first_token


def main() -> None:
    projector_files._D, projector_files._FF = 1024, 4096  # pyright: ignore[reportPrivateUsage]
    begin = Encoder._begin  # pyright: ignore[reportPrivateUsage]

    def begin_here(encoder: Encoder, unit: MediaChunk) -> None:
        """Let the loop wait, as if its own thread encoded."""
        assert begin(encoder, unit) is None
        encoder._thread.join()  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]

    with tempfile.TemporaryDirectory() as folder:
        file = write_projector(Path(folder) / "mmproj.gguf", KIND)
        options: dict[str, Any] = {"n_ctx": 8192, "n_sequences": 2, "preflight": False, "media_cache_mib": 0}
        with Engine.load(projector=file, **options) as llm:
            runner: Any = cast("Any", llm).source.service._runner  # pyright: ignore[reportPrivateUsage]
            scheduler = runner._loop._scheduler

            def way(seed: int, how: Any, *, parts: bool) -> Callable[[int], tuple[float, int, float]]:
                def run(number: int) -> tuple[float, int, float]:
                    Encoder._begin, scheduler._parts = how, parts  # pyright: ignore[reportPrivateUsage]
                    return measured(llm, 3 * number + seed)

                return run

            ways = {
                "in the loop's thread, in one step": way(0, begin_here, parts=False),
                "beside it, in one step": way(1, begin, parts=False),
                "beside it, in steps": way(2, begin, parts=True),
            }
            for name, each in by_turns(ways, ROUNDS).items():
                stalls, tokens, firsts = (sorted(figures) for figures in zip(*each, strict=True))
                print(
                    f"{name:34} longest pause {stalls[ROUNDS // 2]:.3f} s ({stalls[0]:.3f} to {stalls[-1]:.3f}), "
                    f"{tokens[ROUNDS // 2]} tokens meanwhile, first token after {firsts[ROUNDS // 2]:.2f} s"
                )


if __name__ == "__main__":
    main()
