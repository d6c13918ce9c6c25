"""A projector: makes rows of embeddings of pictures and sounds, with libmtmd. Implements
`engine.runtime.media.media.Projector`.

It is given pixels and samples, never a file, and no text: so nothing that a caller writes can be a marker.
"""

import ctypes
import os
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from engine.llama.gguf.projector_file import ProjectorFile
from engine.llama.lib import forget_errors, last_errors, library, mtmd
from engine.llama.lifetime import Shared, made_in_thread
from engine.runtime.media.media import MediaChunk, PromptPart
from engine.support.errors import DecodeError, EngineError, ModelLoadError, RequestError
from engine.types.media import Audio, Image, Media, MediaKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_TEXT = 0  # enum mtmd_input_chunk_type (mtmd.h)
_SHORTEST = 0.025  # seconds: one window of a spectrogram; llama.cpp asserts that there is more than one sample
_WIDTHS = re.compile(r"text model \(n_embd = (\d+)\) and mmproj \(n_embd = (\d+)\)")
_NAMES = re.compile(r"\b\w+: (?:error: )?(?=\w)")
"""The names of functions in llama.cpp's errors."""


class _Chunk:
    """A copy of a media chunk, freed with this object."""

    def __init__(self, lib: Any, chunk: int) -> None:
        self.pointer: int = lib.mtmd_input_chunk_copy(chunk)
        self.image: int | None = lib.mtmd_input_chunk_get_tokens_image(self.pointer)
        weakref.finalize(self, lib.mtmd_input_chunk_free, self.pointer).atexit = False


