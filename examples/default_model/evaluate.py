"""Measure the built-in model in llama.cpp: whole conversations, on its own output, in all six formats.

    python evaluate.py builtin-q8_0.gguf    # a format: 200 generated prompts, the 40 hand-written ones, 40 longer talks
    python evaluate.py builtin-q8_0.gguf --generated 20 --families qwen3 --show 5

The model writes a call, the tool's result follows, and it goes on from what it wrote itself. A conversation counts as
whole when reasoning closed wherever the format has it, all calls were right (name and arguments, as JSON values), and
the answer quotes every result. Generated prompts have other seeds than training, held-out nouns and cities; a third of
their tools are those of `tutorial.py`, which training has too.
"""

from __future__ import annotations

import argparse
import json
import random
import tomllib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

from conversations import make_conversation, make_setting
from rendering import FAMILIES, ONE_CALL_A_MESSAGE, REASONING_FIELD, choose_options, tool_schema

from engine import Completion, Engine, ToolCall

HERE = Path(__file__).parent
TITLES = ("Generated, held out", "Hand-written", "Generated, held out, two or three turns")
COLUMNS = ("reasoning", "tools", "arguments", "answer", "whole")


@dataclass(frozen=True, slots=True)
class Ask:
    """One user message, the calls it wants, what the tools return, what the answer must contain."""

    user: str
    calls: list[tuple[str, dict[str, Any]]]
    results: list[str]
    quotes: list[str]


