"""Load and context options as llama.cpp's structures, and the choices that the caller leaves open: which attention the
CPU computes, and how many rows of a prompt at once.

Knows: which field each option is, how many rows of a batch it is well to mix under them, what flash attention costs on
a CPU, and how much memory attention without it takes. Does not know: what is loaded or made with them.

llama.cpp's flash attention goes through prompts in tiles on the CPU, but through a few rows one key at a time
(ggml-cpu/ops.cpp): a token behind 2,000 others took about twice as long with it as without, behind 8,000 four times,
while prompts took up to two fifths longer without (docs/BENCHMARKS.md). On another CPU a few rows took as long with it
as without behind some hundred tokens, and longer behind some thousand. It skips cells that a row must not see, though,
which counts where many sequences share a buffer; and it alone reads quantised values. Without it the scores of all
cells are kept for every row of a micro-batch. Micro-batches of 256 rows need half the buffers of llama.cpp's 512, and
prompts were read as fast in them (0.97 to 1.09 times with flash attention, 1.05 to 1.13 without).
"""

import ctypes
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from engine.errors import RequestError
from engine.llama.gguf import GgufFile
from engine.llama.memory import CELLS, batch_threads, default_threads, estimate, scores
from engine.runtime.backend import TILE
from engine.runtime.options import CACHE_TYPES, FLASH_ATTENTION, SPLIT_MODES, ContextOptions, ModelOptions

_ROWS = (256, 128, 64)
"""Of a micro-batch: the most, and fewer where the scores without flash attention would take too much."""
_SCORES = 128 << 20
"""Bytes of scores that are never too much; beyond, a quarter of what the cache takes is."""
_PLAIN = ("f16", "f32")
_BLOCK = 32  # elements of a block of every quantised type that a cache may have


