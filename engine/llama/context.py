"""One llama.cpp context: batches in, logits out, and the memory of its sequences. Implements
`engine.runtime.loop.backend.Backend`.

A single thread calls it; only `abort` may be called from another.
"""

import ctypes
import hashlib
import struct
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from engine.llama.adapters import LlamaAdapters, steer
from engine.llama.batch import Column, EmbeddingBatch, LlamaBatch
from engine.llama.gguf.rope import rope_params
from engine.llama.lib import (
    brief,
    decode_error,
    devices,
    forget_errors,
    init_error,
    last_errors,
    library,
    library_version,
)
from engine.llama.lifetime import freeing, made_in_thread
from engine.llama.params import context_params
from engine.llama.plan.footprint import Cells
from engine.llama.pooling import LlamaVectors, pool
from engine.llama.projector import LlamaProjector
from engine.llama.sampling import DrySamplers, LlamaSampler
from engine.llama.state import check_state
from engine.llama.thread_rule import ContextThreads
from engine.llama.vocab import LlamaVocab
from engine.runtime.adapters.adapters import Scales
from engine.runtime.cache.state_file import Origin
from engine.runtime.loop.backend import Ahead, ContextInfo, Row, Sampler
from engine.runtime.loop.config import ContextOptions
from engine.runtime.loop.logprobs import TokenLogprobs, likeliest, token_logprobs
from engine.runtime.media.media import Embeddings, MediaChunk
from engine.runtime.stream.embed_queue import VectorInfo
from engine.support.errors import DecodeError, EngineError
from engine.types.sampling import SamplingParams

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from engine.runtime.guidance.matcher import Mask


def check_rows(rows: Sequence[Row], columns: Sequence[Column], n_outputs: int, n_sequences: int, n_tokens: int) -> None:
    """Raise DecodeError for rows over which llama.cpp would end the process, or fail without naming the row."""
    tokens, _, sequences, outputs = columns
    if sum(outputs) > n_outputs:
        raise DecodeError(
            f"{sum(outputs)} rows ask for logits, but one batch gives {n_outputs}; split them, or "
            "raise outputs_per_sequence.",
            "invalid",
        )
    if min(tokens) < 0 or max(tokens) >= n_tokens or min(sequences) < 0 or max(sequences) >= n_sequences:
        bad = next(row for row in rows if not (0 <= row.sequence < n_sequences and 0 <= row.token < n_tokens))
        raise DecodeError(
            f"{bad} is not possible here: sequences run from 0 to {n_sequences - 1}, tokens from 0 to {n_tokens - 1}.",
            "invalid",
        )


_CACHED_VIEWS = 1024
_WHOLE, _PARTIAL = 0, 1  # LLAMA_STATE_SEQ_FLAGS_NONE and _PARTIAL_ONLY (llama.h)
_SECTIONED = (8, 40)  # LLAMA_ROPE_TYPE_MROPE and _IMROPE (llama.h)


class Weights(Protocol):
    """What a context needs of its model."""

    @property
    def handle(self) -> int:
        """The llama_model pointer. Raises EngineError once the model is closed."""
        ...

    @property
    def vocab(self) -> LlamaVocab: ...

    @property
    def digest(self) -> str:
        """A digest that identifies these weights."""
        ...

    def vectors(self, options: ContextOptions) -> LlamaVectors:
        """Make a context for vectors beside one with these options. Raises ContextOverflowError if it does not fit."""
        ...


