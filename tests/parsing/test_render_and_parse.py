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


def test_every_template_is_recognised() -> None:
    for path in TEMPLATES:
        family = builtin_families().detect(path.read_text(encoding="utf-8")).family
        assert path.name in family.verified, f"{path.name} was taken for {family.name}"


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_a_rendered_turn_parses_back(path: Path, turn: str) -> None:
    wanted = Message(role="assistant", **TURNS[turn])
    template = ChatTemplate(path.read_text(encoding="utf-8"), bos_token="<BOS>", eos_token="<EOS>")
    if template.format.tools and not template.format.tools.parallel:  # further calls become turns of their own
        wanted = wanted.model_copy(update={"tool_calls": wanted.tool_calls[:1]})
    try:
        base = template.render([{"role": "user", "content": "USER"}], tools=TOOLS)
        whole = template.render([{"role": "user", "content": "USER"}, wanted], tools=TOOLS, add_generation_prompt=False)
    except TemplateError as error:
        pytest.skip(f"the template rejects the turn: {error}")
    if path.stem in UNFAITHFUL and turn in ("reasoning, answer", "reasoning, call", "text, call"):
        pytest.skip(UNFAITHFUL[path.stem])
    if path.stem in INSTRUCTS_LAST and wanted.tool_calls:
        pytest.skip("the template writes instructions behind the turn")
    reasoning = template.format.reasoning
    if not wanted.reasoning and reasoning and (base.in_reasoning or reasoning.implicit):
        pytest.skip("the prompt asks for reasoning, the turn has none")
    for text in (wanted.content, wanted.reasoning):
        if text and text not in whole.text:
            pytest.skip("the template leaves out a part of the turn")
    if any(call.name not in whole.text[whole.text.index("USER") :] for call in wanted.tool_calls):
        pytest.skip("the template does not render past calls")
    prefix, output = _output(template, base, whole)
    for chunks in splits(output)[:3]:
        parser = Parser(template.format, prefix, tools=TOOLS)
        _check(fold(run(parser, chunks)), wanted)


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
