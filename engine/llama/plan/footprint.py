"""Estimates the memory that a model and a context will take from the model's header; the only such estimate.

It is needed because Linux overcommits and the KV cache is zero-filled: a context that is too large gets the process
killed instead of raising an error. All sizes are bytes. `benchmarks/memory.py` compares the estimates with what models
take.

Exact: weights, KV caches, recurrent states, outputs. Compute buffers hold the widest point of the graph; the candidates
for it are computed from the sizes in the header, which was accurate to a few MiB for the architectures measured.
"""

from collections.abc import Set as AbstractSet
from typing import NamedTuple

from engine.llama.gguf.gguf import GgufFile, Layer
from engine.runtime.loop.config import ANSWER, CACHE_TYPES, MOST_CHECKPOINTS, ContextOptions

CELLS = 256
"""llama.cpp rounds a context up to a multiple of this."""
_F16, _F32 = 2, 4
_INPUTS = 64  # bytes of a row's token, position and places
_FIXED = 4 << 20  # graphs, the allocator, Python modules and threads
_TOKEN, _MERGE = 250, 130
_TOKENS = {"t5": 600}
"""Bytes per token of the vocabulary and per merge of two, measured with 15 vocabularies: llama.cpp keeps the texts in
maps, and we keep the bytes. A unigram vocabulary also has a tree."""
_OPERATIONS_A_BYTE = 20
"""Arithmetic operations of prefill in the time of copying a byte; rough: fewer on CPUs, more on GPUs."""
POOL = 8192
"""The fewest cells of a pool whose size the caller leaves open."""


class Cells(NamedTuple):
    """The KV cache of a context for `sequences` conversations: one buffer of `each` cells, or one per conversation."""

    buffers: int
    each: int
    sequences: int

    @property
    def total(self) -> int:
        return self.buffers * self.each


