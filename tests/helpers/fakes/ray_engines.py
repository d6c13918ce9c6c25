"""Engines for actors of Ray: made in the actor's process, by a function that travels by its name."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from engine import ChatTemplate, Engine
from engine.batch import RayWorker
from engine.testing.scripted import ByteVocab, ScriptedBackend


def said(question: str) -> str:
    return f"The answer to {question} is {question[::-1]}."


def _reply(prompt: str) -> str:
    question = prompt.rsplit("user\n", 1)[-1].split("<|im_end|>", maxsplit=1)[0]
    return f"<think>\nI know.\n</think>\n\n{said(question)}"


def scripted(folder: Path | None = None, delay: float = 0.0, n_sequences: int = 4) -> Callable[[], Engine]:
    """What makes an engine over a scripted backend, and leaves a file in `folder` that bears its process's number."""
    return partial(_scripted, folder, delay, n_sequences)


def _scripted(folder: Path | None, delay: float, n_sequences: int) -> Engine:
    if folder is not None:
        (folder / str(os.getpid())).touch()
    backend = ScriptedBackend(_reply, vocab=ByteVocab(["<|im_start|>"]), n_sequences=n_sequences, delay=delay)
    return Engine.over(backend, ChatTemplate(None, family="qwen3"))


def counting(folder: Path, dies_at: int | None) -> Callable[[], Engine]:
    """The same, which counts in `folder` how often each question was asked, and stops for good at that many."""
    return partial(_counting, folder, dies_at)


def _counting(folder: Path, dies_at: int | None) -> Engine:
    def reply(prompt: str) -> str:
        question = prompt.rsplit("user\n", 1)[-1].split("<|im_end|>", maxsplit=1)[0]
        if dies_at is not None and len(list(folder.iterdir())) >= dies_at:
            raise RuntimeError("no more")
        mark = folder / question
        mark.write_text(str(int(mark.read_text()) + 1 if mark.exists() else 1))
        return _reply(prompt)

    backend = ScriptedBackend(reply, vocab=ByteVocab(["<|im_start|>"]), n_sequences=4)
    return Engine.over(backend, ChatTemplate(None, family="qwen3"))


class TellingWorker(RayWorker):
    """Loads nothing: its engine answers with the number of threads that it was to be loaded with."""

    def __call__(self, batch: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        def load(_: object, **options: Any) -> Engine:
            text = said(f"threads {options['n_threads']}")
            backend = ScriptedBackend(lambda _: text, vocab=ByteVocab(["<|im_start|>"]))
            return Engine.over(backend, ChatTemplate(None, family="qwen3"))

        with patch.object(Engine, "load", load):
            return super().__call__(batch)
