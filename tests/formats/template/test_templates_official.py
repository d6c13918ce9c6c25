"""Our templates against the official ones they stand in for.

Each template in `templates/` must render the same bytes as its family's official template. The comparison needs the
official files, which `llama-cpp-python`'s source distribution carries: set `LLAMA_CPP_TEMPLATES` to its folder
`vendor/llama.cpp/models/templates`. Without it those cases are skipped and the golden renderings still run.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATES = Path(__file__).parents[3] / "templates"
OFFICIAL = os.environ.get("LLAMA_CPP_TEMPLATES")
BOS = {"llama-3": "<|begin_of_text|>", "mistral-nemo": "<s>", "deepseek-r1": "<｜begin▁of▁sentence｜>"}
EOS = {"mistral-nemo": "</s>"}

Message = dict[str, Any]
Tool = dict[str, Any]


def _raise(message: str) -> None:
    raise TemplateError(message)


def _tojson(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _now(form: str) -> str:
    return datetime.date(2025, 8, 5).strftime(form)


@cache
def compiled(source: str) -> Template:
    """As Hugging Face's tokenizers do it: that is what the official templates were written for."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = _tojson
    env.globals.update({"raise_exception": _raise, "strftime_now": _now})  # pyright: ignore[reportArgumentType, reportCallIssue]
    return env.from_string(source)


def render(source: str, family: str, messages: list[Message], tools: list[Tool] | None, **options: Any) -> str:
    values: dict[str, Any] = {
        "bos_token": BOS.get(family, ""),
        "eos_token": EOS.get(family, ""),
        "add_generation_prompt": True,
    }
    if tools is not None:
        values["tools"] = tools
    return compiled(source).render(messages=messages, **{**values, **options})


def function(name: str, properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> Tool:
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if required is not None:
        parameters["required"] = required
    description = more.pop("description", f"Does {name}.")
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = function("get_weather", {"city": {"type": "string", "description": 'The city, "quoted"'}}, ["city"])
BARE = function("ping", {})
RICH = function(
    "book",
    {
        "unit": {"type": "string", "enum": ["day", "night"], "default": "day"},
        "count": {"type": "integer", "default": 2, "title": "Count"},
        "price": {"type": "number", "nullable": True},
        "note": {"type": "string", "nullable": True, "description": "  Free text.  "},
        "fast": {"type": "boolean", "default": False},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "integer"}, "nullable": True},
        "pairs": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "any": {"type": "array"},
        "mixed": {"type": ["string", "null"]},
        "one": {"type": ["string"]},
        "choice": {"oneOf": [{"type": "string", "description": "a name"}, {"type": "integer", "default": 3}]},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "place": {
            "type": "object",
            "properties": {"lat": {"type": "number"}, "names": {"type": "array", "items": {"type": "boolean"}}},
            "required": ["lat"],
        },
        "places": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
        "free": {"type": "object"},
    },
    ["unit", "place"],
    description="Books a stay.\n\nMore about it: naïve ünïcode, <b>&amp;</b>.",
)
TOOLSETS: dict[str, list[Tool] | None] = {"none": None, "one": [WEATHER], "many": [RICH, BARE, WEATHER]}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


def calls(*arguments: dict[str, Any], first_id: int = 1, content: str | None = "", **more: Any) -> Message:
    listed = [
        {"id": f"call{first_id + i:05}", "type": "function", "function": {"name": "get_weather", "arguments": each}}
        for i, each in enumerate(arguments)
    ]
    return {"role": "assistant", "content": content, "tool_calls": listed, **more}


def result(text: str, number: int = 1) -> Message:
    return {"role": "tool", "name": "get_weather", "tool_call_id": f"call{number:05}", "content": text}


SYSTEM: Message = {"role": "system", "content": "  Be brief.\n"}
ONE = [user("Weather in Oslo?"), calls({"city": "Oslo"}), result('{"temp": 4, "sky": "gr\u00e5"}')]
TYPED = [
    user("Go."),
    calls({"a": True, "b": None, "c": 1.5, "d": [1, "x"], "e": {"k": 'v\n"w"'}, "f": "  s "}),
    result("ok"),
]
TWO_MESSAGES = [*ONE, calls({"city": "Rome"}, first_id=2), result("sunny", 2)]
TWO_AT_ONCE = [user("Oslo, Rome?"), calls({"city": "Oslo"}, {"city": "Rome"}), result("cold"), result("warm", 2)]
BOTH = says("Oslo is grey.")

