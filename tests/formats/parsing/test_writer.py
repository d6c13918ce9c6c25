"""The writer of the canonical turns against what it does not know: the literal outputs of tests/golden, and what the
families' own templates render; the parser reads the renderings back.

Official templates need `LLAMA_CPP_TEMPLATES`: the folder `vendor/llama.cpp/models/templates` of llama-cpp-python's
source distribution. Without it, our own copies of some (templates/) are rendered.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cases import writer
from cases.canonical import TURNS, Turn
from cases.parsing_cases import TOOLS, canonical, documents, run

from engine.formats.families import builtin_families
from engine.formats.parsing import Parser
from engine.formats.template.chat_template import ChatTemplate
from engine.support.errors import TemplateError
from engine.types.completion import Completion
from engine.types.events import fold
from engine.types.messages import Message
from engine.types.parts import ToolCall
from engine.types.prompt import Prompt

FOLDER = os.environ.get("LLAMA_CPP_TEMPLATES", "")
OWN = sorted((Path(__file__).parents[3] / "templates").glob("*.jinja"))
OFFICIAL = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []
TEMPLATES = OFFICIAL or OWN

USER = {"role": "user", "content": "USER"}
RENDERED = (
    "content",
    "reasoning and content",
    "reasoning and call",
    "one call",
    "no arguments",
    "two calls",
    "text before a call",
    "every JSON type",
    "escapes and unicode",
)
"""The turns that a conversation's history can show."""

INSTRUCTS_LAST = {"CohereForAI-c4ai-command-r-plus-tool_use"}
"""Templates that put their instructions behind the last turn, whoever wrote it: its output cannot be cut out."""
NUMBERS_CALLS = {"Cohere2MoE", "CohereForAI-c4ai-command-r7b-12-2024-tool_use"}
"""Templates that write the number of a call for its id."""

CALLS = {"reasoning and call", "one call", "no arguments", "two calls", "text before a call", *RENDERED[-2:]}
ALONE = CALLS - {"reasoning and call"}
AS_PYTHON = ("values as Python writes them", {"every JSON type"})
BY_NAME = "arguments sorted by name, null as None, text behind the calls"
HARMONY = ("the recipient before the channel, and no constraint", CALLS)
DIFFERENT: dict[str, tuple[str, set[str]]] = {
    "Apriel-1.6-15b-Thinker-fixed": ("history leaves out the headings and ids", {*RENDERED}),
    "Bielik-11B-v3.0-Instruct": ("an empty line before the call", {"reasoning and call"}),
    "ByteDance-Seed-OSS": AS_PYTHON,
    "GigaChat3-10B-A1.8B": ("the next turn's beginning, which is no stop", {"content", *ALONE} - {"two calls"}),
    "Kimi-K3": ("an empty answer before the call", {"reasoning and call"}),
    "LFM2.5-8B-A1B": ("unescaped text, and objects as JSON", {"escapes and unicode", "every JSON type"}),
    "MiniMax-M2": ("two empty lines before the call", {"reasoning and call"}),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": AS_PYTHON,
    "NVIDIA-Nemotron-Nano-v2": ("text beside calls as a message", {"reasoning and call", "text before a call"}),
    "Qwen-QwQ-32B": ("no empty line behind reasoning", {"reasoning and content", "reasoning and call"}),
    "Qwen3-Coder": AS_PYTHON,
    "Qwen3.5-4B": AS_PYTHON,
    "Reka-Edge": ("escapes of what is not ASCII", {"escapes and unicode"}),
    "StepFun3.5-Flash": AS_PYTHON,
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("no end of the section before results", ALONE - {"two calls"}),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("content behind the calls", {"text before a call"}),
    "deepseek-ai-DeepSeek-V4": ("an empty line for no arguments", {"no arguments"}),
    "deepseek-ai-DeepSeek-V4-Flash-0731": ("an empty line for no arguments", {"no arguments"}),
    "google-gemma-4-31B-it": (BY_NAME, {"every JSON type", "text before a call"}),
    "google-gemma-4-31B-it-interleaved": (BY_NAME, {"every JSON type", "text before a call", "reasoning and call"}),
    "gpt-oss": HARMONY,
    "ibm-granite-granite-3.3-2B-Instruct": ("no marks around answers", {"content", "text before a call"}),
    "inclusionai-ling-3.0-flash": ("no line break behind reasoning", {"reasoning and call"}),
    "llama-cpp-deepseek-r1": ("text beside calls as a message", {"text before a call"}),
    "muse-glimmer": ("the stop for the answer's end", {"content", "reasoning and content"}),
    "openai-gpt-oss-120b": HARMONY,
    "openbmb-MiniCPM5-1B": ("values as Python writes them, and CDATA", {"every JSON type", "escapes and unicode"}),
    "qwen3-coder": AS_PYTHON,
    "unsloth-Apriel-1.5": ("history leaves out the headings and ids", {"content", *ALONE}),
    "upstage-Solar-Open-100B": ("each part a message of its own", {"reasoning and content", "reasoning and call"}),
}
"""Templates that render something else than the writer writes: what it is, and in which turns."""
UNREAD = {
    "Apriel-1.6-15b-Thinker-fixed": {"reasoning and content", "reasoning and call"},
    "NVIDIA-Nemotron-Nano-v2": {"reasoning and call"},
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": {"text before a call"},
}
"""The ones among them that no model of the family writes, so that the parser reads something else."""


