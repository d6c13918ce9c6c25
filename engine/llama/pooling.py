"""A context that makes vectors: the pooled embeddings of texts, and the scores of rerankers."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from engine.llama.batch import LlamaBatch
from engine.llama.gguf.gguf import GgufFile
from engine.llama.lib import decode_error, forget_errors
from engine.llama.thread_rule import ContextThreads
from engine.runtime.loop.backend import ContextInfo
from engine.runtime.loop.config import ContextOptions
from engine.runtime.stream.embed_queue import VectorInfo
from engine.support.errors import DecodeError, RequestError
from engine.support.nothing import nothing

_POOLING = {"mean": 1, "cls": 2, "last": 3, "rank": 4}  # enum llama_pooling_type (llama.h)
_ROWS = 512
"""Rows that a decode is filled with: more are no faster on a CPU, and attention passes over all of them."""
_SEQUENCES = 64
_LONGEST, _LONGEST_OF_LAST = 2048, 8192


def vector_options(file: GgufFile, options: ContextOptions) -> ContextOptions:
    """Returns the options of a context for vectors, complete but for attention and threads: `n_ctx` is its longest
    text. The same again for options that this made. Raises RequestError for what the model cannot do."""
    shape = file.shape
    pooling = shape.pooling if shape.pooling == "rank" else options.pooling or shape.pooling or "mean"
    if shape.pooling == "rank" and options.pooling is not None:
        raise RequestError(f'pooling="{options.pooling}" is not for a reranker, whose classifier pools; leave it out.')
    last = shape.is_causal and pooling in ("last", "rank")
    own = options.n_ctx if file.embeds else None
    most = min(shape.n_ctx_train or _LONGEST, _LONGEST_OF_LAST if last else _LONGEST, options.n_ctx or _LONGEST_OF_LAST)
    longest = own or most
    if shape.n_positions and longest > shape.n_positions:
        if own:
            raise RequestError(
                f"{file.path} has learned {shape.n_positions:,} positions, so no text may have {longest:,} tokens; "
                f"pass n_ctx={shape.n_positions:,} at most."
            )
        longest = shape.n_positions
    sequences = 1 if any(layer.state for layer in shape.layers) else min(_SEQUENCES, longest)
    rows = min(_ROWS, longest) if last else longest
    rows = -(-rows // sequences) * sequences  # llama.cpp asserts that a mean's texts divide the rows
    return replace(
        options,
        n_ctx=longest,
        pooling=None if pooling == "rank" else pooling,
        n_sequences=sequences,
        kv_unified=True,
        kv_tokens=longest,
        n_batch=rows,
        n_ubatch=rows,
        outputs_per_sequence=1 if last else rows // sequences,
        checkpoint_mib=0,
    )


def vector_info(lib: Any, model: int, file: GgufFile, options: ContextOptions) -> VectorInfo:
    """Returns what a context with these options, made by `vector_options`, makes of a text."""
    if file.shape.pooling == "rank":
        size = int(lib.llama_model_n_cls_out(model))
        labels = [(lib.llama_model_cls_label(model, number) or b"").decode(errors="replace") for number in range(size)]
        pooling, labels = "rank", tuple(labels)
    else:
        size, labels, pooling = int(lib.llama_model_n_embd_out(model)), (), options.pooling or "mean"
    longest = options.n_ctx or _LONGEST
    return VectorInfo(pooling, size, longest, min(_ROWS, longest), options.n_sequences or 1, labels)


def pool(params: Any, info: VectorInfo) -> Any:
    """Returns a context's C parameters, changed so that it makes vectors."""
    params.embeddings = True
    params.pooling_type = _POOLING[info.pooling]
    return params


class LlamaVectors:
    """Makes vectors in a context with the parameters that `pool` returned. `causal`: each token sees only those before
    it; if only the last one counts, nothing else has to be an output. `abort`: the buffer that stops a decode of this
    context (see `context_params`). `threads`: those of the context. `free` frees the context, if that is not
    another's."""

    def __init__(
        self, lib: Any, context: int, info: VectorInfo, *, causal: bool, n_batch: int,
        abort: "ctypes.Array[ctypes.c_char]", threads: ContextThreads, free: Callable[[], object] = nothing,
    ) -> None:  # fmt: skip
        self._lib = lib
        self._context: int | None = context
        self._memory = lib.llama_get_memory(context)
        self.info = info
        self._last_only = causal and info.pooling in ("last", "rank")
        self._batch = LlamaBatch(lib, n_batch)
        self._n_batch = n_batch
        self._abort = abort
        self._threads = threads
        self._free = free

    def abort(self) -> None:
        self._abort[0] = b"\x01"

    def embed(self, texts: Sequence[Sequence[int]]) -> list[bytes]:
        """Returns the vector of each text, as float32 numbers. A text is computed in one micro-batch, since llama.cpp
        pools each micro-batch by itself. Raises DecodeError."""
        if self._context is None:
            raise DecodeError("This context is closed.", "invalid")
        self._check(texts)
        if self._memory:
            self._lib.llama_memory_clear(self._memory, True)
        rows = [(token, at, number) for number, text in enumerate(texts) for at, token in enumerate(text)]
        if self._last_only:
            ends = {(number, len(text) - 1) for number, text in enumerate(texts)}
            self._lib.llama_set_embeddings(self._context, False)
            try:
                beginnings = [row for row in rows if (row[2], row[1]) not in ends]
                for start in range(0, len(beginnings), self._n_batch):
                    self._decode(beginnings[start : start + self._n_batch], outputs=False)
            finally:
                self._lib.llama_set_embeddings(self._context, True)
            rows = [row for row in rows if (row[2], row[1]) in ends]
        self._decode(rows, outputs=True)
        return [self._vector(number) for number in range(len(texts))]

    def close(self) -> None:
        """Refuse further calls, and free the context if it is this object's own. Can be called more than once."""
        self._context = None
        self._free()

    def _check(self, texts: Sequence[Sequence[int]]) -> None:
        """Raise DecodeError for texts over which llama.cpp would end the process."""
        info, lengths = self.info, [len(text) for text in texts]
        most = info.longest if len(texts) == 1 else info.rows
        if not min(lengths) or sum(lengths) > most or len(texts) > info.sequences:
            raise DecodeError(f"Texts of {lengths} tokens do not fit into one decode of {most:,}.", "invalid")

    def _decode(self, rows: Sequence[tuple[int, int, int]], *, outputs: bool) -> None:
        if not rows:
            return
        tokens, positions, sequences = zip(*rows, strict=True)
        batch = self._batch.fill(tokens, positions, sequences, (int(outputs),) * len(rows))
        self._threads.follow()
        forget_errors()
        run = self._lib.llama_decode if self._memory else self._lib.llama_encode  # an encoder keeps no memory
        if code := int(run(self._context, batch)):
            self._abort[0] = b"\x00"
            raise decode_error(code, len(rows), ContextInfo(self.info.longest))

    def _vector(self, sequence: int) -> bytes:
        import numpy as np

        pointer = self._lib.llama_get_embeddings_seq(self._context, sequence)
        if not pointer:
            raise DecodeError("llama.cpp gave no vector for a text.")
        numbers = np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), (self.info.size,))
        if not np.isfinite(numbers).all():
            raise DecodeError("A vector holds numbers that are not finite; the file may be damaged.", "nan")
        return numbers.astype("<f4").tobytes()