@dataclass(frozen=True, slots=True)
class Case:
    """A conversation to play: system text, tools, what is asked one after the other."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    asks: list[Ask]
    reasoning: bool | Literal["low", "medium", "high"] | None = None


@dataclass(slots=True)
class Score:
    """What was right, over the whole conversation; the transcript is for reading failures."""

    reasoning: bool = True
    tools: bool = True
    arguments: bool = True
    answer: bool = True
    transcript: list[str] = field(default_factory=list[str])

    @property
    def whole(self) -> bool:
        return self.reasoning and self.tools and self.arguments and self.answer


def leaves(result: str) -> list[str]:
    """What an answer that quotes `result` must contain: every value of an object, else the text itself."""
    try:
        value: Any = json.loads(result)
    except ValueError:
        return [result.removeprefix("Error: ")]
    if not isinstance(value, dict):
        return [result]
    return [item if isinstance(item, str) else json.dumps(item, ensure_ascii=False) for item in value.values()]


def generated(count: int, family: str, seed: int, turns: tuple[int, ...]) -> Iterator[Case]:
    """Held-out conversations of so many turns: other seeds, held-out nouns and cities."""
    rng = random.Random(f"held out {seed} {family} {turns}")
    for _ in range(count):
        setting = make_setting(rng, True, rng.random() < 0.93)
        conversation = make_conversation(rng, setting, True, family not in ONE_CALL_A_MESSAGE, rng.choice(turns))
        asks: list[Ask] = []
        for turn in conversation.turns:
            calls = [(call.tool.name, call.arguments) for step in turn.steps for call in step.calls]
            results = [result for step in turn.steps for result in step.results]
            quotes = [leaf for result in results for leaf in leaves(result)] or [turn.steps[-1].answer]
            asks.append(Ask(turn.user, calls, results, quotes))
        messages = [{"role": "system", "content": setting.system}] if setting.system else []
        tools = [tool_schema(tool, setting) for tool in setting.tools]
        options = choose_options(rng, family)
        reasoning = False if family == "qwen3" and not options.thinking else None
        yield Case(messages, tools, asks, options.effort if family == "gpt-oss" else reasoning)


def _signature(text: str) -> dict[str, Any]:
    """`name(city: string, unit: a|b?) -- What it does.` as an OpenAI tool."""
    head, _, description = text.partition(" -- ")
    name, _, inside = head.partition("(")
    properties: dict[str, Any] = {}
    required: list[str] = []
    for part in inside.rstrip(") ").split(", "):
        key, _, kind = part.partition(": ")
        if not key:
            continue
        if not kind.endswith("?"):
            required.append(key)
        properties[key] = _type(kind.rstrip("?"))
    function: dict[str, Any] = {"name": name}
    if description:
        function["description"] = description
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {**function, "parameters": parameters}}


def _type(kind: str) -> dict[str, Any]:
    if "|" in kind:
        return {"type": "string", "enum": kind.split("|")}
    if kind.endswith("[]"):
        return {"type": "array", "items": {"type": kind[:-2]}}
    return {"type": kind}


def handwritten() -> Iterator[Case]:
    for case in tomllib.loads((HERE / "handwritten.toml").read_text(encoding="utf-8"))["case"]:
        calls = [(call["name"], call["arguments"]) for call in case["expect"]]
        ask = Ask(case["user"], calls, case.get("result", []), case["quote"])
        yield Case([], [_signature(tool) for tool in case["tools"]], [ask])


def same(left: Any, right: Any) -> bool:
    """Equal as JSON values: 1 and 1.0 are one number, 1 and true are two things."""
    return json.dumps(_number(left), sort_keys=True) == json.dumps(_number(right), sort_keys=True)


def _number(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _number(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_number(item) for item in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


class Player:
    """Plays cases through one engine, greedily or at a temperature."""

    def __init__(self, llm: Engine, family: str, temperature: float) -> None:
        self.llm, self.family, self.temperature = llm, family, temperature

    def play(self, case: Case) -> Score:
        score, messages = Score(), list(case.messages)
        for ask in case.asks:
            messages.append({"role": "user", "content": ask.user})
            score.transcript.append(f"user: {ask.user}")
            self._answer(case, ask, messages, score)
        return score

    def _answer(self, case: Case, ask: Ask, messages: list[Any], score: Score) -> None:
        """Let the model call until it answers; compare all its calls with what was wanted."""
        made: list[ToolCall] = []
        turn = Completion()
        for step in range(len(ask.calls) + 2):
            turn = self.llm.chat(
                messages, case.tools, reasoning=case.reasoning, temperature=self.temperature, max_tokens=500
            )
            score.reasoning &= not self._reasons(case, step) or bool(turn.reasoning)
            score.arguments &= turn.finish_reason in ("stop", "tool_calls")
            calls = [(call.name, call.arguments) for call in turn.tool_calls]
            score.transcript.append(f"reasoning: {turn.reasoning!r} | calls: {calls} | content: {turn.content!r}")
            messages.append(turn.message)
            if not turn.tool_calls:
                break
            for call in turn.tool_calls:
                result = ask.results[len(made)] if len(made) < len(ask.results) else "ok"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
                made.append(call)
        score.tools &= [call.name for call in made] == [name for name, _ in ask.calls]
        score.arguments &= all(call.error is None for call in made) and self._same_arguments(made, ask)
        said = turn.content.lower()
        score.answer &= not turn.tool_calls and all(quote.lower() in said for quote in ask.quotes)

    def _reasons(self, case: Case, step: int) -> bool:
        """Whether this message must have reasoning, which must have been closed for an answer or a call to exist.

        DeepSeek's format opens none after tool results.
        """
        if self.family == "deepseek-r1":
            return step == 0
        return self.family in REASONING_FIELD and case.reasoning is not False

    @staticmethod
    def _same_arguments(made: list[ToolCall], ask: Ask) -> bool:
        if len(made) != len(ask.calls):
            return False
        pairs = zip(made, ask.calls, strict=True)
        return all(same(json.loads(call.arguments), wanted) for call, (_, wanted) in pairs)


def measure(player: Player, cases: Iterator[Case], show: int) -> tuple[int, dict[str, int]]:
    """How many cases there were, and of how many each column was right. Prints the first `show` failures."""
    count, right = 0, dict.fromkeys(COLUMNS, 0)
    for case in cases:
        score = player.play(case)
        count += 1
        for column in COLUMNS:
            right[column] += getattr(score, column)
        if not score.whole and show > 0:
            show -= 1
            missed = [column for column in COLUMNS if not getattr(score, column)]
            wanted = [(ask.calls, ask.quotes) for ask in case.asks]
            print(f"--- {player.family}: missed {missed}, wanted {wanted}", *score.transcript, sep="\n    ")
    return count, right


def row(family: str, count: int, right: dict[str, int]) -> str:
    shares = " | ".join(f"{100 * right[column] / max(1, count):.1f} %" for column in COLUMNS)
    return f"| {family} | {count} | {shares} |"


def evaluate(family: str, options: argparse.Namespace) -> tuple[str, ...]:
    """The family's row of each table."""
    with Engine.load(
        options.model, family=family, n_ctx=4096, n_threads=1, n_threads_batch=1, seed=options.seed
    ) as llm:
        player = Player(llm, family, options.temperature)
        rows = (
            row(family, *measure(player, generated(options.generated, family, options.seed, (1,)), options.show)),
            row(family, *measure(player, handwritten(), options.show)),
            row(family, *measure(player, generated(options.turns, family, options.seed, (2, 3)), options.show)),
        )
    print(*rows, sep="\n", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=HERE / "builtin-q8_0.gguf")
    parser.add_argument("--generated", type=int, default=200, help="generated prompts a format")
    parser.add_argument("--turns", type=int, default=40, help="conversations of two or three turns a format")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="failures to print a format")
    parser.add_argument("--jobs", type=int, default=1, help="formats at the same time, one core each")
    options = parser.parse_args()
    with ProcessPoolExecutor(options.jobs, get_context("spawn")) as pool:
        rows = list(pool.map(evaluate, options.families, [options] * len(options.families)))
    head = f"| format | prompts | {' | '.join(COLUMNS)} |\n|---|---|" + "---|" * len(COLUMNS)
    for title, table in zip(TITLES, zip(*rows, strict=True), strict=True):
        print(f"\n**{title}** ({options.model.name}, temperature {options.temperature:g})\n\n{head}", *table, sep="\n")


if __name__ == "__main__":
    main()