_PLAIN: dict[str, list[Message]] = {
    "user": [user(" Hello \n")],
    "turns": [user("Hello"), says("Hi!"), user("Who are you?")],
    "call": ONE,
    "typed": TYPED,
    "answered": [*ONE, BOTH],
    "answered, asked again": [*ONE, BOTH, user("And Rome?")],
    "second round": [*ONE, BOTH, user("And Rome?"), calls({"city": "Rome"}, first_id=2), result("sunny", 2)],
    "two messages": TWO_MESSAGES,
    "two messages, answered": [*TWO_MESSAGES, BOTH, user("Thanks")],
    "two at once": TWO_AT_ONCE,
    "two at once, answered": [*TWO_AT_ONCE, BOTH],
}
CONVERSATIONS = {**_PLAIN, **{f"system, {name}": [SYSTEM, *messages] for name, messages in _PLAIN.items()}}


def with_reasoning(messages: list[Message], field: str) -> list[Message]:
    """The same conversation with reasoning in every assistant message, in `field` or (field "content") in tags."""

    def add(message: Message, number: int) -> Message:
        if message["role"] != "assistant":
            return message
        if field == "content":
            return {**message, "content": f"<think>\nThought {number}.\n</think>\n\n{message['content'] or ''}"}
        return {**message, field: f"Thought {number}."}

    return [add(message, number) for number, message in enumerate(messages)]


def without_content(messages: list[Message]) -> list[Message]:
    """The official DeepSeek template renders content beside calls as a second turn; null avoids that."""
    return [{**message, "content": None} if message.get("tool_calls") else message for message in messages]


Case = tuple[str, str, list[Message], list[Tool] | None, dict[str, Any]]


def qwen3_cases() -> Iterator[Case]:
    for name, messages in CONVERSATIONS.items():
        for label, tools in TOOLSETS.items():
            yield "Qwen-Qwen3-0.6B", f"{name}/{label}", messages, tools, {}
        for field in ("reasoning_content", "content"):
            yield "Qwen-Qwen3-0.6B", f"{name}/{field}", with_reasoning(messages, field), [WEATHER], {}
            yield (
                "Qwen-Qwen3-0.6B",
                f"{name}/{field}, off",
                with_reasoning(messages, field),
                None,
                {"enable_thinking": False},
            )
        yield "Qwen-Qwen3-0.6B", f"{name}/no prompt", messages, None, {"add_generation_prompt": False}
    old = [user("Weather?"), says("I call."), user("<tool_response>\n4\n</tool_response>"), says("It is 4.")]
    yield "Qwen-Qwen3-0.6B", "old tool reply", with_reasoning(old, "reasoning_content"), None, {}
    yield "Qwen-Qwen3-0.6B", "content beside calls", [user("Go"), calls({"city": "x"}, content="\nFirst.")], None, {}
    yield "Qwen-Qwen3-0.6B", "late system", [user("Go"), SYSTEM, user("Now")], None, {}


def gpt_oss_cases() -> Iterator[Case]:
    for name, messages in CONVERSATIONS.items():
        for label, tools in TOOLSETS.items():
            yield "openai-gpt-oss-120b", f"{name}/{label}", messages, tools, {}
        thought = with_reasoning(messages, "thinking")
        yield "openai-gpt-oss-120b", f"{name}/thinking", thought, [WEATHER], {"reasoning_effort": "high"}
        yield "openai-gpt-oss-120b", f"{name}/no prompt", thought, None, {"add_generation_prompt": False}
    yield "openai-gpt-oss-120b", "analysis in content", [user("Go"), calls({}, content="Hm."), result("ok")], None, {}
    developer = [{"role": "developer", "content": "Be kind."}, user("Hi")]
    yield "openai-gpt-oss-120b", "developer", developer, [BARE], {"model_identity": "You are tiny."}


def llama_cases() -> Iterator[Case]:
    for name, messages in CONVERSATIONS.items():
        if "at once" in name:
            continue
        for official in ("meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.3-70B-Instruct"):
            for label, tools in TOOLSETS.items():
                yield official, f"{name}/{label}", messages, tools, {}
            yield (
                official,
                f"{name}/in system",
                messages,
                [RICH],
                {"tools_in_user_message": False, "date_string": "1 May 2026"},
            )


