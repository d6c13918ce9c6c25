"""What the engine's runtime costs beside the least that decoding takes, as ratios measured side by side in one run.

    python benchmarks/runtime.py --vocabulary ggml-vocab-qwen2.gguf --only single shared
    python benchmarks/runtime.py --model builtin --only single --server build/bin/llama-server

`single`: one stream. `shared`, `distinct`: sixteen at once, with a prefix of 128 tokens in common, and with 512 tokens
of their own. A llama-server that is not there is left out (`peers.py` says how to build one); `llama_cpp.Llama` answers
the first two of sixteen prompts, one after the other.
"""

import argparse
import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]

from measuring import STREAMS, by_turns, many_words, report, words  # noqa: E402
from models import SHAPES, model_file  # noqa: E402
from peers import GREEDY, NUCLEUS, Bare, Drawing, LlamaPython, LlamaServer  # noqa: E402

from engine import Engine  # noqa: E402
from engine.isolated import preflight  # noqa: E402
from engine.runtime.loop.config import ContextOptions, ModelOptions  # noqa: E402
from engine.support import _data  # noqa: E402


@dataclass(frozen=True)
class Prompts:
    """User messages, and the tokens of the prompts that they become."""

    texts: Sequence[str]
    tokens: Sequence[Sequence[int]]


Answer: TypeAlias = Callable[[Prompts], int]
"""Answers prompts; the number of tokens made."""
Contender: TypeAlias = Callable[[], AbstractContextManager[Answer]]
"""Once it is closed, nothing of it is left."""


@dataclass(frozen=True)
class Field:
    """The contenders for prompts of one kind."""

    path: Path
    threads: int
    steps: int
    sequences: int
    drawing: Drawing
    shared: int
    """Leading tokens that all prompts have in common."""
    unified: bool

    @property
    def n_ctx(self) -> int:
        """Tokens of one conversation."""
        return 1100 + self.steps

    def contenders(self, server: Path | None) -> dict[str, Contender]:
        everyone: dict[str, Contender] = {
            "bare loop": self.bare,
            "engine": self.engine,
            "engine in a child": lambda: self.engine(isolated=True),
            "llama-cpp-python": self.python,
        }
        return everyone | ({"llama-server over HTTP": lambda: self.server(server)} if server else {})

    @contextmanager
    def bare(self) -> Generator[Answer]:
        n_ctx = self.n_ctx * self.sequences
        bare = Bare(self.path, n_ctx=n_ctx, sequences=self.sequences, threads=self.threads, unified=self.unified)
        with closing(bare):
            yield lambda prompts: bare.generate(
                prompts.tokens, self.steps, self.drawing, shared=self.shared if len(prompts.tokens) > 1 else 0
            )

    @contextmanager
    def engine(self, *, isolated: bool = False) -> Generator[Answer]:
        options: dict[str, Any] = {"n_threads": self.threads, "n_threads_batch": self.threads, "isolated": isolated}
        if self.unified:
            options["kv_tokens"] = self.n_ctx * self.sequences
        with Engine.load(
            self.path,
            n_ctx=self.n_ctx,
            n_sequences=self.sequences,
            kv_unified=self.unified,
            preflight=False,
            **options,
        ) as llm:
            yield lambda prompts: self._ask(llm, prompts.texts)

    def _ask(self, llm: Engine, texts: Sequence[str]) -> int:
        options: dict[str, Any] = {"max_tokens": self.steps, "ignore_eos": True, **self.drawing.options}
        streams = [llm.stream(text, seed=seed, **options) for seed, text in enumerate(texts)]
        usages = [stream.result().usage for stream in streams]
        return sum(usage.completion_tokens for usage in usages if usage)

    @contextmanager
    def python(self) -> Generator[Answer]:
        with closing(LlamaPython(self.path, n_ctx=self.n_ctx, threads=self.threads)) as python:
            yield lambda prompts: python.generate(prompts.tokens[:2], self.steps, self.drawing)

    @contextmanager
    def server(self, binary: Path) -> Generator[Answer]:
        n_ctx = self.n_ctx * self.sequences
        with LlamaServer(
            binary, self.path, n_ctx=n_ctx, slots=self.sequences, threads=self.threads, unified=self.unified
        ) as server:
            yield lambda prompts: server.generate(prompts.tokens, self.steps, self.drawing)


def speed(contender: Contender, warmup: Prompts, prompts: Prompts) -> float:
    """Tokens per second, in a thread that ends with the contender.

    OpenMP's workers end with their thread too. libgomp's threads wait for one another spinning only while there are no
    more of them than processors, so that workers left behind slow down everybody else's decodes.
    """

    def run() -> float:
        with contender() as answer:
            answer(warmup)
            start = time.perf_counter()
            made = answer(prompts)
            return made / (time.perf_counter() - start)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def rendered(path: Path, texts: Sequence[str]) -> Prompts:
    with Engine.load(path, n_ctx=512, preflight=False) as llm:
        return Prompts(texts, [llm.tokenize(llm.render(text).text, special=True) for text in texts])


def compare(part: str, options: argparse.Namespace, path: Path, drawing: Drawing) -> None:
    """Print the speeds of all contenders for one kind of prompts."""
    common, own = {"single": (0, 64), "shared": (128, 16), "distinct": (0, 512)}[part]
    rounds = [
        rendered(path, [words(own, seed)] if part == "single" else many_words(common, own, seed))
        for seed in range(options.rounds)
    ]
    sequences = 1 if part == "single" else STREAMS
    # The texts agree in a little less than `common` tokens: words are cut differently where they end.
    field = Field(path, options.threads, options.steps, sequences, drawing, max(0, common - 8), options.pool)
    warmup = rendered(path, ["hello"])

    def run(contender: Contender) -> Callable[[int], float]:
        return lambda number: speed(contender, warmup, rounds[number])

    runs = {name: run(contender) for name, contender in field.contenders(options.server).items()}
    title = f"{part}, {'greedy' if drawing is GREEDY else drawing}, {options.steps} tokens an answer"
    report(title, by_turns(runs, options.rounds), "bare loop", "tokens/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="0.2B", help="0.2B, 0.6B (random weights), builtin, or a file")
    parser.add_argument("--vocabulary", type=Path, help="ggml-vocab-qwen2.gguf, for the random weights")
    parser.add_argument("--folder", type=Path, default=Path("bench-models"), help="where random weights are kept")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=64, help="tokens an answer")
    parser.add_argument("--only", nargs="+", choices=("single", "shared", "distinct"), default=["single", "shared"])
    parser.add_argument("--pool", action="store_true", help="one KV buffer in place of one for each stream")
    parser.add_argument("--server", type=Path, help="the llama-server binary")
    options = parser.parse_args()
    verdict = preflight.examine(ModelOptions(), ContextOptions())
    if not verdict.use_extra_bufts:  # peers and bare loops know no remedy
        parser.error(f"{verdict.reason} Rebuild it first: {preflight.rebuild_command(cure_amx=True)}")
    if options.model in SHAPES:
        if options.vocabulary is None:
            parser.error("--vocabulary names ggml-vocab-qwen2.gguf of llama.cpp's models folder")
        path = model_file(options.model, options.vocabulary, options.folder)
    else:
        path = _data.builtin_model() if options.model == "builtin" else Path(options.model)
    print(f"{path.name}, {options.threads} threads, medians of {options.rounds} rounds")
    for part in options.only:
        for drawing in (GREEDY, NUCLEUS):
            compare(part, options, path, drawing)


if __name__ == "__main__":
    main()
