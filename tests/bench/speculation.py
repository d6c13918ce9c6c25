"""What guessing the next tokens from the context buys, and whether it changes answers: `drafts` and `exact` of
`runtime.py`.

The built-in model repeats a text and quotes a tool's result, greedily and at a temperature; answers with and without
guesses are the same but for rounding. It is so small that a wider decode costs it almost what the rows cost one by one.
Random weights of a real size repeat nothing that they are told, but greedily they run into loops, which are guessed
just so.
"""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from bare import GREEDY, Drawing
from measuring import WORDS, Setup, made_by, report, speeds, words

from engine import Engine, Usage


class _Side:
    """One of the two engines, and what it answered last."""

    def __init__(self, llm: Engine) -> None:
        self._llm = llm
        self.texts: list[str] = []
        self.usages: list[Usage] = []

    def run(self, talks: Sequence[Any], tools: Any, drawing: Drawing, steps: int, **more: Any) -> int:
        """Answer each; the number of tokens made."""
        options: Any = {"tools": tools, "seed": 1, "max_tokens": steps, **drawing.options, **more}
        done = [self._llm.chat(talk, **options) for talk in talks]
        self.texts = [f"{each.reasoning}|{each.content}" for each in done]
        self.usages = [each.usage or Usage() for each in done]
        return sum(made_by(each) for each in done)


def _compare(title: str, sides: Sequence[_Side], rounds: int, run: Callable[[_Side], int]) -> None:
    plain, drafting = sides
    contenders: dict[str, Callable[[], int]] = {
        "without guesses": lambda: run(plain),
        "with up to 8": lambda: run(drafting),
    }
    report(title, speeds(contenders, rounds), "without guesses")
    guessed = sum(usage.drafted_tokens for usage in drafting.usages)
    true = sum(usage.accepted_tokens for usage in drafting.usages)
    same = sum(one == other for one, other in zip(plain.texts, drafting.texts, strict=True))
    print(f"  {true} of {guessed} guesses came true; {same} of {len(plain.texts)} answers are the same", flush=True)


def _workloads(count: int) -> dict[str, tuple[list[Any], Any]]:
    """What the built-in model copies from its context: so many talks of each kind, and their tools."""
    return {
        "repeat a text": ([f"Repeat: {words(24, seed)}" for seed in range(count)], None),
        "quote a tool's result": ([_quoting(seed) for seed in range(count)], _TOOLS),
    }


def _options(setup: Setup) -> dict[str, Any]:
    return {"n_ctx": 2048, "n_threads": setup.threads, "preflight": False}


def drafts(setup: Setup) -> None:
    """The built-in model's two workloads, greedy and sampled; then the model that was asked for."""
    workloads, options = _workloads(12), _options(setup)
    with Engine.load(**options) as plain, Engine.load(**options, draft_max=8) as drafting:
        sides = (_Side(plain), _Side(drafting))
        for name, (talks, tools) in workloads.items():
            for drawing in (GREEDY, Drawing(0.3)):
                _compare(
                    f"the built-in model, {name}, temperature {drawing.temperature:g}",
                    sides,
                    setup.rounds,
                    lambda side, talks=talks, tools=tools, drawing=drawing: side.run(talks, tools, drawing, 200),
                )
    with Engine.load(setup.path, **options) as plain, Engine.load(setup.path, **options, draft_max=8) as drafting:
        talks = [words(64, seed) for seed in range(2)]
        _compare(
            f"{setup.path.name}, {4 * setup.steps} tokens, greedy",
            (_Side(plain), _Side(drafting)),
            setup.rounds,
            lambda side: side.run(talks, None, GREEDY, 4 * setup.steps, ignore_eos=True),
        )


def exact(setup: Setup) -> None:
    """How many of the built-in model's answers differ with guesses: as usual, and with each row computed alone.

    llama.cpp computes a row of a wider batch by other kernels, which round otherwise. With `n_ubatch=1` there are no
    wider batches, and all else is as it was: what is guessed, verified, cut off.
    """
    count = 10 * setup.rounds
    print(f"\nanswers that differ with up to 8 guesses, of {count} each")
    for n_ubatch in (512, 1):
        options: dict[str, Any] = {**_options(setup), "n_ubatch": n_ubatch}
        with Engine.load(**options) as plain, Engine.load(**options, draft_max=8) as drafting:
            sides = (_Side(plain), _Side(drafting))
            for name, (talks, tools) in _workloads(count).items():
                for drawing in (GREEDY, Drawing(0.3), Drawing(1.0)):
                    for side in sides:
                        side.run(talks, tools, drawing, 200)
                    differ = sum(one != other for one, other in zip(sides[0].texts, sides[1].texts, strict=True))
                    true = sum(usage.accepted_tokens for usage in sides[1].usages)
                    guessed = sum(usage.drafted_tokens for usage in sides[1].usages)
                    label = f"n_ubatch={n_ubatch}, {name}, temperature {drawing.temperature:g}"
                    print(f"  {label:60} {differ:3} ({true} of {guessed} guesses came true)", flush=True)


_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_report",
            "description": "Get the report.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def _quoting(seed: int) -> list[Any]:
    """A conversation whose next message quotes a result."""
    rng = random.Random(seed)
    result = {key: " ".join(rng.choices(WORDS, k=5)) for key in ("title", "place", "note")}
    call = {"id": "call_1", "type": "function", "function": {"name": "get_report", "arguments": '{"city": "Oslo"}'}}
    return [
        {"role": "user", "content": "Get the report for Oslo."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": json.dumps(result)},
    ]
