"""The memory that a model and a context will take, from the model's header: the only estimate there is.

Knows: what llama.cpp allocates and keeps. Does not know: the memory there is (`engine.llama.memory`), what is chosen by
it (`engine.llama.plan`). The KV cache is filled with zeros and Linux overcommits, so what is too large ends in the
kernel killing the process, never in an error; hence this. All sizes are bytes. `tests/bench/memory.py` compares it with
what models take.

Exact: weights, KV caches, recurrent states, outputs. Compute buffers hold the graph's widest moment; the moments that
may be the widest are told from the sizes in the header, which was within a few MiB for the architectures measured.
"""

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from engine.llama.gguf import GgufFile, Layer
from engine.runtime.options import CACHE_TYPES, ContextOptions

CELLS = 256
"""What llama.cpp rounds a context up to a multiple of."""
_F16, _F32 = 2, 4
_CHECKPOINTS = 8  # of one conversation, at most (engine.runtime.prefix)
_FIXED = 4 << 20  # graphs, the allocator, Python modules and threads
_TOKEN = 480
"""Bytes for each token of a vocabulary: llama.cpp keeps its text three times, in maps, and the merges; measured."""
_OPERATIONS_A_BYTE = 20
"""Arithmetic operations of prefill in the time that copying a byte takes; rough: CPUs have fewer, GPUs more."""


class Cells(NamedTuple):
    """The KV cache of a context for `sequences` conversations: `buffers` of `each` cells, one or as many."""

    buffers: int
    each: int
    sequences: int

    @property
    def total(self) -> int:
        return self.buffers * self.each


def cells_of(options: ContextOptions, n_ctx: int, n_sequences: int) -> Cells:
    """The cells for conversations of `n_ctx` tokens; llama.cpp makes each buffer a multiple of 256."""
    wanted = max(options.kv_tokens or 0, n_ctx, 1) if options.kv_unified else n_ctx
    buffers = 1 if options.kv_unified else n_sequences
    return Cells(buffers, -(-max(wanted, 1) // CELLS) * CELLS, n_sequences)


class Weights(NamedTuple):
    """The memory of a loaded model without any context: its tensors in the form they are computed with; `tables` of
    its vocabulary; `copies`: pages of the mapped file that were read into another form, which the kernel takes back
    where memory is short."""

    tensors: int
    tables: int
    copies: int

    @property
    def total(self) -> int:
        """What must be there."""
        return self.tensors + self.tables


def weights(model: GgufFile, repacked: AbstractSet[str] = frozenset(), *, mapped: bool = True) -> Weights:
    """`repacked`: the tensor types that llama.cpp lays out anew for this processor. An embedding matrix that is the
    output matrix too is kept in both layouts then."""
    anew = sum(size for kind, size in model.matrices.items() if kind in repacked)
    both = model.tied if model.tied_type in repacked else 0
    return Weights(model.weights + both, _FIXED + model.n_vocab * _TOKEN, anew - both if mapped else 0)


class Footprint(NamedTuple):
    """The memory of one context: its KV cache and recurrent states, with checkpoints of these; its compute and output
    buffers."""

    cache: int
    compute: int

    @property
    def total(self) -> int:
        return self.cache + self.compute


def estimate(model: GgufFile, options: ContextOptions, cells: Cells) -> Footprint:
    """What a context of these cells takes."""
    cache = sum(layer_caches(model, options, cells)) + checkpoint_bytes(model, options, cells.sequences)
    return Footprint(cache, _compute(model, options, cells))


def copy_cost(model: GgufFile, options: ContextOptions, cells: Cells) -> int:
    """Tokens whose evaluation takes about as long as copying a sequence: between buffers, llama.cpp copies all cells of
    it, empty ones too; in one buffer, none."""
    if cells.buffers == 1:
        return 0
    size = sum(layer_caches(model, options, cells)) // cells.buffers
    computed = max(model.parameters - model.n_vocab * model.n_embd, 1)  # embeddings are looked up
    return size * _OPERATIONS_A_BYTE // (2 * computed)


def checkpoint_bytes(model: GgufFile, options: ContextOptions, n_sequences: int) -> int:
    """What checkpoints of recurrent states may take: eight for each conversation, as far as the option allows."""
    each = sum(layer.state for layer in model.layers) * _F32
    return min(options.checkpoint_mib << 20, _CHECKPOINTS * each * n_sequences)


def layer_caches(model: GgufFile, options: ContextOptions, cells: Cells) -> list[int]:
    """The keys, values and recurrent state of each layer."""
    bytes_k, bytes_v = CACHE_TYPES[options.type_k][1], CACHE_TYPES[options.type_v][1]
    window = cells.total
    if model.sliding_window and not options.swa_full:
        seen = model.sliding_window * (cells.sequences if cells.buffers == 1 else 1) + options.rows_at_once
        window = min(window, -(-seen // CELLS) * CELLS * cells.buffers)
    return [
        int((layer.keys * bytes_k + layer.values * bytes_v) * (window if layer.windowed else cells.total))
        + layer.state * _F32 * cells.sequences
        for layer in model.layers
    ]


def _compute(model: GgufFile, options: ContextOptions, cells: Cells) -> int:
    """The compute and output buffers of the largest micro-batch."""
    rows = min(options.rows_at_once, cells.total)
    outputs = max(min(options.n_outputs(cells.sequences), rows), cells.sequences)
    flash = options.flash_attn != "off"
    attends = any(layer.keys for layer in model.layers)
    masks = len({layer.windowed for layer in model.layers if layer.keys})
    mask = rows * cells.each * (_F16 if flash else _F32) * masks if attends else 0
    scores = rows * cells.each * model.n_head * _F32 if attends and not flash else 0
    widest = max(rows * _F32 * max(map(_attending, [model] * len(model.layers), model.layers), default=0) + scores,
                 rows * _F32 * _feeding(model))  # fmt: skip
    logits = outputs * model.n_vocab * _F32  # computed in one buffer, read from another
    return max(mask + widest, logits) + logits


def _attending(model: GgufFile, layer: Layer) -> int:
    """Numbers that one row needs in the widest moment of attention, but for scores; of a recurrent layer, too."""
    taken = 4 * model.n_embd + layer.queries + layer.keys + layer.values if layer.keys else 0
    return max(taken, 6 * layer.inner + 2 * model.n_embd if layer.inner else 0)


def _feeding(model: GgufFile) -> int:
    """Numbers that one row needs in the widest moment of the feed-forward layers."""
    dense = 3 * model.n_ff + 4 * model.n_embd
    experts = model.n_experts_used * (2 * model.n_embd + model.n_ff_expert)
    return experts if model.n_experts_used and not model.has_dense else max(dense, experts)
