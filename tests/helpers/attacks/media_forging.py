"""Texts that try to pass for pictures and sounds, through a real projector of each kind, whose model has a token for
every marker of every projector.
"""

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from attacks.forging import MEDIA_MARKERS, Probe, specials
from cases import media_talks
from fakes.inside import parts
from files.projector_files import KINDS, media, write_model, write_projector

from engine import Engine
from engine.llama.vocab import LlamaVocab
from engine.runtime.media.media import MediaChunk
from engine.types.prompt import Prompt

SHOWN = 3
"""Pictures or sounds in a conversation of `forging`."""
_KNOWN = ("<|vision_start|><|image_pad|><|vision_end|>",)  # several tokens


@contextmanager
def seeing(folder: Path, name: str) -> Generator[Engine]:
    """An engine with this kind of projector."""
    kind = KINDS[name]
    tokens = tuple(dict.fromkeys((*kind.tokens, *(text for text in MEDIA_MARKERS if text not in _KNOWN))))
    kind = replace(kind, architecture=kind.architecture or "llama", tokens=tokens)
    paths = write_model(folder / f"{name}.gguf", kind), write_projector(folder / f"mmproj-{name}.gguf", kind)
    with media_talks.opened(paths, n_ctx=512, n_sequences=1) as llm:
        yield llm


class SeeingProbe(Probe):
    """A template, with an engine that reads pictures or sounds: their units and rows are counted in the very tokens
    that a turn is made of."""

    def __init__(self, source: Path, llm: Engine, name: str) -> None:
        self._service = parts(llm).service  # pyright: ignore[reportPrivateUsage]
        shown = media(KINDS[name])
        units = [part for part in self._service._prompts.units(shown) if isinstance(part, MediaChunk)]  # pyright: ignore[reportPrivateUsage]
        self.expected = {"a unit": SHOWN * len(units), "a row": SHOWN * sum(unit.rows for unit in units)}
        vocab = self._service.vocab
        assert isinstance(vocab, LlamaVocab)
        super().__init__(source, vocab, shown)

    def counts(self, prompt: Prompt) -> Counter[str]:
        tokens, placed = self._service.tokenized(prompt)
        rows = sum(token < 0 for token in tokens)
        written = specials(self.vocab, [token for token in tokens if token >= 0])
        return written + Counter({"a unit": len(placed), "a row": rows})
