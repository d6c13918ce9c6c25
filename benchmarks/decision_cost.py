"""What decisions cost, beside an answer in JSON with the same fields:

    python benchmarks/decision_cost.py --model FILE [--rows 500] [--parts questions,rows]

`questions`: 1, 10 and 100 questions over one input of about 1,000 tokens. `rows`: inputs of about 60 tokens with three
questions each. Printed: tokens evaluated beside those needed (the input once, and of each question what no other shares
with it), processor seconds of this process, and how much memory it took more. Each case is tried in a new process.
"""

import argparse
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from pydantic import BaseModel, create_model  # noqa: E402

from engine import ChoiceQuestion, Engine, ScoreQuestion  # noqa: E402
from engine.runtime.cache.slots import common_prefix  # noqa: E402
from engine.turns.questions import questions_of  # noqa: E402

WORDS = """parcel invoice password yesterday courier refund neighbour account door letter street box order again never
waiting please help today""".split()  # noqa: SIM905
MAIL: dict[str, Any] = {
    "angry": "The customer is angry.",
    "queue": ChoiceQuestion("Which department should read this mail?", ["billing", "login", "delivery"]),
    "urgent": ScoreQuestion("How urgent is this?", ["not urgent", "urgent", "very urgent"]),
}
ASKED = "Answer as JSON: angry (the customer is angry), queue (which department should read this mail: billing, \
login or delivery?), urgent (how urgent is this: not urgent, urgent or very urgent?)."


class Mail(BaseModel):
    angry: bool
    queue: Literal["billing", "login", "delivery"]
    urgent: Literal["not urgent", "urgent", "very urgent"]


def text(words: int, seed: int) -> str:
    chance = random.Random(seed)
    return f"Mail {seed}: {' '.join(chance.choice(WORDS) for _ in range(words))}."


def statements(count: int) -> dict[str, Any]:
    return {f"s{n}": f"The mail mentions the {WORDS[n % len(WORDS)]} {n} times." for n in range(count)}


def needed(llm: Engine, states: Sequence[str], questions: dict[str, Any]) -> int:
    """Returns how many tokens no other prompt shares, of all questions about all inputs."""
    typed = [each.question for each in questions_of(questions).asked.values()]
    prompts = sorted(llm.decider.explain(state, question).tokens for state in states for question in typed)
    total = len(prompts[0])
    for before, tokens in pairwise(prompts):
        total += len(tokens) - common_prefix(before, tokens, len(tokens))
    return total


def one_input(llm: Engine, count: int, *, decides: bool) -> None:
    state = text(900, 1)
    if decides:
        llm.decide(state, statements(count))
        return
    fields: dict[str, Any] = dict.fromkeys(statements(count), (bool, ...))
    listed = "; ".join(f"{name}: {about}" for name, about in statements(count).items())
    form = create_model("Form", **fields)
    llm.chat(f"{state}\n\nAnswer as JSON, true or false. {listed}", response_format=form, temperature=0)


def many_rows(llm: Engine, count: int, *, decides: bool) -> None:
    states = [text(50, seed) for seed in range(count)]
    if decides:
        for _ in llm.decide_iter(states, MAIL):
            pass
        return
    prompts = [f"{state}\n\n{ASKED}" for state in states]
    for _ in llm.generate(prompts, response_format=Mail, temperature=0, max_tokens=60):
        pass


def case(model: str, part: str, count: int, *, decides: bool) -> None:
    run: Callable[..., None] = one_input if part == "questions" else many_rows
    with Engine.load(model, n_ctx=8192 if part == "questions" else 2048, n_sequences=8) as llm:
        llm.decide("warm", {"s": "It is warm.", "c": ChoiceQuestion("Which?", ["a", "b"])})  # how to ask is measured
        llm.chat("warm", response_format=Mail, max_tokens=30)
        before, start, held = llm.metrics, process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run(llm, count, decides=decides)
        seconds, after = process_time() - start, llm.metrics
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / 1024
        read = (after.prompt_tokens - before.prompt_tokens) - (after.cached_tokens - before.cached_tokens)
        made = after.completion_tokens - before.completion_tokens
        extra = ""
        if decides:
            states = [text(900, 1)] if part == "questions" else [text(50, seed) for seed in range(min(count, 40))]
            least = needed(llm, states, statements(count) if part == "questions" else MAIL)
            least = least if part == "questions" else round(least * count / len(states))
            extra = f", needed {least} ({read / least:.3f})"
    way = "decide" if decides else "JSON"
    print(f"{part} {count} {way}: evaluated {read}{extra}, generated {made}, {seconds:.2f} s, {grown:.0f} MiB more",
          flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--parts", default="questions,rows")
    parser.add_argument("--case", help="part,count,decide|json: this one, in this process")
    given = parser.parse_args()
    if given.case:
        part, count, way = given.case.split(",")
        case(given.model, part, int(count), decides=way == "decide")
        return
    for part in given.parts.split(","):
        for count in (1, 10, 100) if part == "questions" else (given.rows,):
            for way in ("decide", "json"):
                command = [sys.executable, __file__, "--model", given.model, "--case", f"{part},{count},{way}"]
                subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