def mistral_cases() -> Iterator[Case]:
    for name, messages in CONVERSATIONS.items():
        for label, tools in TOOLSETS.items():
            yield "mistralai-Mistral-Nemo-Instruct-2407", f"{name}/{label}", messages, tools, {}


def coder_cases() -> Iterator[Case]:
    for name, messages in CONVERSATIONS.items():
        for label, tools in TOOLSETS.items():
            yield "Qwen3-Coder", f"{name}/{label}", messages, tools, {}
    yield "Qwen3-Coder", "content beside calls", [user("Go"), calls({"city": "x"}, content=" First. ")], [WEATHER], {}


def deepseek_cases() -> Iterator[Case]:
    """Only where the official template is sound: no tools, and one round of calls."""
    official = "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"
    for name, messages in CONVERSATIONS.items():
        if "round" in name or "messages" in name or "asked again" in name:
            continue
        yield official, f"{name}", without_content(messages), None, {"enable_thinking": True}
        if not any(message.get("tool_calls") for message in messages):
            yield official, f"{name}/tags", with_reasoning(messages, "content"), None, {"enable_thinking": True}
            yield "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", f"{name}/distill", messages, None, {}


FAMILIES = {
    "qwen3": qwen3_cases,
    "gpt-oss": gpt_oss_cases,
    "llama-3": llama_cases,
    "mistral-nemo": mistral_cases,
    "qwen3-coder": coder_cases,
    "deepseek-r1": deepseek_cases,
}


