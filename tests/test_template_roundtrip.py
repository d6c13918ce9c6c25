"""Render then parse gives the message back, and the next prompt begins with this prompt and its output.

Always over our own templates; over llama.cpp's tree too where `LLAMA_CPP_TEMPLATES` names the folder
`vendor/llama.cpp/models/templates` of llama-cpp-python's source distribution.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from engine.chat_template import ChatTemplate
from engine.errors import RequestError
from engine.events import fold
from engine.types import Message, Reasoning, Tool, ToolCall

FOLDER = os.environ.get("LLAMA_CPP_TEMPLATES", "")
SOURCES = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []
OURS = sorted((Path(__file__).parent.parent / "templates").glob("*.jinja"))

ASKED = Message(role="user", content="Weather?")
PARAMETERS = {"city": {"type": "string", "description": "C"}, "days": {"type": "integer", "description": "D"}}
LOOK = Tool(
    name="look", description="Looks.", parameters={"type": "object", "properties": PARAMETERS, "required": ["city"]}
)
ONE = ToolCall(id="abcdefgh1", name="look", arguments='{"city": "Oslo", "days": 3}')
TWO = ToolCall(id="abcdefgh2", name="look", arguments='{"city": "Rome é \\"q\\""}')
SAID = "SAIDTEXT, quite."
WHY = "WHYTEXT, because."


def turn(content: str = "", *calls: ToolCall, reasoning: str | None = None) -> Message:
    return Message(role="assistant", content=content, reasoning=reasoning, tool_calls=calls)


MESSAGES = {
    "content": turn(SAID),
    "reasoning": turn(SAID, reasoning=WHY),
    "call": turn("", ONE),
    "two calls": turn("", ONE, TWO),
    "content and call": turn(SAID, TWO),
    "reasoning and call": turn("", ONE, reasoning=WHY),
}
FORCED = "its prompts open reasoning and its history has none"
OWN_SPACE = "its history has white space before the end that no model writes"
UNLIKE = {
    "Apriel-1.6-15b-Thinker-fixed": FORCED,
    "Cohere2MoE": "its history shows no empty reasoning where its prompts open some",
    "CohereForAI-c4ai-command-r-plus-tool_use": "its history has markers that its prompts lack",
    "MiniMax-M2": FORCED,
    "NVIDIA-Nemotron-Nano-v2": OWN_SPACE,
    "Qwen-QwQ-32B": FORCED,
    "Reka-Edge": OWN_SPACE,
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": FORCED,
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": FORCED,
    "llama-cpp-deepseek-r1": FORCED,
    "llama-cpp-rwkv-world": OWN_SPACE,
    "poolside-Laguna-XS-2.1": OWN_SPACE,
    "poolside-Laguna-XS.2": OWN_SPACE,
    "unsloth-Apriel-1.5": "its history has an untagged answer, which reads as reasoning",
}
"""Templates whose history is not what their models write, so that no output of theirs comes back."""
SWITCHES: tuple[Reasoning | None, ...] = (None, True, False)


class Outcome:
    """What became of one message: `kept` the prompt it follows (None where no prompt is its beginning), `output` its
    text."""

    def __init__(self, template: ChatTemplate, message: Message) -> None:
        tools = [LOOK] if message.tool_calls else None
        results = [Message(role="tool", tool_call_id=call.id, content="RESULTTEXT") for call in message.tool_calls]
        self.kept = None
        self.output = ""
        for switch in SWITCHES:
            try:
                prompt = template.render([ASKED], tools, switch)
                whole = template.render([ASKED, message, *results], tools, switch, add_generation_prompt=False).text
            except RequestError:
                continue  # a position that this family lacks
            if whole.startswith(prompt.text):
                self.kept, self.output = prompt, whole[len(prompt.text) :]
                break

    def turn(self, template: ChatTemplate) -> str:
        """The output up to what ends the turn, as generation stops there."""
        output = self.output.partition("RESULTTEXT")[0]
        channels = template.format.channels
        ends = [stop for stop in (*template.format.stops, "</s>") if stop in output]
        if not ends:
            return output
        stop = min(ends, key=output.index)
        return output[: output.index(stop) + (len(stop) if channels else 0)]


def expected(message: Message, output: str) -> tuple[str, str, list[tuple[str, Any]]]:
    """The message less what the template did not write."""
    shown = [call for call in message.tool_calls if json.loads(call.arguments)["city"][:4] in output]
    reasoning = message.reasoning or "" if "WHYTEXT" in output else ""
    content = message.content or "" if "SAIDTEXT" in output else ""
    return reasoning, content, [(call.name, json.loads(call.arguments)) for call in shown]


def roundtrip(template: ChatTemplate, message: Message) -> str | None:
    """None where the message comes back, else what came."""
    outcome = Outcome(template, message)
    if outcome.kept is None:
        return "no prompt is its beginning"
    output = outcome.turn(template)
    parser = template.parser(outcome.kept, [LOOK] if message.tool_calls else None)
    completion = fold([*parser.feed(output), *parser.close()])
    calls = [(call.name, call.error or json.loads(call.arguments)) for call in completion.tool_calls]
    got = (completion.reasoning, completion.content, calls)
    return None if got == expected(message, output) else f"{got} from {output!r}"


@pytest.mark.parametrize("name", MESSAGES)
@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_our_templates(path: Path, name: str) -> None:
    template = ChatTemplate(path.read_text(encoding="utf-8"), "<s>", "</s>")
    outcome = roundtrip(template, MESSAGES[name])
    dropped = path.stem == "deepseek-r1"  # no reasoning in its history, while every prompt opens some
    assert outcome == ("no prompt is its beginning" if dropped else None)


@pytest.mark.skipif(not SOURCES, reason="set LLAMA_CPP_TEMPLATES to llama.cpp's models/templates")
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_templates_of_the_tree(path: Path) -> None:
    template = ChatTemplate(path.read_text(encoding="utf-8"), "<s>", "</s>")
    lost = {name: found for name, message in MESSAGES.items() if (found := roundtrip(template, message)) is not None}
    assert bool(lost) == (path.stem in UNLIKE), lost
