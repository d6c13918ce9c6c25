"""What models.toml states of requests, held against what the official templates render.

Needs the templates: set `LLAMA_CPP_TEMPLATES` to the folder `vendor/llama.cpp/models/templates` of llama-cpp-python's
source distribution; without it these tests are skipped, but for that of gpt-oss, whose template is our own.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from engine.formats.template.chat_template import ChatTemplate
from engine.support.errors import RequestError, TemplateError
from engine.types.prompt import Prompt
from engine.types.sampling import Reasoning

FOLDER = os.environ.get("LLAMA_CPP_TEMPLATES", "")
TEMPLATES = sorted(Path(FOLDER).glob("*.jinja")) if FOLDER else []
each_template = pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
PING: dict[str, Any] = {
    "type": "function",
    "function": {"name": "ping", "description": "Pings.", "parameters": {"type": "object", "properties": {}}},
}
QUESTION: list[dict[str, Any]] = [{"role": "user", "content": "USER"}]
RESULT: list[dict[str, Any]] = [
    *QUESTION,
    {
        "role": "assistant",
        "reasoning": "Why.",
        "content": "",
        "tool_calls": [{"id": "callid000", "name": "ping", "arguments": {}}],
    },
    {"role": "tool", "tool_call_id": "callid000", "name": "ping", "content": "PONG"},
]
EDITED = {"llama-cpp-deepseek-r1": "an edited copy, with a prompt behind results"}


@cache
def made(path: Path) -> ChatTemplate:
    return ChatTemplate(path.read_text(encoding="utf-8"), bos_token="<BOS>", eos_token="<EOS>")


def rendered(path: Path, messages: list[dict[str, Any]], reasoning: Reasoning | None) -> Prompt:
    try:
        return made(path).render(messages, [PING], reasoning)
    except TemplateError as error:
        pytest.skip(f"the template rejects the messages: {error}")
    except RequestError as error:
        if "ignores its own switch" not in str(error):
            raise
        pytest.skip("beside tools the template's switch does nothing")


@each_template
def test_what_the_prompt_does_behind_a_result(path: Path) -> None:
    syntax = made(path).format.reasoning
    if syntax is None:
        pytest.skip("a family without reasoning")
    if path.stem in EDITED:
        pytest.skip(EDITED[path.stem])
    prompt = rendered(path, RESULT, reasoning=True)
    assert prompt.in_reasoning is (syntax.after_result == "opened")
    if syntax.after_result == "free":
        assert made(path).format.start.strip() in prompt.text.rpartition("PONG")[2]


@pytest.mark.skipif(not TEMPLATES, reason="set LLAMA_CPP_TEMPLATES to llama.cpp's models/templates")
def test_no_prompt_behind_results_is_seen_in_a_template() -> None:
    seen: set[str] = set()
    for path in TEMPLATES:
        syntax = made(path).format.reasoning
        if syntax is not None and syntax.after_result == "no prompt" and path.stem not in EDITED:
            behind = rendered(path, RESULT, reasoning=True).text.rpartition("PONG")[2]
            if made(path).format.start.strip() not in behind:
                seen.add(made(path).family.name)
    assert seen == {"deepseek-r1", "deepseek-v3.1", "gemma-4"}


@each_template
def test_reasoning_switched_off(path: Path) -> None:
    """The prompt does not end within reasoning, or the request is refused, as the row says."""
    syntax = made(path).format.reasoning
    if syntax is None:
        pytest.skip("a family without reasoning")
    if syntax.off == "refuse":
        with pytest.raises(RequestError, match="not possible here"):
            made(path).render(QUESTION, None, reasoning=False)
        return
    assert not rendered(path, QUESTION, reasoning=False).in_reasoning


@each_template
def test_the_gate_s_default_is_the_template_s(path: Path) -> None:
    syntax = made(path).format.reasoning
    gate = syntax.gate if syntax else None
    if gate is None or gate.place != "variable" or gate.kwarg not in made(path).source:
        pytest.skip("no variable switches reasoning here")
    prompts = {position: rendered(path, QUESTION, reasoning=position) for position in (True, None)}
    opened = {position: prompt.in_reasoning for position, prompt in prompts.items()}
    if gate.default == "on":
        assert opened[None] is opened[True]
    else:
        assert not opened[None]
    if gate.default == "model":
        assert opened[True]
        assert not prompts[None].text.rstrip().endswith(syntax.close.strip() if syntax else "")


def test_a_finished_turn_of_gpt_oss_becomes_history() -> None:
    template = ChatTemplate(None, family="gpt-oss")
    assert template.format.continued_end is not None
    last, past = template.format.continued_end
    turn = [*QUESTION, {"role": "assistant", "content": "ANSWER"}]
    assert template.render(turn, add_generation_prompt=False).text.endswith(f"ANSWER{last}")
    history = template.render([*turn, *QUESTION]).text
    assert f"ANSWER{past}" in history
    assert last not in history
