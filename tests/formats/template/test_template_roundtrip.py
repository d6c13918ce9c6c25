"""Render then parse gives the message back, and the next prompt begins with this prompt and its output.

Always over our own templates; over llama.cpp's tree too where `LLAMA_CPP_TEMPLATES` names the folder
`vendor/llama.cpp/models/templates` of llama-cpp-python's source distribution.
"""

from pathlib import Path

import pytest
from cases.roundtrips import SOURCES

from engine.formats.check.roundtrip import MESSAGES, lost, roundtrip
from engine.formats.template.chat_template import ChatTemplate

OURS = sorted((Path(__file__).parents[3] / "templates").glob("*.jinja"))
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
"""Templates whose history is not what their models write, so that some turn of it follows no prompt of theirs."""
UNREAD = {
    "CohereForAI-c4ai-command-r-plus-tool_use": "nothing ends a turn with calls before their results",
    "NVIDIA-Nemotron-Nano-v2": "an answer without reasoning stands in reasoning that its prompt opens",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "nothing ends a single call before its result",
    "unsloth-Apriel-1.5": "its history has an untagged answer, which reads as reasoning",
}
"""Those of them with a turn that cannot be read back by itself either."""


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
    found = lost(template)
    assert bool(found) == (path.stem in UNLIKE), found
    unread = lost(template, continues=False) if found else {}
    assert bool(unread) == (path.stem in UNREAD), unread