@pytest.mark.skipif(OFFICIAL is None, reason="set LLAMA_CPP_TEMPLATES to llama.cpp's models/templates")
@pytest.mark.parametrize("family", FAMILIES)
def test_same_bytes_as_official(family: str) -> None:
    ours = (TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8")
    compared = 0
    for official, name, messages, tools, options in FAMILIES[family]():
        theirs = Path(OFFICIAL or "", f"{official}.jinja").read_text(encoding="utf-8")
        expected = render(theirs, family, messages, tools, **options)
        assert render(ours, family, messages, tools, **options) == expected, f"{official}: {name}"
        compared += 1
    assert compared >= 15


GOLDEN_TOOL = function("get_weather", {"city": {"type": "string"}}, ["city"], description="Weather.")
GOLDEN_TOOL_JSON = json.dumps(GOLDEN_TOOL)
GOLDEN = [{"role": "system", "content": "Be brief."}, user("Oslo?"), calls({"city": "Oslo"}), result("4")]


def golden(family: str, messages: list[Message], tools: list[Tool] | None, **options: Any) -> str:
    return render((TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8"), family, messages, tools, **options)


def test_every_template_says_what_it_is() -> None:
    for family in FAMILIES:
        source = (TEMPLATES / f"{family}.jinja").read_text(encoding="utf-8")
        assert source.startswith("{#-\n  Family: ")
        assert "Why: " in source.split("-#}")[0]


def test_qwen3_golden() -> None:
    messages = with_reasoning(GOLDEN, "reasoning_content")
    text = golden("qwen3", messages, [GOLDEN_TOOL])
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n\n")
    assert f"<tools>\n{GOLDEN_TOOL_JSON}\n</tools>" in text
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    tail = (
        "<|im_start|>user\nOslo?<|im_end|>\n"
        f"<|im_start|>assistant\n<think>\nThought 2.\n</think>\n\n{call}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n4\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert text.endswith(tail)
    assert golden("qwen3", messages, None, enable_thinking=False).endswith("assistant\n<think>\n\n</think>\n\n")


def test_qwen3_keeps_reasoning_after_the_last_question_only() -> None:
    messages = [*with_reasoning(GOLDEN, "reasoning_content"), user("And Rome?")]
    assert "Thought" not in golden("qwen3", messages, [GOLDEN_TOOL])


def test_gpt_oss_golden() -> None:
    text = golden("gpt-oss", with_reasoning(GOLDEN, "thinking"), [GOLDEN_TOOL], reasoning_effort="low")
    developer = (
        "<|start|>developer<|message|># Instructions\n\nBe brief.\n\n# Tools\n\n## functions\n\n"
        "namespace functions {\n\n"
        "// Weather.\ntype get_weather = (_: {\ncity: string,\n}) => any;\n\n} // namespace functions<|end|>"
    )
    tail = (
        "<|start|>user<|message|>Oslo?<|end|><|start|>assistant<|channel|>analysis<|message|>Thought 2.<|end|>"
        '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>'
        '<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"4"<|end|><|start|>assistant'
    )
    assert text.endswith(developer + tail)
    assert "Current date: 2025-08-05\n\nReasoning: low\n\n" in text


def test_gpt_oss_drops_analysis_once_answered() -> None:
    messages = [*with_reasoning([*GOLDEN, BOTH], "thinking"), user("And Rome?")]
    assert "Thought" not in golden("gpt-oss", messages, [GOLDEN_TOOL])


def test_llama_3_golden() -> None:
    text = golden("llama-3", GOLDEN, [GOLDEN_TOOL], date_string="1 May 2026")
    assert text.startswith("<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n")
    assert "Today Date: 1 May 2026\n\nBe brief.<|eot_id|>" in text
    tail = (
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "get_weather", "parameters": {"city": "Oslo"}}<|eot_id|>'
        '<|start_header_id|>ipython<|end_header_id|>\n\n"4"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n'
    )
    assert text.endswith("Oslo?<|eot_id|>" + tail)
    with pytest.raises(TemplateError, match="one tool call a message"):
        golden("llama-3", TWO_AT_ONCE, [GOLDEN_TOOL])


def test_mistral_nemo_golden() -> None:
    call = '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "call00001"}]</s>'
    tools = f"[AVAILABLE_TOOLS][{GOLDEN_TOOL_JSON}][/AVAILABLE_TOOLS]"
    reply = '[TOOL_RESULTS]{"content": 4, "call_id": "call00001"}[/TOOL_RESULTS]'
    assert golden("mistral-nemo", GOLDEN, [GOLDEN_TOOL]) == f"<s>{tools}[INST]Oslo?[/INST]{call}{reply}"
    assert golden("mistral-nemo", GOLDEN[:2], [GOLDEN_TOOL]) == f"<s>{tools}[INST]Be brief.\n\nOslo?[/INST]"
    long_id = [user("Go"), {**calls({}), "tool_calls": [{**calls({})["tool_calls"][0], "id": "call_0123456789"}]}]
    with pytest.raises(TemplateError, match="nine characters"):
        golden("mistral-nemo", long_id, None)


def test_qwen3_coder_golden() -> None:
    text = golden("qwen3-coder", GOLDEN, [GOLDEN_TOOL])
    signature = (
        "<tools>\n<function>\n<name>get_weather</name>\n<description>Weather.</description>\n<parameters>\n<parameter>\n"
        '<name>city</name>\n<type>string</type>\n</parameter>\n<required>["city"]</required>\n</parameters>\n</function>\n</tools>'
    )
    assert signature in text
    tail = (
        "<|im_start|>assistant\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n4\n</tool_response>\n<|im_end|>\n<|im_start|>assistant\n"
    )
    assert text.endswith(tail)


def test_deepseek_r1_states_tools_and_repairs_history() -> None:
    text = golden("deepseek-r1", GOLDEN, [GOLDEN_TOOL])
    assert text.startswith("<｜begin▁of▁sentence｜>Be brief.\n\n## Tools\n\n")
    assert json.dumps(GOLDEN_TOOL["function"]) in text
    call = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{"city": "Oslo"}\n```<｜tool▁call▁end｜>'
    ended = f"<｜Assistant｜><｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
    reply = "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>4<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    assert text.endswith(f"<｜User｜>Oslo?{ended}{reply}")
    again = golden("deepseek-r1", [*GOLDEN, BOTH, user("Rome?"), calls({"city": "Rome"}), result("9")], None)
    assert again.count("<｜Assistant｜><｜tool▁calls▁begin｜>") == 2
    assert again.count("<｜tool▁outputs▁begin｜>") == again.count("<｜tool▁outputs▁end｜>") == 2


def test_deepseek_r1_forces_reasoning_open_but_feeds_none_back() -> None:
    text = golden("deepseek-r1", [*with_reasoning([user("Hi"), says("Hello.")], "content"), user("Again")], None)
    assert text.endswith("<｜Assistant｜>\n\nHello.<｜end▁of▁sentence｜><｜User｜>Again<｜Assistant｜><think>\n")