def test_the_writer_writes_what_is_known_of_each_family() -> None:
    turns = {turn.name: turn for turn in TURNS}
    compared = 0
    for document in documents():
        for known in document.get("written", []):
            turn = turns[known["turn"]]
            case = canonical(document["family"], turn)
            assert case is not None, known
            assert case.output == known["output"], case
            assert case.prefix == known.get("prefix", case.prefix), case
            compared += 1
    assert compared > 350


@pytest.mark.skipif(not OFFICIAL, reason="set LLAMA_CPP_TEMPLATES to llama.cpp's models/templates")
def test_every_official_template_is_recognised() -> None:
    for path in OFFICIAL:
        family = builtin_families().detect(path.read_text(encoding="utf-8")).family
        assert path.name in family.verified, f"{path.name} was taken for {family.name}"


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_renders_what_the_writer_writes_and_it_is_read_back(path: Path) -> None:
    template = ChatTemplate(path.read_text(encoding="utf-8"), bos_token="<BOS>", eos_token="<EOS>", trust_template=True)
    reasoning = template.format.reasoning
    base = template.render([USER], tools=TOOLS)
    different: set[str] = set()
    unread: set[str] = set()
    for turn in TURNS:
        if turn.name not in RENDERED or not writer.applies(turn, template.format):
            continue
        message = _message(turn, template)
        whole = _rendered(template, path, message)
        if whole is None:
            continue
        prefix, output = _output(template, base, whole)
        if not _is_written(turn, template, path, prefix, output):
            different.add(turn.name)
        if not message.reasoning and reasoning and (base.in_reasoning or reasoning.implicit):
            continue  # the prompt asks for reasoning, the turn has none
        ways = [fold(run(Parser(template.format, prefix, tools=TOOLS), way)) for way in ([output], output)]
        if not all(_is(message, completion) for completion in ways):
            unread.add(turn.name)
    assert different == DIFFERENT.get(path.stem, ("", set()))[1]
    assert unread == UNREAD.get(path.stem, set())


def _is_written(turn: Turn, template: ChatTemplate, path: Path, prefix: Any, output: str) -> bool:
    """Whether the rendering ends with what the writer writes; before it may stand what the prompt writes."""
    written = _to_stop(template, writer.written(turn, template.format))
    if path.stem in NUMBERS_CALLS:
        written = written.replace("abcdef00", "")
    begun = prefix if isinstance(prefix, str) else "".join(piece.text for piece in prefix)
    rendered = begun + output
    for end in template.format.ends:
        rendered = rendered.removesuffix(end)
    return rendered.startswith(template.format.start) and rendered.rstrip().endswith(written.rstrip())


def _message(turn: Turn, template: ChatTemplate) -> Message:
    calls = [
        ToolCall(
            id=writer.call_id(turn, template.format, number) or f"abcdef00{number}",
            name=call.name,
            arguments=call.arguments,
        )
        for number, call in enumerate(turn.calls)
    ]
    return Message(role="assistant", content=turn.content, reasoning=turn.reasoning or None, tool_calls=tuple(calls))


def _rendered(template: ChatTemplate, path: Path, message: Message) -> Prompt | None:
    """The conversation with the turn; None where the template does not show all of it, or rejects it."""
    if path.stem in INSTRUCTS_LAST and message.tool_calls:
        return None
    try:
        whole = template.render([USER, message], tools=TOOLS, add_generation_prompt=False)
    except TemplateError:
        return None
    turn = whole.text[whole.text.index("USER") :]
    texts = [message.content or "", message.reasoning or "", *(call.name for call in message.tool_calls)]
    return whole if all(text in turn for text in texts) else None


def _output(template: ChatTemplate, base: Prompt, whole: Prompt) -> tuple[Any, str]:
    """The turn's text, and the prefix that it continues: the prompt's, where the turn begins with the prompt."""
    if whole.text.startswith(base.text):
        return base.prefix, _to_stop(template, whole.text[len(base.text) :])
    after = whole.text.index("USER") + len("USER")
    start = whole.text.find(template.format.start, after)
    return "", _to_stop(template, whole.text[max(start, after) :])


def _to_stop(template: ChatTemplate, output: str) -> str:
    """The output up to its stop. In channels the stops are marks that messages end with."""
    if template.format.channels is None:
        section = template.format.tools.section[0] if template.format.tools else ""
        for stop in ("<EOS>", *template.format.stops):
            if not section.startswith(stop):
                output = output.split(stop, 1)[0]
    return output


def _is(message: Message, read: Completion) -> bool:
    """Whether what was read is the message, white space around its content apart."""
    calls = [(call.name, call.error or json.loads(call.arguments)) for call in read.tool_calls]
    said = (read.reasoning, read.content.strip(), calls)
    wanted = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    return said == (message.reasoning or "", (message.content or "").strip(), wanted)
