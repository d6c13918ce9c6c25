"""Reads a projector's file (mmproj) before llama.cpp sees it.

The format is the one that llama.cpp's convert_hf_to_gguf.py writes with `--mmproj` (tools/mtmd/clip-impl.h).
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from engine.errors import ModelLoadError, shown
from engine.llama.gguf import check_is_file, check_whole
from engine.llama.gguf_header import Header, read_header
from engine.media import MediaKind
from engine.runtime.config import ContextOptions, MediaOptions

_ENCODERS: dict[MediaKind, str] = {"image": "vision", "audio": "audio"}
# Projectors whose pictures see all of themselves (mtmd.cpp, `mtmd_decode_use_non_causal`), with the most rows of one if
# the caller does not say (clip.cpp, `load_hparams`). None: the file says.
_WHOLE: dict[str, int | None] = {"gemma3": None, "gemma4v": 1120, "gemma4uv": 1120, "deepseek4v": 384}
_ROWS = 256  # of a micro-batch, at least, if it must be chosen here


@dataclass(frozen=True)
class ProjectorFile:
    """A projector's file, and how it is used. `kinds`: what it takes. `size_bytes`: of its tensors. `at_once`: the most
    rows of a picture that must be evaluated in one micro-batch, 0 if there is no such picture."""

    path: Path
    kinds: frozenset[MediaKind]
    size_bytes: int
    at_once: int
    options: MediaOptions

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the whole file."""
        with self.path.open("rb") as data:
            return hashlib.file_digest(data, "sha256").digest()

    def widened(self, context: ContextOptions) -> ContextOptions:
        """Returns the options of a context with micro-batches that are wide enough for each picture."""
        chosen = context.n_ubatch or _ROWS
        if chosen >= self.at_once and context.n_batch >= self.at_once:
            return context
        return replace(context, n_ubatch=max(chosen, self.at_once), n_batch=max(context.n_batch, self.at_once))


def read_projector(path: str | Path, options: MediaOptions | None = None) -> ProjectorFile:
    """Read a projector's header. Raises ModelLoadError if it is not a complete projector in GGUF."""
    options = options or MediaOptions()
    file = Path(path).expanduser().absolute()
    check_is_file(file)
    header = read_header(file)
    check_whole(file, header)
    kinds: frozenset[MediaKind] = frozenset(
        kind for kind, encoder in _ENCODERS.items() if header.number(f"clip.has_{encoder}_encoder", 0)
    )
    if header.text("general.architecture") != "clip" or not kinds:
        architecture = shown(header.text("general.architecture"))
        raise ModelLoadError(
            f"{file} is not a projector: its architecture is {architecture}. Pass the file of this model whose name "
            "begins with mmproj."
        )
    size = sum(tensor.size for tensor in header.tensors)
    return ProjectorFile(file, kinds, size, _at_once(header, options), options)


def _at_once(header: Header, options: MediaOptions) -> int:
    name = header.text("clip.vision.projector_type") or header.text("clip.projector_type")
    if name not in _WHOLE:
        return 0
    if (most := _WHOLE[name]) is not None:
        return options.image_max_tokens or most
    patch = header.integer("clip.vision.patch_size", 0) * header.integer("clip.vision.projector.scale_factor", 4)
    return (header.integer("clip.vision.image_size", 0) // max(1, patch)) ** 2
