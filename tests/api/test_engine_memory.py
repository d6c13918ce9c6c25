"""Reasoning that a client dropped between turns is fed back where the family's rule asks for it (gpt-oss)."""

import pytest

from engine.api.engine import Engine
from engine.formats.families import builtin_families
from engine.formats.template.chat_template import ChatTemplate
from engine.testing.scripted import ByteVocab, ScriptedBackend

TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
    },
}
CALL = (
    "<|channel|>analysis<|message|>{reason}<|end|><|start|>assistant"
    '<|channel|>commentary to=functions.look <|constrain|>json<|message|>{{"at": "{at}"}}<|call|>'
)
ANSWER = "<|channel|>analysis<|message|>Enough.<|end|><|start|>assistant<|channel|>final<|message|>Done.<|return|>"


@pytest.fixture
def prompts() -> list[str]:
    return []


def _engine(prompts: list[str], *replies: str) -> Engine:
    control = builtin_families().get("gpt-oss").format.control
    vocab = ByteVocab(control=[*control], end=["<|return|>", "<|call|>"])
    script = iter(replies)

    def reply(prompt: str) -> str:
        prompts.append(prompt)
        return next(script)

    return Engine.over(ScriptedBackend(reply, vocab=vocab), ChatTemplate(None, family="gpt-oss"))


def _dropped(name: str, call_id: str) -> list[dict[str, object]]:
    """A turn and its result as clients keep them: no reasoning."""
    function = {"name": "look", "arguments": f'{{"at": "{name}"}}'}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"id": call_id, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call_id, "content": f"{name} is fine"},
    ]


def test_a_client_that_drops_reasoning_gets_it_fed_back(prompts: list[str]) -> None:
    with _engine(prompts, CALL.format(reason="First I look.", at="a"), ANSWER) as llm:
        history: list[dict[str, object]] = [{"role": "user", "content": "Go."}]
        first = llm.chat(history, tools=[TOOL], temperature=0)
        history += _dropped("a", first.tool_calls[0].id)
        answer = llm.chat(history, tools=[TOOL], temperature=0)
    assert first.reasoning == "First I look."
    assert "<|channel|>analysis<|message|>First I look.<|end|>" in prompts[1]
    assert answer.content == "Done."


def test_what_the_client_sends_wins(prompts: list[str]) -> None:
    with _engine(prompts, CALL.format(reason="First I look.", at="a"), ANSWER) as llm:
        history: list[dict[str, object]] = [{"role": "user", "content": "Go."}]
        first = llm.chat(history, tools=[TOOL], temperature=0)
        history += _dropped("a", first.tool_calls[0].id)
        history[1]["reasoning"] = "As the client says."
        llm.chat(history, tools=[TOOL], temperature=0)
    assert "As the client says." in prompts[1]
    assert "First I look." not in prompts[1]


def test_two_conversations_never_exchange_reasoning(prompts: list[str]) -> None:
    replies = [CALL.format(reason=f"Reason {name}.", at=name) for name in "ab"]
    with _engine(prompts, *replies, ANSWER, ANSWER) as llm:
        ids: list[str] = []
        for name in "ab":
            completion = llm.chat([{"role": "user", "content": f"Go {name}."}], tools=[TOOL], temperature=0)
            ids.append(completion.tool_calls[0].id)
        for name, id_ in zip("ab", ids, strict=True):
            llm.chat([{"role": "user", "content": f"Go {name}."}, *_dropped(name, id_)], tools=[TOOL], temperature=0)
    assert "Reason a." in prompts[2]
    assert "Reason b." not in prompts[2]
    assert "Reason b." in prompts[3]
    assert "Reason a." not in prompts[3]


def test_a_turn_that_was_cut_is_not_remembered(prompts: list[str]) -> None:
    with _engine(prompts, CALL.format(reason="First I look.", at="a"), ANSWER) as llm:
        cut = llm.chat("Go.", tools=[TOOL], temperature=0, max_tokens=12)
        assert cut.finish_reason == "length"
        history: list[dict[str, object]] = [{"role": "user", "content": "Go."}, *_dropped("a", "call_1")]
        llm.chat(history, tools=[TOOL], temperature=0)
    assert "First" not in prompts[1]


def test_interleaved_conversations_with_equal_ids_never_exchange_reasoning() -> None:
    """A family that numbers its calls writes the same ids in every conversation: `functions.look:0`."""
    section = ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>")
    call = '<|tool_call_begin|>functions.look:{n}<|tool_call_argument_begin|>{{"at": "here"}}<|tool_call_end|>'
    seen: list[str] = []

    def reply(prompt: str) -> str:
        seen.append(prompt)
        name, step = ("a" if "Go a." in prompt else "b"), prompt.count("is fine")
        return f"<think>Reason {step} of {name}.</think>{section[0]}{call.format(n=step)}{section[1]}"

    control = builtin_families().get("kimi-k2-thinking").format.control
    source = (
        "{% for m in messages %}<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>"
        "{% if m.role == 'assistant' %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.id }}{{ c.function.arguments | tojson }}{% endfor %}"
        "<|im_end|>{% endfor %}"
        "{{ tools | tojson if tools }}{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
    )
    vocab = ByteVocab(control=[*control], end=["<|im_end|>"])
    ids: dict[str, list[str]] = {"a": [], "b": []}
    with Engine.over(ScriptedBackend(reply, vocab=vocab), ChatTemplate(source, family="kimi-k2-thinking")) as llm:
        histories: dict[str, list[dict[str, object]]] = {
            name: [{"role": "user", "content": f"Go {name}."}] for name in ids
        }
        for _ in range(3):
            for name, history in histories.items():
                made = llm.chat(history, tools=[TOOL], temperature=0).tool_calls[0]
                ids[name].append(made.id)
                history += _dropped("here", made.id)
    assert ids["a"] == ids["b"] == ["functions.look:0", "functions.look:1", "functions.look:2"]
    for name, other, prompt in (("a", "b", seen[4]), ("b", "a", seen[5])):
        assert [f"Reason {step} of {name}." in prompt for step in range(2)] == [True, True]
        assert f"of {other}." not in prompt
