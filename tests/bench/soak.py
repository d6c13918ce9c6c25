"""Ten thousand short requests with random cancels at sixteen streams: does anything leak, and do neighbours disturb?

    python tests/bench/soak.py --requests 10000
    python tests/bench/soak.py --scripted --requests 2000

Prints resident memory along the way, the sequences still held at the end, and how many surviving answers differ from
the same request run alone. With `--scripted` (no llama.cpp, every token decided by its past) none may differ, nor with
the default attention of the CPU. Its flash attention (`--flash-attn on`) adds up in F16, so there some may; for those
the smallest gap between the two best tokens of the answer alone is printed.
"""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from engine import Engine  # noqa: E402
from engine.template.chat_template import ChatTemplate  # noqa: E402
from engine.testing import ByteVocab, ScriptedBackend  # noqa: E402

STREAMS = 16
_ASKS = ("Who are you?", "Hello", "Say green river", "My name is Sam.", "Repeat: one two three", "Thank you!")


def scripted(prompt: str) -> str:
    """What a scripted model says to a prompt: always the same, and not what it says to another."""
    asked = prompt.rsplit("user\n", 1)[-1].split("<|im_end|>", maxsplit=1)[0]
    return f"<think>\nAbout {asked[::-1]}.\n</think>\n\nThe answer to {asked!r}, at some length."


@dataclass(frozen=True)
class Ask:
    """One request: its text, and after how many events its reader leaves (None: never)."""

    text: str
    leaves_after: int | None
    max_tokens: int


def asks(count: int, seed: int) -> Iterator[Ask]:
    rng = random.Random(seed)
    for _ in range(count):
        text = f"{rng.choice(_ASKS)} {rng.randrange(40)}"
        yield Ask(text, rng.randint(0, 12) if rng.random() < 0.3 else None, rng.randint(4, 40))


def resident() -> float:
    """MiB that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def soak(llm: Engine, requests: Sequence[Ask]) -> dict[Ask, str]:
    """Run all, sixteen under way at any time; the text of each that was read to its end."""
    answers: dict[Ask, str] = {}
    under_way: list[tuple[Ask, Any]] = []

    def settle(ask: Ask, stream: Any) -> None:
        if ask.leaves_after is None:
            done = stream.result()
            answers[ask] = f"{done.reasoning}|{done.content}"
            return
        for number, _ in enumerate(stream):
            if number >= ask.leaves_after:
                break
        stream.cancel()

    for number, ask in enumerate(requests):
        if len(under_way) == STREAMS:
            settle(*under_way.pop(0))
        under_way.append((ask, llm.stream(ask.text, max_tokens=ask.max_tokens, temperature=0)))
        if number % max(1, len(requests) // 10) == 0:
            print(f"  {number:6} requests: {resident():8.1f} MiB", flush=True)
    for ask, stream in under_way:
        settle(ask, stream)
    print(f"  {len(requests):6} requests: {resident():8.1f} MiB; {llm.metrics.running} still running")
    return answers


def compare(llm: Engine, answers: dict[Ask, str], sample: int) -> None:
    """Run some of the answers again, each alone."""
    chosen = random.Random(1).sample(sorted(answers, key=repr), min(sample, len(answers)))
    differ = 0
    for ask in chosen:
        with llm.stream(ask.text, max_tokens=ask.max_tokens, temperature=0, logprobs=2) as stream:
            alone = stream.result()
        said = f"{alone.reasoning}|{alone.content}"
        if said != answers[ask]:
            differ += 1
            gaps = [token.top[0].logprob - token.top[1].logprob for token in alone.logprobs if len(token.top) == 2]
            print(f"  differs: {ask.text!r}: {answers[ask]!r} / {said!r}; smallest gap {min(gaps, default=0.0):.4f}")
    print(f"  {differ} of {len(chosen)} answers differ from the same request run alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--compare", type=int, default=500, help="answers to run again alone")
    parser.add_argument("--scripted", action="store_true", help="without llama.cpp")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flash-attn", choices=("auto", "on", "off"), default="auto")
    given = parser.parse_args()
    requests = list(asks(given.requests, given.seed))
    if given.scripted:
        backend = ScriptedBackend(scripted, vocab=ByteVocab(["<|im_start|>"]), n_sequences=STREAMS, n_ctx=512)
        llm = Engine(backend, ChatTemplate(None, family="qwen3"))
    else:
        llm = Engine.load(n_ctx=512, n_sequences=STREAMS, n_threads=1, preflight=False, flash_attn=given.flash_attn)
    with llm:
        compare(llm, soak(llm, requests), given.compare)


if __name__ == "__main__":
    main()
