"""What official templates render of an assistant turn, the parser reads back: the rows of models.toml against reality.

Needs the templates: set `LLAMA_CPP_TEMPLATES` to the folder `vendor/llama.cpp/models/templates` of llama-cpp-python's
source distribution; without it these tests are skipped.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from parsing_cases import TOOLS, run, splits

from engine.errors import TemplateError
from engine.events import fold
from engine.families import builtin_families
from engine.parsing import Parser
from engine.template.chat_template import ChatTemplate
from engine.template.prompt import Prompt
from engine.types import Completion, Message

FOLDER = os.environ.get("LLAMA_CPP_TEMPLATES", "")
TEMPLATES = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []
pytestmark = pytest.mark.skipif(not TEMPLATES, reason="set LLAMA_CPP_TEMPLATES to llama.cpp's models/templates")

ARGUMENTS = {"s": "x y", "i": 3, "b": True, "o": {"k": [1, "x"], "m": "z"}}
CALLS: list[dict[str, Any]] = [
    {"id": "callid000", "name": "everything", "arguments": ARGUMENTS},
    {"id": "callid001", "name": "ping", "arguments": {}},
]
TURNS: dict[str, dict[str, Any]] = {
    "answer": {"content": "The answer."},
    "reasoning, answer": {"reasoning": "Some\nreasoning.", "content": "The answer."},
    "call": {"content": "", "tool_calls": CALLS[:1]},
    "two calls": {"content": "", "tool_calls": CALLS},
    "reasoning, call": {"reasoning": "Some\nreasoning.", "content": "", "tool_calls": CALLS[:1]},
    "text, call": {"content": "Let me see.", "tool_calls": CALLS[:1]},
}
# Templates that do not write what their model does, with what they write instead.
UNFAITHFUL = {
    "Apriel-1.6-15b-Thinker-fixed": "history leaves out the heading that opens reasoning in prompts",
    "NVIDIA-Nemotron-Nano-v2": "text and reasoning beside calls become a message of their own",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "content follows the calls as a message of its own",
    "openai-gpt-oss-120b": "content beside calls is taken for analysis",
}
INSTRUCTS_LAST = {"CohereForAI-c4ai-command-r-plus-tool_use"}
"""Templates that put their instructions behind the last turn, whoever wrote it: its output cannot be cut out."""

SHOW_NO_TURN = {
    "Apriel-1.6-15b-Thinker-fixed",
    "NVIDIA-Nemotron-Nano-v2",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "llama-cpp-deepseek-r1",
    "unsloth-Apriel-1.5",
}
"""Templates whose prompts end inside reasoning, and which leave it out of past turns."""


def test_every_template_is_recognised() -> None:
    for path in TEMPLATES:
        family = builtin_families().detect(path.read_text(encoding="utf-8")).family
        assert path.name in family.verified, f"{path.name} was taken for {family.name}"


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_rendered_turns_parse_back(path: Path) -> None:
    template = ChatTemplate(path.read_text(encoding="utf-8"), bos_token="<BOS>", eos_token="<EOS>")
    left: dict[str, str] = {}
    for turn, fields in TURNS.items():
        if path.stem in UNFAITHFUL and turn in ("reasoning, answer", "reasoning, call", "text, call"):
            left[turn] = UNFAITHFUL[path.stem]
        elif why := _not_shown(template, path, wanted := _wanted(template, fields)):
            left[turn] = why
        else:
            base, whole = _rendered(template, wanted)
            prefix, output = _output(template, base, whole)
            for chunks in splits(output)[:3]:
                _check(fold(run(Parser(template.format, prefix, tools=TOOLS), chunks)), wanted)
    assert (left.keys() == TURNS.keys()) == (path.stem in SHOW_NO_TURN), left


def _wanted(template: ChatTemplate, fields: dict[str, Any]) -> Message:
    wanted = Message(role="assistant", **fields)
    if template.format.tools and not template.format.tools.parallel:  # further calls become turns of their own
        return wanted.model_copy(update={"tool_calls": wanted.tool_calls[:1]})
    return wanted


def _rendered(template: ChatTemplate, wanted: Message) -> tuple[Prompt, Prompt]:
    """The prompt that asks for the turn, and the conversation with it."""
    base = template.render([{"role": "user", "content": "USER"}], tools=TOOLS)
    whole = template.render([{"role": "user", "content": "USER"}, wanted], tools=TOOLS, add_generation_prompt=False)
    return base, whole


def _not_shown(template: ChatTemplate, path: Path, wanted: Message) -> str:
    """Why the turn is not in what the template renders; "" where it is."""
    try:
        base, whole = _rendered(template, wanted)
    except TemplateError as error:
        return f"the template rejects the turn: {error}"
    reasoning = template.format.reasoning
    if path.stem in INSTRUCTS_LAST and wanted.tool_calls:
        return "the template writes instructions behind the turn"
    if not wanted.reasoning and reasoning and (base.in_reasoning or reasoning.implicit):
        return "the prompt asks for reasoning, the turn has none"
    if any(text and text not in whole.text for text in (wanted.content, wanted.reasoning)):
        return "the template leaves out a part of the turn"
    if any(call.name not in whole.text[whole.text.index("USER") :] for call in wanted.tool_calls):
        return "the template does not render past calls"
    return ""


def _output(template: ChatTemplate, base: Prompt, whole: Prompt) -> tuple[Any, str]:
    """The turn's text, and the prefix that it continues: the prompt's, where the turn begins with the prompt."""
    if whole.text.startswith(base.text):
        prefix, output = base.prefix, whole.text[len(base.text) :]
    else:
        after = whole.text.index("USER") + len("USER")
        found = whole.text.find(template.format.start, after)
        prefix, output = "", whole.text[max(found, after) :]
    if template.format.channels is None:  # whose stops are marks that its messages end with
        section = template.format.tools.section[0] if template.format.tools else ""
        for stop in ("<EOS>", *template.format.stops):
            if not section.startswith(stop):
                output = output.split(stop, 1)[0]
    return prefix, output


def _check(completion: Completion, wanted: Message) -> None:
    assert completion.reasoning == (wanted.reasoning or "")
    assert completion.content.strip() == (wanted.content or "").strip()
    assert [call.error for call in completion.tool_calls] == [None] * len(wanted.tool_calls)
    found = [(call.name, json.loads(call.arguments)) for call in completion.tool_calls]
    assert found == [(call.name, json.loads(call.arguments)) for call in wanted.tool_calls]
