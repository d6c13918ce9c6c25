"""What the engine's runtime costs beside the least that decoding takes, as ratios measured side by side in one run.

    python tests/bench/runtime.py --vocabulary ggml-vocab-qwen2.gguf --only single shared
    python tests/bench/runtime.py --model builtin --only single

Each part runs its contenders in turn, several rounds of them, and prints medians and the ratio of medians: on a busy
machine both suffer alike. A contender that is not there is named and left out (`peers.py` says how to build the native
ones). Parts: single, shared, distinct, behind, reading, partial, threads, batches, turns, spin, layer, memory, drafts,
exact, deep, long, scripted.
"""

import argparse
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from attention import behind, reading  # noqa: E402
from bare import GREEDY, NUCLEUS, Drawing  # noqa: E402
from length import deep, long, scripted  # noqa: E402
from measuring import STREAMS, Setup, ask, ask_all, report, speeds, watched, words  # noqa: E402
from models import model_file  # noqa: E402
from partial import partial  # noqa: E402
from replay import same_batches  # noqa: E402
from speculation import drafts, exact  # noqa: E402
from streams import distinct, shared, single, threads  # noqa: E402

from engine import Engine, Usage, _data  # noqa: E402
from engine.diagnose import preflight  # noqa: E402
from engine.runtime.config import ContextOptions, ModelOptions  # noqa: E402


def batches(setup: Setup) -> None:
    """Sixteen streams, and a bare loop that is given the very batches that they were evaluated in."""
    n_ctx = STREAMS * (1100 + setup.steps)
    print(f"\n{STREAMS} streams of {setup.steps} tokens beside their own batches in a bare loop")
    for title, common, own in (("a shared prefix of 128 tokens", 128, 16), ("512 tokens of their own", 0, 512)):
        texts = [words(common, 0) + f" {at} " + words(own, at) for at in range(STREAMS)]
        for drawing in (GREEDY, NUCLEUS):
            label = f"{title}, {'greedy' if drawing is GREEDY else 'top-k 20, top-p 0.95'}"

            def run(llm: Engine, texts: Sequence[str] = texts, drawing: Drawing = drawing) -> int:
                return ask_all(llm, texts, setup.steps, drawing)

            same_batches(setup, label, n_ctx, STREAMS, run, drawing)


def turns(setup: Setup) -> None:
    """A conversation's next turn at temperature 1.5: what is prefilled beside what is new, and the first token.

    Control tokens are not drawn: random weights would put them into a third of these answers, which no trained model
    does. Sent back they are guarded text, other tokens than those that were generated, so such a turn is evaluated
    anew. Reasoning that is switched off would be, too: this template leaves the empty block out of the history.
    """
    with setup.engine(n_ctx=8192) as llm:
        control = [llm.tokenize(text, special=True) for text in llm.template.control_tokens or ()]
        wild: dict[str, Any] = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        wild["logit_bias"] = {tokens[0]: -100.0 for tokens in control if len(tokens) == 1}
        history: list[Any] = []
        held = 0
        print("\nturns of one conversation, temperature 1.5")
        for number in range(6):
            history.append({"role": "user", "content": words(1500 if number == 0 else 60, number)})
            answer = llm.chat(history, max_tokens=200, seed=number, ignore_eos=True, **wild)
            history.append(answer.message)
            usage = answer.usage or Usage()
            print(
                f"  turn {number + 1}: prompt {usage.prompt_tokens:5}, new {usage.prompt_tokens - held:5}, prefilled "
                f"{usage.prompt_tokens - usage.cached_tokens:5}, first token after {usage.time_to_first_token:.3f} s",
                flush=True,
            )
            held = usage.prompt_tokens + usage.completion_tokens


def spin(setup: Setup) -> None:
    """A stream beside a thread of the caller that never stops computing: at two of Python's switch intervals, with the
    model in a child process, and each with a thread less, which leaves that thread a processor of its own."""
    usual = sys.getswitchinterval()
    fewer = max(1, setup.threads - 1)
    with (
        setup.engine() as here,
        setup.engine(isolated=True) as apart,
        setup.engine(threads=fewer) as here_fewer,
        setup.engine(threads=fewer, isolated=True) as apart_fewer,
    ):
        seeds = iter(range(10_000))

        def run(llm: Engine, beside: bool, interval: float = usual) -> int:
            over = threading.Event()
            spinner = threading.Thread(target=_spin, args=(over,))
            sys.setswitchinterval(interval)
            if beside:
                spinner.start()
            made = ask(llm, words(32, next(seeds)), setup.steps, GREEDY)
            over.set()
            if beside:
                spinner.join()
            sys.setswitchinterval(usual)
            return made

        contenders: dict[str, Callable[[], int]] = {
            "alone": lambda: run(here, False),
            f"beside it, switch interval {usual:g} s": lambda: run(here, True),
            "beside it, switch interval 0.0005 s": lambda: run(here, True, 0.0005),
            "in a child, alone": lambda: run(apart, False),
            "in a child, beside it": lambda: run(apart, True),
            "a thread less, alone": lambda: run(here_fewer, False),
            "a thread less, beside it": lambda: run(here_fewer, True),
            "a thread less, beside it, 0.0005 s": lambda: run(here_fewer, True, 0.0005),
            "a thread less, in a child, beside it": lambda: run(apart_fewer, True),
        }
        report("a stream beside a spinning thread", speeds(contenders, setup.rounds), "alone")


