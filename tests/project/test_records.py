"""A turn is made into few records on its way to the engine's thread, and its options are read from one of them."""

import re
import sys
from dataclasses import is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import BaseModel

from engine import ChatTemplate, Engine
from engine.formats.grammar.nodes import InOrder
from engine.testing.scripted import ByteVocab, ScriptedBackend

MOST = {"with a tool": 12, "with a tool and a type": 15}
"""Records of November 2026; the grammar's nodes and rules are none."""
MOST_LOOKED_UP = 10
"""`options.get(..)` in the package: where options are still a dictionary, foreign ones above all."""


def get_weather(city: str) -> str:
    """Returns the weather of a city."""
    return f"{city}: sunny"


def is_record(kind: Any) -> bool:
    room: str = kind.__module__
    if not room.startswith("engine.") or room.startswith(("engine.testing", InOrder.__module__)):
        return False
    return is_dataclass(kind) or issubclass(kind, BaseModel) or hasattr(kind, "_fields")


def records(llm: Engine, **options: Any) -> set[str]:
    """The names of the records that are made of a question before its stream is there."""
    made: set[str] = set()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        names = frame.f_code.co_varnames
        if event == "call" and frame.f_code.co_name in ("__init__", "__new__") and names:
            first = frame.f_locals.get(names[0])
            kind = first if isinstance(first, type) else type(first)
            made.update([kind.__name__] if is_record(kind) else [])

    usual = sys.getprofile()
    sys.setprofile(note)
    try:
        stream = llm.stream("What is the weather in Paris?", [get_weather], **options)
    finally:
        sys.setprofile(usual)
    stream.result()
    return made


def test_a_turn_wears_few_records() -> None:
    template = ChatTemplate(None, family="qwen3")
    vocab = ByteVocab([text for text in template.format.control if text.isascii()])
    with Engine.over(ScriptedBackend(lambda _: "true", vocab=vocab), template) as llm:
        for kind, options in (("with a tool", {}), ("with a tool and a type", {"response_format": bool})):
            _ = records(llm, **options)  # what is made once is there then
            found = records(llm, **options)
            assert {"TurnSettings", "TurnRequest", "Request"} <= found, found
            assert len(found) <= MOST[kind], sorted(found)


def test_options_are_read_from_records(repository: Path) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (repository / "engine").rglob("*.py")}
    found = [str(path) for path, text in texts.items() for _ in re.findall(r"\boptions\.get\(", text)]
    assert len(found) <= MOST_LOOKED_UP, found


def test_the_default_of_an_option_stands_once(repository: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (repository / "engine").rglob("*.py")]
    assert sum(len(re.findall(r'= "deepseek"', text)) for text in texts) == 1