class UnitEnds:
    """Where units of media end that take more positions than their last row says: with M-RoPE all rows of a picture
    have the same first coordinate, which is the one that llama.cpp's memory reports."""

    def __init__(self) -> None:
        self._ends: dict[int, dict[int, int]] = {}

    def note(self, sequence: int, last: int, end: int) -> None:
        """Record a unit whose last row is at `last`, and after which `end` is the next position."""
        if end != last + 1:
            self._ends.setdefault(sequence, {})[last] = end

    def after(self, sequence: int, last: int) -> int:
        """Returns the position after the newest row of a sequence, which is at `last`."""
        return self._ends.get(sequence, {}).get(last, last + 1)

    def cut(self, sequence: int, position: int) -> None:
        """Forget the units of a sequence that end after `position`."""
        if held := self._ends.get(sequence):
            self._ends[sequence] = {last: end for last, end in held.items() if end <= position}

    def copy(self, source: int, target: int, positions: int) -> None:
        """Let `target` have the units among the first `positions` of `source`."""
        self._ends[target] = {last: end for last, end in self._ends.get(source, {}).items() if end <= positions}

    def saved(self, sequence: int) -> bytes:
        """Returns the units of a sequence as bytes: pairs of integers, and how many pairs (4 bytes each)."""
        pairs = [*self._ends.get(sequence, {}).items()]
        return struct.pack(f"<{2 * len(pairs) + 1}i", *(place for pair in pairs for place in pair), len(pairs))

    @staticmethod
    def parted(state: bytes) -> tuple[bytes, dict[int, int]]:
        """Returns a state without the units at its end, and the units. Raises DecodeError if there are none."""
        count = int.from_bytes(state[-4:], "little", signed=True)
        start = len(state) - 4 - 8 * count
        if count < 0 or start < 0:
            raise DecodeError("A saved state does not say where its pictures end; save the prefix again.", "invalid")
        places = struct.unpack_from(f"<{2 * count}i", state, start)
        return state[:start], dict(zip(places[::2], places[1::2], strict=True))

    def set(self, sequence: int, ends: dict[int, int]) -> None:
        """Let a sequence have these units."""
        self._ends[sequence] = ends