def chosen(model: GgufFile, options: ContextOptions, n_ctx: int, room: int | None) -> ContextOptions:
    """The options with `flash_attn` and `n_ubatch` decided, for a context of `n_ctx` cells whose attention the CPU
    computes; `room` is the memory for it in bytes, if that is known and counts."""
    # What "auto" is on the CPU.
    flash_attn = "off" if options.flash_attn == "off" else "on"
    asked = replace(options, flash_attn=flash_attn, n_ubatch=options.n_ubatch or _ROWS[0])
    if not _may_do_without(model, options):
        return asked
    for rows in _ROWS if options.n_ubatch is None else (options.n_ubatch,):
        without = replace(options, flash_attn="off", n_ubatch=rows)
        need = estimate(model, without, n_ctx)
        fits = room is None or need.total <= room
        if fits and (rows <= _ROWS[-1] or scores(model, without, n_ctx) <= max(_SCORES, need.cache // 4)):
            return without
    return asked


def leanest(model: GgufFile, options: ContextOptions) -> ContextOptions:
    """The options that take the least memory of those that `chosen` is free to choose without flash attention; where it
    is not, those that it chooses."""
    if not _may_do_without(model, options):
        return replace(options, n_ubatch=options.n_ubatch or _ROWS[0])
    return replace(options, flash_attn="off", n_ubatch=options.n_ubatch or _ROWS[-1])


def takes_tiles(options: ContextOptions) -> bool:
    """Whether the CPU's attention goes through many rows in tiles."""
    return options.flash_attn != "off" and options.type_k == options.type_v and options.type_k in _PLAIN


def check(model: GgufFile, options: ContextOptions) -> None:
    """llama.cpp looks at this itself with flash attention only, and ends the process without. Raises RequestError."""
    if options.flash_attn == "off" and not _heads_are_blocks(model, options):
        raise RequestError(
            f'type_k="{options.type_k}" comes in blocks of {_BLOCK} elements, which do not divide the heads of this '
            'model; use type_k="f16".'
        )


def within_positions(model: GgufFile, options: ContextOptions) -> ContextOptions:
    """The options, with a context that a model of learned positions has positions for: llama.cpp ends the process at a
    token behind the last. Raises RequestError where more is asked for."""
    if not model.n_positions:
        return options
    most = model.n_positions // CELLS * CELLS
    if not most or (options.n_ctx or 0) > most:
        asked = "" if options.n_ctx is None else f"n_ctx={options.n_ctx:,} "
        raise RequestError(
            f"{asked}is more than {model.path} can hold: it has learned {model.n_positions:,} positions, and a context "
            f"comes in steps of {CELLS} tokens; " + (f"pass n_ctx={most:,} at most." if most else "use another model.")
        )
    return options if options.n_ctx else replace(options, n_ctx=most)


def _may_do_without(model: GgufFile, options: ContextOptions) -> bool:
    """Whether flash attention is left open, and may well be the slower way."""
    shared = options.is_unified and options.n_sequences > 1
    possible = options.flash_attn != "on" and options.type_v in _PLAIN and _heads_are_blocks(model, options)
    return possible and not (shared and takes_tiles(options))


def _heads_are_blocks(model: GgufFile, options: ContextOptions) -> bool:
    """Whether one head's keys can be looked at alone."""
    return CACHE_TYPES[options.type_k][1] >= 2 or all(layer.head % _BLOCK == 0 for layer in model.layers)


class LoadProgress:
    """What llama.cpp asks while it loads, in the thread that loads: it goes on for as long as the answer is True.

    `fault` is what `tell`, the caller's code, raised: nothing can be raised through C.
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


def model_params(lib: Any, options: ModelOptions, progress: LoadProgress) -> tuple[Any, tuple[Any, ...]]:
    """The C parameters, and what must be kept alive while they are used."""
    params = lib.llama_model_default_params()
    params.n_gpu_layers = options.n_gpu_layers
    params.split_mode = SPLIT_MODES.index(options.split_mode)
    params.main_gpu = options.main_gpu
    # enum llama_load_mode: 0 neither, 1 mmap, 2 mlock, 3 both
    params.load_mode = (1 if options.use_mmap else 0) + (2 if options.use_mlock else 0)
    params.use_extra_bufts = options.use_extra_bufts
    params.check_tensors = options.check_tensors
    shares: Any = None
    if options.tensor_split:
        # llama.cpp reads llama_max_devices() of them
        shares = (ctypes.c_float * int(lib.llama_max_devices()))(*options.tensor_split)
        params.tensor_split = shares
    callback = lib.llama_progress_callback(progress)
    params.progress_callback = callback
    return params, (shares, callback)


def context_params(lib: Any, options: ContextOptions, n_ctx: int, abort: Any) -> Any:
    """The C parameters of a context of so many cells. A decode stops once something is written into the buffer
    `abort`, which must live as long as the context."""
    params = lib.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = min(options.n_batch, n_ctx)
    params.n_ubatch = min(options.rows_at_once, params.n_batch)
    params.n_seq_max = options.n_sequences
    params.n_outputs_max = min(options.n_outputs, params.n_batch)
    if options.device_sampling:  # each output that may be drawn on the device is room in every graph
        params.n_outputs_max_per_seq = 1
    params.n_threads = options.n_threads or default_threads()
    params.n_threads_batch = options.n_threads_batch or options.n_threads or batch_threads()
    params.flash_attn_type = FLASH_ATTENTION[options.flash_attn]
    params.type_k = CACHE_TYPES[options.type_k][0]
    params.type_v = CACHE_TYPES[options.type_v][0]
    params.offload_kqv = options.offload_kqv
    params.op_offload = options.op_offload
    params.swa_full = options.swa_full
    params.kv_unified = options.is_unified
    params.rope_freq_base = options.rope_freq_base
    params.rope_freq_scale = options.rope_freq_scale
    params.no_perf = True
    # ggml asks after every node, from its own threads. A Python callback would take the GIL each time, so a C
    # function answers: strlen of a one-character buffer is 0 until abort() writes into it.
    libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None)
    params.abort_callback = ctypes.cast(libc.strlen, lib.ggml_abort_callback)
    params.abort_callback_data = ctypes.addressof(abort)
    return params


def mixed_rows(options: ContextOptions, n_batch: int) -> int:
    """The rows up to which single tokens and prefill go into one batch of a context whose attention the CPU computes.

    Below a tile of rows where it computes attention in tiles: in one buffer, a tile with single tokens of
    several sequences looks at the cells of all of them, for each of its rows. None between buffers: llama.cpp takes
    a row of every sequence first and the rest in another pass, which costs as much as two batches and can leave
    the longer sequence less than a tile."""
    if not options.is_unified:
        return 0
    return TILE - 1 if options.n_sequences > 1 and takes_tiles(options) else n_batch
