"""What drafts save, and that they change nothing: on the built-in model, with its first six of seven layers as draft.

    python benchmarks/drafts.py --rounds 7
    python benchmarks/drafts.py --only equal --prompts 500
    python benchmarks/drafts.py --only chi --samples 600

`speed`: decodes, and processor seconds of the one thread per token, beside no draft, in rounds. The built-in model
itself is hardly slower than its draft, so guesses do not pay there, and the rule is to say so. The slow model is the
built-in one with 49 further layers that add nothing: eight times the work for the same answers. "always" guesses
whatever decodes take. `equal`: greedy answers with and without drafts. Those that part are counted as close where the
two best log-probabilities lie closer than the same answer's differ between one row at a time and many. `chi`: whether
sampled tokens are distributed alike.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

sys.path[:0] = [
    str(Path(__file__).resolve().parents[1]),
    str(Path(__file__).resolve().parents[1] / "tests/helpers"),
]

import pytest  # noqa: E402
from fakes.doubles import guess_always  # noqa: E402
from files.model_files import copied  # noqa: E402
from measuring import by_turns, ratio, words  # noqa: E402

from engine import Completion, Engine  # noqa: E402
from engine.api.batch_generate import Row  # noqa: E402
from engine.support import _data  # noqa: E402

GREEDY: dict[str, Any] = {"temperature": 0}
SAMPLED: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95}


def questions(count: int) -> list[str]:
    return [f"Tell me about {words(1 + seed % 6, seed)}." for seed in range(count)]


def loaded(model: Path, draft: object, streams: int) -> Engine:
    load: Any = Engine.load
    return load(model, draft=draft, n_ctx=512, n_sequences=streams, n_threads=1, n_threads_batch=1, preflight=False)


def backend_of(llm: Engine) -> Any:
    runner: Any = cast("Any", llm).source.service._runner  # pyright: ignore[reportPrivateUsage]
    return runner._backend


def counted(llm: Engine) -> Callable[[], int]:
    """Returns a function that returns how many decodes there were so far."""
    backend = backend_of(llm)
    decode, calls = backend.decode, [0]

    def counting(rows: Any) -> None:
        calls[0] += 1
        decode(rows)

    backend.decode = counting
    return lambda: calls[0]


def speed(model: Path, drafts: dict[str, object], streams: int, options: dict[str, Any], rounds: int) -> None:
    """Print decodes and seconds beside those of the first of `drafts`, which is none."""
    engines = {name: loaded(model, draft, streams) for name, draft in drafts.items()}
    decodes = {name: counted(llm) for name, llm in engines.items()}
    made: dict[str, list[float]] = {name: [] for name in engines}

    def contender(name: str) -> Callable[[int], float]:
        def run(number: int) -> float:
            with pytest.MonkeyPatch.context() as patch:
                if name.startswith("always"):
                    guess_always(patch)
                before, start = decodes[name](), time.process_time()
                texts = questions((number + 1) * streams)[-streams:]
                started = [
                    engines[name].stream(text, max_tokens=64, ignore_eos=True, seed=number, **options) for text in texts
                ]
                tokens = sum(answer.usage.completion_tokens for each in started if (answer := each.result()).usage)
                made[name].append((decodes[name]() - before) * streams / tokens)
                return (time.process_time() - start) / tokens

        return run

    for llm in engines.values():  # warm, and the rule has measured
        llm.chat("Hello!", max_tokens=100, ignore_eos=True)
    figures = by_turns({name: contender(name) for name in engines}, rounds)
    base = next(iter(engines))
    for name, llm in engines.items():
        metrics = llm.metrics
        accepted = metrics.accepted_tokens / metrics.drafted_tokens if metrics.drafted_tokens else 0.0
        line = f"{statistics.median(made[name]):6.2f} decodes a token, {statistics.median(figures[name]) * 1e3:6.2f} ms"
        guesses = f"{accepted:.0%} of {metrics.drafted_tokens} accepted"
        print(f"  {name:20}{line}, x {ratio(figures[name], figures[base]):.2f}; {guesses}", flush=True)
        llm.close()


def close_call(llm: Engine, text: str, plain: Completion, at: int) -> bool:
    """Whether the two best tokens at the place where answers part lie closer than one row and many do."""
    entries = plain.logprobs or ()
    prompt = llm.tokenize(llm.render(text).text)
    (score,) = llm.score(prompt, [[entry.token for entry in entries]])
    own = max(abs(entry.logprob - other.logprob) for entry, other in zip(entries, score.tokens, strict=True))
    best, second = entries[at].top[:2]
    return best.logprob - second.logprob <= 2 * own


def equal(draft: object, count: int) -> None:
    """Print how many greedy answers are equal with and without drafts."""
    options: dict[str, Any] = {**GREEDY, "max_tokens": 64, "ignore_eos": True, "logprobs": 2}
    texts = questions(count)
    builtin = _data.builtin_model()
    with loaded(builtin, None, 8) as bare, loaded(builtin, draft, 8) as drafting, pytest.MonkeyPatch.context() as patch:
        guess_always(patch)
        same = close = 0
        plain = [bare.chat(text, **options) for text in texts]
        drafted = drafting.generate(texts, on_error="raise", **options)
        for text, one, other in zip(texts, plain, drafted, strict=True):
            tokens = [[entry.token for entry in each.logprobs or ()] for each in (one, other)]
            at = next((place for place, pair in enumerate(zip(*tokens, strict=True)) if pair[0] != pair[1]), None)
            same += at is None
            close += at is not None and close_call(bare, text, one, at)
        metrics = drafting.metrics
    print(
        f"  equal {same} of {count}, parted at a close call {close}, otherwise {count - same - close}; "
        f"{metrics.accepted_tokens} of {metrics.drafted_tokens} guesses accepted",
        flush=True,
    )


def chi(draft: object, samples: int) -> None:
    """Print the chi-square of the tokens at a place of sampled answers, with drafts against without, by other seeds."""
    builtin = _data.builtin_model()
    sampling: dict[str, Any] = {"temperature": 2.0, "top_k": 12, "top_p": 1.0, "min_p": 0.0}
    options: dict[str, Any] = {**sampling, "max_tokens": 12, "ignore_eos": True, "logprobs": 1, "reasoning": False}
    places = (2, 5, 8, 11)
    counts: list[list[Counter[int]]] = []
    for number, guesser in enumerate((None, draft)):
        with loaded(builtin, guesser, 8) as llm, pytest.MonkeyPatch.context() as patch:
            guess_always(patch)
            rows: list[Row] = [("Tell me about blue.", {"seed": number * samples + seed}) for seed in range(samples)]
            answers = llm.generate(rows, on_error="raise", **options)
            counts.append([Counter((each.logprobs or ())[place].token for each in answers) for place in places])
            print(f"  {llm.metrics.accepted_tokens} of {llm.metrics.drafted_tokens} guesses accepted")
    for place, one, other in zip(places, *counts, strict=True):
        kinds = [token for token in one | other if one[token] + other[token] >= 10]
        pairs = [(one[token], other[token]) for token in kinds]
        pairs.append((samples - sum(pair[0] for pair in pairs), samples - sum(pair[1] for pair in pairs)))
        square = sum((left - right) ** 2 / (left + right) for left, right in pairs if left + right)
        free = max(len(pairs) - 1 - (sum(pairs[-1]) == 0), 1)
        bound = free + 1.645 * (2 * free) ** 0.5 + 0.9  # the 95 % point, by its normal approximation
        print(
            f"  token {place}: chi-square {square:.1f} of {free} degrees of freedom (95 %: below {bound:.1f})",
            flush=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["speed", "equal", "chi"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--samples", type=int, default=600)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        builtin = _data.builtin_model()
        six = copied(builtin, Path(folder) / "six.gguf", layers=6)
        slow = copied(builtin, Path(folder) / "slow.gguf", layers=7, idle=49)
        drafts: dict[str, object] = {"none": None, "six layers": six, "always six layers": six, "n-grams": "ngram"}
        for name, model in (("built-in", builtin), ("slow", slow)) if chosen.only in (None, "speed") else ():
            for streams in (1, 8):
                for kind, options in (("greedy", GREEDY), ("sampled", SAMPLED)):
                    print(f"{name} model, {streams} streams, {kind}:")
                    speed(model, drafts, streams, options, chosen.rounds)
        for name in ("six layers", "n-grams") if chosen.only in (None, "equal") else ():
            print(f"greedy answers, {name}:")
            equal(drafts[name], chosen.prompts)
        if chosen.only in (None, "chi"):
            print("sampled answers, six layers:")
            chi(six, chosen.samples)


if __name__ == "__main__":
    main()
