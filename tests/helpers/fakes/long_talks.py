"""Conversations that do not fit, and scripted engines that answer them."""

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from engine import ChatTemplate, Engine
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.types.messages import Message
from engine.types.parts import ToolCall

VOCAB = ByteVocab(["<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>"], end=["<|im_end|>"])


def message(role: Any, content: str = "", *calls: str, answers: str | None = None) -> Message:
    return Message(
        role=role,
        content=content,
        tool_calls=tuple(ToolCall(id=call, name="f") for call in calls),
        tool_call_id=answers,
    )


CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    *(
        {"role": role, "content": f"{kind} {turn:02}"}
        for turn in range(20)
        for role, kind in (("user", "question"), ("assistant", "answer"))
    ),
    {"role": "user", "content": "the last"},
]


TURNS = st.lists(
    st.tuples(st.booleans(), st.lists(st.lists(st.integers(0, 3000), max_size=3), max_size=4), st.integers(0, 500)),
    min_size=1,
    max_size=5,
)


def transcript(turns: Any, *, system: bool) -> list[Message]:
    """A conversation: turns of a question, rounds of calls with results of some length, and an answer."""
    messages = [message("system", "s" * 50)] if system else []
    number = 0
    for turn, (more, rounds, length) in enumerate(turns):
        messages.append(message("user", "q" * (length + 1)))
        if more:
            messages.append(message("system", "note"))
        for sizes in rounds:
            ids = [f"c{number + at}" for at in range(len(sizes))]
            number += len(sizes)
            messages.append(message("assistant", "thinking", *ids))
            messages += [message("tool", "r" * size, answers=id_) for id_, size in zip(ids, sizes, strict=True)]
        if turn < len(turns) - 1:
            messages.append(message("assistant", "a" * (length + 1)))
    return messages


def scripted(replies: Sequence[str] | Callable[[str], str], **options: Any) -> Engine:
    backend = ScriptedBackend(replies, vocab=VOCAB, **options)
    return Engine.over(backend, ChatTemplate(None, family="qwen3", control_tokens=VOCAB.control_tokens))


def question(prompt: str) -> str:
    return prompt.rsplit("user\n", 1)[1].split("<|im_end|>", maxsplit=1)[0]
