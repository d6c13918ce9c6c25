"""Load and context options as llama.cpp's structures, and the default choice of attention on the CPU.

On the CPU, llama.cpp's flash attention processes prompts in tiles, but a few rows one key at a time (ggml-cpu/ops.cpp):
a token after 2,000 others took about twice as long with it as without, while prompts took up to 40 % longer without it.
It skips cells that a row must not see, though, which matters if many sequences share a pool; and only it can read
quantised values. Without it, the scores of all cells are stored for every row of a micro-batch. Micro-batches of 256
rows need half the buffers of llama.cpp's 512 and read prompts as fast; so do those of 64 without flash attention. The
figures are in docs/about/measurements.md.
"""

import ctypes
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.llama.gguf.gguf import GgufFile
from engine.llama.gguf.rope import rope_params
from engine.llama.plan.footprint import CELLS, Cells, cells_of
from engine.llama.plan.machine import batch_threads, default_threads
from engine.runtime.loop.config import CACHE_TYPES, FLASH_ATTENTION, SPLIT_MODES, ContextOptions, ModelOptions
from engine.support.errors import RequestError

_ROWS, _FEWER_ROWS = 256, 64
"""Rows of a micro-batch on the CPU; the smaller number without flash attention if a buffer has more cells than
`_LONG`."""
_LONG = 16_384
_BLOCK = 32  # elements of a block of every quantised type that a cache may have


def on_cpu(model: GgufFile, options: ContextOptions, n_ctx: int, n_sequences: int) -> ContextOptions:
    """Returns the options with `flash_attn` and `n_ubatch` chosen, for attention on the CPU."""
    shared = options.kv_unified and n_sequences > 1
    needs_flash = shared or CACHE_TYPES[options.type_v][1] < 2 or not _heads_are_blocks(model, options)
    flash_attn = options.flash_attn if options.flash_attn != "auto" else "on" if needs_flash else "off"
    long = cells_of(options, n_ctx, n_sequences).each > _LONG
    rows = _FEWER_ROWS if flash_attn == "off" and long else _ROWS
    return replace(options, flash_attn=flash_attn, n_ubatch=options.n_ubatch or rows)


def at_once(options: ContextOptions, n_sequences: int) -> ContextOptions:
    """Returns the options of a context whose batches are one micro-batch each, as sliding windows need.

    Before llama.cpp computes the first micro-batch of a batch, it looks for the cells of all of them. What the later
    ones push out of a window is then gone for the first ones too, which attend to less than they should
    (llama-kv-cache.cpp: `prepare` restores the cells that it took, not those that `apply_ubatch` purged).
    """
    rows = max(options.rows_at_once, n_sequences)
    return replace(options, n_batch=rows, n_ubatch=rows)


def check(model: GgufFile, options: ContextOptions) -> None:
    """Raise RequestError for a `type_k` whose blocks do not divide the heads. llama.cpp checks this only with flash
    attention, and otherwise ends the process."""
    if options.flash_attn == "off" and not _heads_are_blocks(model, options):
        raise RequestError(
            f'type_k="{options.type_k}" comes in blocks of {_BLOCK} elements, which do not divide the heads of this '
            'model; use type_k="f16".'
        )


def position_limit(model: GgufFile, options: ContextOptions) -> int | None:
    """Returns the longest conversation for which a model has learned positions; None if positions are computed.
    llama.cpp ends the process at a token beyond the last position. Raises RequestError if a longer one is requested."""
    if not model.shape.n_positions or model.embeds:  # a context for vectors takes no text that is longer
        return None
    most = model.shape.n_positions // CELLS * CELLS
    if not most or (options.n_ctx or 0) > most:
        asked = "" if options.n_ctx is None else f"n_ctx={options.n_ctx:,} "
        raise RequestError(
            f"{asked}is more than {model.path} can hold: it has learned {model.shape.n_positions:,} positions, and a "
            f"context comes in steps of {CELLS} tokens; "
            + (f"pass n_ctx={most:,} at most." if most else "use another model.")
        )
    return most


def _heads_are_blocks(model: GgufFile, options: ContextOptions) -> bool:
    """Whether each head's keys are whole blocks of their type."""
    return CACHE_TYPES[options.type_k][1] >= 2 or all(layer.head % _BLOCK == 0 for layer in model.shape.layers)


class LoadProgress:
    """The callback that llama.cpp calls in the loading thread; the load continues as long as it returns True.

    `fault` is an exception that `tell`, the caller's function, raised: exceptions cannot pass through C.
    """

    def __init__(self, tell: Callable[[float], bool | None] | None) -> None:
        self._tell = tell
        self.stopped = False
        self.fault: BaseException | None = None

    def stop(self) -> None:
        self.stopped = True

    def __call__(self, fraction: float, _data: object) -> bool:
        try:
            if self._tell is not None and self._tell(fraction) is False:
                self.stopped = True
        except BaseException as error:  # noqa: BLE001 - raised again where the loading was asked for
            self.fault, self.stopped = error, True
        return not self.stopped


def model_params(
    lib: Any, options: ModelOptions, progress: LoadProgress, *, head: bool = False
) -> tuple[Any, tuple[Any, ...]]:
    """Returns the C parameters, and the objects that must be kept alive while they are used. `head`: load the model's
    own head for the next tokens too."""
    params = lib.llama_model_default_params()
    params.n_gpu_layers = options.n_gpu_layers or 0
    params.split_mode = SPLIT_MODES.index(options.split_mode)
    params.main_gpu = options.main_gpu
    # enum llama_load_mode: 0 neither, 1 mmap, 2 mlock, 3 both
    params.load_mode = (1 if options.use_mmap else 0) + (2 if options.use_mlock else 0)
    params.use_extra_bufts = options.use_extra_bufts
    params.load_mtp = head
    shares: Any = None
    if options.tensor_split:
        # llama.cpp reads llama_max_devices() numbers
        shares = (ctypes.c_float * int(lib.llama_max_devices()))(*options.tensor_split)
        params.tensor_split = shares
    callback = lib.llama_progress_callback(progress)
    params.progress_callback = callback
    return params, (shares, callback)


def context_params(lib: Any, options: ContextOptions, cells: Cells, abort: Any) -> Any:
    """Returns the C parameters of a context with these cells. A decode stops once a byte is written into the buffer
    `abort`, which must live as long as the context."""
    params = lib.llama_context_default_params()
    params.n_ctx = cells.total
    params.n_batch = min(options.n_batch, cells.total)
    params.n_ubatch = min(options.rows_at_once, params.n_batch)
    params.n_seq_max = cells.sequences
    params.n_outputs_max = min(options.n_outputs(cells.sequences), params.n_batch)
    params.n_threads = options.n_threads or default_threads()
    params.n_threads_batch = options.n_threads_batch or options.n_threads or batch_threads()
    params.flash_attn_type = FLASH_ATTENTION[options.flash_attn]
    params.type_k = CACHE_TYPES[options.type_k][0]
    params.type_v = CACHE_TYPES[options.type_v][0]
    params.offload_kqv = options.offload_kqv
    params.swa_full = options.swa_full
    params.kv_unified = cells.buffers == 1
    for name, value in rope_params(options).items():
        setattr(params, name, value)
    params.no_perf = True
    # ggml asks after every node, from its own threads. A Python callback would take the GIL each time, so a C
    # function answers: strlen of a one-character buffer is 0 until abort() writes into it.
    libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
    params.abort_callback = ctypes.cast(libc.strlen, lib.ggml_abort_callback)
    params.abort_callback_data = ctypes.addressof(abort)
    return params
