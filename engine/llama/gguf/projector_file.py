"""Reads a projector's file (mmproj) before llama.cpp sees it.

The format is the one that llama.cpp's convert_hf_to_gguf.py writes with `--mmproj` (tools/mtmd/clip-impl.h).
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from engine.llama.gguf.gguf import check_is_file, check_whole
from engine.llama.gguf.gguf_header import Header, read_header, reading
from engine.runtime.loop.config import ContextOptions, MediaOptions
from engine.support.errors import ModelLoadError, shown
from engine.types.media import MediaKind

_ENCODERS: dict[MediaKind, str] = {"image": "vision", "audio": "audio"}
# Projectors whose pictures see all of themselves (mtmd.cpp, `mtmd_decode_use_non_causal`), with the most rows of one if
# the caller does not say (clip.cpp, `load_hparams`). None: the file says.
_WHOLE: dict[str, int | None] = {"gemma3": None, "gemma4v": 1120, "gemma4uv": 1120, "deepseek4v": 384}
_ROWS = 256  # of a micro-batch, at least, if it must be chosen here
# The most rows of a picture of any size, if neither the caller nor the file says (clip.cpp, `load_hparams`).
_MOST_ROWS = {
    "qwen2vl_merger": 4096,
    "qwen2.5vl_merger": 4096,
    "qwen2.5o": 4096,
    "qwen3vl_merger": 4096,
    "ling3vl": 4096,
    "glm4v": 4096,
    "kimik25": 4096,
    "muse-glimmer": 4096,
    "pixtral": 1024,
    "kimivl": 1024,
    "gemma4v": 1120,
    "gemma4uv": 1120,
    "minimax_m3": 576,
    "lfm2": 256,
    "hunyuanvl": 16384,
    "youtuvl": 62500,
}
_POSITIONS = 1500  # of a sound: the encoders of Whisper's kind read 30 seconds at a time
_F32 = 4
_MIB = 1 << 20


@dataclass(frozen=True)
class ProjectorFile:
    """A projector's file, and how it is used. `kinds`: what it takes. `size_bytes`: of its tensors. `encode_bytes`: of
    the buffers in which the largest picture or a sound is encoded. `at_once`: the most rows of a picture that must be
    evaluated in one micro-batch, 0 if there is no such picture."""

    path: Path
    kinds: frozenset[MediaKind]
    size_bytes: int
    encode_bytes: int
    at_once: int
    options: MediaOptions

    @property
    def memory(self) -> int:
        """The most bytes that it takes beside its model: weights, buffers, and the rows that are kept."""
        return self.size_bytes + self.encode_bytes + (self.options.media_cache_mib << 20)

    def places(self, *, on_device: bool) -> tuple[int, int]:
        """Returns the bytes of `memory` here and on a device, if it is there: the rows that are kept stay here."""
        kept = self.options.media_cache_mib << 20
        return (kept, self.memory - kept) if on_device else (self.memory, 0)

    @property
    def memory_text(self) -> str:
        """The file's name, and what the projector takes."""
        weights, buffers, rows = self.size_bytes / _MIB, self.encode_bytes / _MIB, self.options.media_cache_mib
        of_these = f"weights {weights:,.0f}, buffers {buffers:,.0f}, rows kept at most {rows:,}"
        return f"{self.path.name}: {self.memory / _MIB:,.0f} MiB ({of_these})"

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the whole file."""
        with reading(self.path), self.path.open("rb") as data:
            return hashlib.file_digest(data, "sha256").digest()

    def widened(self, context: ContextOptions) -> ContextOptions:
        """Returns the options of a context with micro-batches that are wide enough for each picture."""
        chosen = context.n_ubatch or _ROWS
        if chosen >= self.at_once and context.n_batch >= self.at_once:
            return context
        return replace(context, n_ubatch=max(chosen, self.at_once), n_batch=max(context.n_batch, self.at_once))


def read_projector(path: str | Path, options: MediaOptions | None = None) -> ProjectorFile:
    """Read a projector's header. Raises ModelLoadError if it is not a complete projector in GGUF."""
    file = Path(path).expanduser().absolute()
    check_is_file(file)
    header = read_header(file)
    check_whole(file, header)
    return described_projector(file, header, options or MediaOptions())


def described_projector(file: Path, header: Header, options: MediaOptions) -> ProjectorFile:
    """Returns what a header says about a projector. Raises ModelLoadError if it is none."""
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
    encode = max(_picture_bytes(header, options), _sound_bytes(header))
    return ProjectorFile(file, kinds, size, encode, _at_once(header, options), options)


def _type(header: Header) -> str:
    return header.text("clip.vision.projector_type") or header.text("clip.projector_type")


def _picture_bytes(header: Header, options: MediaOptions) -> int:
    """Estimates the buffers of the largest picture: its pixels, laid out for the first convolution, then the widest
    point of a layer; where layers see windows of it, their mask. Without flash attention, which few devices lack,
    it takes more."""
    patches, patch = _patches(header, options), header.integer("clip.vision.patch_size", 0)
    pixels = 3 * patch**2
    windows = header.integer("clip.vision.n_wa_pattern", 0) or header.count("clip.vision.wa_layer_indexes")
    mask = 6 * patches**2 if windows else 0  # numbers of 32 bits and of 16
    width = header.integer("clip.vision.embedding_length", 0)
    return patches * _F32 * (pixels + max(pixels // 2 + 2 * width, _layer(header, "vision", "v"))) + mask


def _patches(header: Header, options: MediaOptions) -> int:
    """Returns the number of patches of the largest picture that is encoded at once."""
    patch, name = max(1, header.integer("clip.vision.patch_size", 0)), _type(header)
    pixels = header.integer("clip.vision.image_max_pixels", 0)
    if name not in _MOST_ROWS and not pixels:
        return (header.integer("clip.vision.image_size", 0) // patch) ** 2
    merged = header.integer("clip.vision.spatial_merge_size", header.integer("clip.vision.projector.scale_factor", 2))
    given = options.image_max_tokens or (0 if pixels else _MOST_ROWS[name])
    return given * merged**2 or pixels // patch**2


def _sound_bytes(header: Header) -> int:
    mel, width = header.integer("clip.audio.num_mel_bins", 0), header.integer("clip.audio.embedding_length", 0)
    return _POSITIONS * _F32 * (2 * mel + max(3 * mel + 2 * width, _layer(header, "audio", "a")))


def _layer(header: Header, part: str, prefix: str) -> int:
    """Returns the numbers that a patch needs at the widest point of a layer."""
    width = header.integer(f"clip.{part}.embedding_length", 0)
    inner = header.integer(f"clip.{part}.feed_forward_length", 0)
    gated = any(tensor.name == f"{prefix}.blk.0.ffn_gate.weight" for tensor in header.tensors)
    return max(8 * width, 2 * width + 3 * inner if gated else 3 * width + inner)


def _at_once(header: Header, options: MediaOptions) -> int:
    name = _type(header)
    if name not in _WHOLE:
        return 0
    if (most := _WHOLE[name]) is not None:
        return options.image_max_tokens or most
    patch = header.integer("clip.vision.patch_size", 0) * header.integer("clip.vision.projector.scale_factor", 4)
    return (header.integer("clip.vision.image_size", 0) // max(1, patch)) ** 2