class LlamaBackend:
    """A context over one model, which it keeps alive; made by `Model.backend`.

    `options` are complete, with nothing left to choose, and `cells` follow from them; `info` tells the loop their
    limits. `window`: the number of tokens that the model's sliding-window layers see, 0 for none. `vectors`: this is
    the only context of an embedding model, and makes vectors of this kind; it does not generate. `projector`: makes
    rows of pictures and sounds; the context owns it. `context_type`: enum llama_context_type.
    """

    def __init__(
        self,
        model: Weights,
        options: ContextOptions,
        cells: Cells,
        info: ContextInfo,
        *,
        window: int = 0,
        vectors: VectorInfo | None = None,
        causal: bool = True,
        projector: LlamaProjector | None = None,
        context_type: int = 0,
    ) -> None:
        self._lib = lib = library()
        self._model = model
        self.vocab = model.vocab
        self.options = options
        self.cells = cells
        self.info = info
        self._window, self.projector = window, projector
        self._ends = UnitEnds()
        self._cell_bytes = 24 if lib.llama_model_rope_type(model.handle) in _SECTIONED else 12
        self._copying = False  # whether llama.cpp has deferred a copy between buffers
        self._abort = ctypes.create_string_buffer(2)
        forget_errors()
        params = context_params(lib, options, cells, self._abort)
        params = params if vectors is None else pool(params, vectors)
        params.ctx_type = context_type
        context = made_in_thread(lambda: lib.llama_init_from_model(model.handle, params), lib.llama_free)
        if not context:
            raise init_error(info.n_ctx)
        self._context: int | None = context
        self._memory = lib.llama_get_memory(context)
        self._logits_of = brief("llama_get_logits_ith", ctypes.c_void_p)  # as an address, which needs no conversion
        self._remove, self._copy = map(brief, ("llama_memory_seq_rm", "llama_memory_seq_cp"))
        self._newest, self._oldest = map(brief, ("llama_memory_seq_pos_max", "llama_memory_seq_pos_min"))
        self._waits = any(device.is_gpu for device in devices())
        if not self._memory and vectors is None:
            lib.llama_free(context)
            raise EngineError(
                "This model keeps no memory between tokens, so it cannot generate text; use a chat model."
            )
        # At exit the engine's thread may still use it; the model's finalizer closes it.
        self._free = freeing(self, lib.llama_free, context)
        self._adapters = LlamaAdapters(lib, model.handle, context)
        steered = steer(lib, model.handle, context, options.control_vectors)
        self._control_vectors = hashlib.sha256(steered).hexdigest() if steered else ""
        self._dry = DrySamplers(model.vocab)
        self._samplers: weakref.WeakSet[LlamaSampler] = weakref.WeakSet()
        self._batch = LlamaBatch(lib, info.n_batch)
        self._threads = ContextThreads(lib, context, options, params)
        self._views: dict[int, NDArray[np.float32]] = {}
        self._vectors: LlamaVectors | None = None
        if vectors is not None:
            self._vectors = LlamaVectors(
                lib, context, vectors, causal=causal, n_batch=info.n_batch, abort=self._abort, threads=self._threads
            )

    @property
    def threads(self) -> tuple[int, int]:
        """The threads that decode now: for a token, for a batch."""
        return self._threads.now

    @property
    def handle(self) -> int:
        """The llama_context pointer. Raises EngineError once closed."""
        return self._handle()

    def _handle(self) -> int:
        if self._context is None:
            raise EngineError("This context is closed; make a new one with Model.backend().")
        return self._context

    def decode(self, rows: Sequence[Row]) -> None:
        """Evaluate the rows. Raises DecodeError with a `reason`; `positions` then returns what each sequence holds."""
        context, info = self._handle(), self.info
        if not rows:
            return
        if len(rows) > info.n_batch:
            raise DecodeError(
                f"{len(rows)} rows were given, but one batch takes {info.n_batch}; split them.", "invalid"
            )
        columns = tuple(zip(*rows, strict=True))
        check_rows(rows, columns, info.n_outputs, info.n_sequences, self.vocab.size)
        self._compute(context, self._batch.fill(*columns), len(rows))

    def _compute(self, context: int, batch: Any, rows: int) -> None:
        self._threads.follow()
        forget_errors()
        code = int(self._lib.llama_decode(context, batch))
        self._abort[0] = b"\x00"
        if code:
            self._batch.forget()
            raise decode_error(code, rows, self.info)
        if self._waits:
            # A GPU continues to compute after llama_decode. Wait for it here, without the GIL, rather than when logits
            # are read.
            self._lib.llama_synchronize(context)
        self._copying = False

    def decode_media(
        self, unit: MediaChunk, sequence: int, position: int, rows: "Embeddings", part: slice = slice(None)
    ) -> None:
        """Evaluate the rows of a unit, which begins at this position, or a part of them. Raises DecodeError; the
        sequence then holds nothing of it, if its memory can be cut."""
        context, projector = self._handle(), self.projector
        if projector is None or not 0 <= sequence < self.info.n_sequences:
            raise DecodeError(
                f"A unit of {unit.rows} rows cannot be evaluated in sequence {sequence}: this context has "
                f"{self.info.n_sequences} sequences, and {'no' if projector is None else 'a'} projector.",
                "invalid",
            )
        most = self.info.n_batch if unit.is_causal else min(self.info.n_batch, self.options.rows_at_once)
        if not unit.is_causal and unit.rows > most:
            raise DecodeError(
                f"This picture takes {unit.rows} rows, which must be evaluated at once, but a micro-batch {most}: "
                f"load with n_ubatch={unit.rows}, and n_batch and n_ctx of at least as many, or with a smaller "
                "image_max_tokens.",
                "invalid",
            )
        positions = projector.positions(unit, position)
        self._batch.forget()  # the logits of the decode before are gone
        try:
            if not unit.is_causal:
                self._lib.llama_set_causal_attn(context, False)
            first, last, _ = part.indices(unit.rows)
            for start in range(first, last, most):
                some = slice(start, min(start + most, last))
                piece = EmbeddingBatch(self._lib, rows[some], positions[:, some], sequence)
                self._compute(context, piece.struct, len(rows[some]))
        except DecodeError:
            self.trim(sequence, position)
            raise
        finally:
            if not unit.is_causal:
                self._lib.llama_set_causal_attn(context, True)
        if last == unit.rows:
            self._ends.note(sequence, int(self._newest(self._memory, sequence)), position + unit.positions)

    def abort(self) -> None:
        """Make the running decode, or else the next one, stop with DecodeError("aborted"). Callable from any thread;
        works on the CPU only."""
        self._abort[0] = b"\x01"

    def vectors(self) -> LlamaVectors:
        """Returns the context for vectors, made on first use. Raises ContextOverflowError if it does not fit."""
        self._handle()
        if self._vectors is None:
            self._vectors = self._model.vectors(self.options)
        return self._vectors

    def load_adapter(self, digest: str, path: Path) -> None:
        """Load a LoRA adapter. Raises ModelLoadError with llama.cpp's reason if it refuses the file."""
        self._handle()
        self._adapters.load(digest, path)

    def adapt(self, scales: Scales) -> None:
        """Compute the next decodes with these loaded adapters and no others."""
        self._handle()
        self._adapters.use(scales)

    def free_adapter(self, digest: str) -> None:
        """Free a loaded adapter, which is not in force."""
        self._handle()
        self._adapters.free(digest)

    def logits(self, row: int) -> "NDArray[np.float32]":
        """Returns the logits of row `row` of the last decode, shape (vocab.size,): llama.cpp's own memory, without a
        copy.

        Valid until the next decode. Samplers see what is written into it. Raises DecodeError for a row without output.
        """
        context = self._handle()
        self._check(row)
        address = self._logits_of(context, row)
        if not address:
            raise DecodeError(f"llama.cpp has no logits for row {row}.")
        view = self._views.get(address)
        if view is None:
            view = self._view(address)
        return view

    def _check(self, row: int) -> None:
        """Raise DecodeError for a row of the last decode that has no logits."""
        if not self._batch.has_logits(row):
            raise DecodeError(f"Row {row} of the last batch has no logits; decode it with output=True.", "invalid")

    def _view(self, address: int) -> "NDArray[np.float32]":
        import numpy as np

        if len(self._views) >= _CACHED_VIEWS:
            self._views.clear()
        buffer: Any = (ctypes.c_float * self.vocab.size).from_address(address)
        view = self._views[address] = np.frombuffer(buffer, dtype=np.float32)
        return view

    def sampler(self, params: SamplingParams, tokens: Sequence[int] = ()) -> LlamaSampler:
        """Returns a sampler with its own random stream, which has seen `tokens`; a seed of None is replaced by a random
        one."""
        sampler = LlamaSampler(params, self.vocab, self._dry, tokens)
        self._samplers.add(sampler)
        return sampler

    @staticmethod
    def _mine(sampler: Sampler) -> LlamaSampler:
        if not isinstance(sampler, LlamaSampler):
            raise EngineError("This sampler was made by another backend; take one from this backend's sampler().")
        return sampler

    def sample(
        self,
        sampler: Sampler,
        row: int,
        mask: "Mask | None" = None,
        ends: "NDArray[np.intp] | None" = None,
        opening: int | None = None,
        ahead: Ahead | None = None,
    ) -> int:
        """Draw a token and accept it. Raises DecodeError("nan") if the logits are not numbers."""
        return self._mine(sampler).draw(self._handle(), row, self.logits(row), mask, ends, opening, ahead)

    def logprobs(self, row: int, token: int, top: int | tuple[int, ...]) -> TokenLogprobs:
        """Returns log-probabilities of a row, before any filter, bias or temperature: the token's own, and the `top`
        best or those of these tokens."""
        return token_logprobs(self.logits(row), token, top, self.vocab.token_bytes)

    def likeliest(self, row: int) -> tuple[int, float]:
        """Returns the most likely token after a row, and its probability."""
        return likeliest(self.logits(row))

    def positions(self, sequence: int) -> int:
        self._handle()
        return self._ends.after(sequence, int(self._newest(self._memory, sequence)))

    def clear(self) -> None:
        self._handle()
        self._lib.llama_memory_clear(self._memory, True)
        self._ends, self._copying = UnitEnds(), False

    def trim(self, sequence: int, position: int) -> bool:
        """Remove the sequence's tokens from `position` on. Returns False, and changes nothing, if this model's memory
        cannot do that; trimming to 0 always works."""
        if position >= self.positions(sequence):
            return True
        if not self.can_trim(sequence, position):
            return False
        removed = bool(self._remove(self._memory, sequence, position if position > 0 else -1, -1))
        if removed:
            self._ends.cut(sequence, position)
        return removed

    def can_trim(self, sequence: int, position: int) -> bool:
        if not 0 < position < self.positions(sequence):
            return True
        # Sliding-window layers have dropped tokens outside the window, so too far back they miss some. With swa_full
        # too, once the cache was full: llama.cpp then reuses such cells.
        kept = not self._window or int(self._oldest(self._memory, sequence)) <= max(0, position - self._window)
        return kept and self.info.can_share

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copy the first `positions` of a sequence. Raises DecodeError("invalid") for a part of a recurrent state."""
        held, can_share = self.positions(source), self.info.can_share
        if positions > held or (not can_share and positions != held):
            rule = "copy no more than it holds" if can_share else "a recurrent state can only be copied whole"
            raise DecodeError(
                f"Sequence {source} holds {held} positions, {positions} were asked for; {rule}.", "invalid"
            )
        if positions <= 0:
            return
        if self.cells.buffers == 1 and can_share:
            self._copy(self._memory, source, target, 0, positions)
        else:
            # Between separate buffers llama.cpp copies only complete sequences (it asserts), so the rest is cut off
            # afterwards.
            self._copy(self._memory, source, target, -1, -1)
            self._copying = self.cells.buffers > 1
            if positions < held:
                self._remove(self._memory, target, positions, -1)
        self._ends.copy(source, target, positions)

    def state_size(self, sequence: int) -> int:
        """Returns the size in bytes of what `save` would return."""
        size = int(self._lib.llama_state_seq_get_size_ext(self._handle(), sequence, _WHOLE))
        return size if self.projector is None else size + len(self._ends.saved(sequence))

    def save(self, sequence: int) -> bytes:
        """Returns the state of one sequence, for `restore` in a context of the same model, options and projector."""
        state = self._state(sequence, _WHOLE)
        return state if self.projector is None else state + self._ends.saved(sequence)

    def restore(self, sequence: int, state: bytes) -> None:
        """Replace the sequence by a saved state. If the state is not one of this model and these options, or does not
        fit, raises DecodeError and leaves the sequence empty."""
        self._handle()
        self._remove(self._memory, sequence, -1, -1)
        self._ends.cut(sequence, 0)
        ends: dict[int, int] = {}
        if self.projector is not None:
            state, ends = self._ends.parted(state)
        check_state(state, ends, cell_bytes=self._cell_bytes)
        if self._copying:
            self._copy_now(sequence)
        forget_errors()
        if not state or self._set_state(sequence, state, _WHOLE) != len(state):
            said = last_errors() or "llama.cpp read only a part of it"
            self._remove(self._memory, sequence, -1, -1)
            raise DecodeError(
                f"A saved state of {len(state):,} bytes does not fit this context ({said}); "
                "use it with the model and the options that made it, or prefill again.",
                "invalid",
            )
        self._ends.set(sequence, ends)

    def checkpoint(self, sequence: int) -> bytes:
        """Returns the current state of recurrent layers and sliding windows; the rest of the memory can be cut without
        it."""
        return self._state(sequence, _PARTIAL)

    def rewind(self, sequence: int, position: int, state: bytes) -> bool:
        """Restore a checkpoint, and cut the rest of the memory at `position`. Returns whether that worked."""
        restored = self._set_state(sequence, state, _PARTIAL) and self._remove(self._memory, sequence, position, -1)
        self._ends.cut(sequence, position)
        return bool(restored) and self.positions(sequence) == position

    def _state(self, sequence: int, parts: int) -> bytes:
        context, lib = self._handle(), self._lib
        size = int(lib.llama_state_seq_get_size_ext(context, sequence, parts))
        state = bytes(size)  # written to in place: a state may be large, and nobody else has these bytes yet
        address = ctypes.cast(ctypes.c_char_p(state), ctypes.POINTER(ctypes.c_uint8))
        written = int(lib.llama_state_seq_get_data_ext(context, address, size, sequence, parts))
        if not written:
            raise DecodeError(f"llama.cpp could not save a state of {size:,} bytes; try again when nothing else runs.")
        return state if written == size else state[:written]

    def _set_state(self, sequence: int, state: bytes, parts: int) -> int:
        """Returns the number of bytes read; 0 on failure."""
        buffer = ctypes.cast(ctypes.c_char_p(state), ctypes.POINTER(ctypes.c_uint8))
        return int(self._lib.llama_state_seq_set_data_ext(self._handle(), buffer, len(state), sequence, parts))

    def _copy_now(self, empty: int) -> None:
        """Perform deferred copies by decoding a token in an empty sequence. llama.cpp defers copies between buffers to
        the next decode, which would copy a state that was loaded in between, or copy over it (llama-kv-cache.cpp,
        `seq_cp`)."""
        self.decode([Row(0, 0, empty, False)])
        self._remove(self._memory, empty, -1, -1)

    @property
    def origin(self) -> Origin:
        """What a state saved here depends on, for `engine.runtime.cache.state_file`."""
        options = self.options
        return Origin(
            model=self._model.digest,
            library=library_version(),
            type_k=options.type_k,
            type_v=options.type_v,
            flash_attn=options.flash_attn,
            rope=", ".join(f"{name}={value}" for name, value in rope_params(options).items()),
            swa_full=options.swa_full,
            buffers=self.cells.buffers,
            control_vectors=self._control_vectors,
            projector="" if self.projector is None else self.projector.digest,
        )

    def close(self) -> None:
        """Free the context and its samplers. Can be called more than once."""
        if self._context is None:
            return
        for sampler in list(self._samplers):
            sampler.close()
        self._dry.close()
        if self._vectors is not None:
            self._vectors.close()
        self._context = None
        self._views.clear()
        self._batch.forget()
        self._free()
        self._adapters.close()
        if self.projector is not None:
            self.projector.close()
