"""How much memory a model and a context will take, estimated before they are made.

Knows: what llama.cpp allocates, from the model's header. Does not know: the machine, ctypes. The KV cache is filled
with zeros and Linux overcommits, so a context that is too large ends in the kernel killing the process, never in an
error; hence this. All sizes are bytes.
"""

from typing import NamedTuple

from engine.runtime.gguf_file import GgufFile
from engine.runtime.options import CACHE_TYPES, ContextOptions

_F32 = 4
_CELLS = 256  # llama.cpp rounds a context up to a multiple of this
_FIXED = 32 << 20  # graphs, tables, the allocator
_OPERATIONS_A_BYTE = 20
"""Arithmetic operations of prefill in the time that copying a byte takes; rough: CPUs have fewer, GPUs more."""


class Footprint(NamedTuple):
    """The memory of one context: its KV cache and recurrent states; its compute and output buffers."""

    cache: int
    compute: int

    @property
    def total(self) -> int:
        return self.cache + self.compute


def padded(n_ctx: int, options: ContextOptions) -> int:
    """The cells that llama.cpp makes of `n_ctx`: each buffer a multiple of 256."""
    buffers = 1 if options.is_unified else options.n_sequences
    each = -(-max(n_ctx, 1) // buffers)
    return -(-each // _CELLS) * _CELLS * buffers


def shares(n_ctx: int, sequences: int) -> int:
    """The cells of a buffer for each of so many sequences, together no more than `n_ctx`; 0 where that is none."""
    return n_ctx // sequences // _CELLS * _CELLS * sequences


def longest_sequence(options: ContextOptions, n_ctx: int) -> int:
    """Cells of a sequence's buffer: those that a row may look at."""
    return n_ctx if options.is_unified else n_ctx // options.n_sequences


def estimate(model: GgufFile, options: ContextOptions, n_ctx: int) -> Footprint:
    """What a context of `n_ctx` cells takes."""
    return Footprint(_cache(model, options, n_ctx), _compute(model, options, n_ctx))


def scores(model: GgufFile, options: ContextOptions, n_ctx: int) -> int:
    """What attention keeps of every cell for each row of a micro-batch: nothing where it is flash attention."""
    if options.flash_attn != "off":
        return 0
    return min(options.rows_at_once, n_ctx) * longest_sequence(options, n_ctx) * model.n_head * _F32


def copy_cost(model: GgufFile, options: ContextOptions, n_ctx: int) -> int:
    """Tokens whose evaluation takes about as long as copying a sequence: between buffers, llama.cpp copies all cells of
    it, empty ones too; in one buffer, none."""
    if options.is_unified:
        return 0
    size = _cache(model, options, n_ctx) // options.n_sequences
    computed = max(model.parameters - model.n_vocab * model.n_embd, 1)  # embeddings are looked up
    return size * _OPERATIONS_A_BYTE // (2 * computed)


def largest_context(model: GgufFile, options: ContextOptions, limit: int, room: int) -> int:
    """The largest padded context up to `limit` cells that takes at most `room`; 0 when not even the smallest does."""
    step = padded(1, options)
    low, high = 0, padded(limit, options) // step
    while low < high:
        middle = (low + high + 1) // 2
        if estimate(model, options, middle * step).total <= room:
            low = middle
        else:
            high = middle - 1
    return low * step


def _cache(model: GgufFile, options: ContextOptions, n_ctx: int) -> int:
    bytes_k, bytes_v = CACHE_TYPES[options.type_k][1], CACHE_TYPES[options.type_v][1]
    window = n_ctx
    if model.sliding_window and not options.swa_full:
        buffers, sharing = (1, options.n_sequences) if options.is_unified else (options.n_sequences, 1)
        each = model.sliding_window * sharing + options.rows_at_once
        window = min(n_ctx, padded(each * buffers, options))
    total = 0.0
    for layer in model.layers:
        total += (layer.keys * bytes_k + layer.values * bytes_v) * (window if layer.windowed else n_ctx)
    return int(total) + model.recurrent_state * _F32 * options.n_sequences


def _compute(model: GgufFile, options: ContextOptions, n_ctx: int) -> int:
    """Buffers of the largest micro-batch: activations, the attention mask, scores without flash attention, and
    logits."""
    rows = min(options.rows_at_once, n_ctx)
    outputs = max(min(options.n_outputs, rows), options.n_sequences)
    activations = rows * (6 * model.n_embd + 3 * model.n_ff) * _F32
    mask = rows * longest_sequence(options, n_ctx) * (_F32 + 2)
    # Once as the graph's result, once in the buffer that logits are read from.
    logits = 2 * outputs * model.n_vocab * _F32
    return activations + mask + scores(model, options, n_ctx) + logits + _FIXED
