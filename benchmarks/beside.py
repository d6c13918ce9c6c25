"""One table of what a model costs: this engine, llama-bench, llama-server and `llama_cpp.Llama`, from one run.

    python benchmarks/beside.py --model a.gguf b.gguf --vocabulary ggml-vocab-qwen2.gguf --server BIN/llama-server \
        --bench BIN/llama-bench --rounds 3

Each contender answers in a process of its own, by turns; figures are medians of the rounds. `--vocabulary` adds the
random 0.2 B (`models.py`). Rows, which `--part` chooses:

- `one`, `four`, `sixteen`: tokens a second of so many greedy answers at once, whose prompts were read before; of
  llama-bench tg behind as many tokens. In brackets the processor milliseconds a token.
- `prompts`: tokens a second until the first token behind 512 and 2,000 tokens; of llama-bench pp. Likewise.
- `load`: seconds until the first token of a new process, import included; in brackets processor seconds. One thread,
  as in `footprint.py`, whose programs these are.
- `memory`: most MiB resident after one, four and sixteen answers at once in a context of 8,192 tokens.

`Llama` answers one request at a time, so that it has no row of several. llama-bench has none either, and its
processor time is its threads' all the while. llama-bench and llama-server have the attention of the engine's pool,
`Llama` its own default, without flash attention.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import footprint  # noqa: E402
from contenders import processor_seconds  # noqa: E402
from measuring import by_turns, words  # noqa: E402
from models import model_file  # noqa: E402
from peers import GREEDY, LlamaPython, LlamaServer  # noqa: E402

from engine import Engine  # noqa: E402
from engine.llama.gguf.gguf import read_gguf  # noqa: E402
from engine.llama.params import on_cpu  # noqa: E402
from engine.runtime.loop.config import ContextOptions  # noqa: E402

STREAMS = {"one": 1, "four": 4, "sixteen": 16}
LENGTHS = (512, 2000)
PARTS = (*STREAMS, "prompts", "load", "memory")
SLOTS = 16
N_CTX = 2304
"""Tokens of the longest prompt and its answer."""
KV_TOKENS = 8192
"""Cells that all share: room for every prompt of one contender."""
CONTENDERS = ("ours", "llama-bench", "llama-server", "Llama")

Figures: TypeAlias = dict[str, tuple[float, float | None]]
"""By the row's name: the figure, and what it cost of the processor, if that is known."""


def prompt(tokens: int, seed: int) -> str:
    """A text of about so many tokens that begins like no other."""
    return f"{seed} " + words(tokens - 2, seed)


class Running(NamedTuple):
    """A contender that has loaded. `answer`: answers prompts at once, and returns how many tokens it made; `tokens`:
    those of a prompt; `processor`: the seconds that it has used."""

    answer: Callable[[Sequence[str], int], int]
    tokens: Callable[[str], Sequence[int]]
    processor: Callable[[], float]


Maker: TypeAlias = Callable[[argparse.Namespace, ExitStack], Running]
"""Loads a contender, and leaves how to close it."""


def ours(given: argparse.Namespace, stack: ExitStack) -> Running:
    llm = stack.enter_context(
        Engine.load(
            given.model[0],
            n_ctx=N_CTX,
            n_sequences=SLOTS,
            kv_tokens=KV_TOKENS,
            n_threads=given.threads,
            n_threads_batch=given.threads,
            preflight=False,
        )
    )
    pool = stack.enter_context(ThreadPoolExecutor(SLOTS))

    def one(text: str, most: int) -> int:
        usage = llm.stream_complete(text, max_tokens=most, ignore_eos=True, **GREEDY.options).result().usage
        return usage.completion_tokens if usage else 0

    def answer(texts: Sequence[str], most: int) -> int:
        return sum(pool.map(partial(one, most=most), texts))

    return Running(answer, llm.tokenize, time.process_time)


def llama(given: argparse.Namespace, stack: ExitStack) -> Running:
    peer = stack.enter_context(closing(LlamaPython(Path(given.model[0]), n_ctx=N_CTX, threads=given.threads)))
    return Running(partial(generated, peer), peer.tokens, time.process_time)


def server(given: argparse.Namespace, stack: ExitStack) -> Running:
    more = ["--flash-attn", attention(Path(given.model[0]))]
    peer = stack.enter_context(
        LlamaServer(given.server, Path(given.model[0]), n_ctx=KV_TOKENS, slots=SLOTS, threads=given.threads, more=more)
    )

    return Running(partial(generated, peer), peer.tokens, lambda: processor_seconds(peer.pid))


def generated(peer: LlamaPython | LlamaServer, texts: Sequence[str], most: int) -> int:
    """Answers prompts; returns how many tokens were made."""
    return peer.generate([peer.tokens(text) for text in texts], most, GREEDY)


def attention(path: Path) -> str:
    """Returns what the engine chooses on the CPU for a model whose slots share a pool: "on" or "off"."""
    return on_cpu(read_gguf(path), ContextOptions(kv_unified=True), N_CTX, SLOTS).flash_attn


MAKERS: dict[str, Maker] = {
    "ours": ours,
    "llama-server": server,
    "Llama": llama,
}


