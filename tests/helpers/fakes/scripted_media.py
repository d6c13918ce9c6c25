"""A scripted engine that takes pictures: each is a marker, a unit of rows, and a marker."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine import ChatTemplate, Engine, Image, RequestError, StateStore
from engine.runtime.loop.config import LoopOptions
from engine.runtime.media.media import MediaChunk, PromptPart
from engine.testing.scripted import ByteVocab, ScriptedBackend
from engine.types.completion import Completion
from engine.types.media import Media, MediaKind

VOCAB = ByteVocab(["<|im_start|>"], end=["<|im_end|>"])
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ROWS = 50


class Projector:
    """Makes of each picture a marker, a unit of 50 rows, and a marker. `on_encode` is called with each unit that is
    encoded, in the thread that encodes it."""

    kinds: frozenset[MediaKind] = frozenset({"image"})

    def __init__(self, rows: int = ROWS, *, is_causal: bool = True) -> None:
        self.rows = rows
        self.is_causal = is_causal
        self.reads = 0
        self.encoded: list[bytes] = []
        self.on_encode: Callable[[MediaChunk], object] = lambda _: None

    def read(self, media: Media) -> Sequence[PromptPart]:
        if not isinstance(media, Image):
            raise RequestError("This projector takes no sound.")
        self.reads += 1
        return (ord("<"),), MediaChunk(media.digest, self.rows, self.rows, self.is_causal), (ord(">"),)

    def encode(self, unit: MediaChunk) -> Any:
        """Returns rows that the scripted backend does not look at."""
        self.encoded.append(unit.key)
        self.on_encode(unit)
        return np.zeros((unit.rows, 1), np.float32)


def picture(shade: int) -> Image:
    return Image(np.full((2, 2, 3), shade, np.uint8))


def opened(
    projector: Projector | None = None,
    *,
    states: StateStore | None = None,
    reply: Callable[[str], str] = lambda _: "fine",
    **options: Any,
) -> tuple[Engine, ScriptedBackend]:
    backend = ScriptedBackend(reply, vocab=VOCAB, projector=projector or Projector(), **options)
    template = ChatTemplate(TEMPLATE, family="hermes", control_tokens=VOCAB.control_tokens)
    return Engine.over(backend, template, options=LoopOptions(states=states)), backend


def asked(*shades: int, text: str = "What is this?") -> list[dict[str, Any]]:
    return [{"role": "user", "content": [text, *map(picture, shades)]}]


def read(completion: Completion) -> int:
    assert completion.usage
    return completion.usage.prompt_tokens - completion.usage.cached_tokens
