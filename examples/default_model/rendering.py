"""Conversations as the models read and write them, through the project's own chat templates.

The prompt is always what the family's template renders; what the assistant writes (the target) is stated here, once a
family. A conversation gives one text a step; where a family keeps its history, the next text begins with the last one.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal

import jinja2
from conversations import Conversation, Setting, Step
from jinja2.sandbox import ImmutableSandboxedEnvironment
from toolbox import Call, Param, Tool
from values import draw, to_json

TEMPLATES = Path(__file__).parent.parent.parent / "templates"
FAMILIES = ("qwen3", "gpt-oss", "deepseek-r1", "llama-3", "mistral-nemo", "qwen3-coder")
ONE_CALL_A_MESSAGE = ("gpt-oss", "llama-3")
REASONING_FIELD = {"qwen3": "reasoning_content", "gpt-oss": "thinking"}
BOS = {"llama-3": "<|begin_of_text|>", "mistral-nemo": "<s>", "deepseek-r1": "<｜begin▁of▁sentence｜>"}
# What the built-in model's own vocabulary calls its first and last token: a caller's template may see these instead.
OWN_BOS, OWN_EOS = "<|endoftext|>", "<|im_end|>"
Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text; `written` says that the assistant wrote it."""

    text: str
    written: bool


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may choose for one conversation beside its messages."""

    family: str
    bos: str = ""
    eos: str = ""
    today: date = date(2025, 8, 5)
    effort: Literal["low", "medium", "high"] | None = None
    thinking: bool = True
    keep_reasoning: bool = True


def choose_options(rng: random.Random, family: str) -> Options:
    bos, eos = BOS.get(family, ""), "</s>"
    roll = rng.random()
    bos, eos = (OWN_BOS, OWN_EOS) if roll < 0.2 else ("", eos) if roll < 0.45 else (bos, eos)
    effort = rng.choice(("low", "medium", "high")) if rng.random() < 0.5 else None
    day = date(2024, 1, 1) + timedelta(days=rng.randint(0, 1500))
    return Options(family, bos, eos, day, effort, rng.random() < 0.85, rng.random() < 0.9)


@cache
def _template(family: str) -> jinja2.Template:
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    return env.from_string((TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8"))


def _raise(message: str) -> None:
    raise ValueError(message)


def render_prompt(options: Options, messages: list[Message], tools: list[dict[str, Any]]) -> str:
    """The prompt that a family's template makes of these messages."""
    values: dict[str, Any] = {"bos_token": options.bos, "eos_token": options.eos, "enable_thinking": options.thinking}
    if options.effort:
        values["reasoning_effort"] = options.effort
    if options.family == "llama-3":
        values["date_string"] = options.today.strftime("%d %b %Y")
    return _template(options.family).render(
        messages=messages,
        tools=tools or None,
        add_generation_prompt=True,
        raise_exception=_raise,
        strftime_now=options.today.strftime,
        **values,
    )


def param_schema(param: Param, setting: Setting) -> dict[str, Any]:
    schema: dict[str, Any] = dict(param.schema)
    if setting.nullable and not param.required:
        schema = {"anyOf": [schema, {"type": "null"}], "default": None}
    if setting.titles:
        schema["title"] = param.spoken.title()
    if setting.described:
        schema["description"] = param_description(param, random.Random(f"{setting.seed} {param.name}"))
    return schema


def param_description(param: Param, rng: random.Random) -> str:
    """As people write them; an example in it is never the value that is wanted."""
    form = rng.choice(
        ("The {}", "The {}", "The {}.", "{}", "{} to use", "A {}", "The {}, e.g. {}", "{} (for example {})")
    )
    example = draw(rng, param.kind, param.schema, False).text
    text = form.format(param.spoken, example)
    return text[0].upper() + text[1:]


def tool_schema(tool: Tool, setting: Setting) -> dict[str, Any]:
    """The OpenAI form of a tool, as a function's signature, pydantic or a person writes it."""
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {param.name: param_schema(param, setting) for param in tool.params},
    }
    required = [param.name for param in tool.params if param.required]
    if required or not setting.titles:
        parameters["required"] = required
    if setting.closed:
        parameters["additionalProperties"] = False
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    if tool.description and tool.params and setting.docstrings:
        lines = (f"    {param.name}: The {param.spoken}." for param in tool.params)
        function["description"] = f"{tool.description}\n\nArgs:\n" + "\n".join(lines)
    return {"type": "function", "function": {**function, "parameters": parameters}}


def _json_call(call: Call, arguments: str = "arguments", tail: str = "") -> str:
    return f'{{"name": "{call.tool.name}", "{arguments}": {to_json(call.arguments)}{tail}}}'


def _tagged_call(call: Call) -> str:
    values = {key: value if isinstance(value, str) else to_json(value) for key, value in call.arguments.items()}
    lines = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={call.tool.name}>\n{lines}</function>\n</tool_call>"


def _chatml(step: Step, options: Options, first_id: int, after_results: bool) -> str:
    reasoning = f"<think>\n{step.reasoning}\n</think>\n\n" if options.thinking else ""
    calls = "\n".join(f"<tool_call>\n{_json_call(call)}\n</tool_call>" for call in step.calls)
    return f"{reasoning}{calls or step.answer}<|im_end|>"


