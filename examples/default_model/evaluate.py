"""Measure the built-in model in llama.cpp: whole conversations, on its own output, in all six formats.

    python evaluate.py builtin-q8_0.gguf                  # 200 generated and the 40 hand-written prompts a format
    python evaluate.py builtin-q8_0.gguf --generated 20 --families qwen3 --show 5

The model writes a call, the tool's result follows, and it goes on from what it wrote itself. A conversation counts as
whole when reasoning closed wherever the format has it, all calls were right (name and arguments, as JSON values), and
the answer quotes every result. Tool names, values and most nouns of the generated prompts never occur in training.
"""

from __future__ import annotations

import argparse
import json
import random
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from conversations import choose_turns, make_conversation, make_setting
from rendering import (
    FAMILIES,
    ONE_CALL_A_MESSAGE,
    REASONING_FIELD,
    STOPS,
    Message,
    Options,
    call_id,
    choose_options,
    render_prompt,
    tool_schema,
)
from replies import Reply, read
from runtime import Runtime

HERE = Path(__file__).parent
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

    messages: list[Message]
    tools: list[dict[str, Any]]
    asks: list[Ask]
    options: Options


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


def generated(count: int, family: str, seed: int) -> Iterator[Case]:
    """Held-out conversations: other seeds, held-out nouns and cities."""
    rng = random.Random(f"held out {seed} {family}")
    for _ in range(count):
        setting = make_setting(rng, True, rng.random() < 0.93)
        conversation = make_conversation(rng, setting, True, family not in ONE_CALL_A_MESSAGE, choose_turns(rng))
        asks: list[Ask] = []
        for turn in conversation.turns:
            calls = [(call.tool.name, call.arguments) for step in turn.steps for call in step.calls]
            results = [result for step in turn.steps for result in step.results]
            quotes = [leaf for result in results for leaf in leaves(result)] or [turn.steps[-1].answer]
            asks.append(Ask(turn.user, calls, results, quotes))
        messages: list[Message] = [{"role": "system", "content": setting.system}] if setting.system else []
        tools = [tool_schema(tool, setting) for tool in setting.tools]
        yield Case(messages, tools, asks, choose_options(rng, family))


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


