"""Load and context options as llama.cpp's structures.

Knows: which field each option is, and how many rows of a batch it is well to mix under them. Does not know: what is
loaded or made with them.
"""

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from engine.runtime.attention import takes_tiles
from engine.runtime.backend import TILE
from engine.runtime.machine import batch_threads, default_threads
from engine.runtime.options import CACHE_TYPES, FLASH_ATTENTION, SPLIT_MODES, ContextOptions, ModelOptions


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
