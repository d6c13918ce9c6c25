"""How many kinds of records a question passes through on its way to the model: one thing, one record."""

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from engine import Engine
from engine.formats.template.chat_template import ChatTemplate
from engine.testing.scripted import ByteVocab, ScriptedBackend

MOST_KINDS = 21
"""How many there are: a new record on this way needs a reason, or replaces another. What a prompt reuses is one, since
it is found before it is taken."""


class Records:
    """Counts the package's records (dataclasses, named tuples, pydantic models) that are made while it is `on`, in this
    thread and in those started after it."""

    def __init__(self) -> None:
        self.on = False
        self.kinds: Counter[str] = Counter()
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def close(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # pyright: ignore[reportArgumentType] - its stub does not know that it may be None

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self.on or event != "call":
            return
        made = frame.f_code.co_filename.endswith(("<string>", "pydantic/main.py", "engine/types/parts.py"))
        if made and frame.f_code.co_name in ("__init__", "__new__", "<lambda>"):
            values: Any = frame.f_locals
            kind: Any = values.get("_cls") or values.get("cls") or values["self"].__class__
            if kind.__module__.startswith("engine.") and not kind.__module__.startswith("engine.testing"):
                self.kinds[f"{kind.__module__}.{kind.__qualname__}"] += 1


@pytest.fixture
def records() -> Iterator[Records]:
    counted = Records()
    try:
        yield counted
    finally:
        counted.close()


def test_a_question_wears_few_records(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the call of `chat` until the first batch is decoded; a third question: what is made once is there."""
    template = ChatTemplate(None, family="qwen3")
    vocab = ByteVocab(control=sorted(template.format.control))
    with Engine.over(ScriptedBackend(lambda _: "Paris.", vocab=vocab), template) as llm:
        for _ in range(2):
            llm.chat("What is the capital of France?")
        decode = ScriptedBackend.decode

        def decoded(*given: Any, **options: Any) -> Any:
            records.on = False
            return decode(*given, **options)

        monkeypatch.setattr(ScriptedBackend, "decode", decoded)
        records.on = True
        llm.chat("What is the capital of France?")
    assert len(records.kinds) > 10, "the count is broken"
    assert len(records.kinds) <= MOST_KINDS, f"{len(records.kinds)} kinds: {dict(records.kinds)}"