def _spin(over: threading.Event) -> None:
    count = 0
    while not over.is_set():
        for _ in range(1000):
            count += 1


def layer(setup: Setup) -> None:
    """What a token costs outside llama.cpp, in the thread that owns the context: a step and its replies sent off, less
    decoding and drawing."""
    print("\nour layer, microseconds a token: turns of its thread less decoding and drawing")
    for streams in (1, STREAMS):
        for name, drawing in (("greedy", GREEDY), ("top-k 20, top-p 0.95", NUCLEUS)):
            taken: list[tuple[float, float]] = []
            for number in range(setup.rounds + 1):
                with watched() as watches, setup.engine(n_ctx=streams * 512, sequences=streams) as llm:
                    made = ask_all(llm, [words(16, seed) for seed in range(streams)], setup.steps, drawing)
                step, draw, decode = (sum(watch.spans) for watch in watches)
                if number:
                    taken.append((1e6 * (step - draw - decode) / made, 1e6 * step / made))
            ours, whole = (statistics.median(each) for each in zip(*taken, strict=True))
            print(f"  {streams:3} streams, {name:22}{ours:8.1f} of {whole:9.1f}", flush=True)


def memory(setup: Setup) -> None:
    """Resident memory of a process that made one answer: with the engine, with the bare loop."""
    here = Path(__file__).resolve()
    for name in ("bare", "engine"):
        done = subprocess.run(
            [
                sys.executable,
                str(here),
                "--model",
                str(setup.path),
                "--threads",
                str(setup.threads),
                "--resident",
                name,
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        print(f"  {name:10} {done.stdout.strip()} MiB resident at most")


def resident(setup: Setup, name: str) -> None:
    """Make one answer, print this process's peak resident memory in MiB."""
    import resource

    if name == "bare":
        with setup.bare() as bare:
            bare.generate([[1, 2, 3, 4]], 32, GREEDY)
    else:
        with setup.engine() as llm:
            ask(llm, "hello", 32, GREEDY)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


PARTS: dict[str, Callable[[Setup], None]] = {
    "single": single,
    "shared": shared,
    "distinct": distinct,
    "behind": behind,
    "reading": reading,
    "partial": partial,
    "threads": threads,
    "batches": batches,
    "turns": turns,
    "spin": spin,
    "layer": layer,
    "memory": memory,
    "drafts": drafts,
    "exact": exact,
    "long": long,
    "deep": deep,
    "scripted": scripted,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="0.2B", help="0.2B, 0.6B (random weights), builtin, or a file")
    parser.add_argument("--vocabulary", type=Path, help="ggml-vocab-qwen2.gguf, for the random weights")
    parser.add_argument("--folder", type=Path, default=Path("bench-models"), help="where random weights are kept")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=64, help="tokens an answer")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--buffers", nargs="+", choices=("one", "apart"), default=["one", "apart"], help="KV layouts")
    parser.add_argument("--server", type=Path, help="the llama-server binary")
    parser.add_argument("--batched-bench", type=Path, help="the llama-batched-bench binary")
    parser.add_argument("--resident", choices=("bare", "engine"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    verdict = preflight.examine(ModelOptions(), ContextOptions())
    if not verdict.use_extra_bufts:  # peers and bare loops know no remedy
        parser.error(f"{verdict.reason} Rebuild it first: {preflight.rebuild_command(cure_amx=True)}")
    if given.model in ("0.2B", "0.6B"):
        if given.vocabulary is None:
            parser.error("--vocabulary names ggml-vocab-qwen2.gguf of llama.cpp's models folder")
        path = model_file(given.model, given.vocabulary, given.folder)
    else:
        path = _data.builtin_model() if given.model == "builtin" else Path(given.model)
    setup = Setup(
        path, given.threads, given.rounds, given.steps, given.server, given.batched_bench, tuple(given.buffers)
    )
    if given.resident:
        resident(setup, given.resident)
        return
    print(f"{path.name}, {given.threads} threads, medians of {given.rounds} rounds")
    for name in given.only:
        PARTS[name](setup)


if __name__ == "__main__":
    main()
