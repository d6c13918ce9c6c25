"""Which attention the CPU computes, and how many rows of a prompt at once, where the caller leaves that open.

Knows: what flash attention costs on a CPU, and how much memory attention without it takes. Does not know: devices,
ctypes.

llama.cpp's flash attention goes through prompts in tiles on the CPU, but through a few rows one key at a time
(ggml-cpu/ops.cpp): a token behind 2,000 others took about twice as long with it as without, behind 8,000 four times,
while prompts took up to two fifths longer without (docs/BENCHMARKS.md). On another CPU a few rows took as long with it
as without behind some hundred tokens, and longer behind some thousand. It skips cells that a row must not see, though,
which counts where many sequences share a buffer; and it alone reads quantised values. Without it the scores of all
cells are kept for every row of a micro-batch. Micro-batches of 256 rows need half the buffers of llama.cpp's 512, and
prompts were read as fast in them (0.97 to 1.09 times with flash attention, 1.05 to 1.13 without).
"""

from dataclasses import replace

from engine.errors import RequestError
from engine.runtime.footprint import estimate, scores
from engine.runtime.gguf_file import GgufFile
from engine.runtime.options import CACHE_TYPES, ContextOptions

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


def _may_do_without(model: GgufFile, options: ContextOptions) -> bool:
    """Whether flash attention is left open, and may well be the slower way."""
    shared = options.is_unified and options.n_sequences > 1
    possible = options.flash_attn != "on" and options.type_v in _PLAIN and _heads_are_blocks(model, options)
    return possible and not (shared and takes_tiles(options))


def _heads_are_blocks(model: GgufFile, options: ContextOptions) -> bool:
    """Whether one head's keys can be looked at alone."""
    return CACHE_TYPES[options.type_k][1] >= 2 or all(layer.head % _BLOCK == 0 for layer in model.layers)