def _harmony(step: Step, options: Options, first_id: int, after_results: bool) -> str:
    analysis = f"<|channel|>analysis<|message|>{step.reasoning}<|end|><|start|>assistant"
    if not step.calls:
        return f"{analysis}<|channel|>final<|message|>{step.answer}<|return|>"
    call = step.calls[0]
    header = f"<|channel|>commentary to=functions.{call.tool.name} <|constrain|>json"
    return f"{analysis}{header}<|message|>{to_json(call.arguments)}<|call|>"


def _deepseek(step: Step, options: Options, first_id: int, after_results: bool) -> str:
    reasoning = "" if after_results else f"{step.reasoning}\n</think>\n\n"
    start, end = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    calls = "\n".join(f"{start}{call.tool.name}\n```json\n{to_json(call.arguments)}\n```{end}" for call in step.calls)
    body = f"<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>" if calls else step.answer
    return f"{reasoning}{body}<｜end▁of▁sentence｜>"


def _llama(step: Step, options: Options, first_id: int, after_results: bool) -> str:
    return (_json_call(step.calls[0], "parameters") if step.calls else step.answer) + "<|eot_id|>"


def call_id(number: int) -> str:
    """The ids that the model writes where its format has them: nine characters, counted up."""
    return f"call{number:05}"


def _mistral(step: Step, options: Options, first_id: int, after_results: bool) -> str:
    if not step.calls:
        return f"{step.answer}</s>"
    calls = [_json_call(call, tail=f', "id": "{call_id(first_id + i)}"') for i, call in enumerate(step.calls)]
    return f"[TOOL_CALLS][{', '.join(calls)}]</s>"


def _coder(step: Step, options: Options, first_id: int, after_results: bool) -> str:
    return ("\n".join(_tagged_call(call) for call in step.calls) or step.answer) + "<|im_end|>"


TARGETS: dict[str, Callable[[Step, Options, int, bool], str]] = {
    "qwen3": _chatml,
    "gpt-oss": _harmony,
    "deepseek-r1": _deepseek,
    "llama-3": _llama,
    "mistral-nemo": _mistral,
    "qwen3-coder": _coder,
}


def step_messages(step: Step, options: Options, first_id: int) -> list[Message]:
    """The step as history: the assistant's message and the tools' replies."""
    message: Message = {"role": "assistant", "content": step.answer}
    field = REASONING_FIELD.get(options.family)
    if field and options.thinking and options.keep_reasoning:
        message[field] = step.reasoning
    if not step.calls:
        return [message]
    ids = [call_id(first_id + i) for i in range(len(step.calls))]
    message["tool_calls"] = [
        {"id": id, "type": "function", "function": {"name": call.tool.name, "arguments": call.arguments}}
        for id, call in zip(ids, step.calls, strict=True)
    ]
    replies = [
        {"role": "tool", "tool_call_id": id, "content": text} for id, text in zip(ids, step.results, strict=True)
    ]
    return [message, *replies]


def conversation_texts(conversation: Conversation, options: Options) -> list[tuple[str, str]]:
    """(prompt, target) of every assistant message."""
    setting = conversation.setting
    tools = [tool_schema(tool, setting) for tool in setting.tools]
    messages: list[Message] = [{"role": "system", "content": setting.system}] if setting.system else []
    texts: list[tuple[str, str]] = []
    next_id = 1
    for turn in conversation.turns:
        messages.append({"role": "user", "content": turn.user})
        for place, step in enumerate(turn.steps):
            target = TARGETS[options.family](step, options, next_id, place > 0)
            texts.append((render_prompt(options, messages, tools), target))
            messages += step_messages(step, options, next_id)
            next_id += len(step.calls)
    return texts


def first_prompt(setting: Setting, options: Options, user: str) -> str:
    """The prompt of a conversation that begins with what this user says."""
    messages: list[Message] = [{"role": "system", "content": setting.system}] if setting.system else []
    return render_prompt(
        options,
        [*messages, {"role": "user", "content": user}],
        [tool_schema(tool, setting) for tool in setting.tools],
    )


def sequences(texts: list[tuple[str, str]]) -> list[list[Piece]]:
    """The texts as training sequences: a prompt that continues the one before it extends the same sequence."""
    found: list[list[Piece]] = []
    so_far = ""
    for prompt, target in texts:
        if found and prompt.startswith(so_far):
            found[-1].append(Piece(prompt.removeprefix(so_far), False))
        else:
            found.append([Piece(prompt, False)])
        found[-1].append(Piece(target, True))
        so_far = prompt + target
    return found


def look_ups(target: str, calls: Sequence[Call]) -> str:
    """A message as far as the first key of the last call that it names first; all of it where it calls nothing."""
    end = 0
    for call in calls:
        named = re.compile(rf'["=]{re.escape(call.tool.name)}(?=[">])').search(target, end)
        if named is None:
            return target
        key = next(iter(call.arguments), None)
        end = named.end() if key is None else target.index(key, named.end()) + len(key)
    return target[:end] if end else target
