"""Engines whose model is a script in Qwen3's format, and what tests of them share."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from fakes.inside import parts

from engine import ChatTemplate, Engine
from engine.runtime.loop.config import LoopOptions
from engine.testing.scripted import ByteVocab, ScriptedBackend

VOCAB = ByteVocab(["<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_call>"], end=["<|im_end|>"])


def scripted(
    replies: Sequence[str] | Callable[[str], str],
    *,
    options: LoopOptions | None = None,
    seed: int | None = None,
    **backend: Any,
) -> Engine:
    """An engine whose markers are control tokens."""
    template = ChatTemplate(None, family="qwen3", control_tokens=VOCAB.control_tokens)
    return Engine.over(ScriptedBackend(replies, vocab=VOCAB, **backend), template, seed=seed, options=options)


def backend_of(llm: Engine) -> ScriptedBackend:
    """The script under an engine."""
    runner: Any = parts(llm).service._runner  # pyright: ignore[reportPrivateUsage]
    backend = runner._backend
    assert isinstance(backend, ScriptedBackend)
    return backend


def plain(*replies: str, **backend: Any) -> Engine:
    """An engine whose markers are text, which writes these one after the other."""
    return Engine.over(ScriptedBackend(list(replies), **backend), ChatTemplate(None, family="qwen3"))


def said(*calls: str) -> str:
    """A reply that makes these calls, each as `name {arguments}`."""
    written: list[str] = []
    for call in calls:
        name, _, arguments = call.partition(" ")
        written.append(f'<tool_call>\n{{"name": "{name}", "arguments": {arguments or "{}"}}}\n</tool_call>')
    return "\n".join(written)


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for what another process or thread does. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("it did not happen")
        time.sleep(0.01)
