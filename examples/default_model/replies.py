"""Reading a model's reply, strictly: exactly the format that its family writes, or it does not count."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Reply:
    """One assistant message as it was written. `closed` says that its reasoning was opened and closed."""

    closed: bool = True
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    content: str = ""
    sound: bool = True


_END = {"qwen3": "<|im_end|>", "qwen3-coder": "<|im_end|>", "llama-3": "<|eot_id|>", "mistral-nemo": "</s>"}
_HARMONY = re.compile(
    r"(?:<\|channel\|>analysis<\|message\|>(?P<reasoning>.*?)<\|end\|><\|start\|>assistant)"
    r"(?:<\|channel\|>commentary to=functions\.(?P<name>[^ <]+) <\|constrain\|>json<\|message\|>"
    r"(?P<arguments>.*)<\|call\|>"
    r"|<\|channel\|>final<\|message\|>(?P<content>.*)<\|return\|>)",
    re.DOTALL,
)
_JSON_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>(?:\n|$)", re.DOTALL)
_TAGGED = re.compile(r"<tool_call>\n<function=([^>]+)>\n(.*?)</function>\n</tool_call>(?:\n|$)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>]+)>\n(.*?)\n</parameter>\n", re.DOTALL)
_FENCED = re.compile(
    r"<｜tool▁call▁begin｜>function<｜tool▁sep｜>(.*?)\n```json\n(.*?)\n```<｜tool▁call▁end｜>\n?", re.DOTALL
)


def read(family: str, text: str, thinking: bool, types: dict[str, dict[str, str]]) -> Reply:
    """Read a reply; `types` gives each tool's parameter types, which tagged arguments need."""
    try:
        if family == "gpt-oss":
            return _harmony(text)
        if family == "deepseek-r1":
            return _deepseek(text, thinking)
        body, ended = text.removesuffix(_END[family]), text.endswith(_END[family])
        reply = _plain(family, body, thinking, types)
        reply.sound = reply.sound and ended
        return reply
    except (ValueError, KeyError, TypeError):
        return Reply(sound=False, content=text)


def _harmony(text: str) -> Reply:
    found = _HARMONY.fullmatch(text)
    if not found:
        return Reply(closed=False, sound=False, content=text)
    if found["name"]:
        return Reply(reasoning=found["reasoning"], calls=[(found["name"], json.loads(found["arguments"]))])
    return Reply(reasoning=found["reasoning"], content=found["content"])


def _deepseek(text: str, thinking: bool) -> Reply:
    end = "<｜end▁of▁sentence｜>"
    reasoning, mark, body = text.partition("\n</think>\n\n") if thinking else ("", "", text)
    reply = Reply(closed=bool(mark) or not thinking, reasoning=reasoning, sound=text.endswith(end))
    body = body.removesuffix(end)
    if body.startswith("<｜tool▁calls▁begin｜>"):
        inner = body.removeprefix("<｜tool▁calls▁begin｜>").removesuffix("<｜tool▁calls▁end｜>")
        reply.calls = [(name, json.loads(arguments)) for name, arguments in _FENCED.findall(inner)]
        reply.sound = reply.sound and not _FENCED.sub("", inner)
    else:
        reply.content = body
    return reply


def _plain(family: str, body: str, thinking: bool, types: dict[str, dict[str, str]]) -> Reply:
    reply = Reply()
    if family == "qwen3" and thinking:
        reply.reasoning, mark, body = body.removeprefix("<think>\n").partition("\n</think>\n\n")
        reply.closed = bool(mark)
    if body.startswith("<tool_call>"):
        pattern = _JSON_CALL if family == "qwen3" else _TAGGED
        reply.sound = not pattern.sub("", body)
        for found in pattern.findall(body):
            reply.calls.append(_json_call(found, "arguments") if family == "qwen3" else _tagged(*found, types))
    elif family == "llama-3" and body.startswith('{"name": '):
        reply.calls = [_json_call(body, "parameters")]
    elif body.startswith("[TOOL_CALLS]"):
        listed: list[dict[str, Any]] = json.loads(body.removeprefix("[TOOL_CALLS]"))
        reply.sound = all(len(call["id"]) == 9 for call in listed)
        reply.calls = [(call["name"], call["arguments"]) for call in listed]
    else:
        reply.content = body
    return reply


def _json_call(text: str, key: str) -> tuple[str, Any]:
    call: dict[str, Any] = json.loads(text)
    return call["name"], call[key]


def _tagged(name: str, body: str, types: dict[str, dict[str, str]]) -> tuple[str, Any]:
    values = dict(_PARAMETER.findall(body))
    known = types.get(name, {})
    return name, {key: value if known.get(key) == "string" else json.loads(value) for key, value in values.items()}
