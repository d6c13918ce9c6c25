"""Damaged projectors, and what is done with each: `gguf_fuzz.run` loads it beside a sound model; if it loads, it is
shown pictures of many shapes, or sounds of many lengths.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from attacks import gguf_mutants
from attacks.gguf_mutants import Mutation, put
from cases.media_talks import TEMPLATE
from files.gguf_bytes import ARRAY, I32, STRING, U32, Array, Document, decoded
from files.projector_files import KINDS, write_model, write_projector

from engine import Audio, Engine, EngineError, Image
from engine.types.media import Media

SHAPES = ((56, 84), (1, 1), (2, 900), (900, 2), (500, 700))
"""Heights and widths of the pictures."""
SECONDS = (0.025, 0.3, 7.0, 31.0)
"""Lengths of the sounds."""
_TYPES_TEXT = (
    "mlp ldp ldpv2 resampler adapter qwen2vl_merger qwen2.5vl_merger qwen3vl_merger gemma3 gemma3nv gemma4v idefics3 "
    "pixtral ultravox internvl llama4 qwen2a voxtral lfm2 kimivl lightonocr cogvlm janus_pro glm4v deepseekocr phi4 x"
)
_TYPES = tuple(_TYPES_TEXT.split())
_KEYS_TEXT = (
    "vision.image_min_pixels vision.image_max_pixels vision.preproc_min_tiles vision.preproc_max_tiles "
    "vision.preproc_image_size vision.projector.scale_factor vision.spatial_merge_size vision.n_wa_pattern "
    "vision.window_size vision.attention.head_count_kv vision.attention.head_dim vision.feature_layer "
    "audio.attention.head_count_kv audio.attention.head_dim audio.chunk_size audio.feature_layer"
)
_KEYS = tuple(_KEYS_TEXT.split())
_NUMBERS = (0, 1, 3, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
_SHARES = {
    "lie": 0.4, "key": 0.08, "value": 0.1, "type": 0.08, "array": 0.05, "tensor": 0.08, "tensor shape": 0.06,
    "tensor type": 0.03, "tensor place": 0.02, "tensor data": 0.03, "cut": 0.03, "layout": 0.02, "bytes": 0.02,
}  # fmt: skip
"""How many of the files have what is wrong with them."""


@dataclass(frozen=True)
class Case:
    """One projector, still to be made."""

    kind: str
    document: Document
    mutation: Mutation

    @property
    def name(self) -> str:
        return f"{self.kind}: {self.mutation.part}: {self.mutation.label}"

    def write(self, folder: Path) -> Path:
        made = self.mutation.apply(self.document)
        path = folder / f"{self.kind}.gguf"
        path.write_bytes(made if isinstance(made, bytes) else made.encoded())
        return path


def cases(folder: Path, count: int, seed: int) -> Iterator[Case]:
    """About so many of them. Writes the sound projectors into the folder, and the models that they are for."""
    chance = random.Random(seed)
    for name, kind in KINDS.items():
        write_model(folder / f"model-{name}.gguf", kind)
        document = decoded(write_projector(folder / f"{name}.gguf", kind).read_bytes())
        other = decoded(write_projector(folder / "wide.gguf", kind, width=kind.width * 2).read_bytes())
        every = [*_lies(document), *gguf_mutants.mutations(document)]
        yield Case(name, document, gguf_mutants.AS_IT_IS)
        yield Case(name, other, Mutation("another model's", f"rows of {kind.width * 2}", Document.same))
        for part, share in _SHARES.items():
            of_part = [each for each in every if each.part == part]
            wanted = min(len(of_part), round(share * count / len(KINDS)))
            yield from (Case(name, document, mutation) for mutation in chance.sample(of_part, wanted))
        for _ in range(round(0.05 * count / len(KINDS))):
            yield Case(name, document, gguf_mutants.combined(document, chance, every))


def _lies(document: Document) -> Iterator[Mutation]:
    """Sizes that are zero, negative or huge, keys that the file has not, and the names of other projectors."""
    encoder = "audio" if document.value("clip.has_audio_encoder") else "vision"
    known = {pair.name for pair in document.pairs if pair.kind == U32}
    for name in sorted(known | {f"clip.{key}" for key in _KEYS if key.startswith(encoder)}):
        for number in _NUMBERS:
            yield put("lie", f"= {number}", name, U32, number)
        for number in (-1, -(2**31)):
            yield put("lie", f"= {number}", name, I32, number)
        for items in ([0], [-1], [2**31 - 1, 0], [1, 1, 1]):
            yield put("lie", f"= {items}", name, ARRAY, Array(I32, items))
    for kind in _TYPES:
        yield put("lie", kind, "clip.projector_type", STRING, kind.encode())
    for size in (0, 1, 2**16, 2**31, 2**32 - 1):
        yield Mutation("lie", f"pictures and patches of {size}", partial(_sized, size=size))


def _sized(document: Document, size: int) -> Document:
    return document.put("clip.vision.image_size", U32, size).put("clip.vision.patch_size", U32, size)


def see(path: Path, loaded: Callable[[], None]) -> None:
    """Load a model with a projector, and ask it about pictures or sounds. Raises the first error of a request."""
    name = path.stem
    kind = KINDS[name]
    model = path.parent.parent / f"model-{name}.gguf"
    errors: list[EngineError] = []
    with Engine.load(
        model if kind.architecture else None,
        projector=path,
        chat_template=TEMPLATE,
        family="content-only",
        n_ctx=2048,
        n_threads=1,
        n_sequences=1,
    ) as llm:
        loaded()
        for media in _shown(sounds=kind.projector == "ultravox"):
            try:
                llm.chat([{"role": "user", "content": ["See:", media, "?"]}], max_tokens=2)
            except EngineError as error:
                errors.append(error)
        llm.chat("Hello!", max_tokens=2)
    if errors:
        raise errors[0]


def _shown(*, sounds: bool) -> Iterator[Media]:
    noise = np.random.default_rng(7)
    if sounds:
        for seconds in SECONDS:
            yield Audio(noise.uniform(-1, 1, int(seconds * 16_000)).astype(np.float32), rate=16_000)
        return
    for shape in SHAPES:
        yield Image(noise.integers(0, 256, (*shape, 3), np.uint8))