def cells_of(options: ContextOptions, n_ctx: int, n_sequences: int) -> Cells:
    """Returns the cells for conversations of `n_ctx` tokens; llama.cpp makes each buffer a multiple of 256. A pool
    holds at least one conversation in full and, unless the caller asks for more, no more than all of them can use."""
    buffers, wanted = n_sequences, n_ctx
    if options.kv_unified:
        pool = options.kv_tokens or min(max(POOL, ANSWER * n_sequences), n_ctx * n_sequences)
        buffers, wanted = 1, max(n_ctx, pool)
    return Cells(buffers, -(-max(wanted, 1) // CELLS) * CELLS, n_sequences)


def shares(model: GgufFile, options: ContextOptions, n_sequences: int) -> bool:
    """Whether the conversations share one pool, as the caller says or, by default, where it saves memory and loses
    nothing: recurrent layers have states of a fixed size, and LongRoPE turns positions by the size of a buffer."""
    if options.kv_unified is not None or options.kv_tokens is not None:
        return options.kv_unified is not False
    attends = any(layer.keys for layer in model.shape.layers)
    return n_sequences > 1 and attends and not model.shape.turns_by_length


class Weights(NamedTuple):
    """The memory of a loaded model without any context: its tensors in the layout they are computed in; `tables` of its
    vocabulary; `copies`: pages of the mapped file whose tensors were repacked, which the kernel can reclaim."""

    tensors: int
    tables: int
    copies: int

    @property
    def total(self) -> int:
        """The memory that cannot be reclaimed."""
        return self.tensors + self.tables


def weights(model: GgufFile, repacked: AbstractSet[str] = frozenset(), *, mapped: bool = True) -> Weights:
    """Estimate the memory of the weights. `repacked`: the tensor types that llama.cpp repacks for this CPU. An
    embedding matrix that is also the output matrix is then kept in both layouts."""
    anew = sum(size for kind, size in model.shape.matrices.items() if kind in repacked)
    both = model.shape.tied if model.shape.tied_type in repacked else 0
    return Weights(model.weights + both, _tables(model), anew - both if mapped else 0)


def _tables(model: GgufFile) -> int:
    return _FIXED + model.tokens.n_vocab * _TOKENS.get(model.tokens.kind, _TOKEN) + model.tokens.n_merges * _MERGE


class Footprint(NamedTuple):
    """The memory of one context: its KV cache, recurrent states and their checkpoints; its compute and output
    buffers."""

    cache: int
    compute: int

    @property
    def total(self) -> int:
        return self.cache + self.compute


def estimate(model: GgufFile, options: ContextOptions, cells: Cells, *, vectors: bool = False) -> Footprint:
    """Estimate the memory of a context with these cells. `vectors`: it makes vectors, as that of an embedding model."""
    cache = sum(layer_caches(model, options, cells)) + checkpoint_bytes(model, options, cells.sequences)
    compute = _pooling if vectors or model.embeds else _compute
    return Footprint(cache, compute(model, options, cells))


def copy_cost(model: GgufFile, options: ContextOptions, cells: Cells) -> int:
    """Returns the number of tokens whose evaluation takes about as long as copying a sequence: between buffers,
    llama.cpp copies all of its cells, even empty ones; within one buffer, none."""
    if cells.buffers == 1:
        return 0
    size = sum(layer_caches(model, options, cells)) // cells.buffers
    computed = max(model.parameters - model.tokens.n_vocab * model.shape.n_embd, 1)  # embeddings are looked up
    return size * _OPERATIONS_A_BYTE // (2 * computed)


def checkpoint_bytes(model: GgufFile, options: ContextOptions, n_sequences: int) -> int:
    """Returns the most memory that checkpoints of recurrent states take: eight per conversation, limited by the
    option."""
    each = sum(layer.state for layer in model.shape.layers) * _F32
    return min(options.checkpoint_mib << 20, MOST_CHECKPOINTS * each * n_sequences)


def layer_caches(model: GgufFile, options: ContextOptions, cells: Cells) -> list[int]:
    """Returns the bytes of keys, values and recurrent state of each layer."""
    if model.is_encoder:  # it keeps nothing
        return [0] * len(model.shape.layers)
    bytes_k, bytes_v = CACHE_TYPES[options.type_k][1], CACHE_TYPES[options.type_v][1]
    window = cells.total
    if model.shape.sliding_window and not options.swa_full:
        seen = model.shape.sliding_window * (cells.sequences if cells.buffers == 1 else 1) + options.rows_at_once
        window = min(window, -(-seen // CELLS) * CELLS * cells.buffers)
    return [
        int((layer.keys * bytes_k + layer.values * bytes_v) * (window if layer.windowed else cells.total))
        + layer.state * _F32 * cells.sequences
        for layer in model.shape.layers
    ]


def _compute(model: GgufFile, options: ContextOptions, cells: Cells) -> int:
    """Returns the bytes of compute and output buffers of the largest micro-batch."""
    rows = min(options.rows_at_once, cells.total)
    mask, widest = _graph(model, options, rows, cells.each)
    logits = _outputs(options, cells) * model.tokens.n_vocab * _F32  # computed in one buffer, read from another
    return max(mask + widest, logits) + logits


def _pooling(model: GgufFile, options: ContextOptions, cells: Cells) -> int:
    """Returns the same of a context for vectors. An encoder computes no logits, but llama.cpp keeps room for them
    beside its outputs; a decoder computes those of every row that is pooled."""
    rows, outputs = min(options.rows_at_once, cells.total), _outputs(options, cells)
    mask, widest = _graph(model, options, rows, rows if model.is_encoder else cells.each)
    if not model.is_encoder:
        anew = rows * model.shape.n_embd * _F32 if options.flash_attn == "off" else 0  # values are laid out anew
        widest = max(widest + anew, outputs * (model.tokens.n_vocab + 5 * model.shape.n_embd) * _F32)
    inputs = rows * (cells.sequences * _F32 + _INPUTS)  # a matrix of which row counts for which text
    return mask + widest + inputs + outputs * (model.tokens.n_vocab + model.shape.n_embd) * _F32


def _outputs(options: ContextOptions, cells: Cells) -> int:
    rows = min(options.rows_at_once, cells.total)
    return max(min(options.n_outputs(cells.sequences), rows), cells.sequences)


def _graph(model: GgufFile, options: ContextOptions, rows: int, seen: int) -> tuple[int, int]:
    """Returns the bytes of the masks, and of the widest point of the layers, of rows that attend to `seen` cells."""
    flash = options.flash_attn != "off"
    attends = any(layer.keys for layer in model.shape.layers)
    masks = len({layer.windowed for layer in model.shape.layers if layer.keys})
    mask = rows * seen * (_F16 if flash else _F32) * masks if attends else 0
    scores = rows * seen * model.shape.n_head * _F32 if attends and not flash else 0
    widest = max(map(_attending, [model] * len(model.shape.layers), model.shape.layers), default=0)
    return mask, max(rows * widest * _F32 + scores, rows * _F32 * _feeding(model))


def _attending(model: GgufFile, layer: Layer) -> int:
    """Returns the numbers that one row needs at the widest point of attention, without scores, or of a recurrent
    layer."""
    taken = 4 * model.shape.n_embd + layer.queries + layer.keys + layer.values if layer.keys else 0
    if model.is_encoder:  # rotated queries and keys are copies
        taken += model.shape.n_embd if model.shape.rope.rotates else -model.shape.n_embd
    return max(taken, 6 * layer.inner + 2 * model.shape.n_embd if layer.inner else 0)


def _feeding(model: GgufFile) -> int:
    """Returns the numbers that one row needs at the widest point of the feed-forward layers."""
    dense = 3 * model.shape.n_ff + 4 * model.shape.n_embd
    if model.is_encoder and not model.shape.is_gated:
        dense = model.shape.n_ff + 3 * model.shape.n_embd
    experts = model.shape.n_experts_used * (2 * model.shape.n_embd + model.shape.n_ff_expert)
    return experts if model.shape.n_experts_used and not model.shape.has_dense else max(dense, experts)