def work(given: argparse.Namespace) -> None:
    """Runs one contender in this process, and prints its figures."""
    found: Figures = {}
    with ExitStack() as stack:
        answer, tokens, processor = MAKERS[given.worker](given, stack)

        def measured(texts: Sequence[str], most: int, read: int = 0) -> tuple[float, float]:
            began, used = time.perf_counter(), processor()
            made = answer(texts, most)
            count, seconds = read or made, time.perf_counter() - began
            return count / seconds, (processor() - used) / count * 1000

        _ = answer([prompt(8, 0)], 4)
        for part, streams in STREAMS.items():
            if part in given.part and (streams == 1 or given.worker != "Llama"):
                texts = [prompt(32, given.seed * 100 + 7 * streams + number) for number in range(streams)]
                _ = answer(texts, 1)
                found[part] = measured(texts, given.steps)
        if "prompts" in given.part:
            for length in LENGTHS:
                text = prompt(length, given.seed * 100 + 99)
                found[f"{length} tokens"] = measured([text], 1, len(tokens(text)))
    print(json.dumps(found))


def bench(given: argparse.Namespace, path: str) -> Figures:
    """llama-bench's tokens a second."""
    wanted = [("-n", 0, "-p", length) for length in LENGTHS] if "prompts" in given.part else []
    wanted += [("-n", given.steps, "-p", 0, "-d", 32)] if "one" in given.part else []
    found: Figures = {}
    for options in wanted:
        command = [given.bench, "-m", path, "-t", given.threads, "-fa", attention(Path(path)), "-r", 1, "-o", "json"]
        done = subprocess.run([str(each) for each in (*command, *options)], capture_output=True, text=True, check=True)
        (row,) = json.loads(done.stdout)
        found[f"{row['n_prompt']} tokens" if row["n_prompt"] else "one"] = (row["avg_ts"], None)
    return found


def of_starts(given: argparse.Namespace, kind: str, path: str, cache: Path) -> Figures:
    """Seconds to the first token and memory after all answers, as `footprint.py` measures them."""
    about = argparse.Namespace(model=path, n_ctx=KV_TOKENS, server=given.server)
    found: Figures = {}
    for streams in STREAMS.values():
        if streams > 1 and (kind == "Llama" or "memory" not in given.part):
            continue
        if kind == "llama-server":
            figures = footprint.server(about, streams)
        else:
            figures = footprint.python({"ours": "later", "Llama": "llama"}[kind], about, streams, cache)
        if streams == 1 and "load" in given.part:
            found["load"] = (sum(figures[:3]), figures[3])
        if "memory" in given.part:
            found[f"memory of {streams}"] = (figures[5], None)
    return found


def of_contender(kind: str, given: argparse.Namespace, path: str, cache: Path, number: int) -> Figures:
    """One round of one contender."""
    if kind == "llama-bench":
        return bench(given, path)
    found: Figures = {}
    if {*STREAMS, "prompts"}.intersection(given.part):
        command = [sys.executable, "-W", "ignore", str(Path(__file__)), *sys.argv[1:], "--worker", kind]
        command += ["--model", path, "--seed", str(number + 1)]
        environment = {**os.environ, "LLAMA_ENGINE_CACHE": str(cache)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found |= json.loads(done.stdout.splitlines()[-1])
    if {"load", "memory"}.intersection(given.part):
        found |= of_starts(given, kind, path, cache)
    return found


def cell(runs: Sequence[Figures], row: str) -> str:
    """The median of a row's figures, and of their cost in brackets."""
    found = [figures[row] for figures in runs if row in figures]
    if not found:
        return "-"
    figure = statistics.median(each for each, _ in found)
    text = f"{figure:.2f}" if row == "load" else f"{figure:.0f}" if figure >= 100 else f"{figure:.1f}"
    costs = [cost for _, cost in found if cost is not None]
    return f"{text} ({statistics.median(costs):.2f})" if costs else text


def show(path: str, runs: Mapping[str, Sequence[Figures]]) -> None:
    rows = dict.fromkeys(row for each in runs.values() for figures in each for row in figures)
    order = (*STREAMS, *(f"{length} tokens" for length in LENGTHS), "load", *(f"memory of {n}" for n in (1, 4, 16)))
    for row in sorted(rows, key=order.index):
        cells = [cell(runs.get(kind, ()), row) for kind in CONTENDERS]
        print(f"| {Path(path).stem} | {row} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="*", default=[])
    parser.add_argument("--vocabulary", type=Path, help="ggml-vocab-qwen2.gguf, for the random 0.2 B")
    parser.add_argument("--folder", type=Path, default=Path("bench-models"), help="where random weights are kept")
    parser.add_argument("--server", type=Path, help="the program llama-server; without it this contender is left out")
    parser.add_argument("--bench", type=Path, help="the program llama-bench, likewise")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=48, help="tokens an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", choices=tuple(MAKERS), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given)
        return
    models = [*given.model, *([str(model_file("0.2B", given.vocabulary, given.folder))] if given.vocabulary else [])]
    left_out = {"llama-server": given.server is None, "llama-bench": given.bench is None}
    print(f"| model | | {' | '.join(CONTENDERS)} |\n|---|---|{'---|' * len(CONTENDERS)}", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        for path in models:
            starts: dict[str, Callable[[int], Figures]] = {
                kind: partial(of_contender, kind, given, path, Path(cache))
                for kind in CONTENDERS
                if not left_out.get(kind)
            }
            if "load" in given.part:  # what any later day finds: compiled modules, verdicts, the file in memory
                _ = of_starts(argparse.Namespace(**{**vars(given), "part": ["load"]}), "ours", path, Path(cache))
            show(path, by_turns(starts, given.rounds))


if __name__ == "__main__":
    main()