def handwritten(family: str) -> Iterator[Case]:
    for case in tomllib.loads((HERE / "handwritten.toml").read_text(encoding="utf-8"))["case"]:
        calls = [(call["name"], call["arguments"]) for call in case["expect"]]
        ask = Ask(case["user"], calls, case.get("result", []), case["quote"])
        yield Case([], [_signature(tool) for tool in case["tools"]], [ask], Options(family, eos="</s>"))


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
    """Plays cases through one model."""

    def __init__(self, runtime: Runtime, temperature: float, seed: int) -> None:
        self.runtime, self.temperature, self.rng = runtime, temperature, np.random.default_rng(seed)

    def play(self, case: Case) -> Score:
        score, messages, used = Score(), list(case.messages), 0
        for ask in case.asks:
            messages.append({"role": "user", "content": ask.user})
            score.transcript.append(f"user: {ask.user}")
            used = self._ask(case, ask, messages, score, used)
        return score

    def _ask(self, case: Case, ask: Ask, messages: list[Message], score: Score, used: int) -> int:
        """Let the model call until it answers; compare all calls of this ask with what was wanted."""
        made: list[tuple[str, Any]] = []
        reply = Reply()
        for step in range(len(ask.calls) + 2):
            reply = self._reply(
                case, messages, thinking=case.options.thinking and (step == 0 or not self._silent(case))
            )
            score.reasoning &= reply.closed
            score.arguments &= reply.sound
            score.transcript.append(f"reasoning: {reply.reasoning} | calls: {reply.calls} | content: {reply.content!r}")
            if not reply.calls:
                break
            messages += self._history(case, reply, ask, len(made), used + 1)
            made += reply.calls
            used += len(reply.calls)
        score.tools &= [name for name, _ in made] == [name for name, _ in ask.calls]
        score.arguments &= len(made) == len(ask.calls) and all(
            same(given, wanted) for (_, given), (_, wanted) in zip(made, ask.calls, strict=True)
        )
        said = reply.content.lower()
        score.answer &= not reply.calls and reply.sound and all(quote.lower() in said for quote in ask.quotes)
        messages.append(self._message(case, reply))
        return used

    @staticmethod
    def _silent(case: Case) -> bool:
        """DeepSeek's format opens no reasoning after tool results."""
        return case.options.family == "deepseek-r1"

    def _reply(self, case: Case, messages: list[Message], thinking: bool) -> Reply:
        prompt = render_prompt(case.options, messages, case.tools)
        family = case.options.family
        text = self.runtime.complete(prompt, STOPS[family], self.temperature, self.rng)
        types = {
            tool["function"]["name"]: {
                key: (schema.get("anyOf") or [schema])[0].get("type", "string")
                for key, schema in tool["function"]["parameters"]["properties"].items()
            }
            for tool in case.tools
        }
        return read(family, text, thinking, types)

    @staticmethod
    def _message(case: Case, reply: Reply) -> Message:
        message: Message = {"role": "assistant", "content": reply.content}
        name = REASONING_FIELD.get(case.options.family)
        return {**message, name: reply.reasoning} if name and reply.reasoning else message

    def _history(self, case: Case, reply: Reply, ask: Ask, made: int, first_id: int) -> list[Message]:
        """The model's own calls as the next prompt states them, and what the tools answer."""
        calls = reply.calls[:1] if case.options.family in ONE_CALL_A_MESSAGE else reply.calls
        ids = [call_id(first_id + place) for place in range(len(calls))]
        listed = [
            {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id, (name, arguments) in zip(ids, calls, strict=True)
        ]
        results = [
            ask.results[made + place] if made + place < len(ask.results) else "ok" for place in range(len(calls))
        ]
        replies = [{"role": "tool", "tool_call_id": id, "content": text} for id, text in zip(ids, results, strict=True)]
        return [{**self._message(case, reply), "tool_calls": listed}, *replies]


def measure(player: Player, cases: Iterator[Case], show: int) -> tuple[int, dict[str, int]]:
    """How many cases there were, and of how many each column was right."""
    count, right = 0, dict.fromkeys(COLUMNS, 0)
    for case in cases:
        try:
            score = player.play(case)
        except (ValueError, TypeError, AttributeError) as problem:  # arguments that the template cannot render
            score = Score(False, False, False, False, [f"broken: {problem}"])
        count += 1
        for column in COLUMNS:
            right[column] += getattr(score, column)
        if not score.whole and show > 0:
            show -= 1
            missed = [column for column in COLUMNS if not getattr(score, column)]
            wanted = [(ask.calls, ask.quotes) for ask in case.asks]
            print(f"--- {case.options.family}: missed {missed}, wanted {wanted}", *score.transcript, sep="\n    ")
    return count, right


def row(family: str, count: int, right: dict[str, int]) -> str:
    return (
        f"| {family} | {count} | "
        + " | ".join(f"{100 * right[column] / max(1, count):.1f} %" for column in COLUMNS)
        + " |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=HERE / "builtin-q8_0.gguf")
    parser.add_argument("--generated", type=int, default=200, help="generated prompts a format")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=0, help="failures to print a format")
    options = parser.parse_args()
    player = Player(Runtime(options.model), options.temperature, options.seed)
    head = f"| format | prompts | {' | '.join(COLUMNS)} |\n|---|---|" + "---|" * len(COLUMNS)
    tables: dict[str, list[str]] = {"Generated, held out": [], "Hand-written": []}
    for family in options.families:
        for title, cases in zip(
            tables, (generated(options.generated, family, options.seed), handwritten(family)), strict=True
        ):
            tables[title].append(row(family, *measure(player, cases, options.show)))
            print(title, tables[title][-1], flush=True)
    for title, rows in tables.items():
        print(
            f"\n**{title}** ({options.model.name}, temperature {options.temperature:g})\n\n{head}\n" + "\n".join(rows)
        )


if __name__ == "__main__":
    main()