class LlamaProjector:
    """A loaded projector over a model, which it keeps alive. `read` and `encode` may be called from any thread, also
    while a context decodes: the projector computes on a scheduler and buffers of its own (clip.cpp), and only reads of
    the model how wide its rows are. `positions` is for the thread that decodes. `tokens`: the size of the model's
    vocabulary. `digest`: of the file and of what limits the rows, in hexadecimal.

    Raises ModelLoadError with llama.cpp's reason if it refuses the file, or if it is for another model.
    """

    def __init__(self, file: ProjectorFile, model: Shared, *, tokens: int, use_gpu: bool, n_threads: int) -> None:
        self._lib = lib = mtmd()
        self._file = file
        self._tokens = tokens
        options = file.options
        self._limits = f"{options.image_min_tokens} {options.image_max_tokens}"
        self.digest = sha256(file.digest + self._limits.encode()).hexdigest()
        params = lib.mtmd_context_params_default()
        params.use_gpu, params.n_threads = use_gpu, n_threads
        params.print_timings = params.warmup = False
        params.image_min_tokens = options.image_min_tokens or -1
        params.image_max_tokens = options.image_max_tokens or -1
        forget_errors()
        with model as handle:
            self._width = int(library().llama_model_n_embd_inp(handle))
            pointer = made_in_thread(
                lambda: lib.mtmd_init_from_file(os.fsencode(file.path), handle, params), lib.mtmd_free
            )
        if not pointer:
            raise self._refusal()
        held = model.lend()

        def free(pointer: int) -> None:
            lib.mtmd_free(pointer)
            held.close(_closed())

        self._shared = Shared(pointer, free)
        weakref.finalize(self, self._shared.close, _closed()).atexit = False
        takes: dict[MediaKind, Any] = {"image": lib.mtmd_support_vision, "audio": lib.mtmd_support_audio}
        self.kinds: frozenset[MediaKind] = frozenset(kind for kind, has in takes.items() if has(pointer))
        self._rate = int(lib.mtmd_get_audio_sample_rate(pointer))
        self._sections = 4 if lib.mtmd_decode_use_mrope(pointer) else 1
        self._encoding = threading.Lock()  # the scheduler and the buffer of rows are for one unit at a time
        self._cached: OrderedDict[bytes, NDArray[np.float32]] = OrderedDict()
        self._held = 0

    def _refusal(self) -> ModelLoadError:
        said, path = last_errors(), self._file.path
        if widths := _WIDTHS.search(said):
            return ModelLoadError(
                f"{path} is the projector of another model: it makes rows of {widths[2]} numbers, and this model reads "
                f"rows of {widths[1]}. Pass the one that was made with this model."
            )
        return ModelLoadError(
            f"llama.cpp could not load the projector {path}: {_NAMES.sub('', said).strip() or 'it gave no reason'}. "
            "The file may be damaged, or newer than the installed llama-cpp-python."
        )

    def read(self, media: Media) -> Sequence[PromptPart]:
        """Returns a picture or a sound as the model reads it: its parts, and the tokens that the projector puts around
        them. It must be of `kinds`. Raises RequestError for what this projector cannot read."""
        with self._shared as context, self._chunks(context, media) as chunks:
            count = self._lib.mtmd_input_chunks_size(chunks)
            parts = [self._part(context, media, chunks, index) for index in range(count)]
        if not any(isinstance(part, MediaChunk) for part in parts):
            raise RequestError(
                f"The projector {self._file.path.name} makes no rows of this {media.kind}; leave it out."
            )
        return parts

    @contextmanager
    def _chunks(self, context: int, media: Media) -> Generator[int]:
        """Yields the chunks that libmtmd makes of one picture or sound; they are freed afterwards."""
        lib = self._lib
        part = lib.mtmd_input_part(bitmap=self._bitmap(media))
        chunks: int = lib.mtmd_input_chunks_init()
        try:
            pointer: Any = cast("Any", ctypes.POINTER)(lib.mtmd_input_part)
            only = (pointer * 1)(ctypes.pointer(part))
            forget_errors()
            if lib.mtmd_tokenize_from_parts(context, chunks, only, 1, False):
                said = _NAMES.sub("", last_errors()).strip() or "it gave no reason"
                raise RequestError(f"llama.cpp could not read this {media.kind} ({said}); leave it out, or resize it.")
            yield chunks
        finally:
            lib.mtmd_input_chunks_free(chunks)
            lib.mtmd_bitmap_free(part.bitmap)

    def _bitmap(self, media: Media) -> int:
        """Returns a bitmap, which holds a copy of the pixels or samples."""
        if isinstance(media, Audio):
            if media.seconds < _SHORTEST:
                raise RequestError(
                    f"A sound of {len(media.samples)} samples is too short; it must last {_SHORTEST * 1000:.0f} ms."
                )
            samples = media.resampled(self._rate)
            numbers = samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            return self._lib.mtmd_bitmap_init_from_audio(len(samples), numbers)
        pixels = ctypes.cast(ctypes.c_char_p(media.rgb), ctypes.POINTER(ctypes.c_uint8))
        return self._lib.mtmd_bitmap_init(media.width, media.height, pixels)

    def _part(self, context: int, media: Media, chunks: int, index: int) -> PromptPart:
        lib = self._lib
        chunk = lib.mtmd_input_chunks_get(chunks, index)
        rows = int(lib.mtmd_input_chunk_get_n_tokens(chunk))
        if lib.mtmd_input_chunk_get_type(chunk) == _TEXT:
            tokens = tuple(lib.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(ctypes.c_size_t()))[:rows])
            if not all(0 <= token < self._tokens for token in tokens):
                raise RequestError(
                    f"The markers of the projector {self._file.path.name} are not in this model's vocabulary; load the "
                    "one that was made with this model."
                )
            return tokens
        return MediaChunk(
            key=sha256(media.digest + self._file.digest + f"{self._limits} {index}".encode()).digest(),
            rows=rows,
            positions=int(lib.mtmd_input_chunk_get_n_pos(chunk)),
            is_causal=not lib.mtmd_decode_use_non_causal(context, chunk),
            source=_Chunk(lib, chunk),
        )

    def encode(self, unit: MediaChunk) -> "NDArray[np.float32]":
        """Returns the rows of a unit, shape (rows, width), read-only; computed once, then from a cache. Raises
        DecodeError."""
        with self._encoding:
            if (known := self._cached.get(unit.key)) is not None:
                self._cached.move_to_end(unit.key)
                return known
            rows = self._encoded(unit)
            self._cached[unit.key] = rows
            self._held += rows.nbytes
            while self._held > self._file.options.media_cache_mib << 20:
                _, oldest = self._cached.popitem(last=False)
                self._held -= oldest.nbytes
            return rows

    def _encoded(self, unit: MediaChunk) -> "NDArray[np.float32]":
        import numpy as np

        lib = self._lib
        with self._shared as context:
            forget_errors()
            if lib.mtmd_encode_chunk(context, unit.source.pointer):
                said = _NAMES.sub("", last_errors()).strip() or "it gave no reason"
                raise DecodeError(f"llama.cpp could not encode {unit.rows} rows of a picture or sound ({said}).")
            rows = np.ctypeslib.as_array(lib.mtmd_get_output_embd(context), (unit.rows, self._width)).copy()
        if not np.isfinite(rows).all():
            raise DecodeError(
                "The projector made rows that hold numbers that are not finite; its file may be damaged.", "nan"
            )
        rows.flags.writeable = False
        return rows

    def positions(self, unit: MediaChunk, first: int) -> "NDArray[np.int32]":
        """Returns the positions of a unit's rows from position `first` on, shape (sections, rows): one section or, with
        M-RoPE, four."""
        import numpy as np

        image = unit.source.image
        if self._sections == 1 or image is None:
            line = np.arange(first, first + unit.rows, dtype=np.int32)
            return np.tile(line, (self._sections, 1))
        places = (self._lib.mtmd_decoder_pos * unit.rows)()
        self._lib.mtmd_helper_image_get_decoder_pos(image, first, places)
        columns = np.frombuffer(places, np.uint32).reshape(unit.rows, 4).astype(np.int32)  # t, x, y, z
        return np.ascontiguousarray(columns[:, (0, 2, 1, 3)].T)

    def close(self) -> None:
        """Free the projector once `read` is not running. Can be called more than once."""
        self._shared.close(_closed())
        self._cached.clear()


def sample(kind: MediaKind) -> Media:
    """Returns a small picture, or a second of sound, of noise."""
    import numpy as np

    noise = np.random.default_rng(1)
    if kind == "image":
        return Image(noise.integers(0, 256, (96, 96, 3), np.uint8))
    return Audio(noise.uniform(-0.5, 0.5, 16_000).astype(np.float32), rate=16_000)


def _closed() -> EngineError:
    return EngineError("The model of this projector is closed; load it again.")
